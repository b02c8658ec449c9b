package api

import (
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// decodeProblem tells what is wrong with a body: syntaxCode where it is not
// JSON at all, invalid_argument where it is JSON but not what was asked for.
func decodeProblem(err error, syntaxCode string) error {
	if err == nil {
		return nil
	}
	var sem *json.SemanticError
	var syn *jsontext.SyntacticError
	switch {
	case errors.As(err, &sem):
		full, field, index := locate(sem.JSONPointer)
		if full == "" {
			full = "the body"
		}
		detail := full + " " + expected(sem)
		if errors.Is(sem.Err, json.ErrUnknownName) {
			detail = "unknown field " + echo(full)
		}
		return &event.Problem{Code: event.CodeInvalidArgument, Field: field, Index: index, Detail: detail}
	case errors.As(err, &syn):
		_, field, index := locate(syn.JSONPointer)
		detail := "at byte " + strconv.FormatInt(syn.ByteOffset, 10) + ": " + clip(syn.Err.Error(), 80)
		return &event.Problem{Code: syntaxCode, Field: field, Index: index, Detail: detail}
	}
	return &event.Problem{Code: syntaxCode, Index: -1, Detail: clip(err.Error(), 120)}
}

// expected tells what should have been there.
func expected(e *json.SemanticError) string {
	want := "a value of another type"
	if e.Err != nil && e.GoType == reflect.TypeFor[wire.Time]() {
		return e.Err.Error()
	}
	if e.GoType == reflect.TypeFor[wire.Bytes]() {
		if e.JSONKind == '"' {
			return e.Err.Error()
		}
		return "must be a string, not " + kindName(e.JSONKind)
	}
	if t := e.GoType; t != nil {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Int64, reflect.Int, reflect.Uint64:
			want = "a whole number"
		case reflect.Float64:
			want = "a number"
		case reflect.String:
			want = "a string"
		case reflect.Bool:
			want = "true or false"
		case reflect.Slice:
			want = "a list"
		case reflect.Struct, reflect.Map:
			want = "an object"
		}
		if t.Kind() == reflect.Int64 && t == reflect.TypeFor[wire.Time]() {
			want = "an RFC 3339 time"
		}
	}
	if e.JSONKind == '0' && len(e.JSONValue) > 0 {
		return "must be " + want + " in range, not " + clip(string(e.JSONValue), 40)
	}
	if e.JSONKind != 0 {
		return "must be " + want + ", not " + kindName(e.JSONKind)
	}
	return "must be " + want
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{', '}':
		return "an object"
	case '[', ']':
		return "a list"
	}
	return "that"
}

// locate makes a JSON pointer a path for people (messages[3].priority), and
// takes the position in the batch out of it (field priority, index 3). For a
// list of values the list is the field (lease_ids, index 3); in a transaction
// the list is part of it (retry.delay_ms, index 3).
func locate(p jsontext.Pointer) (full, field string, index int) {
	index = -1
	var names []string
	for tok := range p.Tokens() {
		if n, err := strconv.Atoi(tok); err == nil && n >= 0 && len(names) > 0 && tok[0] != '+' {
			full += "[" + tok + "]"
			if last := names[len(names)-1]; batches[last] {
				index = n
				continue
			}
			names[len(names)-1] += "[" + tok + "]"
			continue
		}
		tok = clip(tok, 60)
		if full != "" {
			full += "."
		}
		full += tok
		names = append(names, tok)
	}
	if len(names) > 1 && (names[0] == "messages" || names[0] == "items") {
		names = names[1:]
	}
	return clip(full, 120), clip(strings.Join(names, "."), 120), index
}

// batches are the lists whose positions are told as index.
var batches = map[string]bool{
	"messages": true, "items": true, "lease_ids": true, "ack": true, "retry": true, "dead_letter": true,
	"extend": true, "queues": true, "kinds": true,
}

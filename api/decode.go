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

// decodeProblem describes a decoding error: syntaxCode for malformed text,
// invalid_argument for JSON of another shape.
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

// expected describes the value that should have been there.
func expected(e *json.SemanticError) string {
	t := e.GoType
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	want := "a value of another type"
	if t != nil {
		if w, ok := wants[t.Kind()]; ok {
			want = w
		}
	}
	switch {
	case t == reflect.TypeFor[wire.Time]() && e.Err != nil:
		return e.Err.Error()
	case t == reflect.TypeFor[wire.Bytes]() && e.JSONKind == '"':
		return e.Err.Error()
	case t == reflect.TypeFor[wire.Bytes]():
		want = "a string"
	}
	if e.JSONKind == '0' && len(e.JSONValue) > 0 {
		return "must be " + want + " in range, not " + clip(string(e.JSONValue), 40)
	}
	if kind, ok := kindNames[e.JSONKind]; ok {
		return "must be " + want + ", not " + kind
	}
	return "must be " + want
}

var wants = map[reflect.Kind]string{
	reflect.Int64: "a whole number", reflect.Int: "a whole number", reflect.Uint64: "a whole number",
	reflect.Float64: "a number", reflect.String: "a string", reflect.Bool: "true or false",
	reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object",
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number",
	'{': "an object", '}': "an object", '[': "a list", ']': "a list",
}

// locate returns a JSON pointer as a path (messages[3].priority), and the field and
// index of a problem (priority, 3). For a list of values the list is the field
// (lease_ids, 3); in a transaction it is part of it (retry.delay_ms, 3).
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

// batches are the lists whose positions are a problem's index.
var batches = map[string]bool{
	"messages": true, "items": true, "lease_ids": true, "ack": true, "retry": true, "dead_letter": true,
	"extend": true, "queues": true, "kinds": true,
}

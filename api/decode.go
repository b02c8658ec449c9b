package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// decodeProblem describes a decoding error: syntaxCode for malformed text, invalid_argument for
// JSON of another shape.
func decodeProblem(err error, syntaxCode string) error {
	if err == nil {
		return nil
	}
	p := &event.Problem{Code: syntaxCode, Index: -1, Detail: clip(err.Error(), 120)}
	if sem, ok := errors.AsType[*json.SemanticError](err); ok {
		full, field, index := locate(sem.JSONPointer)
		p.Code, p.Field, p.Index = event.CodeInvalidArgument, field, index
		p.Detail = cmp.Or(full, "the body") + " " + expected(sem)
		if errors.Is(sem.Err, json.ErrUnknownName) {
			p.Detail = "unknown field " + echo(full)
		}
	} else if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		_, p.Field, p.Index = locate(syn.JSONPointer)
		p.Detail = fmt.Sprintf("at byte %d: %s", syn.ByteOffset, clip(syn.Err.Error(), 80))
	}
	return p
}

// expected describes the value that should have been there.
func expected(e *json.SemanticError) string {
	t := e.GoType
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	isTime, isBytes := t == reflect.TypeFor[wire.Time](), t == reflect.TypeFor[wire.Bytes]()
	if e.Err != nil && (isTime || isBytes && e.JSONKind == '"') {
		return e.Err.Error()
	}
	want := "must be a value of another type"
	switch {
	case isBytes:
		want = "must be a string"
	case t != nil && wants[t.Kind()] != "":
		want = "must be " + wants[t.Kind()]
	}
	if e.JSONKind == '0' && len(e.JSONValue) > 0 {
		return want + " in range, not " + clip(string(e.JSONValue), 40)
	}
	if kind, ok := kindNames[e.JSONKind]; ok {
		return want + ", not " + kind
	}
	return want
}

var wants = map[reflect.Kind]string{
	reflect.Int64: "a whole number", reflect.Int: "a whole number",
	reflect.Uint64: "a whole number", reflect.Float64: "a number",
	reflect.String: "a string", reflect.Bool: "true or false",
	reflect.Slice: "a list", reflect.Struct: "an object", reflect.Map: "an object",
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number",
	'{': "an object", '}': "an object", '[': "a list", ']': "a list",
}

// locate returns a JSON pointer as a path (messages[3].priority), and the field and index of a
// problem (priority, 3). For a list of values the list is the field (lease_ids, 3); in a
// transaction it is part of it (retry.delay_ms, 3).
func locate(p jsontext.Pointer) (full, field string, index int) {
	index = -1
	var names []string
	for tok := range p.Tokens() {
		last := len(names) - 1
		if n, err := strconv.Atoi(tok); err == nil && n >= 0 && last >= 0 && tok[0] != '+' {
			full += "[" + tok + "]"
			if batches[names[last]] {
				index = n
			} else {
				names[last] += "[" + tok + "]"
			}
			continue
		}
		tok = clip(tok, 60)
		full += "." + tok
		names = append(names, tok)
	}
	if len(names) > 1 && (names[0] == "messages" || names[0] == "items") {
		names = names[1:]
	}
	return clip(strings.TrimPrefix(full, "."), 120), clip(strings.Join(names, "."), 120), index
}

// batches are the lists whose positions are a problem's index.
var batches = map[string]bool{
	"messages": true, "items": true, "lease_ids": true, "ack": true, "retry": true,
	"dead_letter": true, "extend": true, "queues": true, "kinds": true,
}

func isMsgpack(media string) bool {
	return media == typeMsgpack || media == "application/x-msgpack" ||
		media == "application/vnd.msgpack"
}

// packs reports whether a route's bodies and answers may be MessagePack: those of produce, lease
// and settle calls.
func packs(method, route string) bool {
	last := path.Base(route)
	_, settles := settleKinds[last]
	return method == http.MethodPost && strings.HasPrefix(route, "/v1/") &&
		(settles || last == "messages" || last == "lease" || last == "transactions")
}

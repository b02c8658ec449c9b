package api

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// The codes that only the HTTP API uses; the others are in package event.
const (
	codeInvalidJSON      = "invalid_json"
	codeInvalidMsgpack   = "invalid_msgpack"
	codeSchemaMismatch   = "schema_mismatch"
	codeUnauthenticated  = "unauthenticated"
	codeForbidden        = "forbidden"
	codeNotFound         = "not_found"
	codeMethodNotAllowed = "method_not_allowed"
	codeUnsupportedMedia = "unsupported_media_type"
	codeRequestTimeout   = "request_timeout"
	codeInternal         = "internal"
	codeIPNotAllowed     = "ip_not_allowed"
	codeCrossOrigin      = "cross_origin"
	codeMisdirected      = "misdirected_request"
	codeInvalidSignature = "invalid_signature"
	codeStaleTimestamp   = "stale_timestamp"
	codeSecretMissing    = "secret_missing"
	codeTargetFailed     = "target_failed"
	codeTargetTimeout    = "target_timeout"
	codeLoopDetected     = "loop_detected"
	codeNodeDamaged      = "node_damaged"
	codeNodeUnreachable  = "node_unreachable"
)

// status describes a code in HTTP.
type status struct {
	Status int
	Title  string
	Advice string // cause and remedy, for /problems/{code}
}

//go:embed problems.yaml
var problemsYAML []byte

// statuses returns the statuses by code.
var statuses = sync.OnceValue(func() (m map[string]status) {
	if err := yaml.Unmarshal(problemsYAML, &m); err != nil {
		panic(fmt.Sprintf("api: problems.yaml: %v", err)) // embedded, and tested
	}
	return m
})

// bad returns a 400 invalid_argument about a field.
func bad(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeInvalidArgument, field, format, args...)
}

// problem returns the problem to answer an error with, nil if the client has disconnected.
func (s *Server) problem(q *request, err error) *event.Problem {
	var p *event.Problem
	switch {
	case errors.As(err, &p):
		if _, ok := statuses()[p.Code]; ok {
			return p
		}
	case q.Context().Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return unknownOutcome(event.CodeNoLeader, "the cluster did not answer in time")
	case gone(err):
		return event.Problemf(event.CodeHistoryExpired, "", "%s", clip(err.Error(), 300))
	case log.IsRange(err):
		return bad("", "%s", clip(err.Error(), 300))
	case log.IsDamage(err): // the log has reported it, once
		p = nodeDamaged()
		p.Unknown = q.write
		return p
	}
	s.log.Error("request failed", "request_id", q.id, "route", q.route, "error", err)
	p = event.Problemf(codeInternal, "",
		"the server failed; its log has the cause under this request's id")
	p.Unknown = q.write
	return p
}

func nodeDamaged() *event.Problem {
	return event.Problemf(codeNodeDamaged, "", "this node's copy of the data is damaged; "+
		"if there are other nodes, it is replaced from one of them: try again, also there")
}

func gone(err error) bool     { return errors.Is(err, log.ErrGone) }
func erased(err error) bool   { return errors.Is(err, log.ErrErased) }
func notFound(err error) bool { return errors.Is(err, log.ErrNotFound) }

const problemHTML = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>%[1]s</title>
<h1>%[2]s</h1>
<p><code>%[1]s</code>, HTTP status %[3]d.</p>
<p>%[4]s</p>
`

// problemPage answers GET /problems/{code}, to which a problem's type refers.
func (q *request) problemPage() error {
	code := path.Base(q.URL.Path)
	st, ok := statuses()[code]
	if !ok {
		return &problemNotFound
	}
	page := fmt.Sprintf(problemHTML,
		code, html.EscapeString(st.Title), st.Status, html.EscapeString(st.Advice))
	q.w.Header().Set("Content-Security-Policy", "default-src 'none'")
	q.send(http.StatusOK, "text/html; charset=utf-8", []byte(page))
	return nil
}

// unread is how long to wait for the rest of a rejected request's body: a client that is still
// sending it would see a closed connection instead of the answer.
const unread = time.Second

// fail answers with a problem, whose code has a status.
func (q *request) fail(p *event.Problem) {
	st := statuses()[p.Code]
	noRoom := p.Code == event.CodeQueueFull || p.Code == event.CodeQueueNotFound
	if noRoom && q.route == "POST "+hookPath {
		st.Status = http.StatusServiceUnavailable // senders of webhooks retry after it
	}
	retryable := st.Status == http.StatusRequestTimeout ||
		st.Status == http.StatusTooManyRequests ||
		st.Status > http.StatusInternalServerError && st.Status != http.StatusLoopDetected
	out := wire.Problem{
		Type: "/problems/" + p.Code, Title: st.Title, Status: st.Status, Detail: p.Detail,
		Code: p.Code, Retryable: retryable || p.Unknown || p.RetryAfterMS > 0, Field: p.Field,
		RetryAfterMS: p.RetryAfterMS, RequestID: q.id, Errors: q.errors,
		Fate: q.fate,
	}
	if p.Index >= 0 {
		out.Index = &p.Index
	}
	switch {
	case q.write && p.Unknown:
		out.Outcome = wire.Unknown
	case q.write:
		out.Outcome = wire.NotApplied
	}
	if p.Code == event.CodeOverloaded {
		out.QueueDepth = &p.QueueDepth
	}
	if st.Status == 429 || st.Status == 503 {
		if out.RetryAfterMS <= 0 {
			out.RetryAfterMS = 1000
		}
		q.w.Header().Set("Retry-After", strconv.FormatInt((out.RetryAfterMS+999)/1000, 10))
	}
	if q.ProtoMajor == 1 && q.ContentLength != 0 && q.raw == nil {
		// net/http would read the rest of the body before it sends the answer.
		q.w.Header().Set("Connection", "close")
		if p.Code != event.CodePayloadTooLarge {
			_ = http.NewResponseController(q.w).SetReadDeadline(time.Now().Add(unread))
		}
	}
	b, err := wire.Marshal(&out)
	if err != nil { // only where a detail is not UTF-8, which clip prevents
		b = []byte(`{"code":"internal","status":500}`)
	}
	q.send(st.Status, "application/problem+json", b)
	if p.Code == event.CodePayloadTooLarge && http.NewResponseController(q.w).Flush() == nil {
		// Some clients read an answer only after they have sent everything, and would report the
		// closed connection instead.
		_, _ = io.CopyN(io.Discard, q.Body, 4*q.s.opts.MaxRequest)
	}
}

// Refuse answers a request that a Guard refuses, and counts it. s is nil before the node can serve.
func (s *Server) Refuse(w http.ResponseWriter, r *http.Request, p *event.Problem) {
	begun := time.Now()
	q := newRequest(s, w, r, "")
	q.fail(p)
	if s != nil {
		s.metrics.answered("", "", q.status, time.Since(begun))
	}
}

// echo quotes a client's text for an error: clipped, and without control characters.
func echo(s string) string { return strconv.Quote(clip(s, 60)) }

// clip cuts s to n bytes at a character boundary and replaces unprintable characters.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s[:min(len(s), 4*n)])
	for i := range s {
		if i > n {
			return s[:i] + "…"
		}
	}
	return s
}

var problemNotFound = *event.Problemf(codeNotFound, "",
	"there is nothing at this path; /docs and /openapi.json list all paths")

// decodeProblem describes a decoding error: with syntaxCode, or invalid_argument for another shape.
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

// expected describes the value that was expected.
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

var msgpackTypes = []string{typeMsgpack, "application/x-msgpack", "application/vnd.msgpack"}

func isMsgpack(media string) bool { return slices.Contains(msgpackTypes, media) }

// packs reports whether a route accepts MessagePack: produce, lease and settle calls do.
func packs(method, route string) bool {
	last := path.Base(route)
	_, settles := settleKinds[last]
	return method == http.MethodPost && strings.HasPrefix(route, "/v1/") &&
		(settles || last == "messages" || last == "lease" || last == "transactions")
}

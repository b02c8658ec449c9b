package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// The codes that only HTTP knows; the others are internal/event's.
const (
	codeInvalidJSON      = "invalid_json"
	codeInvalidMsgpack   = "invalid_msgpack"
	codeSchemaMismatch   = "schema_mismatch"
	codeUnauthenticated  = "unauthenticated"
	codeForbidden        = "forbidden"
	codeNotFound         = "not_found"
	codeNodeNotFound     = "node_not_found"
	codeMethodNotAllowed = "method_not_allowed"
	codeUnsupportedMedia = "unsupported_media_type"
	codePayloadTooLarge  = "payload_too_large"
	codeRequestTimeout   = "request_timeout"
	codeNoLeader         = "no_leader"
	codeShuttingDown     = "shutting_down"
	codeInternal         = "internal"
	codeIPNotAllowed     = "ip_not_allowed"
	codeInvalidSignature = "invalid_signature"
	codeStaleTimestamp   = "stale_timestamp"
	codeSecretMissing    = "secret_missing"
	codeTargetFailed     = "target_failed"
	codeTargetTimeout    = "target_timeout"
)

// status is what a code means in HTTP.
type status struct {
	status    int
	title     string
	retryable bool
}

var statuses = map[string]status{
	codeInvalidJSON:           {400, "The body is not valid JSON", false},
	codeInvalidMsgpack:        {400, "The body is not valid msgpack", false},
	event.CodeInvalidArgument: {400, "An argument is not valid", false},
	codeSchemaMismatch:        {400, "A message does not fit the queue's schema", false},
	codeUnauthenticated:       {401, "Who are you?", false},
	codeInvalidSignature:      {401, "The signature is missing or wrong", false},
	codeStaleTimestamp:        {401, "The signed time is too far from now", false},
	codeForbidden:             {403, "Not allowed", false},
	codeIPNotAllowed:          {403, "Not from this address", false},
	event.CodeQueueNotFound:   {404, "No such queue", false},
	event.CodeMessageNotFound: {404, "No such message", false},
	event.CodeWebhookNotFound: {404, "No such webhook", false},
	codeNodeNotFound:          {404, "No such node", false},
	codeNotFound:              {404, "Not found", false},
	codeMethodNotAllowed:      {405, "Method not allowed", false},
	codeRequestTimeout:        {408, "The body took too long", true},
	event.CodeLeaseLost:       {409, "The lease is no longer the message's current one", false},
	event.CodeQueueInUse:      {409, "The queue is in use", false},
	event.CodeConflict:        {409, "That conflicts with the current state", false},
	event.CodeHistoryExpired:  {410, "That part of the history has been deleted", false},
	codePayloadTooLarge:       {413, "Too large", false},
	codeUnsupportedMedia:      {415, "Unsupported media type", false},
	event.CodeKeyReused:       {422, "The Idempotency-Key was used for another request", false},
	event.CodeQueueFull:       {429, "The queue is full", true},
	"overloaded":              {429, "The server is overloaded", true},
	codeInternal:              {500, "Internal error", false},
	codeTargetFailed:          {502, "The target could not be reached", true},
	codeNoLeader:              {503, "No leader", true},
	codeShuttingDown:          {503, "Shutting down", true},
	codeSecretMissing:         {503, "A secret is missing", true},
	codeTargetTimeout:         {504, "The target did not answer in time", true},
	"insufficient_storage":    {507, "The disk is full", true},
}

// bad returns a 400 invalid_argument about a field.
func bad(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeInvalidArgument, field, format, args...)
}

// problem makes any error an answer. A nil problem means that there is nobody
// to answer: the client has hung up.
func (s *Server) problem(q *request, err error) *event.Problem {
	var p *event.Problem
	switch {
	case errors.As(err, &p):
		if _, ok := statuses[p.Code]; ok {
			return p
		}
	case q.Context().Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &event.Problem{Code: codeNoLeader, Index: -1, Detail: "the cluster did not answer in time", Unknown: true}
	case s.gone(err):
		return &event.Problem{Code: event.CodeHistoryExpired, Index: -1, Detail: clip(err.Error(), 300)}
	case s.isRange(err):
		return bad("", "%s", clip(err.Error(), 300))
	}
	s.log.Error("request failed", "request_id", q.id, "route", q.route, "error", err)
	return &event.Problem{Code: codeInternal, Index: -1, Detail: "the server failed; its log tells more under this request's id", Unknown: q.write}
}

func (s *Server) gone(err error) bool {
	return s.deps.LogErrors.Gone != nil && errors.Is(err, s.deps.LogErrors.Gone)
}

func (s *Server) erased(err error) bool {
	return s.deps.LogErrors.Erased != nil && errors.Is(err, s.deps.LogErrors.Erased)
}

func (s *Server) notFound(err error) bool {
	return s.deps.LogErrors.NotFound != nil && errors.Is(err, s.deps.LogErrors.NotFound)
}

func (s *Server) isRange(err error) bool {
	return s.deps.LogErrors.Range != nil && s.deps.LogErrors.Range(err)
}

// fail answers with a problem.
func (q *request) fail(p *event.Problem) {
	st, ok := statuses[p.Code]
	if !ok {
		st = statuses[codeInternal]
	}
	if hookStatus(q.path, p.Code) {
		st.status, st.retryable = http.StatusServiceUnavailable, true
	}
	out := wire.Problem{
		Type: "https://qlogd.dev/problems/" + p.Code, Title: st.title, Status: st.status, Detail: p.Detail,
		Code: p.Code, Retryable: st.retryable || p.Unknown || p.RetryAfterMS > 0, Field: p.Field, RetryAfterMS: p.RetryAfterMS, RequestID: q.id,
	}
	out.Errors = q.errors
	if p.Index >= 0 {
		out.Index = &p.Index
	}
	if q.write {
		out.Outcome = wire.NotApplied
		if p.Unknown {
			out.Outcome = wire.Unknown
		}
	}
	if p.Code == "overloaded" {
		out.QueueDepth = &p.QueueDepth
	}
	if st.status == 429 || st.status == 503 {
		if out.RetryAfterMS <= 0 {
			out.RetryAfterMS = 1000
		}
		q.w.Header().Set("Retry-After", strconv.FormatInt((out.RetryAfterMS+999)/1000, 10))
	}
	if p.Code == codeRequestTimeout || p.Code == codePayloadTooLarge {
		q.w.Header().Set("Connection", "close") // the rest of the body is not wanted
	}
	b, err := wire.Marshal(&out)
	if err != nil { // only where a detail is not UTF-8, which clip prevents
		b = []byte(`{"code":"internal","status":500}`)
	}
	q.send(st.status, "application/problem+json", b)
}

// echo shortens what a client sent, so that it can be told in a problem: at
// most 64 characters, and nothing that would move a terminal's cursor.
func echo(s string) string { return strconv.Quote(clip(s, 60)) }

// clip cuts s to n bytes at a character, replacing what cannot be printed.
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

// deadline is the time that a write has to commit.
func (s *Server) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.opts.WriteTimeout)
}

var problemNotFound = event.Problem{Code: codeNotFound, Index: -1, Detail: "there is nothing at this path"}

package api

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// The codes that only HTTP knows; the others are event's.
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

// status describes a code in HTTP.
type status struct {
	status int
	title  string
	advice string // on its page: the cause, and the remedy
}

var statuses = map[string]status{
	codeInvalidJSON: {400, "The body is not valid JSON",
		"The body has a syntax error, invalid UTF-8, a duplicate name, data after its end, or " +
			"nests deeper than 64. The detail names the byte. Correct the body."},
	codeInvalidMsgpack: {400, "The body is not valid msgpack",
		"The body is not one well-formed MessagePack value, or nests deeper than 64. Correct the " +
			"body, or send JSON."},
	event.CodeInvalidArgument: {400, "An argument is not valid",
		"A field, parameter or header is unknown, of a wrong type or out of range. The members " +
			"field and index say which. Correct it."},
	codeSchemaMismatch: {400, "A message does not fit the queue's schema",
		"The payload violates the message_schema of the queue. The detail has the failing path. " +
			"Correct the payload, or change the schema."},
	codeUnauthenticated: {401, "Who are you?",
		"The request has no valid token. Send Authorization: Bearer TOKEN with a token from the " +
			"node's auth file."},
	codeInvalidSignature: {401, "The signature is missing or wrong",
		"The signature does not match the body. Use the same secret and scheme as the webhook's " +
			"definition."},
	codeStaleTimestamp: {401, "The signed time is too far from now",
		"The signed time differs from the node's by more than max_age_seconds. Check both " +
			"clocks, and sign each attempt again."},
	codeForbidden: {403, "Not allowed",
		"The token is valid but lacks the role on this queue. Use another token, or extend its " +
			"entry in the auth file."},
	codeIPNotAllowed: {403, "Not from this address",
		"The sender's address is not in allow_ips of the webhook. Behind a proxy, set --trusted- " +
			"proxies."},
	event.CodeQueueNotFound: {404, "No such queue",
		"The queue does not exist. Check its name, or create it with PUT /v1/queues/{queue}."},
	event.CodeMessageNotFound: {404, "No such message",
		"No message, or no dead message, has this id. Check the id; history retention may have " +
			"deleted it."},
	event.CodeWebhookNotFound: {404, "No such webhook",
		"The webhook does not exist. Check its name, or create it with PUT /v1/webhooks/{name}."},
	codeNodeNotFound: {404, "No such node",
		"No node of the cluster has this id. GET /v1/cluster lists them."},
	codeNotFound: {404, "Not found",
		"Nothing is at this path. /docs lists all paths."},
	codeMethodNotAllowed: {405, "Method not allowed",
		"The path exists, but not with this method. The Allow header lists its methods."},
	codeRequestTimeout: {408, "The body took too long",
		"The body did not arrive in time. Send it again, faster or in smaller parts."},
	event.CodeLeaseLost: {409, "The lease is no longer the message's current one",
		"The lease expired, or the message was settled or removed. The message may be delivered " +
			"again: stop working on it. Extend leases earlier, or set a longer lease_ms."},
	event.CodeQueueInUse: {409, "The queue is in use",
		"The queue holds messages, or is another queue's dead-letter queue. Empty it or use " +
			"force=true; change the other queue first."},
	event.CodeConflict: {409, "That conflicts with the current state",
		"The change does not fit the current state. Read it again and decide again."},
	event.CodeHistoryExpired: {410, "That part of the history has been deleted",
		"History retention has deleted the events of that instant. Ask for a later one."},
	codePayloadTooLarge: {413, "Too large",
		"A payload or the whole request exceeds the node's limit. Send less, or raise --max- " +
			"payload-bytes or --max-request-bytes."},
	codeUnsupportedMedia: {415, "Unsupported media type",
		"The Content-Type or Content-Encoding is not supported here. Send application/json, with " +
			"curl: --json."},
	event.CodeKeyReused: {422, "The Idempotency-Key was used for another request",
		"A request with another body used this Idempotency-Key in the last 24 hours. Use a new " +
			"key for each new request."},
	event.CodeQueueFull: {429, "The queue is full",
		"The queue has reached max_depth or max_bytes. Try again after retry_after_ms; add " +
			"workers, or raise the limit."},
	"overloaded": {429, "The server is overloaded",
		"The node has more writes than it can commit. Try again after retry_after_ms."},
	codeInternal: {500, "Internal error",
		"The node failed to handle the request. Its log has the cause under the request_id."},
	codeTargetFailed: {502, "The target could not be reached",
		"The webhook's target could not be reached or gave no usable answer. The node's log has " +
			"the cause under the request_id."},
	codeNoLeader: {503, "No leader",
		"The cluster has no leader, or did not answer in time. Try again, also at another node; " +
			"with the outcome unknown, repeat the same Idempotency-Key."},
	codeShuttingDown: {503, "Shutting down",
		"The node is shutting down. Try another node."},
	codeSecretMissing: {503, "A secret is missing",
		"The node lacks a secret that the webhook's definition names. Its /readyz lists the " +
			"missing secrets."},
	codeTargetTimeout: {504, "The target did not answer in time",
		"The webhook's target may have received the request. Try again if it can handle a repeat."},
	"insufficient_storage": {507, "The disk is full",
		"The node's disk is nearly full, so it refuses writes. Free disk space, or let history " +
			"retention delete more."},
}

// bad returns a 400 invalid_argument about a field.
func bad(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeInvalidArgument, field, format, args...)
}

// problem returns the problem to answer an error with, nil if the client has hung up.
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
		return perhaps(codeNoLeader, "the cluster did not answer in time")
	case gone(err):
		return event.Problemf(event.CodeHistoryExpired, "", "%s", clip(err.Error(), 300))
	case log.IsRange(err):
		return bad("", "%s", clip(err.Error(), 300))
	}
	s.log.Error("request failed", "request_id", q.id, "route", q.route, "error", err)
	p = event.Problemf(codeInternal, "",
		"the server failed; its log has the cause under this request's id")
	p.Unknown = q.write
	return p
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
	st, ok := statuses[code]
	if !ok {
		return &problemNotFound
	}
	page := fmt.Sprintf(problemHTML,
		code, html.EscapeString(st.title), st.status, html.EscapeString(st.advice))
	q.w.Header().Set("Content-Security-Policy", "default-src 'none'")
	q.send(http.StatusOK, "text/html; charset=utf-8", []byte(page))
	return nil
}

// fail answers with a problem.
func (q *request) fail(p *event.Problem) {
	st, ok := statuses[p.Code]
	if !ok {
		st = statuses[codeInternal]
	}
	if q.path == hookPath && (p.Code == event.CodeQueueFull || p.Code == event.CodeQueueNotFound) {
		st.status = http.StatusServiceUnavailable // after which senders of webhooks try again
	}
	retryable := st.status == http.StatusRequestTimeout ||
		st.status == http.StatusTooManyRequests || st.status > http.StatusInternalServerError
	out := wire.Problem{
		Type: "/problems/" + p.Code, Title: st.title, Status: st.status, Detail: p.Detail,
		Code: p.Code, Retryable: retryable || p.Unknown || p.RetryAfterMS > 0, Field: p.Field,
		RetryAfterMS: p.RetryAfterMS, RequestID: q.id, Errors: q.errors,
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

// echo quotes a client's text for a problem: at most 64 characters, and nothing that would move a
// terminal's cursor.
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

var problemNotFound = *event.Problemf(codeNotFound, "", "there is nothing at this path")

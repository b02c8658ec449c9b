package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// maxAnswer bounds what is read of one answer: 1000 payloads of 1 MiB in
// base64, and something for the rest.
const maxAnswer = 2 << 30

// CallOption changes one call.
type CallOption func(*call)

// WithIdempotencyKey names a write, so that a program that died in the middle
// can repeat it. Without it the client makes one up for each call.
func WithIdempotencyKey(key string) CallOption { return func(c *call) { c.key = key } }

// At asks for the state at an instant in the past: an RFC 3339 time, an
// event's id, index:N, a duration before now such as 15m, or start.
func At(instant string) CallOption { return func(c *call) { c.query.Set("at", instant) } }

// Stale lets a read be answered from the node's own state, without asking the
// cluster whether it is the newest.
func Stale() CallOption { return func(c *call) { c.query.Set("consistency", "stale") } }

// call is one request and how it may be repeated.
type call struct {
	method, path string
	query        url.Values
	body         any
	key          string
	lease        bool          // must not carry a key; repeated only where surely not applied
	settle       bool          // needs no key: a repeated settle is answered as the first
	patience     time.Duration // how long the server may take by the call's own will
	done         code          // what a repeat answers where an earlier try was carried out; "" nothing
}

func (c *Client) do(ctx context.Context, method, path string, body, answer any, opts ...CallOption) error {
	_, err := c.send(ctx, &call{method: method, path: path, body: body, query: url.Values{}}, answer, opts)
	return err
}

// send executes a call, repeating it as c.retry allows, and returns the status.
func (c *Client) send(ctx context.Context, q *call, answer any, opts []CallOption) (int, error) {
	for _, o := range opts {
		o(q)
	}
	write := q.method != http.MethodGet && !q.lease
	if write && q.key == "" && !q.settle {
		q.key = newKey()
	}
	var body []byte
	if q.body != nil {
		var err error
		if body, err = wire.Marshal(q.body); err != nil {
			return 0, fmt.Errorf("%s %s: %w", q.method, q.path, err)
		}
	}
	// Once an attempt may have been committed, a later one that surely was not
	// says nothing about it: the call's outcome stays unknown.
	unknown := false
	asked := 0 // endpoints of this attempt
	for attempt := 1; ; {
		at := c.at.Load()
		status, wait, err := c.once(ctx, at, q, body, answer)
		if err == nil {
			return status, nil
		}
		var e *Error
		answered := errors.As(err, &e)
		if answered && unknown && q.done != "" && errors.Is(e, q.done) {
			return status, nil
		}
		// A definite answer to a repeat under the same key is one about the
		// first as well, unless it only says "not now".
		again := answered && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && e.Problem.Retryable
		if !answered {
			again = !q.lease || notSent(err)
		} else if q.lease && e.Problem.Outcome == wire.Unknown {
			again = false
		}
		if write && (!answered && !notSent(err) || answered && e.Problem.Outcome == wire.Unknown) {
			unknown = true
		}
		if ctx.Err() == nil && (!answered || status == http.StatusServiceUnavailable) {
			// This node does not do, also for calls that are not repeated.
			c.leave(at)
			if asked++; again && asked < len(c.endpoints) {
				continue
			}
		}
		if !again || attempt >= c.retry.Attempts || ctx.Err() != nil {
			if unknown && (!answered || again) {
				err = &unknownError{err}
			}
			return status, err
		}
		if wait == 0 {
			wait = c.backoff(attempt)
		} else {
			// Clients that were turned away together must not come back together.
			wait += time.Duration(mathrand.Int64N(int64(wait)/4 + 1))
		}
		attempt, asked = attempt+1, 0
		select {
		case <-ctx.Done():
			if unknown {
				err = &unknownError{err}
			}
			return status, err
		case <-c.sleep(wait):
		}
	}
}

// unknownError adds to an error that the write may have been committed.
type unknownError struct{ err error }

func (e *unknownError) Error() string        { return "outcome unknown: " + e.err.Error() }
func (e *unknownError) Unwrap() error        { return e.err }
func (e *unknownError) Is(target error) bool { return target == ErrOutcomeUnknown }

// backoff is exponential with full jitter.
func (c *Client) backoff(attempt int) time.Duration {
	d := max(c.retry.Min, time.Millisecond) << min(attempt-1, 20)
	if d > c.retry.Max && c.retry.Max > 0 {
		d = c.retry.Max
	}
	return d/2 + time.Duration(mathrand.Int64N(int64(d)/2+1))
}

// notSent reports whether a request surely never reached the server.
func notSent(err error) bool {
	var u *unsentError
	return errors.As(err, &u)
}

// unsentError is the failure of a request that never had a connection: nobody
// was there, or not who was to be there (TLS). One that had, and whose error is
// the dialling's, is not it: net/http sends a request with an Idempotency-Key
// again by itself where the connection breaks, and then tells only that the
// second one found nobody.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// once sends the request one time, to one endpoint. wait is what the server
// asked for.
func (c *Client) once(ctx context.Context, at uint32, q *call, body []byte, answer any) (status int, wait time.Duration, err error) {
	to := c.endpoints[at]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := func(time.Duration) {}
	if c.try > 0 && !q.query.Has("at") { // to rebuild a past can take long
		t := time.AfterFunc(c.try+q.patience, func() { cancel(fmt.Errorf("%s does not answer", to.Host)) })
		defer t.Stop()
		alive = func(d time.Duration) { t.Reset(d) }
	}
	req, err := c.request(ctx, to, q, body)
	if err != nil {
		return 0, 0, err
	}
	var begun atomic.Bool
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { begun.Store(true) },
	}))
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		if !begun.Load() {
			err = &unsentError{err}
		}
		return 0, 0, err
	}
	defer resp.Body.Close()
	if resp.Close {
		c.leave(at) // it lets its connections go: it is about to end
	}
	b, err := io.ReadAll(io.LimitReader(patientReader{resp.Body, func() { alive(c.try) }}, maxAnswer))
	if err != nil {
		return resp.StatusCode, 0, fmt.Errorf("%s %s: read the answer: %w", q.method, q.path, err)
	}
	if resp.StatusCode >= 300 {
		e := problem(resp, b)
		return resp.StatusCode, retryAfter(resp, &e.Problem), e
	}
	if answer != nil && len(b) > 0 {
		if err := wire.Unmarshal(b, answer); err != nil {
			return resp.StatusCode, 0, &Error{Problem: wire.Problem{Status: resp.StatusCode, Code: "bad_answer",
				Detail: "the server's answer is not understood: " + err.Error()}}
		}
	}
	return resp.StatusCode, 0, nil
}

// patientReader tells that there is still something coming.
type patientReader struct {
	io.Reader
	alive func()
}

func (r patientReader) Read(b []byte) (int, error) {
	r.alive()
	return r.Reader.Read(b)
}

func (c *Client) request(ctx context.Context, to *url.URL, q *call, body []byte) (*http.Request, error) {
	u := *to
	u.RawPath = u.EscapedPath() + q.path
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawQuery = path, q.query.Encode()
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.agent)
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if q.key != "" && !q.lease {
		req.Header.Set("Idempotency-Key", q.key)
	}
	return req, nil
}

// problem reads an error answer; what is not problem+json (a proxy's page)
// becomes one.
func problem(resp *http.Response, b []byte) *Error {
	e := &Error{RequestID: resp.Header.Get("X-Request-Id")}
	if wire.Unmarshal(b, &e.Problem) != nil || e.Problem.Code == "" {
		e.Problem = wire.Problem{
			Title: http.StatusText(resp.StatusCode), Code: "http_" + strconv.Itoa(resp.StatusCode),
			Detail:    fmt.Sprintf("the server answered %s", resp.Status),
			Retryable: resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable,
			Outcome:   wire.Unknown,
		}
	}
	e.Problem.Status = resp.StatusCode
	return e
}

func retryAfter(resp *http.Response, p *wire.Problem) time.Duration {
	if p.RetryAfterMS > 0 {
		return time.Duration(p.RetryAfterMS) * time.Millisecond
	}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		return time.Duration(s) * time.Second
	}
	return 0
}

func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// queuePath is /v1/queues/{queue} and what follows.
func queuePath(queue, rest string) string { return "/v1/queues/" + url.PathEscape(queue) + rest }

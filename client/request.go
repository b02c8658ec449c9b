package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// maxAnswer bounds what is read of one answer: 1000 payloads of 1 MiB in
// base64, and something for the rest.
const maxAnswer = 2 << 30

// retryAfterMost is how long a server's Retry-After is waited for at most.
const retryAfterMost = 30 * time.Second

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
	spread       bool          // begins at any endpoint, in turn
	several      bool          // a shared request: where the queue is full a part may fit
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
	body, err := newPayload(q)
	if err != nil {
		return 0, err
	}
	at := c.at.Load()
	spread := q.spread || c.spread
	if spread {
		at = c.turn()
	}
	// Once an attempt may have been committed, a later one that surely was not
	// says nothing about it: the call's outcome stays unknown.
	unknown := false
	asked := 0 // endpoints of this attempt
	for attempt := 1; ; {
		if spread {
			c.endpoints[at].busy.Add(1)
		}
		status, wait, err := c.once(ctx, at, q, body, answer)
		if spread {
			c.endpoints[at].busy.Add(-1)
		}
		if err == nil {
			return status, nil
		}
		var e *Error
		answered := errors.As(err, &e)
		if answered && unknown && q.done != "" && errors.Is(e, q.done) {
			return status, nil
		}
		// A definite answer to a repeat under the same key is one about the
		// first as well, unless it only says "not now", or is ofItself.
		again := answered && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && e.Problem.Retryable
		leave := !answered || status == http.StatusServiceUnavailable // this node does not do
		switch {
		case !answered:
			again = !q.lease || notSent(err)
		case e.Problem.Outcome == wire.Unknown && status >= http.StatusInternalServerError:
			again, leave = write, leave || write
		case q.several && !unknown && errors.Is(e, ErrQueueFull):
			again = false
		}
		if write && (!answered && !notSent(err) || answered && e.Problem.Outcome == wire.Unknown) {
			unknown = true
		}
		if leave && ctx.Err() == nil {
			if c.leave(at); spread {
				at = c.after(at)
			} else {
				at = c.at.Load()
			}
			if asked++; again && asked < len(c.endpoints) {
				continue
			}
		}
		if !again || attempt >= c.retry.Attempts || ctx.Err() != nil {
			// What is refused now is taken apart and sent under other keys only
			// where it surely was not committed before.
			if unknown && (!answered || again || q.several || ofItself[status]) {
				err = &unknownError{err}
			}
			return status, err
		}
		if wait == 0 {
			wait = c.backoff(attempt)
		} else {
			// Clients that were turned away together must not come back together.
			wait = min(wait, retryAfterMost)
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

// ofItself are the refusals that a repeat may get whatever becomes of the first:
// they come before its Idempotency-Key is looked at, or while the first is still
// under way.
var ofItself = map[int]bool{
	http.StatusUnauthorized: true, http.StatusForbidden: true, http.StatusRequestTimeout: true, http.StatusInsufficientStorage: true,
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

func newKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// queuePath is /v1/queues/{queue} and what follows.
func queuePath(queue, rest string) string { return "/v1/queues/" + url.PathEscape(queue) + rest }

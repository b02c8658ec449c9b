package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"

	"github.com/qlogd/qlogd/event"
)

// How often a write is checked against a policy anew because the policy
// changed under it.
const maxStale = 8

// propose gets a command decided and returns its result, also where that is
// the first answer to a request that is repeated (q.replayed is true then). A
// refusal is an *event.Problem.
func (q *request) propose(c *event.Command) (event.Result, error) {
	c.Actor = q.actor()
	if c.Request == nil && c.Lease == nil {
		r, err := q.idempotency()
		if err != nil {
			return event.Result{}, err
		}
		c.Request = r
	}
	ctx, cancel := q.s.deadline(q.Context())
	defer cancel()
	var res event.Result
	for try := 0; ; try++ {
		kept, done, err := q.repeated(c.Request)
		if done || err != nil {
			return kept, err
		}
		res, err = q.s.propose(ctx, c, first(q.Header["Idempotency-Key"]))
		if isStale(err) && q.s.lookedShort(c.Request) && try < maxStale {
			q.unhurried()
			continue // more was forgotten meanwhile: look again
		}
		if err != nil {
			return res, err
		}
		break
	}
	if !res.Kept.IsZero() {
		return q.kept(res.Kept)
	}
	q.w.Header().Set("X-Qlogd-Index", strconv.FormatUint(res.Index, 10))
	q.nameLeader()
	return res, nil
}

// nameLeader tells a client which node took its write in the end, where that is
// another one: it may go there next time, or not.
func (q *request) nameLeader() {
	if addr := q.s.deps.Node.LeaderHTTP(); addr != "" {
		q.w.Header().Set("X-Qlogd-Leader", addr)
	}
}

// propose gets a command decided. Those who wait here for what it enqueues have
// their leases decided right behind it.
func (s *Server) propose(ctx context.Context, c *event.Command, key string) (event.Result, error) {
	return s.track(ctx, c, key, func(ctx context.Context) (event.Result, error) {
		along := s.takeLeases(c)
		if len(along.waiters) == 0 {
			return s.deps.Node.Propose(ctx, c)
		}
		answers := s.deps.Node.Begin(c, along.leases)
		along.wake(answers[1:])
		return answers[0](ctx)
	})
}

// track is what every write goes through: it is timed, and told under
// /v1/operations.
func (s *Server) track(ctx context.Context, c *event.Command, key string, do pendingWrite) (event.Result, error) {
	op := s.ops.begin(key, c)
	res, err := do(ctx)
	switch {
	case err != nil:
		var p *event.Problem
		if !errors.As(err, &p) && errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			err = &event.Problem{Code: codeNoLeader, Index: -1, Unknown: true, Detail: "the write was not committed in time; it may still be"}
		}
	case res.Problem != nil:
		err = res.Problem
	}
	s.metrics.committed(s.ops.end(op, res.Index, err), c.Class())
	return res, err
}

// kept reads the first answer to a repeated request.
func (q *request) kept(ref event.Ref) (event.Result, error) {
	c, err := q.s.deps.Log.Content(ref)
	if err != nil && q.s.gone(err) {
		// It was done, so it must not be called not applied.
		return event.Result{}, &event.Problem{Code: event.CodeHistoryExpired, Index: -1, Unknown: true,
			Detail: fmt.Sprintf("this request was carried out before, in entry %d; its answer has been deleted with the history", ref.Index)}
	}
	if err != nil {
		return event.Result{}, fmt.Errorf("kept answer: %w", err)
	}
	res, err := event.DecodeResult(c.Answer)
	if err != nil {
		return event.Result{}, fmt.Errorf("kept answer: %w", err)
	}
	q.replayed = true
	q.w.Header().Set("Idempotent-Replayed", "true")
	q.w.Header().Set("X-Qlogd-Index", strconv.FormatUint(res.Index, 10))
	return *res, nil
}

// actor is who asks, "" where there is no auth file.
func (q *request) actor() string {
	if q.who == nil {
		return ""
	}
	return q.who.name
}

// idempotency returns the request's identity, nil without an Idempotency-Key.
func (q *request) idempotency() (*event.Request, error) { return q.identity(q.bodyHash) }

// identity is idempotency with another hash of query and body.
func (q *request) identity(hash func(body []byte) event.Hash) (*event.Request, error) {
	v, ok := q.Header["Idempotency-Key"]
	if !ok {
		return nil, nil
	}
	if len(v) != 1 || !visible(v[0], 255) {
		return nil, bad("Idempotency-Key", "Idempotency-Key must be one header of 1 to 255 visible ASCII characters")
	}
	// The body is read here where the route itself has no use for one.
	body, err := q.bytes(q.s.opts.MaxRequest)
	if err != nil {
		return nil, err
	}
	return &event.Request{
		Key:  requestKey(q.actor(), q.Method, q.URL.EscapedPath(), v[0]),
		Body: hash(body),
	}, nil
}

// requestKey is principal, method, path and Idempotency-Key as a hash. Its
// first half is of principal and key alone, so that /v1/operations finds a
// write by them.
func requestKey(principal, method, path, key string) (h event.Hash) {
	p := keyPrefix(principal, key)
	rest := hash(method, "\x00", path)
	copy(h[:8], p[:])
	copy(h[8:], rest[:8])
	return h
}

func keyPrefix(principal, key string) [8]byte {
	h := hash(principal, "\x00", key)
	return [8]byte(h[:8])
}

func (q *request) bodyHash(body []byte) event.Hash { return bodyHash(q.URL.RawQuery, body) }

// bodyHash is hash(query, "\x00", body) without a copy of the body.
func bodyHash(query string, body []byte) event.Hash {
	h := sha256.New()
	h.Write([]byte(query))
	h.Write([]byte{0})
	h.Write(body)
	return event.Hash(h.Sum(nil)[:16])
}

// hashBytes is hash(b) without a copy of b.
func hashBytes(b []byte) event.Hash {
	h := sha256.Sum256(b)
	return event.Hash(h[:16])
}

// hash returns the first half of the SHA-256 of the parts.
func hash(parts ...string) event.Hash {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return event.Hash(h.Sum(nil)[:16])
}

package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"

	"github.com/qlogd/qlogd/event"
)

// maxStale bounds the attempts of a write that is refused because a policy changed
// after it was checked.
const maxStale = 8

// propose decides a command and returns its result, or that of the first request if this
// one repeats it (q.replayed is true then). A refusal is an *event.Problem.
func (q *request) propose(c *event.Command) (res event.Result, err error) {
	c.Actor = q.actor()
	if c.Request, err = q.idempotency(); err != nil {
		return res, err
	}
	ctx, cancel := q.s.deadline(q.Context())
	defer cancel()
	for try := 0; ; try++ {
		if c.Request != nil {
			ref, err := q.s.lookForAnswer(c.Request)
			if err != nil {
				return res, err
			}
			if !ref.IsZero() {
				return q.kept(ref)
			}
		}
		res, err = q.s.propose(ctx, c, first(q.Header["Idempotency-Key"]))
		if isStale(err) && q.s.lookedShort(c.Request) && try < maxStale {
			q.unhurried()
			continue // the state forgot more answers meanwhile: look again
		}
		if err != nil {
			return res, err
		}
		if !res.Kept.IsZero() {
			return q.kept(res.Kept)
		}
		q.committed(&res)
		return res, nil
	}
}

// committed sets the headers of a committed write: its index and, where that is another
// node, the leader that the client may write to next time.
func (q *request) committed(res *event.Result) {
	q.w.Header().Set("X-Qlogd-Index", strconv.FormatUint(res.Index, 10))
	if addr := q.s.deps.Node.LeaderHTTP(); addr != "" {
		q.w.Header().Set("X-Qlogd-Leader", addr)
	}
}

// propose decides a command. The leases of requests that wait here for its messages are
// decided right behind it.
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

// track measures a write and records it for /v1/operations.
func (s *Server) track(ctx context.Context, c *event.Command, key string, do pendingWrite) (event.Result, error) {
	op := s.ops.begin(key, c)
	res, err := do(ctx)
	var p *event.Problem
	switch {
	case errors.As(err, &p):
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = &event.Problem{Code: codeNoLeader, Index: -1, Unknown: true, Detail: "the write was not committed in time; it may still be"}
	case err == nil && res.Problem != nil:
		err = res.Problem
	}
	s.metrics.committed(s.ops.end(op, res.Index, err), c.Class())
	return res, err
}

// kept returns the first result of a repeated request.
func (q *request) kept(ref event.Ref) (event.Result, error) {
	c, err := q.s.deps.Log.Content(ref)
	if err != nil && q.s.gone(err) {
		// It was executed, so it must not be called not applied.
		return event.Result{}, &event.Problem{Code: event.CodeHistoryExpired, Index: -1, Unknown: true,
			Detail: fmt.Sprintf("this request was executed before, in entry %d; its answer has been deleted with the history", ref.Index)}
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

// actor returns the name of the request's token, "" without an auth file.
func (q *request) actor() string {
	if q.who == nil {
		return ""
	}
	return q.who.name
}

// idempotency returns the request's identity, nil without an Idempotency-Key.
func (q *request) idempotency() (*event.Request, error) {
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
		Body: hashBytes([]byte(q.URL.RawQuery), []byte{0}, body),
	}, nil
}

// requestKey hashes principal, method, path and Idempotency-Key. Its first half is of
// principal and key alone, so that /v1/operations finds a write by them.
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

// hashBytes returns the first half of the SHA-256 of the parts.
func hashBytes(parts ...[]byte) event.Hash {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return event.Hash(h.Sum(nil)[:16])
}

// hash is hashBytes of strings.
func hash(parts ...string) event.Hash {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return event.Hash(h.Sum(nil)[:16])
}

// The state remembers the newest deduplication hashes and requests; older ones are in
// the log. Before such a command is proposed the log is searched, and the command has
// the index up to which: deciding refuses one that searched too short
// (event.CodeStaleRevision).

// since returns the first index of the log that is younger than age, in ms: 0 where
// history does not go back that far.
func (s *Server) since(age int64) (uint64, error) {
	from, err := s.deps.Log.From(event.Instant{Kind: event.InstantTime, Time: s.clock(s.deps.State) - age})
	if err != nil && s.gone(err) {
		return 0, nil
	}
	return from, err
}

// find returns the newest event of a type with an alias and younger than age, in ms; nil
// if there is none.
func (s *Server) find(alias event.Hash, age int64, t event.Type) (*event.Event, error) {
	from, err := s.since(age)
	if err != nil {
		return nil, err
	}
	return s.findFrom(alias, from, t)
}

func (s *Server) findFrom(alias event.Hash, from uint64, t event.Type) (*event.Event, error) {
	e, err := s.deps.Log.Find(alias, from)
	if err != nil || e == nil || e.Type != t {
		return nil, err
	}
	return e, nil
}

// lookForDuplicates searches the log for messages of the same hashes as p's.
func (s *Server) lookForDuplicates(p *event.Produce, q *event.QueueView) error {
	window := q.Policy.DedupWindowSeconds * 1000
	if p.Import {
		window = max(window, importWindow)
	}
	if window == 0 || s.deps.State.DedupFloor() == 0 {
		return nil
	}
	p.Looked = s.deps.Log.Head()
	from, err := s.since(window)
	if err != nil {
		return err
	}
	for i := range p.Messages {
		m := &p.Messages[i]
		hash := m.DedupKey
		if q.Policy.DedupBy == event.DedupByContent && !p.Import {
			hash = m.PayloadHash
		}
		m.Seen, m.SeenUntil = event.ID{}, 0
		if hash.IsZero() {
			continue
		}
		e, err := s.findFrom(hash.Of(q.Number), from, event.Enqueued)
		if err != nil {
			return err
		}
		if e != nil {
			m.Seen, m.SeenUntil = e.ID, e.Until
		}
	}
	return nil
}

// firstOf searches the log for the message of which another one with the same
// deduplication hash would be a duplicate.
func (s *Server) firstOf(q *event.QueueView, m *event.NewMessage, payload []byte) (id event.ID, found bool, err error) {
	window := q.Policy.DedupWindowSeconds * 1000
	hash := m.DedupKey
	if q.Policy.DedupBy == event.DedupByContent {
		hash = hashBytes(payload)
	}
	if window == 0 || hash.IsZero() {
		return id, false, nil
	}
	e, err := s.find(hash.Of(q.Number), window, event.Enqueued)
	if err != nil || e == nil || e.Until <= s.clock(s.deps.State) {
		return id, false, err
	}
	return e.ID, true, nil
}

// lookForAnswer searches the log for an earlier answer to a request, and sets in r the
// index up to which. A zero ref: there is none.
func (s *Server) lookForAnswer(r *event.Request) (ref event.Ref, err error) {
	if s.deps.State.AnswerFloor() == 0 {
		return ref, nil
	}
	r.Looked = s.deps.Log.Head()
	e, err := s.find(r.Key, event.KeepAnswersMS, event.AnswerKept)
	if err != nil || e == nil || e.Until <= s.clock(s.deps.State) {
		return ref, err
	}
	if e.Body != r.Body {
		return ref, keyReused
	}
	return event.RefOf(e.ID), nil
}

var keyReused = event.Problemf(event.CodeKeyReused, "Idempotency-Key", "this Idempotency-Key came with another request before")

// lookedShort reports whether the log was not searched far enough for a request.
func (s *Server) lookedShort(r *event.Request) bool {
	return r != nil && r.Looked < s.deps.State.AnswerFloor()
}

// orFirst is called with a refusal that depends on the state. If the request repeats an earlier
// one, which may have caused that itself, it returns the first result instead. It must be called
// after the state was read: the effect of a request and its answer are one entry.
func (q *request) orFirst(refusal error) (event.Result, error) {
	if p, ok := refusal.(*event.Problem); !ok || p.Unknown {
		return event.Result{}, refusal
	}
	r, err := q.idempotency()
	if r == nil || err != nil {
		return event.Result{}, cmp.Or(err, refusal)
	}
	e, err := q.s.find(r.Key, event.KeepAnswersMS, event.AnswerKept)
	switch {
	case e == nil || err != nil:
		return event.Result{}, cmp.Or(err, refusal)
	case e.Body != r.Body:
		return event.Result{}, keyReused
	}
	return q.kept(event.RefOf(e.ID))
}

// commit is propose unless reading the request failed.
func (q *request) commit(c *event.Command) event.Result {
	return get(q, func() (event.Result, error) { return q.propose(c) })
}

// proposeFresh proposes the command that build returns, nil for none. Where a queue's policy
// changed since build read it, it builds again. field and what name the policy in the error. Where
// build refuses a repeated request, the result is the first one.
func (q *request) proposeFresh(field, what string, build func() (*event.Command, error)) (res event.Result, err error) {
	for range maxStale {
		c, err := build()
		if err != nil {
			return q.orFirst(err)
		}
		if c == nil {
			return res, nil
		}
		if res, err = q.propose(c); !isStale(err) {
			return res, err
		}
		q.unhurried()
		if err := q.s.barrier(q.Context()); err != nil {
			return res, err
		}
	}
	return res, event.Problemf(event.CodeConflict, field, "%s changed concurrently; retry", what)
}

package api

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// maxStale bounds the attempts of a write that is refused because the state changed after the
// request was checked against it.
const maxStale = 8

// commit proposes a command and returns its result, unless reading the request failed.
func (q *request) commit(c *event.Command) event.Result {
	return q.commitFresh("", "the state", func() (*event.Command, error) { return c, nil })
}

// commitFresh is commit for a command that depends on the state; see proposeFresh.
func (q *request) commitFresh(
	field, what string, build func() (*event.Command, error),
) event.Result {
	return get(q, func() (event.Result, error) { return q.proposeFresh(field, what, build) })
}

// proposeFresh proposes the command that build returns, nil for none, and returns its result. If
// the request repeats an earlier one, it sets q.replayed and returns the first result. A refusal is
// an *event.Problem. If the state that build read changed concurrently (a queue's policy, say), it
// builds again; field and what name that state in the error after maxStale attempts.
func (q *request) proposeFresh(
	field, what string, build func() (*event.Command, error),
) (res event.Result, err error) {
	r, err := q.idempotency()
	if err != nil {
		return res, err
	}
	var c *event.Command
	creating := int64(0) // of Server.creating, by this request
	defer func() { q.s.creating.Add(-creating) }()
	for range maxStale {
		var refusal error
		c, refusal = build()
		q.s.creating.Add(-creating)
		creating = 0
		if c != nil && refusal == nil {
			creating, refusal = q.mayCreate(c)
		}
		// The first request may be why build refuses this one. Its effect and its answer are one
		// entry, so the answer must be searched for after build has read the state.
		if r != nil && (refusal != nil || c != nil && q.s.deps.State.AnswerFloor() > 0) {
			if ref, err := q.s.lookForAnswer(r); err != nil {
				return res, q.failed(c, err)
			} else if !ref.IsZero() {
				return q.kept(ref)
			}
		}
		if refusal != nil || c == nil {
			return res, refusal
		}
		c.Actor, c.Request = q.actor(), r
		if err := addReason(c, q.why); err != nil {
			return res, err
		}
		res, err = q.s.propose(q.Context(), c, first(q.Header["Idempotency-Key"]))
		switch {
		case err == nil && !res.Kept.IsZero():
			return q.kept(res.Kept)
		case err == nil:
			q.committed(&res)
			return res, nil
		case !isStale(err):
			return res, err
		}
		q.clearReadDeadline()
		if err := q.s.barrier(q.Context()); err != nil {
			return res, err
		}
	}
	return res, q.failed(c, event.Problemf(event.CodeConflict, field,
		"%s changed concurrently; retry", what))
}

// failed records, for /v1/operations, a write that failed before its proposal; c may be nil.
func (q *request) failed(c *event.Command, err error) error {
	if c != nil {
		c.Actor = q.actor()
		q.s.ops.end(q.s.ops.begin(first(q.Header["Idempotency-Key"]), c), 0, err)
	}
	return err
}

// maxReason bounds an operator's reason, in bytes.
const maxReason = 1024

// because sets the operator's reason: that of the query, or else that of the body.
func (q *request) because(reason string) {
	if v := q.text("reason", maxReason); v != nil {
		reason = *v
	}
	q.do(func() error { return within("reason", reason, maxReason) })
	q.why = reason
}

// becauseBody sets the operator's reason from the query or an optional body.
func (q *request) becauseBody() {
	var body wire.ReasonBody
	q.optionalBody(&body)
	q.because(body.Reason)
}

// addReason adds an operator's reason to a command, and to those contents of the command that
// become an event's content.
func addReason(c *event.Command, why string) error {
	if why == "" {
		return nil
	}
	c.Why = event.EncodeContent(&event.Content{Why: why})
	var own []*event.Blob
	switch {
	case c.CreateTask != nil:
		own = append(own, &c.CreateTask.Content)
	case c.Replay != nil:
		for i := range c.Replay.Items {
			own = append(own, &c.Replay.Items[i].Content)
		}
	case c.Resurrect != nil:
		for i := range c.Resurrect.Items {
			own = append(own, &c.Resurrect.Items[i].Content)
		}
	}
	for _, b := range own {
		if b.IsZero() {
			continue
		}
		content, err := event.DecodeContent(b.Bytes)
		if err != nil {
			return err
		}
		content.Why = why
		*b = event.EncodeContent(content)
	}
	return nil
}

func isStale(err error) bool {
	p, ok := err.(*event.Problem)
	return ok && p.Code == event.CodeStaleRevision
}

// currently looks up key in the live state. It catches up with the cluster before it returns
// missing.
func currently[K, V any](
	q *request, key K, look func(K) (V, bool), missing func(K) *event.Problem,
) (V, error) {
	v, ok := look(key)
	if !ok {
		if err := q.s.barrier(q.Context()); err != nil {
			return v, err
		}
		if v, ok = look(key); !ok {
			return v, missing(key)
		}
	}
	return v, nil
}

// mustExist rejects a write to an object that does not exist, so that it leaves no entry. A request
// with an Idempotency-Key passes: it may repeat one whose object was deleted since.
func mustExist[K, V any](
	q *request, key K, look func(K) (V, bool), missing func(K) *event.Problem,
) {
	if !q.keyed() {
		get(q, func() (V, error) { return currently(q, key, look, missing) })
	}
}

// keyed reports whether the request has an Idempotency-Key, so that it may be a repeated one.
func (q *request) keyed() bool { return q.Header["Idempotency-Key"] != nil }

// after returns the state to answer a write from: the live one or, for a repeated request, the one
// after the first.
func (q *request) after(res *event.Result) State {
	if q.replayed {
		return q.stateAt(res.Index)
	}
	return q.s.deps.State
}

// committed sets the headers of a committed write: its index and, if another node leads, the
// leader, which the client may write to next time.
func (q *request) committed(res *event.Result) {
	q.header("X-Qlogd-Index", strconv.FormatUint(res.Index, 10))
	if addr := q.s.deps.Node.LeaderHTTP(); addr != "" {
		q.header("X-Qlogd-Leader", addr)
	}
}

// propose proposes a command and waits for its result, for at most writeTimeout. The leases of
// waiters on this node that can take its messages are proposed right behind it.
func (s *Server) propose(ctx context.Context, c *event.Command, key string) (event.Result, error) {
	return s.track(ctx, c, key, func(ctx context.Context) (event.Result, error) {
		woken, leases := s.takeLeases(c)
		if len(woken) == 0 {
			return s.deps.Node.Propose(ctx, c)
		}
		answers := s.deps.Node.Begin(c, leases)
		for i, w := range woken {
			w.wake <- answers[i+1]
		}
		return answers[0](ctx)
	})
}

// track measures a write and records it for /v1/operations.
func (s *Server) track(
	ctx context.Context, c *event.Command, key string, do pendingWrite,
) (event.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	ctx, span := s.commitSpan(ctx)
	op := s.ops.begin(key, c)
	res, err := do(ctx)
	switch _, refused := errors.AsType[*event.Problem](err); {
	case refused:
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = unknownOutcome(event.CodeNoLeader, "the write was not committed in time; it may still be")
	case err == nil && res.Problem != nil:
		err = res.Problem
	}
	if span != nil {
		endCommit(span, c, &res, err)
	}
	if isStale(err) { // the caller checks and proposes it again, as one write
		s.ops.drop(op)
	} else {
		s.metrics.commit[c.Class()].Observe(s.ops.end(op, res.Index, err).Seconds())
	}
	return res, err
}

// unknownOutcome returns a problem of a write that may have been executed.
func unknownOutcome(code, format string, args ...any) *event.Problem {
	p := event.Problemf(code, "", format, args...)
	p.Unknown = true
	return p
}

// kept returns the first result of a repeated request.
func (q *request) kept(ref event.Ref) (event.Result, error) {
	c, err := q.s.deps.Log.Content(ref)
	if err != nil && gone(err) { // it was executed, so the outcome must not be not_applied
		return event.Result{}, unknownOutcome(event.CodeHistoryExpired, "this request was executed "+
			"before, in entry %d; its answer has been deleted with the history", ref.Index)
	}
	var res *event.Result
	if err == nil {
		res, err = event.DecodeResult(c.Answer)
	}
	if err != nil {
		return event.Result{}, fmt.Errorf("kept answer: %w", err)
	}
	q.replayed = true
	q.header("Idempotent-Replayed", "true")
	q.header("X-Qlogd-Index", strconv.FormatUint(res.Index, 10))
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
		return nil, bad("Idempotency-Key",
			"Idempotency-Key must be one header of 1 to 255 visible ASCII characters")
	}
	// The body is read here where the route itself has no use for one.
	body, err := q.bytes(q.s.opts.MaxRequest)
	if err != nil {
		return nil, err
	}
	r := &event.Request{Key: requestKey(q.actor(), q.Method, q.URL.EscapedPath(), v[0])}
	// The hash detects mistakes of the client that owns the key; it need not be cryptographic.
	h := xxhash.New()
	_, _ = h.WriteString(q.URL.RawQuery + "\x00")
	_, _ = h.Write(body)
	binary.BigEndian.PutUint64(r.Body[:8], h.Sum64())
	binary.BigEndian.PutUint64(r.Body[8:], uint64(len(body)))
	return r, nil
}

// requestKey hashes principal, method, path and Idempotency-Key. The first half covers only
// principal and key, so that /v1/operations finds a write by them.
func requestKey(principal, method, path, key string) (h event.Hash) {
	p, rest := keyPrefix(principal, key), hash(method, "\x00", path)
	copy(h[:8], p[:])
	copy(h[8:], rest[:8])
	return h
}

func keyPrefix(principal, key string) [8]byte {
	h := hash(principal, "\x00", key)
	return [8]byte(h[:8])
}

// hash returns the first half of the SHA-256 of the parts.
func hash[T string | []byte](parts ...T) event.Hash {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return event.Hash(h.Sum(nil)[:16])
}

// The state remembers the newest deduplication hashes and requests; older ones are in the log. So
// the log is searched before such a command is proposed. The command has the index up to which the
// log was searched, and the state machine rejects it if that is too low (event.CodeStaleRevision).

// since returns the first index of the log that is younger than age, in ms; 0 if history does not
// go back that far.
func (s *Server) since(age int64) (uint64, error) {
	from, err := s.deps.Log.From(
		event.Instant{Kind: event.InstantTime, Time: max(s.clock(s.deps.State)-age, 0)})
	if err != nil && gone(err) {
		return 0, nil
	}
	return from, err
}

// find returns the newest event with an alias from an index on, if it has one of these types, else
// nil.
func (s *Server) find(
	alias event.Hash, from uint64, types ...event.Type,
) (*event.Event, error) {
	e, err := s.deps.Log.Find(alias, from)
	if err != nil || e == nil || !slices.Contains(types, e.Type) {
		return nil, err
	}
	return e, nil
}

// lookForDuplicates searches the log for messages of the same hashes as p's.
func (s *Server) lookForDuplicates(
	ctx context.Context, p *event.Produce, q *event.QueueView,
) error {
	window := q.Policy.DedupEnd(p.Import, 0)
	if window == 0 {
		return nil
	}
	p.Looked = s.deps.Log.Head()
	from, err := s.since(window)
	if err != nil {
		return err
	}
	for i := range p.Messages {
		m := &p.Messages[i]
		m.Seen, m.SeenUntil, m.SeenAs = event.ID{}, 0, event.ID{}
		hash := p.DedupHash(m, &q.Policy, q.Number)
		if hash.IsZero() {
			continue
		}
		e, now, err := s.holder(ctx, hash, from)
		if err != nil {
			return err
		}
		if e != nil {
			m.Seen, m.SeenUntil, m.SeenAs = e.ID, e.Until, now
		}
	}
	return nil
}

// holder searches the log, from an index on, for the event by which a message took a deduplication
// hash. It returns nil if no message has the hash; a deleted message does not have it any more. now
// is the message's current id, zero if it has left.
func (s *Server) holder(ctx context.Context, hash event.Hash, from uint64) (
	took *event.Event, now event.ID, err error,
) {
	took, err = s.find(hash, from, event.Enqueued, event.Resurrected)
	if err != nil || took == nil {
		return nil, now, err
	}
	history, err := s.deps.Log.History(ctx, took.ID)
	if err != nil {
		return nil, now, err
	}
	for id := took.ID; ; {
		l := lifeOf(history, id)
		switch {
		case l == nil, l.last.Reason.Releases():
			return nil, now, nil
		case l.state().Live():
			return took, id, nil
		case took.Until == event.UntilLeft:
			return nil, now, nil
		case l.last.Type == event.Acked, l.last.Type == event.Discarded:
			return took, now, nil
		}
		id = l.moved.ID
	}
}

// originalOf searches the log for the message that m would duplicate; it returns a zero id for none.
func (s *Server) originalOf(
	ctx context.Context, q *event.QueueView, m *event.NewMessage,
) (id event.ID, err error) {
	p := event.Produce{Messages: []event.NewMessage{*m}}
	err = s.lookForDuplicates(ctx, &p, q)
	first := &p.Messages[0]
	v, there := s.deps.State.Message(first.SeenAs)
	if first.SeenUntil > s.clock(s.deps.State) && (!there || v.State.Live()) {
		id = first.Seen
	}
	return id, err
}

// lookForAnswer searches the log for an earlier answer to a request, and sets in r the index up to
// which it searched. It returns a zero ref if there is none.
func (s *Server) lookForAnswer(r *event.Request) (ref event.Ref, err error) {
	r.Looked = s.deps.Log.Head()
	from, err := s.since(event.KeepAnswersMS)
	if err != nil {
		return ref, err
	}
	e, err := s.find(r.Key, from, event.AnswerKept)
	switch {
	case err != nil || e == nil || e.Until <= s.clock(s.deps.State):
		return ref, err
	case e.Body != r.Body:
		return ref, keyReused
	}
	return event.RefOf(e.ID), nil
}

var keyReused = event.Problemf(event.CodeKeyReused, "Idempotency-Key",
	"this Idempotency-Key came with another request before")

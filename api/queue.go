package api

import (
	"context"
	"net/http"
	"slices"
	"sort"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

func queueNotFound(name string) *event.Problem {
	return event.Problemf(event.CodeQueueNotFound, "queue", "queue %s does not exist", echo(name))
}

// listQueues answers GET /v1/queues?namespace=&limit=&cursor=&at=&consistency=.
func (s *Server) listQueues(q *request) error {
	if err := q.allow("namespace", "limit", "cursor", "at", "consistency"); err != nil {
		return err
	}
	limit, err := q.number("limit", 1000, 1, 1000)
	if err != nil {
		return err
	}
	after := q.query.Get("cursor")
	if q.query.Has("cursor") && !event.ValidName(after) {
		return bad("cursor", "cursor must be the next_cursor of an answer")
	}
	st, release, err := q.state()
	if err != nil {
		return err
	}
	defer release()
	views := st.Queues()
	views = views[sort.Search(len(views), func(i int) bool { return views[i].Name > after }):]
	out := wire.QueueList{Queues: []wire.Queue{}}
	namespace, filtered := q.query.Get("namespace"), q.query.Has("namespace")
	for i := range views {
		if filtered && views[i].Policy.Namespace != namespace || !q.sees(views[i].Name) {
			continue
		}
		if len(out.Queues) == int(limit) {
			out.NextCursor = out.Queues[limit-1].Name
			break
		}
		out.Queues = append(out.Queues, s.queueOf(&views[i], st))
	}
	return q.answer(http.StatusOK, &out)
}

// getQueue answers GET /v1/queues/{queue}?at=&consistency=.
func (s *Server) getQueue(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow("at", "consistency"); err != nil {
		return err
	}
	st, release, err := q.state()
	if err != nil {
		return err
	}
	defer release()
	v, ok := st.Queue(name)
	if !ok {
		return queueNotFound(name)
	}
	out := s.queueOf(&v, st)
	return q.answer(http.StatusOK, &out)
}

// putQueue makes a queue (201) or replaces its policy (200).
func (s *Server) putQueue(q *request) error {
	name, u, err := q.policyUpdate()
	if err != nil {
		return err
	}
	p := s.defaultPolicy()
	auto, err := s.updatePolicy(name, &p, &u)
	if err == nil {
		err = s.answerToExists(q, name, &p)
	}
	if err != nil {
		return err
	}
	res, err := q.propose(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p, DeadLetterAuto: auto}})
	if err != nil {
		return err
	}
	return q.answerQueue(name, &res)
}

// patchQueue merges into a queue's policy: what is left out stays, null is the
// default. message_schema and push are replaced whole.
func (s *Server) patchQueue(q *request) error {
	name, u, err := q.policyUpdate()
	if err != nil {
		return err
	}
	req, err := q.idempotency()
	if err != nil {
		return err
	}
	for range maxStale {
		v, err := s.current(q, name)
		if err != nil {
			return err
		}
		p := v.Policy.Clone()
		auto, err := s.updatePolicy(name, &p, &u)
		if err == nil && u.Push.Set {
			err = s.answerToExists(q, name, &p)
		}
		if err != nil {
			return err
		}
		res, err := q.propose(&event.Command{Request: req, PutQueue: &event.PutQueue{
			Name: name, Policy: p, IfRevision: v.Revision, DeadLetterAuto: auto,
		}})
		if isStale(err) {
			continue
		}
		if err != nil {
			return err
		}
		return q.answerQueue(name, &res)
	}
	return event.Problemf(event.CodeConflict, "queue", "the policy of %s keeps changing; try again", echo(name))
}

func isStale(err error) bool {
	p, ok := err.(*event.Problem)
	return ok && p.Code == event.CodeStaleRevision
}

// current returns a queue as it is now.
func (s *Server) current(q *request, name string) (event.QueueView, error) {
	return currently(s, q, name, s.deps.State.Queue, queueNotFound)
}

// currently returns what has a name as it is now: where this node does not know
// it, it asks whether it is behind before it says so.
func currently[T any](s *Server, q *request, name string, look func(string) (T, bool), missing func(string) *event.Problem) (T, error) {
	v, ok := look(name)
	if ok {
		return v, nil
	}
	if err := s.barrier(q.Context()); err != nil {
		return v, err
	}
	if v, ok = look(name); !ok {
		return v, missing(name)
	}
	return v, nil
}

func (q *request) policyUpdate() (name string, u wire.PolicyUpdate, err error) {
	if name, err = q.queue(); err != nil {
		return
	}
	if err = q.allow(); err != nil {
		return
	}
	err = q.decode(&u, false, true, "application/merge-patch+json")
	return
}

// answerQueue answers PUT and PATCH with the queue. To a repeated request it
// tells the queue as it was when that was first done, as far as it is known.
func (q *request) answerQueue(name string, res *event.Result) error {
	status := http.StatusOK
	if res.Created {
		status = http.StatusCreated
	}
	st := q.s.deps.State
	if q.replayed && q.s.deps.Past != nil {
		past, release, err := q.s.deps.Past.At(q.Context(), event.Instant{Kind: event.InstantIndex, Index: res.Index})
		if err == nil {
			defer release()
			st = past
		}
	}
	v, ok := st.Queue(name)
	if !ok {
		v.Name = name // deleted since
		v.Policy = q.s.defaultPolicy()
	}
	out := q.s.queueOf(&v, st)
	return q.answer(status, &out)
}

// deleteQueue answers DELETE /v1/queues/{queue}?force=.
func (s *Server) deleteQueue(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow("force"); err != nil {
		return err
	}
	force, err := q.flag("force")
	if err != nil {
		return err
	}
	if err := q.exists(name); err != nil {
		return err
	}
	res, err := q.propose(&event.Command{DeleteQueue: &event.DeleteQueue{Name: name, Force: force}})
	if err != nil {
		return err
	}
	q.carriedOut(res)
	return q.noContent()
}

// exists refuses a write to a queue that is not there, so that it leaves no
// entry. A request with an Idempotency-Key goes on: it may be a repeated one,
// whose queue has gone since.
func (q *request) exists(name string) error {
	if q.Header["Idempotency-Key"] != nil {
		return nil
	}
	_, err := q.s.current(q, name)
	return err
}

// pauseQueue answers pause and resume.
func (s *Server) pauseQueue(q *request, paused bool) error {
	name, err := q.bare()
	if err != nil {
		return err
	}
	if _, err := q.propose(&event.Command{PauseQueue: &event.PauseQueue{Name: name, Paused: paused}}); err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.Paused{Paused: paused})
}

// purgeQueue takes out all but leased messages.
func (s *Server) purgeQueue(q *request) error {
	name, err := q.bare()
	if err != nil {
		return err
	}
	res, err := q.propose(&event.Command{PurgeQueue: &event.PurgeQueue{Name: name}})
	if err != nil {
		return err
	}
	q.carriedOut(res)
	return q.answer(http.StatusOK, &wire.Purged{Purged: res.Count})
}

// How many messages that go at once the next entry tells, and how long an answer
// waits for it.
const (
	carriedPerEntry = 1024
	carriedWithin   = time.Second
)

// carriedOut waits until the log tells of each message that a purge or a
// deletion took out, so that a history that is asked for next holds its end.
// They are gone in any case: it is not worth an error.
func (q *request) carriedOut(res event.Result) {
	if res.Count <= 0 || q.replayed {
		return
	}
	ctx, cancel := context.WithTimeout(q.Context(), carriedWithin)
	defer cancel()
	_ = q.s.deps.Log.Wait(ctx, res.Index+uint64(res.Count-1)/carriedPerEntry)
}

// keyFollowed is carriedOut for leases whose messages died: what waits in their
// partition goes along in the next entry, where the policy says so.
func (q *request) keyFollowed(res event.Result) {
	if q.replayed || !slices.ContainsFunc(res.Settled, func(t event.Settled) bool {
		return t.Status == event.StatusDeadLettered || t.Status == event.StatusDiscarded
	}) {
		return
	}
	ctx, cancel := context.WithTimeout(q.Context(), carriedWithin)
	defer cancel()
	next, done := q.s.deps.Log.Blocks(res.Index)
	defer done()
	b, err := next(ctx)
	if err == nil && b.Index == res.Index && slices.ContainsFunc(b.Events, func(e event.Event) bool { return e.TakesKey }) {
		_ = q.s.deps.Log.Wait(ctx, res.Index)
	}
}

// bare reads a request for a queue that needs no body: none, or {}.
func (q *request) bare() (string, error) {
	name, err := q.queue()
	if err != nil {
		return "", err
	}
	if err := q.allow(); err != nil {
		return "", err
	}
	if err := q.decode(&struct{}{}, false, true); err != nil {
		return "", err
	}
	return name, q.exists(name)
}

func (q *request) noContent() error {
	q.status = http.StatusNoContent
	q.w.WriteHeader(q.status)
	return nil
}

// queueOf returns a queue as it is told. Ages are counted at the state's
// instant.
func (s *Server) queueOf(v *event.QueueView, st State) wire.Queue {
	t := &v.Stats
	out := wire.Queue{
		Name: v.Name, Policy: policyOf(&v.Policy), Paused: v.Paused,
		CreatedAt: wire.Time(v.CreatedAt), UpdatedAt: wire.Time(v.UpdatedAt),
		Stats: wire.Stats{
			Depth: t.Ready, Held: t.Held, Scheduled: t.Scheduled, InFlight: t.InFlight, Bytes: t.Bytes,
			EnqueuedTotal: t.Enqueued, AckedTotal: t.Acked, DeadLetteredTotal: t.DeadLettered, Partitions: t.Partitions,
		},
	}
	_, past := st.(*pastState)
	if t.Oldest > 0 {
		out.Stats.OldestMessageAgeSeconds = max(0, clock(st)-t.Oldest) / 1000
	}
	if !past && s.deps.Rates != nil {
		if r, ok := s.deps.Rates.MessagesPerMinute(v.Name); ok {
			out.Stats.MessagesPerMinute = &r
		}
	}
	return out
}

// clock returns a state's instant: now for the live one, which stands still
// while nothing happens. A live state may say itself what now is (Now): a copy
// of the past lives behind the wall's time.
func clock(st State) int64 {
	switch s := st.(type) {
	case *pastState:
		return s.at
	case Now:
		return s.Now()
	}
	return max(st.Clock(), time.Now().UnixMilli())
}

// pastState is a State as of an instant.
type pastState struct {
	State
	at int64 // Unix ms
}

// state returns the state that a read asks for: the past one of at=, else the
// live one.
func (q *request) state() (State, func(), error) {
	if err := q.fresh(); err != nil {
		return nil, nil, err
	}
	live := func() {}
	if !q.query.Has("at") {
		return q.s.deps.State, live, nil
	}
	at, err := q.instant("at")
	if err != nil {
		return nil, nil, err
	}
	if at.Kind == event.InstantNow { // a past that is just over: rates are null here too
		return &pastState{State: q.s.deps.State, at: clock(q.s.deps.State)}, live, nil
	}
	if q.s.deps.Past == nil {
		return nil, nil, bad("at", "this server keeps no past")
	}
	st, release, err := q.s.deps.Past.At(q.Context(), at)
	if err != nil {
		return nil, nil, q.rangeProblem("at", err)
	}
	p := &pastState{State: st, at: st.Clock()}
	if at.Kind == event.InstantTime {
		p.at = max(p.at, at.Time)
	}
	return p, release, nil
}

package api

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
)

func queueNotFound(name string) *event.Problem {
	return event.Problemf(event.CodeQueueNotFound, "queue", "queue %s does not exist", echo(name))
}

// maxName is the maximum length of a name, see event.Names.
const maxName = 128

// listQueues answers GET /v1/queues?namespace=&name=&dead=&limit=&cursor=&at=&consistency=.
func (s *Server) listQueues(q *request) error {
	q.read("namespace", "name", "dead", "limit", "cursor", "at", "consistency")
	limit, after, st := q.limit(1000, 1000), q.nameCursor(), q.state()
	namespace, filtered := q.query.Get("namespace"), q.query.Has("namespace")
	name := strings.ToLower(deref(q.text("name", maxName)))
	dead := q.flag("dead")
	var out wire.QueueList
	out.Queues, out.NextCursor = page(q, st.Queues(), limit, func(v *event.QueueView) bool {
		return v.Name > after && (!filtered || v.Policy.Namespace == namespace) &&
			strings.Contains(strings.ToLower(v.Name), name) && q.sees(v.Name) &&
			(!dead || st.DeadCount(v.Name) > 0)
	}, func(v *event.QueueView) (wire.Queue, error) {
		return s.queueOf(v, st), nil
	}, func(v *wire.Queue) string { return v.Name })
	return q.answer(http.StatusOK, &out)
}

// adminQueues answers GET /admin/queues?tenant_id=.
func (s *Server) adminQueues(q *request) error {
	q.read("tenant_id").fresh()
	st := s.deps.State
	queues := st.Queues()
	out, _ := page(q, queues, len(queues), func(v *event.QueueView) bool {
		return q.isTenant(v) && q.sees(v.Name)
	}, func(v *event.QueueView) (wire.AdminQueue, error) {
		stats := s.queueOf(v, st).Stats
		return wire.AdminQueue{
			Name: v.Name, Depth: stats.Depth, InFlight: stats.InFlight,
			DLQSize:                 st.DeadCount(v.Name),
			OldestMessageAgeSeconds: stats.OldestMessageAgeSeconds,
			MessagesPerMinute:       deref(stats.MessagesPerMinute),
		}, nil
	}, nil)
	return q.answer(http.StatusOK, &wire.AdminQueues{Queues: out})
}

// isTenant reports whether a queue is in the namespace tenant_id, or the request has no tenant_id.
func (q *request) isTenant(v *event.QueueView) bool {
	return !q.query.Has("tenant_id") || v.Policy.Namespace == q.query.Get("tenant_id")
}

// ofTenant fails the request with queue_not_found for a queue of another tenant.
func (q *request) ofTenant(queue string) {
	v, ok := q.s.deps.State.Queue(queue)
	if !q.isTenant(&v) && (ok || !q.keyed()) {
		q.do(func() error { return queueNotFound(queue) })
	}
}

// getQueue answers GET /v1/queues/{queue}?at=&consistency=.
func (s *Server) getQueue(q *request) error {
	name, st := q.read("at", "consistency").queue(), q.state()
	v := found(q, name, st.Queue, queueNotFound)
	return q.answer(http.StatusOK, new(s.queueOf(&v, st)))
}

// putQueue creates a queue (201) or replaces its policy (200).
func (s *Server) putQueue(q *request) error {
	name, u := q.policyUpdate()
	put := &event.PutQueue{Name: name, Policy: s.defaultPolicy()}
	q.do(func() error { return s.updatePut(q, put, u) })
	return q.answerQueue(name, q.commit(&event.Command{PutQueue: put}))
}

// patchQueue merges into a queue's policy: what is left out stays, null is the default.
// message_schema and push are replaced whole.
func (s *Server) patchQueue(q *request) error {
	name, u := q.policyUpdate()
	res := q.commitFresh("queue", "the queue's policy", func() (*event.Command, error) {
		v, err := s.current(q, name)
		if err != nil {
			return nil, err
		}
		put := &event.PutQueue{Name: name, Policy: v.Policy.Clone(), IfRevision: v.Revision}
		return &event.Command{PutQueue: put}, s.updatePut(q, put, u)
	})
	return q.answerQueue(name, res)
}

// updatePut applies an update to the policy in a PutQueue command.
func (s *Server) updatePut(q *request, put *event.PutQueue, u *wire.PolicyUpdate) (err error) {
	put.DeadLetterAuto, err = s.updatePolicy(put.Name, &put.Policy, u)
	if err == nil && u.Push.Set {
		err = s.answerToExists(q, put.Name, &put.Policy)
	}
	return err
}

// mayCreate rejects a command that would exceed the maximum number of queues. Otherwise it reserves
// the queues to be created in Server.creating, for the checks of concurrent requests, and returns
// their number. Other nodes' reservations are not visible, so the limit may be exceeded by a few.
func (q *request) mayCreate(c *event.Command) (created int64, err error) {
	if c.Produce == nil && c.Transaction == nil && c.PutQueue == nil && c.Define == nil {
		return 0, nil
	}
	st, most := q.s.deps.State, int64(q.s.opts.MaxQueues)
	for caughtUp := false; ; caughtUp = true {
		created = int64(q.s.creates(c))
		inFlight := q.s.creating.Add(created) // before QueueCount, so that no queue is missed
		if created == 0 || int64(st.QueueCount())+inFlight <= most {
			return created, nil
		}
		q.s.creating.Add(-created)
		if caughtUp {
			return 0, event.Problemf(event.CodeConflict, "queue", "there are %d queues, and the "+
				"limit is %d (serve --max-queues): %d more are not created", st.QueueCount(), most,
				created)
		}
		if err := q.s.barrier(q.Context()); err != nil {
			return 0, err
		}
	}
}

// creates returns how many queues a command would create, as far as this node knows.
func (s *Server) creates(c *event.Command) int {
	created := map[string]bool{}
	create := func(name string) {
		if _, ok := s.deps.State.Queue(name); !ok {
			created[name] = true
		}
	}
	produce := func(p *event.Produce) {
		if p.AutoCreate && p.Revision == 0 { // else the queue exists
			create(p.Queue)
		}
	}
	put := func(p *event.PutQueue) {
		create(p.Name)
		if p.DeadLetterAuto {
			create(event.AutoDeadLetterQueue(p.Name))
		}
	}
	switch {
	case c.Produce != nil:
		produce(c.Produce)
	case c.Transaction != nil:
		for i := range c.Transaction.Produce {
			produce(&c.Transaction.Produce[i])
		}
	case c.PutQueue != nil:
		put(c.PutQueue)
	case c.Define != nil:
		for i := range c.Define.Queues {
			put(&c.Define.Queues[i])
		}
	}
	return len(created)
}

func (q *request) policyUpdate() (name string, u *wire.PolicyUpdate) {
	name, u = q.read().queue(), &wire.PolicyUpdate{}
	q.do(func() error { return q.decode(u, true, "application/merge-patch+json") })
	return name, u
}

// current returns a queue of the live state.
func (s *Server) current(q *request, name string) (event.QueueView, error) {
	return currently(q, name, s.deps.State.Queue, queueNotFound)
}

// answerQueue answers PUT and PATCH with the queue; for a repeated request, as it was then.
func (q *request) answerQueue(name string, res event.Result) error {
	st := q.after(&res)
	v, ok := st.Queue(name)
	if !ok { // deleted since
		v.Name, v.Policy = name, q.s.defaultPolicy()
	}
	return q.answer(createdOrOK(res.Created), new(q.s.queueOf(&v, st)))
}

// deleteQueue answers DELETE /v1/queues/{queue}?force=.
func (s *Server) deleteQueue(q *request) error {
	name, force := q.read("force", "reason").queue(), q.flag("force")
	q.becauseBody()
	q.exists(name)
	q.awaitRemovals(q.commit(&event.Command{
		DeleteQueue: &event.DeleteQueue{Name: name, Force: force},
	}))
	return q.answer(http.StatusNoContent, nil)
}

// exists is mustExist for a queue.
func (q *request) exists(name string) { mustExist(q, name, q.s.deps.State.Queue, queueNotFound) }

// pauseQueue answers pause and resume, of a queue or one of its keys.
func (s *Server) pauseQueue(paused bool) handler {
	return func(q *request) error {
		name := q.read("reason").queue()
		var body wire.PauseRequest
		q.optionalBody(&body)
		q.because(body.Reason)
		key := body.Key.Value
		if body.Key.Set && key == "" {
			q.refuse("key", "key must not be empty; omit it for the whole queue")
		}
		q.do(func() error { return within("key", key, event.MaxKeyBytes) })
		q.exists(name)
		q.commit(&event.Command{PauseQueue: &event.PauseQueue{
			Name: name, Key: key, Paused: paused,
		}})
		return q.answer(http.StatusOK, &wire.Paused{Paused: paused})
	}
}

// purgeQueue removes all but leased messages.
func (s *Server) purgeQueue(q *request) error {
	name := q.read("reason").queue()
	q.becauseBody()
	q.exists(name)
	res := q.commit(&event.Command{PurgeQueue: &event.PurgeQueue{Name: name}})
	q.awaitRemovals(res)
	return q.answer(http.StatusOK, &wire.Purged{Purged: res.Count})
}

// One entry records the removal of at most removalsPerEntry messages. An answer waits removalsWithin
// for these entries.
const (
	removalsPerEntry = 1024
	removalsWithin   = time.Second
)

// awaitRemovals waits until the log has an event for each message that a purge or a deletion removed,
// so that histories are complete. The messages are gone in any case, so a timeout is no error.
func (q *request) awaitRemovals(res event.Result) {
	if res.Count <= 0 || q.replayed {
		return
	}
	ctx, cancel := context.WithTimeout(q.Context(), removalsWithin)
	defer cancel()
	_ = q.s.deps.Log.Wait(ctx, res.Index+uint64(res.Count-1)/removalsPerEntry)
}

// awaitKeyDeaths is awaitRemovals for leases whose messages died: depending on the policy, the messages
// behind them in their partition die in the next entry.
func (q *request) awaitKeyDeaths(res event.Result) {
	died := func(t event.Settled) bool {
		return t.Status == event.StatusDeadLettered || t.Status == event.StatusDiscarded
	}
	if q.replayed || !slices.ContainsFunc(res.Settled, died) {
		return
	}
	ctx, cancel := context.WithTimeout(q.Context(), removalsWithin)
	defer cancel()
	for e, err := range q.s.deps.Log.Events(ctx, res.Index, res.Index) {
		if err == nil && e.TakesKey {
			_ = q.s.deps.Log.Wait(ctx, res.Index)
			return
		}
	}
}

// queueOf returns a queue's view. Ages are as of the state's instant.
func (s *Server) queueOf(v *event.QueueView, st State) wire.Queue {
	out := wire.Queue{
		Name: v.Name, Policy: policyOf(&v.Policy), Paused: v.Paused, PausedKeys: v.PausedKeys,
		CreatedAt: wire.Time(v.CreatedAt), UpdatedAt: wire.Time(v.UpdatedAt),
		Stats: StatsOf(&v.Stats, s.clock(st)), Dead: st.DeadCount(v.Name),
	}
	if _, past := st.(*pastState); !past {
		if n, err := s.deps.Models.MessagesPerMinute(v.Name, s.deps.Node.Clock()); err == nil {
			out.Stats.MessagesPerMinute = new(float64(n))
		}
	}
	return out
}

// StatsOf returns a queue's counts at an instant, without rates.
func StatsOf(t *event.Stats, clock int64) wire.Stats {
	s := wire.Stats{
		Depth: t.Ready, Held: t.Held, Scheduled: t.Scheduled, InFlight: t.InFlight, Bytes: t.Bytes,
		EnqueuedTotal: t.Enqueued, AckedTotal: t.Acked, DeadLetteredTotal: t.DeadLettered,
		Partitions: t.Partitions,
	}
	if t.Oldest > 0 {
		s.OldestMessageAgeSeconds = max(0, clock-t.Oldest) / 1000
	}
	return s
}

// countWithin bounds the wait for the read models, which may be rebuilding from the whole log.
const countWithin = 5 * time.Second

// countAll waits until the read models have caught up with the log, but at most for countWithin.
func (s *Server) countAll(q *request) {
	ctx, cancel := context.WithTimeout(q.Context(), countWithin)
	defer cancel()
	_ = s.deps.Models.Wait(ctx, s.deps.Log.Head()) // the answer has the index that they reached
}

// queueStats answers GET /v1/queues/{queue}/stats?minutes=&consistency=.
func (s *Server) queueStats(q *request) error {
	name := q.read("minutes", "consistency").queue()
	minutes := q.number("minutes", 60, 1, 24*60)
	counts := s.deps.Models
	q.fresh()
	v := found(q, name, s.deps.State.Queue, queueNotFound)
	if q.err != nil {
		return q.err
	}
	if !q.stale() {
		s.countAll(q)
	}
	stats := s.queueOf(&v, s.deps.State).Stats
	out := wire.QueueStats{
		Queue: name, MessagesPerMinute: stats.MessagesPerMinute,
		OldestMessageAgeSeconds: stats.OldestMessageAgeSeconds,
	}
	// The position first: the numbers include at least everything up to there.
	out.Index, _ = counts.Position()
	out.Totals = get(q, func() (map[string]uint64, error) { return counts.QueueTotals(name) })
	out.DeadByReason = get(q, func() (map[string]uint64, error) { return counts.DeadLetters(name) })
	now := s.clock(s.deps.State)
	counted := get(q, func() ([]store.Minute, error) {
		return counts.Minutes(name, now-minutes*60_000, now+1)
	})
	out.Minutes = make([]wire.Minute, len(counted))
	for i, m := range counted {
		out.Minutes[i] = wire.Minute{
			Start: wire.Time(m.Start), Enqueued: m.Enqueued, Leased: m.Leased, Acked: m.Acked,
			Retried: m.Retried, LeaseExpired: m.LeaseExpired, DeadLettered: m.DeadLettered,
			Discarded: m.Discarded, Replayed: m.Replayed,
		}
	}
	return q.answer(http.StatusOK, &out)
}

// projections answers GET /v1/projections.
func (s *Server) projections(q *request) error {
	q.read()
	return q.answer(http.StatusOK, new(s.projectionsNow()))
}

func (s *Server) projectionsNow() wire.Projections {
	// The head last, so that it is never below index.
	index, clock := s.deps.Models.Position()
	return wire.Projections{Index: index, Time: wire.Time(clock), LogHead: s.deps.Log.Head()}
}

// rebuildProjections answers POST /v1/projections/rebuild; the rebuild runs in the background.
func (s *Server) rebuildProjections(q *request) error {
	q.read().noBody()
	do := func(context.Context) (int, any, error) {
		if err := s.deps.Models.Rebuild(); err != nil {
			return 0, nil, err
		}
		s.log.Info("rebuilding read models", "actor", q.actor(), "request_id", q.id)
		return http.StatusAccepted, s.projectionsNow(), nil
	}
	return q.change("rebuild read models", writeTimeout, do)
}

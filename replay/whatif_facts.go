package replay

import (
	"context"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/projections"
)

// life is a message in one queue, in reality and in the play. In the queue to which it moves it has
// another life.
type life struct {
	id         event.ID // in reality; zero if only the play has it
	queue, key string
	kind       string
	real       []Step
	leases     []*lease // what workers did, in order
	returns    int      // how often it became leasable again after an attempt
	unblocks   int      // how often it unblocked its partition
	unblocked  int64    // when it last did
	next       *life    // where it moved to in reality, when it died or was replayed
	back       bool     // it was replayed or resurrected
	at         int64    // when it became leasable in reality
	moves      int      // how often it was given another time since it waits

	// As it is played.
	playID      event.ID // from the beginning if it existed at the first instant
	play        []Step
	last        event.Ref // its newest event
	taken       int       // leases so far
	moved       int       // how often it was given another time since it waits
	assumed     bool
	unblockedAt []int64   // when it unblocked its partition, each time
	gone        bool      // it has left its queue
	waiters     []*demand // workers that come some time after it has unblocked its partition
	open        *demand   // the worker that is expected for it
}

// lease is what a worker did with one attempt.
type lease struct {
	worker string
	ms     int64 // the length that it asked for; 0: the policy's
	total  int64 // how long after the attempt became possible it came
	// If another message had blocked the partition: which one, which time it unblocked it (from 1),
	// and how long after that the worker came.
	after *life
	nth   int
	lag   int64
	moves int // how often the message had been given another time before
	// The kinds of the messages that its call leased: if it is the first of a batch, of all of these.
	kinds []string

	acts  []act
	ended bool     // within the range
	id    event.ID // of the leased event
	at    int64
}

// act is what a worker did with its lease: it extended it, or settled it.
type act struct {
	took int64            // how long after the lease
	item event.SettleItem // without the lease
	id   event.ID         // of the event
}

// facts are all that is taken from the log.
type facts struct {
	start       *projections.State
	startClock  int64
	endClock    int64
	first, last uint64
	plan        actions          // what clients or operators did, whatever the policy
	lives       []*life          // in the order in which they came
	usual       map[string]int64 // by queue: the median time from lease to ack
}

type partitionKey struct{ queue, key string }

// gatherer reads the facts.
type gatherer struct {
	*facts
	byID      map[event.ID]*life
	queues    map[string]event.QueueView // their policies as they are while facts are gathered
	unblocker map[partitionKey]*life     // which message unblocked it last
	open      map[event.ID]*lease
	took      map[string][]int64
	batch     *lease // the first of the newest batch: what one call leased of one partition
	of        partitionKey
	index     uint64
}

func gather(ctx context.Context, src *Source, o *WhatIfOptions) (*facts, error) {
	g := &gatherer{
		facts: &facts{usual: map[string]int64{}}, byID: map[event.ID]*life{},
		queues: map[string]event.QueueView{}, unblocker: map[partitionKey]*life{},
		open: map[event.ID]*lease{}, took: map[string][]int64{},
	}
	from, err := beginning(src, o.From)
	if err != nil {
		return nil, err
	}
	if g.start, _, err = src.StateAt(ctx, from); err != nil {
		return nil, err
	}
	if g.last, err = src.Log.To(o.To); err != nil {
		return nil, err
	}
	g.first, g.startClock = g.start.Index()+1, g.start.Clock()
	g.endClock = g.startClock
	for _, q := range g.start.Queues() {
		g.queues[q.Name] = q
	}
	for m := range g.start.All {
		l := &life{
			id: m.ID, playID: m.ID, queue: m.Queue, key: m.Key, kind: m.Kind,
			at: max(m.Due, m.EnqueuedAt),
		}
		g.lives = append(g.lives, l)
		g.byID[m.ID] = l
	}
	slices.SortFunc(g.lives, func(a, b *life) int { return a.id.Compare(b.id) })
	for b, err := range src.Log.Blocks(ctx, g.first, g.last) {
		if err != nil {
			return nil, err
		}
		for i := range b.Events {
			g.event(&b.Events[i])
		}
		g.endClock = max(g.endClock, b.Time)
	}
	if o.To.Kind == event.InstantTime {
		g.endClock = max(g.endClock, o.To.Time)
	}
	for q, took := range g.took {
		slices.Sort(took)
		g.usual[q] = took[len(took)/2]
	}
	return g.facts, nil
}

// beginning returns the instant of the state before the first event that is played.
func beginning(src *Source, from event.Instant) (event.Instant, error) {
	if from.Kind == event.InstantStart {
		return src.Earliest()
	}
	first, err := src.Log.From(from)
	return event.Instant{Kind: event.InstantIndex, Index: max(first, 1) - 1}, err
}

// give records something that clients or operators did.
func (g *gatherer) give(e *event.Event, do func(*stage)) {
	g.plan = append(g.plan, action{event.ClockOf(e.ID), e.ID, len(g.plan), do})
}

// giveTo records something that operators did to a message. In the play it may never come to be.
func (g *gatherer) giveTo(l *life, e *event.Event, do func(*stage)) {
	g.give(e, func(s *stage) {
		if l != nil && !l.playID.IsZero() {
			do(s)
		}
	})
}

// command records a command that is played as it is.
func (g *gatherer) command(e *event.Event, c *event.Command) {
	g.give(e, func(s *stage) { s.apply(c) })
}

// event records the facts of one event.
func (g *gatherer) event(e *event.Event) {
	at := event.ClockOf(e.ID)
	l := g.byID[e.Subject]
	switch e.Type {
	case event.Enqueued:
		l = g.enqueued(e, at)
	case event.Leased:
		g.leased(l, e, at)
	case event.LeaseExtended:
		g.acted(l, e, at, event.SettleItem{Op: event.OpExtend, LeaseMS: g.asked(e, at)})
	case event.Acked:
		g.ended(l, e, at, event.OpAck, 0)
	case event.Released:
		g.ended(l, e, at, event.OpRelease, max(e.Due-at, 0))
	case event.Returned:
		g.ended(l, e, at, 0, 0)
	case event.Retried:
		g.ended(l, e, at, event.OpRetry, g.ownWait(e, at))
	case event.LeaseExpired:
		g.ended(l, e, at, 0, 0)
	case event.Rescheduled:
		again := &event.Reschedule{Priority: e.Priority, DelayMS: -1, At: e.Due}
		g.giveTo(l, e, func(s *stage) {
			again.ID = l.playID
			s.apply(&event.Command{Reschedule: again})
		})
	case event.DeadLettered, event.Discarded:
		g.died(l, e, at)
	case event.Replayed, event.Resurrected:
		g.broughtBack(l, e, at)
	default:
		g.queueEvent(e)
	}
	if l != nil {
		g.step(l, e, at)
	}
}

// queueEvent records what operators did to a queue or to the cluster.
func (g *gatherer) queueEvent(e *event.Event) {
	switch e.Type {
	case event.QueueCreated, event.QueueUpdated:
		q := g.queues[e.Queue]
		if e.Type == event.QueueCreated {
			q.Number = e.Number
		}
		q.Policy = *e.Policy
		g.queues[e.Queue] = q
		name, policy := e.Queue, e.Policy.Clone()
		g.give(e, func(s *stage) { s.put(name, policy.Clone(), "") })
	case event.QueueDeleted:
		g.command(e, &event.Command{DeleteQueue: &event.DeleteQueue{Name: e.Queue, Force: true}})
	case event.QueuePaused, event.QueueResumed:
		paused := e.Type == event.QueuePaused
		g.command(e, &event.Command{PauseQueue: &event.PauseQueue{
			Name: e.Queue, Key: e.Key, Paused: paused,
		}})
	case event.QueuePurged:
		g.command(e, &event.Command{PurgeQueue: &event.PurgeQueue{Name: e.Queue}})
	case event.RulesChanged:
		g.command(e, &event.Command{Upgrade: &event.Upgrade{Rules: e.Rules}})
	}
}

// died records why a message was dead-lettered or discarded, if that was not the policy's doing.
func (g *gatherer) died(l *life, e *event.Event, at int64) {
	switch {
	case e.Type == event.Discarded && e.DiedIn != "":
		purge := &event.PurgeDead{Queue: e.DiedIn}
		g.giveTo(l, e, func(s *stage) {
			purge.IDs = []event.ID{l.playID}
			s.apply(&event.Command{PurgeDead: purge})
		})
	case e.Reason == event.ReasonDeleted:
		g.ended(l, e, at, 0, 0)         // the worker's outcome is not known
		g.giveTo(l, e, func(s *stage) { // one that has left before does not matter
			s.apply(&event.Command{Delete: &event.DeleteMessage{ID: l.playID}})
		})
	case e.Reason == event.ReasonRejected && !e.Lease.IsZero():
		g.ended(l, e, at, event.OpDeadLetter, 0)
	case e.Reason == event.ReasonMaxAttempts && !e.Lease.IsZero():
		// The last try failed: the worker said retry.
		g.ended(l, e, at, event.OpRetry, -1)
	}
	if e.IsMove() {
		n := g.arrives(l, e, at)
		if l != nil {
			l.next = n
		}
	}
}

// arrives begins a message's life in the queue that it moved to.
func (g *gatherer) arrives(l *life, e *event.Event, at int64) *life {
	n := &life{id: e.ID, queue: e.ToQueue, at: at}
	if l != nil {
		n.key, n.kind = l.key, l.kind
	}
	g.byID[e.ID] = n
	return n
}

// broughtBack begins the life of a message that was replayed or resurrected. It is reported like
// one that was produced.
func (g *gatherer) broughtBack(l *life, e *event.Event, at int64) {
	n := g.arrives(l, e, at)
	n.back = true
	n.real = append(n.real, Step{Type: e.Type.String(), Time: wire.Time(at)})
	g.lives = append(g.lives, n)
	if e.Type == event.Resurrected {
		n.key, n.kind = e.Key, e.Kind
	} else if l != nil {
		l.next = n
	}
	back := fact(e)
	g.giveTo(l, e, func(s *stage) { s.bringBack(back, l, n) })
}

// enqueued begins a message's life, and records the command behind it.
func (g *gatherer) enqueued(e *event.Event, at int64) *life {
	l := &life{id: e.ID, queue: e.Queue, key: e.Key, kind: e.Kind, at: max(at, e.Due)}
	g.lives = append(g.lives, l)
	g.byID[e.ID] = l
	m := event.NewMessage{
		Key: e.Key, Kind: e.Kind, Priority: e.Priority, DeliverAt: e.Due, Size: e.Size,
		SourceID: e.SourceID,
	}
	// A delay as long as the queue's default is taken to be it.
	switch wait := g.queues[e.Queue].Policy.DefaultDelayMS; {
	case wait > 0 && e.Due == at+wait:
		m.DeliverAt = 0
	case wait > 0 && e.Due == 0:
		m.DelayMS = -1
	}
	if e.Expires > 0 {
		m.TTLMS = max(e.Expires-at, 1)
	}
	if q := g.queues[e.Queue]; q.Number > 0 && !e.Alias.IsZero() {
		m.DedupKey = e.Alias.Of(q.Number) // its own inverse
		m.PayloadHash = m.DedupKey
	}
	g.give(e, func(s *stage) { s.produce(l, m) })
	return l
}

// asked returns the lease length that a worker asked for, 0 if it was the policy's.
func (g *gatherer) asked(e *event.Event, at int64) int64 {
	ms := e.LeaseExpires - at
	if g.queues[e.Queue].Policy.LeaseMS == ms {
		return 0
	}
	return ms
}

// ownWait returns the delay that a worker asked for with its retry, -1 if it was the policy's.
func (g *gatherer) ownWait(e *event.Event, at int64) int64 {
	wait := e.Due - at
	q := g.queues[e.Queue]
	usual := fsm.Backoff(&q.Policy, e.Attempt)
	spread := usual * q.Policy.BackoffJitter / event.Million
	if q.Number == 0 || wait >= usual-spread && wait <= usual+spread {
		return -1
	}
	return wait
}

func (g *gatherer) leased(l *life, e *event.Event, at int64) {
	if l == nil {
		return
	}
	f := &lease{worker: e.Worker, ms: g.asked(e, at), at: at, total: at - l.at, id: e.ID,
		moves: l.moves}
	if by := g.unblocker[g.partition(l)]; by != nil && by != l && by.unblocked > l.at {
		f.after, f.nth, f.lag = by, by.unblocks, at-by.unblocked
	}
	l.leases = append(l.leases, f)
	g.open[e.ID] = f
	p, index := g.partition(l), event.RefOf(e.ID).Index
	if p == (partitionKey{}) || p != g.of || index != g.index || g.open[g.batch.id] == nil {
		g.batch, g.of, g.index = f, p, index
	}
	g.batch.kinds = append(g.batch.kinds, l.kind)
	if f.kinds == nil {
		f.kinds = []string{l.kind}
	}
}

// acted records what a worker did with its lease.
func (g *gatherer) acted(l *life, e *event.Event, at int64, item event.SettleItem) {
	if f := g.open[e.Lease]; f != nil {
		f.acts = append(f.acts, act{at - f.at, item, e.ID})
	} else if l != nil { // it leased the message before the first instant
		item.Lease = e.Lease
		g.command(e, &event.Command{Settle: &event.Settle{Items: []event.SettleItem{item}}})
	}
}

// partition returns the partition in which a message waits, zero if it waits for no other message.
func (g *gatherer) partition(l *life) partitionKey {
	ordering := g.queues[l.queue].Policy.Ordering
	if ordering == event.Unordered {
		return partitionKey{}
	}
	return partitionKey{l.queue, ordering.PartitionKey(l.key)}
}

// ended records how a lease ended; op 0 is silence.
func (g *gatherer) ended(l *life, e *event.Event, at int64, op event.SettleOp, delay int64) {
	if l == nil || e.Lease.IsZero() {
		return
	}
	if op != 0 {
		g.acted(l, e, at, event.SettleItem{Op: op, DelayMS: delay})
	}
	f := g.open[e.Lease]
	if f == nil {
		return
	}
	f.ended = true
	delete(g.open, e.Lease)
	if op == event.OpAck {
		g.took[l.queue] = append(g.took[l.queue], at-f.at)
	}
}

// step records an event as a part of the message's life.
func (g *gatherer) step(l *life, e *event.Event, at int64) {
	if s, ok := stepOf(e, at); ok {
		l.real = append(l.real, s)
	}
	if due, ok := again(e, at); ok {
		l.at = due
		if l.moves++; e.Type != event.Rescheduled {
			l.returns++
			l.moves = 0
		}
	}
	if p := g.partition(l); unblocks(e) && p != (partitionKey{}) {
		l.unblocks++
		l.unblocked = at
		g.unblocker[p] = l
	}
}

// stepOf returns an event as a step that is compared; false if it is none.
func stepOf(e *event.Event, at int64) (Step, bool) {
	switch e.Type {
	case event.LeaseExtended, event.ContentCarried:
		return Step{}, false // heartbeats, and the log's own
	case event.Resurrected, event.Erased:
		return Step{}, false // of a message that has left its queue long ago
	}
	return Step{
		Type: e.Type.String(), Time: wire.Time(at), Attempt: e.Attempt,
		Reason: e.Reason.String(), ToQueue: e.ToQueue,
	}, true
}

// again returns when a message becomes leasable that came back or was given another time; false if
// an event does neither.
func again(e *event.Event, at int64) (int64, bool) {
	switch e.Type {
	case event.LeaseExpired, event.Rescheduled:
		// After the last attempt it has no due time: what ends it follows in the same block. Nor
		// has it where only its priority changes.
		return max(e.Due, at), e.Due > 0
	case event.Retried, event.Released, event.Returned:
		return max(e.Due, at), true
	}
	return 0, false
}

// unblocks reports whether an event unblocks the partition for its next message.
func unblocks(e *event.Event) bool {
	switch e.Type {
	case event.Retried, event.Released, event.LeaseExpired:
		return e.Place == event.PlaceHead || e.Place == event.PlaceTail
	}
	return leaves(e.Type)
}

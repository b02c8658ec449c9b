package fsm

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
	"pgregory.net/rapid"
)

// The naive model: what docs/reference/http-api.md promises, with
// plain slices and maps, everything looked for from the start. It runs behind
// the machine: it foretells every event and every answer, and takes from the
// machine only what that leaves open (ids, jitter within its bounds,
// the order among equals).
type model struct {
	t       require.T
	clock   int64
	index   uint64
	queues  map[string]*mqueue
	pending []*mburial // decided to be gone, told by the next entries
	answers map[event.Hash]manswer
	hooks   map[string]event.WebhookView
	tasks   map[event.ID]*event.TaskView
	raised  map[event.ID]event.ID  // what was resurrected, as what
	erased  uint64                 // the index of the newest erasure
	ended   []event.ID             // the tasks that ended, in that order
	sent    map[event.ID]*mmessage // by the leases that this command sent back
	rules   uint16                 // in force
	wants   uint16                 // this entry's

	block *event.Block // what the machine did in this entry
	at    int          // the next event of it
}

type mqueue struct {
	name       string
	number     uint32
	policy     event.Policy
	revision   uint64
	paused     bool
	pausedKeys map[string]bool
	all        []*mmessage            // live, oldest first
	partitions map[string][]*mmessage // what waits in each partition, in order
	held       map[string][]*mmessage // hold_key: by which dead messages
	dedup      []*mdedup
	keyDied    bool    // something followed its dead head
	full       int64   // since when its rate_limit is what it is
	leases     []int64 // when it was leased from since then

	stats event.Stats // what passed through it
}

type mmessage struct {
	q         *mqueue
	id        event.ID
	key, kind string
	priority  uint8
	size      uint32
	state     event.State
	available int64 // since when it is, or will be
	place     event.Place
	returned  bool
	open      bool // replayed where keys are kept apart: whether it goes before those of other keys is left open
	attempt   uint32
	lease     event.ID
	leaseEnds int64
	came      int64
	ttlEnds   int64
	from      *event.DeadView
	origin    *event.OriginView
	source    string
	behind    bool     // it was replayed behind those that waited
	follows   event.ID // the order of one that it was leased behind, if that is higher
	gone      bool
	took      *mdedup // what makes another a duplicate of it
	holds     *mqueue // the queue in which it holds its key
}

type mdedup struct {
	hash  event.Hash
	id    event.ID
	until int64
}

type mburial struct {
	list   []*mmessage
	queue  string
	reason event.Reason
	to     string
}

type manswer struct {
	body  event.Hash
	at    event.Ref
	until int64
}

func newModel(t require.T) *model {
	return &model{t: t, rules: 1, queues: map[string]*mqueue{}, answers: map[event.Hash]manswer{}, hooks: map[string]event.WebhookView{}, tasks: map[event.ID]*event.TaskView{}, raised: map[event.ID]event.ID{}}
}

func (w *model) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("index %d: the model says: %s", w.index, fmt.Sprintf(format, args...))
}

// partition is a message's partition.
func (m *mmessage) partition() string {
	if m.q.policy.Ordering == event.FIFO {
		return ""
	}
	return m.key
}

func (m *mmessage) ends() int64 {
	at := m.ttlEnds
	if age := m.q.policy.MaxAgeSeconds; age > 0 && (at == 0 || m.came+age*1000 < at) {
		at = m.came + age*1000
	}
	return at
}

func (m *mmessage) over(clock int64) bool {
	return m.state != event.StateLeased && m.ends() != 0 && m.ends() <= clock
}

// emit foretells the next event and returns it.
func (w *model) emit(want event.Event) *event.Event {
	w.t.Helper()
	if w.at >= len(w.block.Events) {
		w.fatal("%s of %s (%s) should follow; the machine has no more events", want.Type, want.Subject, want.Reason)
	}
	e := &w.block.Events[w.at]
	w.at++
	got := event.Event{
		Type: e.Type, Subject: e.Subject, Queue: e.Queue, Reason: e.Reason, ToQueue: e.ToQueue, Attempt: e.Attempt,
		HoldsKey: e.HoldsKey, TakesKey: e.TakesKey, Lease: e.Lease,
	}
	if want.Type == event.Enqueued {
		want.Subject = e.ID
	}
	if want.Type == event.Leased {
		want.Lease = e.ID
	}
	if !reflect.DeepEqual(got, want) {
		w.fatal("event %d should be\n%+v, it is\n%+v", w.at-1, want, got)
	}
	if event.ClockOf(e.ID) != w.clock {
		w.fatal("at %d the event %s is of %d", w.clock, e.ID, event.ClockOf(e.ID))
	}
	return e
}

// begin lets happen what the time brings before an entry's commands.
func (w *model) begin(b *event.Block) {
	w.index, w.block, w.at = b.Index, b, 0
	w.clock = max(w.clock, b.Time)
	w.forgetTasks()
	var due []*mmessage
	for _, q := range w.queues {
		for _, m := range q.all {
			if m.state == event.StateScheduled && m.available <= w.clock {
				due = append(due, m)
			}
		}
	}
	slices.SortFunc(due, func(a, b *mmessage) int {
		return cmp.Or(cmp.Compare(a.available, b.available), a.id.Compare(b.id))
	})
	for _, m := range due {
		if m.place == event.PlaceBlock {
			m.state = event.StateReady
		} else {
			w.ready(m, m.place)
		}
	}
	for {
		m := w.overdue()
		if m == nil {
			break
		}
		if m.state == event.StateLeased {
			w.leaseExpires(m)
		} else {
			w.die(m, event.ReasonExpired, event.ID{})
		}
	}
	for len(w.pending) > 0 {
		g := w.pending[0]
		w.pending = w.pending[1:]
		for _, m := range g.list {
			if m.gone {
				continue
			}
			if _, ok := w.queues[g.to]; ok && g.to != "" {
				e := w.emit(event.Event{Type: event.DeadLettered, Subject: m.id, Queue: g.queue, Reason: g.reason, ToQueue: g.to, Attempt: m.attempt})
				w.move(m, e, g.reason)
			} else {
				e := event.Event{Type: event.Discarded, Subject: m.id, Queue: g.queue, Reason: g.reason, Attempt: m.attempt}
				w.emit(e)
			}
			m.gone = true
			w.resolve(m)
		}
	}
}

// overdue finds the first thing due, by (due, id).
func (w *model) overdue() (first *mmessage) {
	at := int64(0)
	for _, q := range w.queues {
		for _, m := range q.all {
			t := m.ends()
			if m.state == event.StateLeased {
				t = m.leaseEnds
			}
			if t == 0 || t > w.clock {
				continue
			}
			if first == nil || t < at || t == at && m.id.Compare(first.id) < 0 {
				first, at = m, t
			}
		}
	}
	return first
}

func (w *model) next() (at int64, ok bool) {
	for _, q := range w.queues {
		if q.policy.RateLimit > 0 && q.tokens(w.clock) == 0 {
			t := w.clock + 1 // when the next token comes
			for q.tokens(t) == 0 {
				t++
			}
			if !ok || t < at {
				at, ok = t, true
			}
		}
		for _, m := range q.all {
			for _, t := range []int64{m.ends(), m.available, m.leaseEnds} {
				switch {
				case t == 0, m.state == event.StateLeased && t != m.leaseEnds, m.state == event.StateReady && t == m.available:
				case !ok || t < at:
					at, ok = t, true
				}
			}
		}
	}
	return at, ok
}

// checkBackoff holds a wait after failure n against the policy.
func (w *model) checkBackoff(p *event.Policy, n uint32, wait int64) {
	w.t.Helper()
	base := p.InitialBackoffMS
	if s := p.BackoffScheduleMS; len(s) > 0 {
		base = s[min(int(n), len(s))-1]
	} else {
		for i := uint32(1); i < n; i++ {
			base = min(base*p.BackoffMultiplier/event.Million, p.MaxBackoffMS)
		}
		base = min(base, p.MaxBackoffMS)
	}
	lo, hi := base-base*p.BackoffJitter/event.Million, base+base*p.BackoffJitter/event.Million
	if len(p.BackoffScheduleMS) == 0 {
		hi = min(hi, p.MaxBackoffMS)
	}
	if wait < lo || wait > hi {
		w.fatal("the wait after failure %d is %d, from %d to %d is allowed", n, wait, lo, hi)
	}
}

// batch is what is leased of a message's partition, in order.
func (m *mmessage) batch() (out []*mmessage) {
	if m.q.policy.Ordering == event.Unordered {
		return nil
	}
	for _, o := range m.q.all {
		if o.state == event.StateLeased && o.partition() == m.partition() {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *mmessage) int { return a.lease.Compare(b.lease) })
	return out
}

// behindIt is what was leased behind a message in its batch.
func (m *mmessage) behindIt() []*mmessage {
	b := m.batch()
	return b[slices.Index(b, m)+1:]
}

// sendBack returns what was leased behind a message to its place, from behind.
func (w *model) sendBack(m *mmessage) {
	for _, o := range slices.Backward(m.behindIt()) {
		o.attempt--
		w.emit(event.Event{Type: event.Returned, Subject: o.id, Queue: o.q.name, Lease: o.lease, Attempt: o.attempt})
		w.sent[o.lease] = o
		o.lease, o.leaseEnds = event.ID{}, 0
		w.ready(o, event.PlaceBlock)
	}
}

// stops says whether a failure stops the partition.
func (m *mmessage) stops(dies bool) bool {
	p := m.q.policy
	if p.Ordering == event.Unordered {
		return false
	}
	return dies && p.OnDead != event.DeadSkip || !dies && p.OnRetry == event.RetryBlock
}

func (m *mmessage) last() bool {
	p := m.q.policy
	return p.MaxAttempts > 0 && m.attempt >= p.MaxAttempts
}

func (w *model) leaseExpires(m *mmessage) {
	for _, o := range m.batch() { // the first that ends at the same instant
		if o.leaseEnds == m.leaseEnds {
			m = o
			break
		}
	}
	p := &m.q.policy
	if m.stops(m.last()) {
		w.sendBack(m)
	}
	e := w.emit(event.Event{Type: event.LeaseExpired, Subject: m.id, Queue: m.q.name, Lease: m.lease, Attempt: m.attempt})
	m.lease, m.leaseEnds = event.ID{}, 0
	if m.last() {
		w.ready(m, event.PlaceBlock)
		w.die(m, event.ReasonMaxAttempts, event.ID{})
		return
	}
	w.checkBackoff(p, m.attempt, e.Due-w.clock)
	w.again(m, e.Due)
}

// again lets a failed message wait for its next try.
func (w *model) again(m *mmessage, due int64) {
	place := event.PlaceAny
	if p := m.q.policy; p.Ordering != event.Unordered {
		place = []event.Place{event.PlaceBlock, event.PlaceHead, event.PlaceTail}[p.OnRetry]
	}
	m.lease, m.leaseEnds = event.ID{}, 0
	if place != event.PlaceBlock {
		m.follows = event.ID{}
	}
	w.wait(m, due, place)
}

func (w *model) wait(m *mmessage, due int64, place event.Place) {
	if due <= w.clock {
		m.available = w.clock
		w.ready(m, place)
		return
	}
	m.state, m.available, m.place = event.StateScheduled, due, place
	if place == event.PlaceBlock {
		w.front(m)
	}
}

func (w *model) ready(m *mmessage, place event.Place) {
	m.state = event.StateReady
	switch {
	case m.q.policy.Ordering == event.Unordered:
		// A replayed one that comes back keeps its place before the others.
		m.returned = place == event.PlaceHead && m.order() != m.id
	case place == event.PlaceHead, place == event.PlaceBlock:
		w.front(m)
	default:
		m.q.partitions[m.partition()] = append(m.q.partitions[m.partition()], m)
	}
}

// front puts a message before those that wait in its partition. Those that
// came back keep their order.
func (w *model) front(m *mmessage) {
	l, i := m.q.partitions[m.partition()], 0
	for i < len(l) && l[i].returned && l[i].order().Compare(m.order()) < 0 {
		i++
	}
	m.returned = true
	out := append([]*mmessage(nil), l[:i]...)
	m.q.partitions[m.partition()] = append(append(out, m), l[i:]...)
}

func without(l []*mmessage, m *mmessage) []*mmessage {
	return slices.DeleteFunc(slices.Clone(l), func(o *mmessage) bool { return o == m })
}

// leaves takes a message out of all lists.
func (w *model) leaves(m *mmessage) {
	m.q.all = without(m.q.all, m)
	if m.took != nil && m.took.until == event.UntilLeft {
		m.release()
	}
	w.unwait(m)
}

// release frees the key of a message that an operator takes away.
func (m *mmessage) release() {
	if m.took != nil {
		m.took.until = 0
	}
}

func (w *model) unwait(m *mmessage) {
	m.returned = false
	if l := without(m.q.partitions[m.partition()], m); len(l) > 0 {
		m.q.partitions[m.partition()] = l
	} else {
		delete(m.q.partitions, m.partition())
	}
}

// resolve lets the partition that a dead message held go on.
func (w *model) resolve(m *mmessage) {
	if q := m.holds; q != nil {
		for k := range q.held {
			if q.held[k] = without(q.held[k], m); len(q.held[k]) == 0 {
				delete(q.held, k)
			}
		}
	}
}

func (w *model) die(m *mmessage, reason event.Reason, lease event.ID) (to string) {
	q, p := m.q, m.q.policy
	var follow []*mmessage
	discards := reason == event.ReasonExpired && p.OnExpired == event.ExpiredDiscard
	if p.Ordering != event.Unordered && p.OnDead == event.DeadLetterKey && !discards {
		follow = without(q.partitions[m.partition()], m)
	}
	e := event.Event{Type: event.Discarded, Subject: m.id, Queue: q.name, Reason: reason, Lease: lease, Attempt: m.attempt, TakesKey: len(follow) > 0}
	w.leaves(m)
	m.gone = true
	if p.DeadLetterQueue != "" && !discards {
		to = p.DeadLetterQueue
		e.Type, e.ToQueue = event.DeadLettered, to
		e.HoldsKey = p.Ordering != event.Unordered && p.OnDead == event.DeadHoldKey
		q.stats.DeadLettered++
		d := w.move(m, w.emit(e), reason)
		if e.HoldsKey {
			d.holds = q
			q.held[m.partition()] = append(q.held[m.partition()], d)
		}
	} else {
		q.stats.Discarded++
		w.emit(e)
	}
	w.resolve(m)
	for _, o := range follow {
		w.leaves(o)
		if to != "" {
			q.stats.DeadLettered++
		} else {
			q.stats.Discarded++
		}
	}
	if len(follow) > 0 {
		q.keyDied = true
		w.pending = append(w.pending, &mburial{list: follow, queue: q.name, reason: event.ReasonKeyDead, to: to})
	}
	return to
}

// move makes the message that a dead one becomes.
func (w *model) move(m *mmessage, e *event.Event, reason event.Reason) *mmessage {
	to := w.queues[e.ToQueue]
	first, at, replays := m.id, m.came, uint32(0)
	switch {
	case m.from != nil:
		at, replays = m.from.FirstEnqueuedAt, m.from.ReplayCount
	case m.origin != nil:
		first, at, replays = m.origin.First, event.ClockOf(m.origin.First), m.origin.Replays
	}
	d := &mmessage{
		q: to, id: e.ID, key: m.key, kind: m.kind, priority: m.priority, size: m.size, came: w.clock, available: w.clock,
		source: m.source, took: m.took, from: &event.DeadView{
			Queue: m.q.name, MessageID: m.id, Reason: reason, Attempts: m.attempt, FailedAt: w.clock, FirstEnqueuedAt: at, First: first, ReplayCount: replays,
		},
	}
	to.stats.DeadIn++
	to.all = append(to.all, d)
	w.ready(d, event.PlaceTail)
	return d
}

func (w *model) problem(got event.Result, code string, index int) {
	w.t.Helper()
	if got.Problem == nil || got.Problem.Code != code || got.Problem.Index != index {
		w.fatal("answer should be %s at %d, it is %+v", code, index, got.Problem)
	}
}

// command foretells what a command does and its answer.
func (w *model) command(c *event.Command, got event.Result) {
	w.t.Helper()
	w.sent = map[event.ID]*mmessage{}
	if q := c.Request; q != nil {
		if a, ok := w.answers[q.Key]; ok && a.until > w.clock {
			if a.body != q.Body {
				w.problem(got, event.CodeKeyReused, -1)
			} else if got.Kept != a.at || got.Problem != nil {
				w.fatal("the first answer is at %v, the machine says %+v", a.at, got)
			}
			return
		}
	}
	if !got.Kept.IsZero() {
		w.fatal("a first request was answered from %v", got.Kept)
	}
	w.decide(c, got)
	if c.Request != nil && got.Problem == nil {
		e := w.emit(event.Event{Type: event.AnswerKept})
		kept, err := event.DecodeContent(e.Content.Bytes)
		if err != nil {
			w.fatal("%v", err)
		}
		if !bytes.Equal(kept.Answer, event.EncodeResult(&got)) {
			w.fatal("the answer kept differs from the answer given")
		}
		w.answers[c.Request.Key] = manswer{c.Request.Body, event.RefOf(e.ID), w.clock + 24*3600*1000}
	}
}

func (w *model) decide(c *event.Command, got event.Result) {
	w.t.Helper()
	switch {
	case c.Replay != nil:
		w.replay(c.Replay, got)
	case c.PurgeDead != nil:
		w.purgeDead(c.PurgeDead, got)
	case c.Erase != nil:
		w.erase(c.Erase, got)
	case c.PutWebhook != nil:
		w.putWebhook(c.PutWebhook, got)
	case c.DeleteWebhook != nil:
		w.deleteWebhook(c.DeleteWebhook.Name, got)
	case c.Define != nil:
		w.define(c.Define, got)
	case c.Resurrect != nil:
		w.resurrect(c.Resurrect, got)
	case c.CreateTask != nil:
		w.createTask(c.CreateTask, got)
	case c.UpdateTask != nil:
		w.updateTask(c.UpdateTask, got)
	case c.Produce != nil:
		w.produce(c.Produce, got)
	case c.Lease != nil:
		w.leaseCommand(c.Lease, got)
	case c.Settle != nil:
		if _, ok := w.queues[c.Settle.Queue]; c.Settle.Queue != "" && !ok {
			w.problem(got, event.CodeQueueNotFound, -1)
			return
		}
		for i, it := range c.Settle.Items {
			m := w.byLease(it.Lease)
			if o := w.sent[it.Lease]; o != nil && (c.Settle.Queue == "" || c.Settle.Queue == o.q.name) && it.Op != event.OpAck && it.Op != event.OpExtend {
				w.wasSent(it, o, got.Settled[i])
				continue
			}
			if m == nil || (c.Settle.Queue != "" && m.q.name != c.Settle.Queue) {
				want := event.Settled{Lease: it.Lease, Status: event.StatusRejected, Code: event.CodeLeaseLost}
				if m != nil {
					want.Code, want.Queue = event.CodeWrongQueue, m.q.name
				}
				if s := got.Settled[i]; s != want {
					w.fatal("item %d should be %+v, it is %+v", i, want, s)
				}
				continue
			}
			w.settle(it, m, got.Settled[i])
		}
	case c.Mark != nil:
		if got.Problem != nil {
			w.fatal("a mark is answered with a digest, not %+v", got)
		}
	case c.Upgrade != nil:
		w.upgrade(c.Upgrade, got)
	case c.Transaction != nil:
		w.transaction(c.Transaction, got)
	case c.PutQueue != nil:
		w.putQueue(c.PutQueue, got)
	case c.DeleteQueue != nil:
		w.deleteQueue(c.DeleteQueue, got)
	case c.PauseQueue != nil:
		q, ok := w.queues[c.PauseQueue.Name]
		if !ok {
			w.problem(got, event.CodeQueueNotFound, -1)
			return
		}
		w.pause(q, c.PauseQueue, got)
	case c.PurgeQueue != nil:
		w.purge(c.PurgeQueue.Name, got)
	case c.Reschedule != nil:
		w.reschedule(c.Reschedule, got)
	case c.Delete != nil:
		if m := w.live(c.Delete.ID, got); m != nil {
			w.discard(m, event.ReasonDeleted)
		}
	}
}

// live finds a message that is in a queue; nil, with the answer that there should be, if it is not or
// its time is over.
func (w *model) live(id event.ID, got event.Result) *mmessage {
	w.t.Helper()
	w.expire(id)
	m := w.find(id)
	if m == nil {
		w.problem(got, event.CodeMessageNotFound, -1)
	}
	return m
}

// discard takes away a message that somebody asked to be deleted.
func (w *model) discard(m *mmessage, reason event.Reason) *event.Event {
	w.t.Helper()
	e := w.emit(event.Event{Type: event.Discarded, Subject: m.id, Queue: m.q.name, Reason: reason, Lease: m.lease, Attempt: m.attempt})
	m.release()
	w.leaves(m)
	w.resolve(m)
	m.q.stats.Discarded++
	return e
}

func (w *model) pause(q *mqueue, c *event.PauseQueue, got event.Result) {
	e := event.Event{Type: event.QueueResumed, Queue: q.name}
	if c.Paused {
		e.Type = event.QueuePaused
	}
	switch {
	case c.Key != "" && q.policy.Ordering == event.FIFO:
		w.problem(got, event.CodeInvalidArgument, -1)
	case c.Key != "":
		if q.pausedKeys[c.Key] != c.Paused {
			w.emit(e)
		}
		q.pausedKeys[c.Key] = c.Paused
	default:
		if q.paused != c.Paused {
			w.emit(e)
		}
		q.paused = c.Paused
	}
}

func (w *model) reschedule(c *event.Reschedule, got event.Result) {
	m := w.live(c.ID, got)
	switch {
	case m == nil:
		return
	case m.state == event.StateLeased:
		w.problem(got, event.CodeConflict, -1)
		return
	}
	timed := c.At != 0 || c.DelayMS >= 0
	priority := cmp.Or(c.Priority, m.priority)
	if !timed && priority == m.priority {
		return
	}
	w.emit(event.Event{Type: event.Rescheduled, Subject: m.id, Queue: m.q.name, Attempt: m.attempt})
	m.priority = priority
	due := w.clock + c.DelayMS
	if c.At != 0 {
		due = max(c.At, w.clock)
	}
	blocks := m.state == event.StateScheduled && m.place == event.PlaceBlock
	switch {
	case !timed && (m.q.policy.Ordering != event.Unordered || m.state == event.StateScheduled):
	case timed && blocks:
		m.available = due
		if due <= w.clock {
			m.state = event.StateReady
		}
	default:
		w.unwait(m)
		m.follows = event.ID{}
		if !timed {
			due = w.clock
		}
		w.wait(m, due, event.PlaceTail)
	}
}

func (w *model) createQueue(name string, p event.Policy) {
	e := w.emit(event.Event{Type: event.QueueCreated, Queue: name})
	w.queues[name] = &mqueue{full: w.clock, name: name, number: e.Number, policy: p, revision: w.index, partitions: map[string][]*mmessage{}, held: map[string][]*mmessage{}, pausedKeys: map[string]bool{}}
}

// usedBy counts the queues that name this one as their dead-letter queue.
func (w *model) usedBy(name string) (n int) {
	for _, q := range w.queues {
		if q.policy.DeadLetterQueue == name {
			n++
		}
	}
	return n
}

// size is how many messages and bytes a queue holds.
func (q *mqueue) size() (n, bytes int64) {
	for _, m := range q.all {
		bytes += int64(m.size)
	}
	return int64(len(q.all)), bytes
}

// fixed says whether a policy changes what can't change while the queue holds messages.
func (q *mqueue) fixed(p *event.Policy) bool {
	return len(q.all) > 0 && (q.policy.Ordering != p.Ordering || (q.policy.MaxInFlightPerKey > 0) != (p.MaxInFlightPerKey > 0) ||
		q.policy.PriorityAgingMS != p.PriorityAgingMS)
}

func (w *model) updateQueue(q *mqueue, p event.Policy) {
	w.emit(event.Event{Type: event.QueueUpdated, Queue: q.name})
	if p.Ordering != q.policy.Ordering || p.OnDead != event.DeadHoldKey {
		q.held = map[string][]*mmessage{}
	}
	if p.Ordering == event.FIFO {
		q.pausedKeys = map[string]bool{}
	}
	if p.RateLimit != q.policy.RateLimit || p.RatePer() != q.policy.RatePer() {
		q.full, q.leases = w.clock, nil
	}
	q.policy, q.revision = p, w.index
}

func (w *model) deleteQueue(c *event.DeleteQueue, got event.Result) {
	q, ok := w.queues[c.Name]
	switch {
	case !ok:
		w.problem(got, event.CodeQueueNotFound, -1)
		return
	case !c.Force && (w.usedBy(c.Name) > 0 || w.feeds(c.Name) || len(q.all) > 0):
		w.problem(got, event.CodeQueueInUse, -1)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.queues)) {
		p := w.queues[name].policy
		if p.DeadLetterQueue != c.Name {
			continue
		}
		p.DeadLetterQueue = ""
		if p.OnDead == event.DeadHoldKey {
			p.OnDead = event.DeadSkip
		}
		w.updateQueue(w.queues[name], p)
	}
	w.emit(event.Event{Type: event.QueueDeleted, Queue: c.Name})
	w.pending = append(w.pending, &mburial{list: q.all, queue: q.name, reason: event.ReasonQueueDeleted})
	for _, m := range q.all {
		m.release()
		m.lease = event.ID{}
	}
	delete(w.queues, c.Name)
}

func (w *model) purge(name string, got event.Result) {
	q, ok := w.queues[name]
	if !ok {
		w.problem(got, event.CodeQueueNotFound, -1)
		return
	}
	var leased, rest []*mmessage
	for _, m := range q.all {
		if m.state == event.StateLeased {
			leased = append(leased, m)
		} else {
			m.release()
			rest = append(rest, m)
		}
	}
	if got.Count != int64(len(rest)) {
		w.fatal("purge takes %d, the machine says %d", len(rest), got.Count)
	}
	if len(rest) == 0 {
		return
	}
	w.emit(event.Event{Type: event.QueuePurged, Queue: name})
	q.all, q.partitions = leased, map[string][]*mmessage{}
	q.stats.Discarded += int64(len(rest))
	w.pending = append(w.pending, &mburial{list: rest, queue: name, reason: event.ReasonPurged})
}

// plan says which messages of a produce are new (-1), or the duplicate of
// which one.
func (w *model) plan(c *event.Produce, got event.Result, part int, loads map[string][2]int64) (p event.Policy, dups []any, ok bool) {
	q, exists := w.queues[c.Queue]
	switch {
	case !exists && !c.AutoCreate:
		w.problem(got, event.CodeQueueNotFound, part)
		return p, nil, false
	case !exists:
		p, q = event.DefaultPolicy(), &mqueue{}
	default:
		p = q.policy
		if c.Revision != q.revision && !c.Import && (len(p.MessageSchema) > 0 || p.DedupBy == event.DedupByContent) {
			w.problem(got, event.CodeStaleRevision, part)
			return p, nil, false
		}
	}
	depth, size := q.size()
	depth, size = depth+loads[c.Queue][0], size+loads[c.Queue][1]
	more, moreBytes := int64(0), int64(0)
	first := map[event.Hash]int{}
	for i, m := range c.Messages {
		var dup any
		if c.Import {
			if m.SourceID == "" {
				w.problem(got, event.CodeInvalidArgument, i)
				return p, nil, false
			}
			for _, o := range q.all {
				if o.source == m.SourceID && dup == nil {
					dup = o.id
				}
			}
		}
		if h := w.hash(&p, &m); !h.IsZero() && dup == nil {
			for _, d := range q.dedup {
				if d.hash == h && d.until > w.clock {
					dup = d.id
				}
			}
			if j, ok := first[h]; ok && dup == nil {
				dup = j
			} else if dup == nil {
				first[h] = i
			}
		}
		if dup == nil {
			more++
			moreBytes += int64(m.Size)
		}
		dups = append(dups, dup)
	}
	if more > 0 && (p.MaxDepth > 0 && depth+more > p.MaxDepth || p.MaxBytes > 0 && size+moreBytes > p.MaxBytes) {
		w.problem(got, event.CodeQueueFull, part)
		return p, nil, false
	}
	l := loads[c.Queue]
	loads[c.Queue] = [2]int64{l[0] + more, l[1] + moreBytes}
	return p, dups, true
}

func (w *model) hash(p *event.Policy, m *event.NewMessage) event.Hash {
	switch {
	case m.SourceID != "":
		return m.DedupKey
	case p.DedupWindowSeconds == 0 && p.DedupUntil != event.DedupUntilLeft:
		return event.Hash{}
	case p.DedupBy == event.DedupByContent:
		return m.PayloadHash
	}
	return m.DedupKey
}

func (w *model) produce(c *event.Produce, got event.Result) {
	p, dups, ok := w.plan(c, got, -1, map[string][2]int64{})
	if ok {
		w.enqueue(c, p, dups, got.Produced)
	}
}

func (w *model) enqueue(c *event.Produce, p event.Policy, dups []any, got []event.Produced) {
	if _, ok := w.queues[c.Queue]; !ok {
		w.createQueue(c.Queue, p)
	}
	q := w.queues[c.Queue]
	for i, m := range c.Messages {
		switch dup := dups[i].(type) {
		case event.ID:
			if !got[i].Duplicate || got[i].ID != dup {
				w.fatal("message %d is a duplicate of %s, the machine says %+v", i, dup, got[i])
			}
			continue
		case int:
			if !got[i].Duplicate || got[i].ID != got[dup].ID {
				w.fatal("message %d is a duplicate of %d, the machine says %+v", i, dup, got[i])
			}
			continue
		}
		e := w.emit(event.Event{Type: event.Enqueued, Queue: c.Queue})
		if got[i].Duplicate || got[i].ID != e.ID {
			w.fatal("message %d is new, the machine says %+v", i, got[i])
		}
		n := &mmessage{q: q, id: e.ID, key: m.Key, kind: m.Kind, priority: m.Priority, size: m.Size, came: w.clock}
		if m.TTLMS > 0 {
			n.ttlEnds = w.clock + m.TTLMS
		}
		due := w.clock
		if m.DelayMS > 0 {
			due += m.DelayMS
		} else if m.DelayMS == 0 && m.DeliverAt == 0 && !c.Import {
			due += p.DefaultDelayMS
		} else if m.DeliverAt > due {
			due = m.DeliverAt
		}
		if h := w.hash(&p, &m); !h.IsZero() {
			n.took = &mdedup{h, n.id, w.remembers(&p, c.Import)}
			q.dedup = append(q.dedup, n.took)
		}
		if n.source = m.SourceID; c.Import {
			q.stats.Imported++
		} else {
			q.stats.Enqueued++
		}
		q.all = append(q.all, n)
		w.wait(n, due, event.PlaceTail)
	}
}

// remembers returns until when a new message is remembered.
func (w *model) remembers(p *event.Policy, imported bool) int64 {
	window := p.DedupWindowSeconds
	if imported {
		window = max(window, 24*3600)
	} else if p.DedupUntil == event.DedupUntilLeft {
		return event.UntilLeft
	}
	return w.clock + window*1000
}

func (w *model) byLease(id event.ID) *mmessage {
	for _, q := range w.queues {
		for _, m := range q.all {
			if m.state == event.StateLeased && m.lease == id {
				return m
			}
		}
	}
	return nil
}

// tokens is how many leases a queue's rate_limit of count per period allows at an instant: a bucket
// of count tokens that gains count/period a millisecond and loses one with each lease.
func (q *mqueue) tokens(at int64) int64 {
	count, period := q.policy.RateLimit, q.policy.RatePer()
	level, since := count*period, q.full // in parts of a token
	for _, t := range q.leases {
		level, since = min(level+(t-since)*count, count*period)-period, t
	}
	return min(level+(at-since)*count, count*period) / period
}

// mayLease is how many more leases the queue's state and limits allow.
func (w *model) mayLease(q *mqueue) int64 {
	most := int64(1 << 40)
	if q.policy.RateLimit > 0 {
		most = q.tokens(w.clock)
	}
	if p := &q.policy; p.MaxInFlight > 0 {
		free := p.MaxInFlight
		for _, m := range q.all {
			if m.state == event.StateLeased {
				free--
			}
		}
		most = min(most, free)
	}
	if q.paused {
		return 0
	}
	return max(most, 0)
}

// mayLeaseOf is how many more leases a limit allows of a key.
func (w *model) mayLeaseOf(q *mqueue, key string) int64 {
	if q.policy.MaxInFlightPerKey == 0 || key == "" {
		return 1 << 40
	}
	most := q.policy.MaxInFlightPerKey
	for _, m := range q.all {
		if m.state == event.StateLeased && m.key == key {
			most--
		}
	}
	return max(most, 0)
}

// candidates are the messages of which any may be leased next.
func (w *model) candidates(q *mqueue, kinds []string) (out []*mmessage) {
	if w.mayLease(q) == 0 {
		return nil
	}
	var heads []*mmessage
	if q.policy.Ordering == event.Unordered {
		for _, m := range q.all {
			if !q.pausedKeys[m.key] && w.mayLeaseOf(q, m.key) > 0 {
				heads = append(heads, m)
			}
		}
	} else {
		leased := map[string]bool{}
		for _, m := range q.all {
			if m.state == event.StateLeased {
				leased[m.partition()] = true
			}
		}
		for k, l := range q.partitions {
			if !leased[k] && len(q.held[k]) == 0 && !q.pausedKeys[k] {
				heads = append(heads, l[0])
			}
		}
	}
	if q.policy.PriorityAgingMS > 0 {
		return q.aged(heads, kinds)
	}
	return best(heads, kinds)
}

// aged are the candidates where priorities age: those of one priority, the first of which has the least
// waiting since + priority × aging. When a lane could be delivered last is left open.
func (q *mqueue) aged(heads []*mmessage, kinds []string) (out []*mmessage) {
	least := int64(0)
	for prio := uint8(event.MinPriority); prio <= event.MaxPriority; prio++ {
		var of []*mmessage
		for _, m := range heads {
			if m.priority == prio {
				of = append(of, m)
			}
		}
		if of = best(of, kinds); len(of) == 0 {
			continue
		}
		at := of[0].available + int64(prio)*q.policy.PriorityAgingMS
		switch {
		case q.policy.Ordering != event.Unordered, slices.ContainsFunc(heads, func(m *mmessage) bool { return m.open }):
			out = append(out, of...)
		case len(out) == 0 || at < least:
			out, least = of, at
		}
	}
	return out
}

// best are those that are leased first by priority and availability.
func best(heads []*mmessage, kinds []string) (out []*mmessage) {
	open := slices.ContainsFunc(heads, func(m *mmessage) bool { return m.open })
	for _, m := range heads {
		if m.state != event.StateReady || (len(kinds) > 0 && !slices.Contains(kinds, m.kind)) {
			continue
		}
		if len(out) > 0 {
			c := m.compare(out[0])
			if open {
				c = cmp.Compare(m.priority, out[0].priority)
			}
			switch {
			case c > 0:
				continue
			case c < 0:
				out = nil
			}
		}
		out = append(out, m)
	}
	return out
}

// compare says which of two candidates of a queue is leased first; 0 says that
// that is left open.
func (m *mmessage) compare(o *mmessage) int {
	switch {
	case m.priority != o.priority:
		return cmp.Compare(m.priority, o.priority)
	case m.q.policy.Ordering != event.Unordered:
		return 0
	case m.returned && o.returned:
		return m.order().Compare(o.order())
	case m.returned:
		return -1
	case o.returned:
		return 1
	}
	return cmp.Compare(m.available, o.available)
}

// undeliverable says why a message dies instead of being delivered, if it does: its time was over in
// the same entry in which it came back, or max_attempts was lowered.
func (w *model) undeliverable(m *mmessage) event.Reason {
	switch {
	case m.over(w.clock):
		return event.ReasonExpired
	case m.last():
		return event.ReasonMaxAttempts
	}
	return event.ReasonNone
}

// dying is the candidate that the machine passed over.
func (w *model) dying(cands []*mmessage) *mmessage {
	for _, m := range cands {
		if w.at < len(w.block.Events) && w.undeliverable(m) != event.ReasonNone && w.block.Events[w.at].Subject == m.id {
			return m
		}
	}
	return nil
}

// follower is what can be leased behind a message in the same call.
func (w *model) follower(m *mmessage, kinds []string) []*mmessage {
	l := m.q.partitions[m.partition()]
	if m.q.policy.Ordering == event.Unordered || len(l) == 0 || l[0].state != event.StateReady || len(m.q.held[m.partition()]) > 0 || m.q.pausedKeys[m.partition()] ||
		len(kinds) > 0 && !slices.Contains(kinds, l[0].kind) {
		return nil
	}
	return l[:1]
}

func (w *model) leaseCommand(c *event.Lease, got event.Result) {
	w.t.Helper()
	for i, name := range c.Queues {
		if _, ok := w.queues[name]; !ok {
			w.problem(got, event.CodeQueueNotFound, i)
			return
		}
	}
	n, died := 0, int64(0)
	for _, name := range c.Queues {
		q := w.queues[name]
		var ahead *mmessage // of the batch that is being leased
		left := int64(0)
		for n < c.Max {
			var cands []*mmessage
			if ahead != nil && left > 0 && w.mayLease(q) > 0 {
				cands = w.follower(ahead, c.Kinds)
			}
			if len(cands) == 0 {
				if cands, ahead, left = w.candidates(q, c.Kinds), nil, q.policy.Batch(); c.Single {
					left = 1
				}
			}
			if len(cands) == 0 {
				break
			}
			if n >= len(got.Leased) && w.dying(cands) == nil {
				w.fatal("%s can be leased from %q, the machine leased %d only", cands[0].id, name, len(got.Leased))
			}
			if m := w.dying(cands); m != nil {
				w.die(m, w.undeliverable(m), event.ID{})
				died++
				continue
			}
			l := got.Leased[n]
			i := slices.IndexFunc(cands, func(o *mmessage) bool { return o.id == l.ID })
			if i < 0 {
				w.fatal("%s (and %d equals) is next in %q, the machine leased %s", cands[0].id, len(cands)-1, name, l.ID)
			}
			m := cands[i]
			if why := w.undeliverable(m); why != event.ReasonNone {
				w.fatal("%s was leased, it should have died: %s", m.id, why)
			}
			n++
			w.unwait(m)
			m.attempt++
			e := w.emit(event.Event{Type: event.Leased, Subject: m.id, Queue: name, Attempt: m.attempt})
			m.state, m.lease, m.leaseEnds = event.StateLeased, e.ID, w.clock+cmp.Or(c.LeaseMS, q.policy.LeaseMS)
			q.leases = append(q.leases, w.clock)
			behind := event.ID{}
			if m.follows = (event.ID{}); ahead != nil {
				behind = ahead.lease
				if ahead.order().Compare(m.order()) > 0 {
					m.follows = ahead.order()
				}
			}
			ahead = m
			left--
			if l.Behind != behind || l.Lease != m.lease || l.Attempt != m.attempt || l.LeaseExpiresAt != m.leaseEnds || l.MaxAttempts != q.policy.MaxAttempts ||
				l.Key != m.key || l.Kind != m.kind || l.Priority != m.priority || l.Queue != name || l.EnqueuedAt != m.came {
				w.fatal("leased %+v, the machine says %+v", m, l)
			}
		}
	}
	if n != len(got.Leased) || died != got.Count {
		w.fatal("%d can be leased and %d die, the machine says %d and %d", n, died, len(got.Leased), got.Count)
	}
}

// wasSent holds the answer about a lease that the same command sent back against the one due.
func (w *model) wasSent(it event.SettleItem, m *mmessage, got event.Settled) {
	w.t.Helper()
	if want := (event.Settled{Lease: it.Lease, Status: event.StatusReleased, Message: m.id, Queue: m.q.name}); got != want {
		w.fatal("what was sent back is answered %+v, the machine says %+v", want, got)
	}
}

func (w *model) settle(it event.SettleItem, m *mmessage, got event.Settled) {
	w.t.Helper()
	p := &m.q.policy
	want := event.Settled{Lease: it.Lease, Message: m.id, Queue: m.q.name}
	e := event.Event{Subject: m.id, Queue: m.q.name, Lease: it.Lease, Attempt: m.attempt}
	dead := func(reason event.Reason) {
		if m.stops(true) {
			w.sendBack(m)
		}
		want.Status = event.StatusDiscarded
		if w.die(m, reason, it.Lease) != "" {
			want.Status = event.StatusDeadLettered
		}
	}
	switch it.Op {
	case event.OpAck:
		e.Type, want.Status = event.Acked, event.StatusAcked
		w.emit(e)
		m.q.stats.Acked++
		w.leaves(m)
		w.resolve(m)
	case event.OpExtend:
		e.Type, want.Status = event.LeaseExtended, event.StatusExtended
		want.ExpiresAt = w.clock + cmp.Or(it.LeaseMS, p.LeaseMS)
		if m.leaseEnds != want.ExpiresAt {
			w.emit(e)
		}
		m.leaseEnds = want.ExpiresAt
		for _, o := range m.behindIt() {
			if o.leaseEnds < m.leaseEnds {
				w.emit(event.Event{Type: event.LeaseExtended, Subject: o.id, Queue: o.q.name, Lease: o.lease, Attempt: o.attempt})
				o.leaseEnds = m.leaseEnds
			}
		}
	case event.OpRelease:
		if it.DelayMS <= 0 || m.stops(false) {
			w.sendBack(m)
		}
		e.Type, want.Status = event.Released, event.StatusReleased
		e.Attempt--
		w.emit(e)
		m.attempt--
		if it.DelayMS > 0 {
			want.NextAt = w.clock + it.DelayMS
			w.again(m, want.NextAt)
			break
		}
		m.lease, m.leaseEnds = event.ID{}, 0
		w.ready(m, event.PlaceHead)
	case event.OpRetry:
		if m.last() {
			dead(event.ReasonMaxAttempts)
			break
		}
		if m.stops(false) {
			w.sendBack(m)
		}
		e.Type, want.Status = event.Retried, event.StatusRetried
		w.emit(e)
		want.NextAt = got.NextAt
		if it.At != 0 {
			want.NextAt = max(it.At, w.clock)
		} else if it.DelayMS >= 0 {
			want.NextAt = w.clock + it.DelayMS
		} else {
			w.checkBackoff(p, m.attempt, got.NextAt-w.clock)
		}
		w.again(m, got.NextAt)
	case event.OpDeadLetter:
		dead(event.ReasonRejected)
	}
	if got != want {
		w.fatal("settled %+v, the machine says %+v", want, got)
	}
}

func (w *model) transaction(c *event.Transaction, got event.Result) {
	seen, back := map[event.ID]bool{}, map[*mmessage]bool{}
	for i, it := range c.Settle {
		if seen[it.Lease] {
			w.problem(got, event.CodeInvalidArgument, i)
			return
		}
		seen[it.Lease] = true
		m := w.byLease(it.Lease)
		if m == nil || back[m] && (it.Op == event.OpAck || it.Op == event.OpExtend) {
			w.problem(got, event.CodeLeaseLost, i)
			return
		}
		stops := it.Op == event.OpRelease && (it.DelayMS <= 0 || m.stops(false)) || it.Op == event.OpRetry && m.stops(m.last()) || it.Op == event.OpDeadLetter && m.stops(true)
		if stops && !back[m] {
			for _, o := range m.behindIt() {
				back[o] = true
			}
		}
	}
	loads := map[string][2]int64{}
	for i := range c.Produce {
		if _, _, ok := w.plan(&c.Produce[i], got, i, loads); !ok {
			return
		}
	}
	if got.Problem != nil {
		w.fatal("all of the transaction is possible, the machine says %v", got.Problem)
	}
	for i, it := range c.Settle {
		if m := w.byLease(it.Lease); m != nil {
			w.settle(it, m, got.Settled[i])
		} else {
			w.wasSent(it, w.sent[it.Lease], got.Settled[i])
		}
	}
	rest := got.Produced
	for i := range c.Produce {
		p := &c.Produce[i]
		policy := event.DefaultPolicy()
		if q, ok := w.queues[p.Queue]; ok {
			policy = q.policy
		}
		unlimited := policy
		unlimited.MaxDepth, unlimited.MaxBytes = 0, 0
		if q, ok := w.queues[p.Queue]; ok { // limits were checked above
			q.policy = unlimited
		}
		_, dups, _ := w.plan(p, got, i, map[string][2]int64{})
		if q, ok := w.queues[p.Queue]; ok {
			q.policy = policy
		}
		w.enqueue(p, policy, dups, rest)
		rest = rest[len(p.Messages):]
	}
}

// end holds the whole observable state against the machine's.
func (w *model) end(b *bench) {
	w.t.Helper()
	if w.at != len(w.block.Events) {
		w.fatal("nothing more should happen, the machine has %+v", w.block.Events[w.at])
	}
	if b.m.Rules() != w.rules {
		w.fatal("rules %d are in force, the machine says %d", w.rules, b.m.Rules())
	}
	names := slices.Sorted(maps.Keys(w.queues))
	views := b.m.Queues()
	if len(views) != len(names) {
		w.fatal("the queues are %v, the machine has %d", names, len(views))
	}
	for i, n := range names {
		w.endQueue(b, w.queues[n], views[i])
	}
	w.endHooks(b)
	w.endTasks(b)
	if at, ok := w.next(); ok {
		if got, ok := b.m.NextDue(); !ok || got > max(at, w.clock) {
			w.fatal("something is due at %d, the machine says %d %v", at, got, ok)
		}
	}
}

// endAttention compares what of a queue may need an operator.
func (w *model) endAttention(b *bench, q *mqueue, can int64) {
	w.t.Helper()
	v, _ := b.m.Attention(q.name)
	last, dying := int64(0), int64(0)
	for _, m := range q.all {
		if m.state != event.StateLeased && m.attempt > 0 && m.attempt+1 == q.policy.MaxAttempts {
			last++
		}
	}
	if q.keyDied {
		dying = v.LastAttempt - last // those that followed a dead one count until their events
	}
	if v.Leasable != can || v.HeldKeys != int64(len(q.held)) || v.LastAttempt != last+max(dying, 0) ||
		v.HeldKeys > 0 && len(q.held[v.HeldKey]) == 0 {
		w.fatal("queue %q: %d leasable, %d keys held, %d with one attempt left; the machine says %+v",
			q.name, can, len(q.held), last, v)
	}
}

func (w *model) endQueue(b *bench, q *mqueue, v event.QueueView) {
	w.t.Helper()
	if v.Name != q.name || v.Paused != q.paused || v.Revision != q.revision ||
		!bytes.Equal(event.EncodePolicy(&v.Policy), event.EncodePolicy(&q.policy)) {
		w.fatal("queue %+v, the machine says %+v", q, v)
	}
	maps.DeleteFunc(q.pausedKeys, func(_ string, paused bool) bool { return !paused })
	pausedKeys := slices.Sorted(maps.Keys(q.pausedKeys))
	if !slices.Equal(v.PausedKeys, pausedKeys) {
		w.fatal("keys %v of queue %q are paused, the machine says %v", pausedKeys, q.name, v.PausedKeys)
	}
	s := q.stats
	partitions := map[string]bool{}
	first := map[event.ID]bool{} // the heads of partitions that nothing blocks, but perhaps a pause
	for l, ms := range q.partitions {
		free := len(q.held[l]) == 0 && ms[0].state == event.StateReady
		for _, m := range q.all {
			free = free && !(m.state == event.StateLeased && m.partition() == l)
		}
		if free {
			first[ms[0].id] = true
		}
	}
	free, ofKey := int64(0), map[string]int64{}
	for _, m := range q.all {
		if q.policy.Ordering != event.Unordered || m.key != "" {
			partitions[m.partition()] = true
		}
		s.Bytes += int64(m.size)
		if s.Oldest == 0 {
			s.Oldest = m.came
		}
		switch m.state {
		case event.StateReady:
			s.Ready++
			switch {
			case m.held(first):
				s.Held++
			case !q.pausedKeys[m.partition()]:
				free++
				ofKey[m.key]++
			}
		case event.StateScheduled:
			s.Scheduled++
		case event.StateLeased:
			s.InFlight++
		}
	}
	s.Partitions = int64(len(partitions))
	if q.keyDied {
		// What is scheduled outside of a partition that followed its dead head
		// is counted as a partition only once it is due.
		s.Partitions = min(s.Partitions, v.Stats.Partitions)
	}
	if v.Stats != s {
		w.fatal("queue %q has %+v, the machine says %+v", q.name, s, v.Stats)
	}
	if q.policy.MaxInFlightPerKey > 0 {
		free = 0
		for k, n := range ofKey {
			free += min(n, w.mayLeaseOf(q, k))
		}
	}
	can := int(min(free, w.mayLease(q)))
	if n := b.m.Leasable(q.name, nil); n != can {
		w.fatal("%d of queue %q can be leased, the machine says %d", can, q.name, n)
	}
	w.endAttention(b, q, int64(can))
	ms := b.messages(q.name)
	if len(ms) != len(q.all) {
		w.fatal("queue %q has %d messages, the machine says %d", q.name, len(q.all), len(ms))
	}
	for i, m := range q.all {
		g := ms[i]
		held := m.state == event.StateReady && m.held(first)
		if g.ID != m.id || g.Queue != q.name || g.Key != m.key || g.Kind != m.kind || g.State != m.state || g.Held != held || g.Priority != m.priority ||
			g.Attempt != m.attempt || g.Size != m.size || g.EnqueuedAt != m.came || g.Expires != m.ends() || g.Lease != m.lease ||
			g.LeaseExpiresAt != m.leaseEnds || (g.Dead == nil) != (m.from == nil) || (g.Dead != nil && *g.Dead != *m.from) ||
			(g.Origin == nil) != (m.origin == nil) || (g.Origin != nil && *g.Origin != *m.origin) || g.SourceID != m.source {
			w.fatal("message %+v, the machine says %+v", m, g)
		}
		if m.state == event.StateScheduled && g.Due != m.available {
			w.fatal("message %s is due at %d, the machine says %d", m.id, m.available, g.Due)
		}
	}
}

// held says whether a ready message can't be leased because of an earlier one of its partition, or of a
// dead one that holds its key.
func (m *mmessage) held(first map[event.ID]bool) bool {
	return m.q.policy.Ordering != event.Unordered && !first[m.id]
}

// chaos draws commands.
type chaos struct {
	t      *rapid.T
	m      *Machine
	leases []event.ID
	ids    []event.ID
	tasks  []event.ID
}

// id draws the id of one of the newest messages; there is one.
func (c *chaos) id() event.ID {
	return c.ids[max(0, len(c.ids)-1-rapid.IntRange(0, 20).Draw(c.t, "id"))]
}

// uniform draws a number below n, of which rapid.IntRange would prefer the small ones.
func (c *chaos) uniform(label string, n int) (at int) {
	for _, one := range rapid.SliceOfN(rapid.Bool(), 7, 7).Draw(c.t, label) {
		if at *= 2; one {
			at++
		}
	}
	return at % n
}

func draw[T any](c *chaos, label string, of ...T) T { return rapid.SampledFrom(of).Draw(c.t, label) }

func (c *chaos) queueName() string { return draw(c, "queue", "a", "a", "b", "c", "dlq") }

func (c *chaos) policy() event.Policy {
	p := event.DefaultPolicy()
	p.Ordering = draw(c, "ordering", event.Unordered, event.FIFO, event.PerKey, event.PerKey)
	p.OnRetry = draw(c, "on_retry", event.RetryBlock, event.RetryHead, event.RetryTail)
	p.MaxAttempts = draw[uint32](c, "attempts", 0, 1, 2, 3)
	p.LeaseMS = draw[int64](c, "lease", 500, 1000)
	p.MaxAgeSeconds = draw[int64](c, "age", 0, 0, 2, 5)
	p.OnExpired = draw(c, "on_expired", event.ExpiredDeadLetter, event.ExpiredDeadLetter, event.ExpiredDiscard)
	p.InitialBackoffMS = draw[int64](c, "initial", 0, 100, 700)
	p.MaxBackoffMS = draw[int64](c, "max", 300, 60_000)
	p.BackoffMultiplier = draw[int64](c, "multiplier", event.Million, 1_500_000, 2*event.Million)
	p.BackoffJitter = draw[int64](c, "jitter", 0, 0, event.Million/2, event.Million)
	p.BackoffScheduleMS = draw(c, "schedule", nil, nil, []int64{50, 0, 900})
	p.LaneBatch = draw[uint32](c, "batch", 0, 1, 2, 3, 10)
	p.OnDead = draw(c, "on_dead", event.DeadSkip, event.DeadHoldKey, event.DeadLetterKey)
	p.DeadLetterQueue = draw(c, "dlq", "dlq", "dlq", "", "b", "none")
	p.MaxDepth = draw[int64](c, "depth", 0, 0, 15)
	p.MaxBytes = draw[int64](c, "bytes", 0, 0, 20)
	p.DedupWindowSeconds = draw[int64](c, "window", 0, 1, 86_400)
	p.DedupBy = draw(c, "by", event.DedupByKey, event.DedupByKey, event.DedupByContent)
	p.DedupUntil = draw(c, "until", event.DedupUntilWindow, event.DedupUntilWindow, event.DedupUntilLeft)
	p.DefaultDelayMS = draw[int64](c, "default delay", 0, 0, 0, 600)
	p.MaxInFlight = draw[int64](c, "in flight", 0, 0, 0, 1, 3)
	p.RateLimit = draw[int64](c, "rate", 0, 0, 0, 1, 2, 3, 7)
	p.RatePerMS = draw[int64](c, "per", 0, 1, 500, 700)
	p.MaxInFlightPerKey = draw[int64](c, "of a key", 0, 0, 1, 2)
	p.PriorityAgingMS = draw[int64](c, "aging", 0, 0, 100)
	return p
}

// keep mostly keeps what can't change while the queue holds messages.
func (c *chaos) keep(p, was *event.Policy) {
	if rapid.IntRange(0, 2).Draw(c.t, "keep") > 0 {
		p.Ordering, p.MaxInFlightPerKey, p.PriorityAgingMS = was.Ordering, was.MaxInFlightPerKey, was.PriorityAgingMS
	}
}

// laned gives only a queue with lanes a batch, only one without a limit of each key, and a fifo queue
// no aging.
func laned(p event.Policy) event.Policy {
	if p.Ordering == event.Unordered {
		p.LaneBatch = 0
	} else {
		p.MaxInFlightPerKey = 0
	}
	if p.Ordering == event.FIFO {
		p.PriorityAgingMS = 0
	}
	return p
}

func (c *chaos) produce() event.Produce {
	p := event.Produce{Queue: c.queueName(), AutoCreate: draw(c, "auto", true, true, false)}
	if q, ok := c.m.Queue(p.Queue); ok && draw(c, "fresh", true, true, true, false) {
		p.Revision = q.Revision
	}
	for range rapid.IntRange(1, 5).Draw(c.t, "n") {
		body := draw(c, "body", "x", "xy", "xyz")
		m := msg(body, key(draw(c, "key", "", "k1", "k1", "k2", "k3")),
			kindOf(draw(c, "kind", "", "", "red", "blue")),
			dedup(draw(c, "dedup", "", "", "", "d1", "d2")))
		m.Priority, m.TTLMS = draw[uint8](c, "prio", 1, 5, 5, 10), draw[int64](c, "ttl", 0, 0, 0, 900)
		switch draw(c, "when", 0, 0, 0, 1, 2) {
		case 1:
			m.DelayMS = draw[int64](c, "delay", -1, 1, 300, 700)
		case 2:
			m.DeliverAt = c.m.Clock() + draw[int64](c, "at", -5, 0, 500)
		}
		if draw(c, "hashed", false, false, true) {
			copy(m.PayloadHash[:], body)
		}
		p.Messages = append(p.Messages, m)
	}
	return p
}

func (c *chaos) items(n int) (out []event.SettleItem) {
	for range n {
		if len(c.leases) == 0 {
			break
		}
		it := event.SettleItem{
			Op:      draw(c, "op", event.OpAck, event.OpAck, event.OpRetry, event.OpRetry, event.OpDeadLetter, event.OpExtend, event.OpRelease),
			Lease:   c.leases[max(0, len(c.leases)-1-rapid.IntRange(0, 8).Draw(c.t, "lease"))],
			DelayMS: -1,
		}
		switch it.Op {
		case event.OpRetry:
			it.DelayMS = draw[int64](c, "delay", -1, -1, -1, 0, 250)
			if draw(c, "exact", false, false, false, true) {
				it.At = c.m.Clock() + draw[int64](c, "at", -500, 0, 300)
			}
		case event.OpRelease:
			it.DelayMS = draw[int64](c, "snooze", -1, 0, 0, 250)
		case event.OpExtend:
			it.DelayMS, it.LeaseMS = 0, draw[int64](c, "ms", 0, 100, 5000)
		}
		out = append(out, it)
	}
	return out
}

func (c *chaos) command() *event.Command {
	cmd := &event.Command{}
	switch c.uniform("command", 38) % 26 { // 0 to 11 twice as often as the others
	case 24:
		cmd = c.erase()
	case 17, 18:
		cmd.Replay = c.replay()
	case 19:
		cmd.PurgeDead = c.purgeDead()
	case 22:
		cmd.Resurrect = c.resurrect()
	case 23:
		p := c.produce()
		p.Import = true
		for i := range p.Messages {
			p.Messages[i].SourceID = draw(c, "source", "s1", "s2", "s3", "s4", "s5", "")
			p.Messages[i].DedupKey = event.Hash{0xff}
			copy(p.Messages[i].DedupKey[1:], p.Messages[i].SourceID)
		}
		cmd.Produce = &p
	case 20:
		cmd.CreateTask = &event.CreateTask{Kind: draw(c, "kind", event.TaskReplay, event.TaskReplay, event.TaskPurge, event.TaskErase, event.TaskVerify, event.TaskNone), Queue: c.queueName(), Total: 7}
		if cmd.CreateTask.Kind == event.TaskVerify {
			cmd.CreateTask.Node = draw(c, "node", "n1", "n1", "n2", "")
		}
	case 21:
		cmd.UpdateTask = c.updateTask()
	case 0, 1, 2, 3:
		p := c.produce()
		cmd.Produce = &p
	case 4, 5, 6, 7:
		cmd.Lease = &event.Lease{Queues: []string{c.queueName()}, Max: rapid.IntRange(1, 6).Draw(c.t, "max")}
		if draw(c, "several", false, false, true) {
			cmd.Lease.Queues = append(cmd.Lease.Queues, c.queueName())
		}
		cmd.Lease.Kinds = draw(c, "kinds", nil, nil, nil, []string{"red"}, []string{"red", "blue"}, []string{"green"})
		cmd.Lease.LeaseMS = draw[int64](c, "ms", 0, 0, 100)
		cmd.Lease.Single = draw(c, "single", false, false, false, true)
		return cmd // takes no Idempotency-Key
	case 8, 9, 10, 11:
		cmd.Settle = &event.Settle{Items: c.items(rapid.IntRange(1, 4).Draw(c.t, "n"))}
		if draw(c, "of", false, false, false, true) {
			cmd.Settle.Queue = c.queueName()
		}
	case 12:
		cmd.Transaction = &event.Transaction{Settle: c.items(rapid.IntRange(0, 2).Draw(c.t, "n"))}
		for range rapid.IntRange(0, 2).Draw(c.t, "produce") {
			cmd.Transaction.Produce = append(cmd.Transaction.Produce, c.produce())
		}
	case 13:
		if len(c.ids) > 0 {
			cmd.Delete = &event.DeleteMessage{ID: c.id()}
		}
	case 25:
		if len(c.ids) > 0 {
			cmd.Reschedule = &event.Reschedule{
				ID:       c.id(),
				Priority: draw[uint8](c, "prio", 0, 0, 1, 5), DelayMS: draw[int64](c, "delay", -1, -1, 0, 300),
			}
			if draw(c, "exact", false, false, true) {
				cmd.Reschedule.At = c.m.Clock() + draw[int64](c, "at", -5, 0, 400)
			}
		}
	case 14:
		cmd.PauseQueue = &event.PauseQueue{Name: c.queueName(), Paused: draw(c, "paused", false, false, true),
			Key: draw(c, "key", "", "k1", "k1", "k2", "k4")}
	case 15:
		cmd.PurgeQueue = &event.PurgeQueue{Name: c.queueName()}
	case 16:
		return rulesCommand(c.t)
	}
	if rapid.IntRange(0, 5).Draw(c.t, "repeatable") == 0 {
		cmd.Request = &event.Request{}
		copy(cmd.Request.Key[:], draw(c, "request", "r1", "r2", "r3"))
		copy(cmd.Request.Body[:], draw(c, "body", "one", "one", "one", "two"))
	}
	return cmd
}

// admin draws a command that changes or removes a queue.
func (c *chaos) admin() *event.Command {
	if rapid.IntRange(0, 2).Draw(c.t, "defs") == 0 {
		return c.defs()
	}
	if rapid.IntRange(0, 4).Draw(c.t, "delete") == 0 {
		return &event.Command{DeleteQueue: &event.DeleteQueue{Name: c.queueName(), Force: rapid.Bool().Draw(c.t, "force")}}
	}
	put := &event.PutQueue{Name: c.queueName(), Policy: c.policy(), DeadLetterAuto: rapid.IntRange(0, 9).Draw(c.t, "auto") == 0}
	if put.Name == "dlq" {
		put.Policy.DeadLetterQueue = ""
	}
	if q, ok := c.m.Queue(put.Name); ok {
		c.keep(&put.Policy, &q.Policy)
		put.IfRevision = draw(c, "revision", 0, 0, q.Revision, 1)
	}
	put.Policy = laned(put.Policy)
	return &event.Command{PutQueue: put}
}

// back draws by how much an entry's stamp goes back; the log's clock does not.
func (c *chaos) back() int64 {
	if rapid.IntRange(0, 20).Draw(c.t, "clock") > 0 {
		return 0
	}
	return 5000
}

// learn remembers the leases and ids that the machine gave out.
func (c *chaos) learn(rs []event.Result, bl *event.Block) {
	for _, r := range rs {
		for _, l := range r.Leased {
			c.leases = append(c.leases, l.Lease)
		}
	}
	for _, e := range bl.Events {
		if e.Type == event.TaskCreated {
			c.tasks = append(c.tasks, e.ID)
		}
		if e.Type == event.Enqueued || e.IsMove() {
			c.ids = append(c.ids, e.ID)
		}
	}
}

// TestModel gives the naive model and the machine the same random commands and
// time steps: they must agree on every event, every answer and the whole
// observable state, with checkpoints written and loaded anywhere, also ones
// frozen some entries ago and brought up by folding the log.
func TestModel(t *testing.T) {
	t.Parallel()
	var checked atomic.Int64
	defer func() { t.Logf("figures: %d operations checked against the model", checked.Load()) }()
	rapid.Check(t, func(rt *rapid.T) {
		b, w := setup(rt), newModel(rt)
		c := &chaos{t: rt, m: b.m}
		touched := map[string]bool{}
		b.m = newMachine(projections.New(), b.log)
		leasable := map[string]bool{}
		step := func(cs ...*event.Command) {
			clear(touched)
			b.wants = draw[uint16](c, "wants", 1, 1, known)
			w.wants = b.wants
			rs := b.do(cs...)
			for _, n := range b.m.TakeLeasable() {
				touched[n] = true
			}
			bl := b.last()
			rt.Logf("entry %d at %d", bl.Index, bl.Time-epoch)
			for i := range bl.Events {
				rt.Logf("  %+v", bl.Events[i])
			}
			w.begin(bl)
			for i, cmd := range cs {
				w.command(cmd, rs[i])
				require.True(rt, cmd.Mark == nil || rs[i].Digest == b.m.Digest(), "a mark's digest")
			}
			checked.Add(int64(len(cs)))
			w.end(b)
			c.learn(rs, bl)
			was := leasable
			leasable = map[string]bool{}
			for _, q := range b.m.Queues() {
				if b.m.Leasable(q.Name, nil) > 0 {
					leasable[q.Name] = true
					require.False(rt, !was[q.Name] && !touched[q.Name],
						"index %d: queue %q became leasable and nobody was told", b.index, q.Name)
				}
			}
		}
		put := func(name string, p event.Policy) {
			step(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p}})
		}
		if draw(c, "rules 3", true, true, true, false) {
			b.wants, w.wants = known, known
			cs := []*event.Command{{Upgrade: &event.Upgrade{Rules: event.Rules}}}
			rs := b.do(cs...)
			w.begin(b.last())
			w.command(cs[0], rs[0])
		}
		put("dlq", event.DefaultPolicy())
		put("a", laned(c.policy()))
		put("b", laned(c.policy()))
		var frozen checkpoint.State
		entries := rapid.IntRange(10, 80).Draw(rt, "entries")
		for range entries {
			c.m = b.m
			b.now += draw[int64](c, "ms", 0, 0, 1, 50, 400, 1500)
			if rapid.IntRange(0, 60).Draw(rt, "day") == 0 {
				b.now += draw[int64](c, "days", 1, 1, 7) * 24 * 3600 * 1000
			}
			var cs []*event.Command
			for range rapid.IntRange(0, 4).Draw(rt, "commands") {
				cs = append(cs, c.command())
			}
			if rapid.IntRange(0, 9).Draw(rt, "admin") == 0 {
				cs = append(cs, c.admin())
			}
			back := c.back()
			b.now -= back
			step(cs...)
			b.now += back
			switch rapid.IntRange(0, 14).Draw(rt, "checkpoint") {
			case 0:
				if frozen == nil {
					b.restart()
				}
			case 1:
				if frozen == nil {
					frozen = b.m.Freeze()
				}
			case 2, 3:
				if frozen != nil {
					b.resume(frozen)
					frozen = nil
				}
			}
		}
		b.quiet()
		b.refold()
	})
}

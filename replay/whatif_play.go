package replay

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log"
)

// demand is one worker that asks a queue for one message, as in a real lease, or for a batch.
type demand struct {
	*lease
	of   *life // the message that was leased in reality
	base int64 // when it became leasable in the play
	done bool  // it has come
	// owner is the message that it is expected for. If it gets another one, that one's worker is
	// expected for this one.
	owner *life
}

// action is something that happens in the play.
type action struct {
	at    int64
	order event.ID // the real order
	n     int      // else the order of planning
	do    func(*stage)
}

type actions []action

func (a actions) Len() int { return len(a) }
func (a actions) Less(i, j int) bool {
	x, y := &a[i], &a[j]
	return cmp.Or(cmp.Compare(x.at, y.at), x.order.Compare(y.order), cmp.Compare(x.n, y.n)) < 0
}
func (a actions) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *actions) Push(x any)   { *a = append(*a, x.(action)) }
func (a *actions) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

// stage plays the facts.
type stage struct {
	*facts
	o       *WhatIfOptions
	machine *fsm.Machine
	index   uint64
	clock   int64
	err     error // the first one: nothing happens after it

	byPlayID map[event.ID]*life
	planned  int // how many actions
	waiting  map[string][]*demand
	late     int64
}

func newStage(f *facts, o *WhatIfOptions) *stage {
	s := &stage{
		facts: f, o: o, index: f.start.Index(), clock: f.startClock,
		byPlayID: map[event.ID]*life{}, waiting: map[string][]*demand{},
	}
	f.start.KeepHashes()
	s.machine = fsm.New(f.start, s)
	for _, q := range s.machine.Queues() {
		s.put(q.Name, q.Policy.Clone(), "")
	}
	for _, l := range f.lives {
		if l.playID.IsZero() {
			continue
		}
		s.byPlayID[l.playID] = l
		if m, ok := s.machine.Message(l.playID); ok && m.State != event.StateLeased {
			s.available(l, max(m.Due, m.EnqueuedAt))
		}
	}
	return s
}

func (s *stage) at(at int64, order event.ID, do func(*stage)) {
	if order.IsZero() { // not in reality
		order = event.MaxID
	}
	s.planned++
	heap.Push(&s.plan, action{at, order, s.planned, do})
}

// play plays everything up to the last instant.
func (s *stage) play(ctx context.Context) error {
	for steps := 0; s.err == nil; steps++ {
		if steps%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			s.o.Progress(s.clock-s.startClock, max(s.endClock-s.startClock, 1))
		}
		due, isDue := s.machine.NextDue()
		due = max(due, s.clock)
		switch {
		case len(s.plan) > 0 && (!isDue || s.plan[0].at < due) && s.plan[0].at <= s.endClock:
			a := heap.Pop(&s.plan).(action)
			s.clock = max(s.clock, a.at)
			a.do(s)
		case isDue && due <= s.endClock:
			s.clock = due
			s.apply(nil)
		default:
			return nil
		}
		s.serve()
	}
	return s.err
}

// apply lets the machine decide one command, or only what is due if c is nil.
func (s *stage) apply(c *event.Command) event.Result {
	if s.err != nil {
		return event.Result{}
	}
	s.index++
	e := &event.Entry{Rules: max(event.Rules, s.machine.Rules()), Time: s.clock}
	if c != nil {
		e.Commands = [][]byte{event.EncodeCommand(c)}
	}
	results, err := s.machine.Apply(s.index, e.Encode())
	if s.err = err; err != nil || c == nil {
		return event.Result{}
	}
	return results[0]
}

// serve gives waiting workers the messages that have become ready.
func (s *stage) serve() {
	for touched := s.machine.TakeLeasable(); len(touched) > 0; {
		queue := touched[0]
		waiting := s.waiting[queue]
		left := waiting[:0:0]
		for i, d := range waiting {
			if s.machine.Leasable(queue, nil) == 0 {
				left = append(left, waiting[i:]...)
				break
			}
			if !s.lease(d) {
				left = append(left, d)
			}
		}
		s.waiting[queue] = left
		touched = append(touched[1:], s.machine.TakeLeasable()...)
	}
}

// ask lets the worker come: it gets a message, or waits for one.
func (d *demand) ask(s *stage) {
	if !d.done {
		d.done = true
		if !s.lease(d) {
			s.waiting[d.of.queue] = append(s.waiting[d.of.queue], d)
		}
	}
}

func (s *stage) settle(item event.SettleItem) {
	c := &event.Command{Settle: &event.Settle{Items: []event.SettleItem{item}}}
	r := s.apply(c)
	if len(r.Settled) == 1 && r.Settled[0].Status == event.StatusRejected {
		s.late++
	}
}

// lease asks for a worker, and reports whether there was a message for it.
func (s *stage) lease(d *demand) bool {
	// Workers are assumed to be of the kinds that they were.
	c := &event.Lease{Queues: []string{d.of.queue}, Max: len(d.kinds), LeaseMS: d.ms, Worker: d.worker}
	if !slices.Contains(d.kinds, "") {
		c.Kinds = d.kinds
	}
	if s.machine.Leasable(d.of.queue, c.Kinds) == 0 {
		return false
	}
	r := s.apply(&event.Command{Lease: c})
	for i := range r.Leased {
		if m := &r.Leased[i]; i == 0 {
			s.taken(d, m)
		} else {
			s.taken(s.expected(m), m)
		}
	}
	return len(r.Leased) > 0
}

// expected returns the worker that is expected for a message that came with a batch, nil for none.
// It comes no more.
func (s *stage) expected(m *event.LeasedMessage) *demand {
	l := s.byPlayID[m.ID]
	if l == nil || l.open == nil || l.open.done {
		return nil
	}
	l.open.done = true
	return l.open
}

// taken plans what the worker that got a message does with it.
func (s *stage) taken(d *demand, m *event.LeasedMessage) {
	l := s.byPlayID[m.ID]
	if l == nil {
		return // nothing is known about it
	}
	if d != nil && d.owner != l {
		d.owner.open = nil
		if o := l.open; o != nil && !o.done {
			o.owner, d.owner.open = d.owner, o
		}
	}
	l.open = nil
	acts := []act{{took: s.usual[l.queue], item: event.SettleItem{Op: event.OpAck}}}
	switch n := len(l.leases); {
	case l.taken < n:
		acts = l.leases[l.taken].acts // perhaps, as in reality, still working at the last instant
	case n > 0 && l.leases[n-1].ended:
		acts = l.leases[n-1].acts
		l.assumed = true
	default:
		l.assumed = true
	}
	l.taken++
	for _, a := range acts {
		a.item.Lease = m.Lease
		s.at(s.clock+a.took, a.id, func(s *stage) { s.settle(a.item) })
	}
}

// available plans the worker that comes for a message's next attempt, which is possible from base
// on.
func (s *stage) available(l *life, base int64) {
	if len(l.leases) == 0 || l.taken >= len(l.leases) && l.taken <= l.returns {
		return // in reality, too, no worker came
	}
	f := l.leases[min(l.taken, len(l.leases)-1)]
	s.expect(&demand{lease: f, of: l, base: base, owner: l})
}

// expect plans a worker.
func (s *stage) expect(d *demand) {
	l := d.owner
	l.open = d
	if l.moved < d.moves {
		return // it comes after the message has been given another time
	}
	s.at(d.base+max(d.total, 0), d.id, d.ask)
	if p := d.after; p != nil && l.taken < len(l.leases) {
		p.waiters = append(p.waiters, d)
		s.planWaiters(p)
	}
}

// put creates a queue or changes its policy, with the other policy applied to it. of is the queue
// whose dead-letter queue is created, else "".
func (s *stage) put(name string, p event.Policy, of string) {
	auto, err := s.o.Change(name, &p)
	s.err = cmp.Or(s.err, err)
	dlq := p.DeadLetterQueue
	if of != "" && (auto || dlq != "") { // two queues could name each other here, for ever
		s.refuse(of, "dead_letter_queue '"+name+"' cannot have its own dead_letter_queue")
	}
	if s.err != nil {
		return
	}
	if _, ok := s.machine.Queue(dlq); !ok && dlq != "" && dlq != name && !auto {
		// In reality it may have come later, or never.
		dead := event.DefaultPolicy()
		dead.MaxAttempts = 0
		s.put(dlq, dead, name)
	}
	put := &event.PutQueue{Name: name, Policy: p, DeadLetterAuto: auto}
	if r := s.apply(&event.Command{PutQueue: put}); r.Problem != nil {
		s.refuse(name, r.Problem.Detail)
	}
}

// refuse ends the play because of another policy that a queue cannot have.
func (s *stage) refuse(queue, why string) {
	s.err = cmp.Or(s.err, fmt.Errorf("queue %s: %w at %s: %s", queue, ErrPolicy,
		log.Stamp(s.clock), why))
}

// produce enqueues a message.
func (s *stage) produce(l *life, m event.NewMessage) {
	q, _ := s.machine.Queue(l.queue)
	s.bring(l, &event.Command{Produce: &event.Produce{
		Queue: l.queue, Messages: []event.NewMessage{m}, Import: m.SourceID != "",
		Looked:   forgetsNothing,
		Revision: q.Revision,
	}})
}

// forgetsNothing is how far the log was searched: the machine remembers all.
const forgetsNothing = math.MaxUint64 >> 8

// bring carries out a command that brings the message of a life to its queue.
func (s *stage) bring(l *life, c *event.Command) {
	r := s.apply(c)
	step, id := Step{Type: string(Refused), Time: wire.Time(s.clock)}, r.ID // r.ID: resurrected
	switch {
	case r.Problem != nil:
		step.Code = r.Problem.Code
	case len(r.Produced) > 0 && r.Produced[0].Duplicate:
		step.Code = string(Duplicate)
	case len(r.Produced) > 0:
		id = r.Produced[0].ID
	case len(r.Moved) > 0:
		id = r.Moved[0].To
	}
	if step.Code == "" {
		m, ok := s.machine.Message(id)
		if !ok {
			return // it was not dead in that queue
		}
		step.Type = l.real[0].Type
		s.arrives(l, id, max(m.Due, m.EnqueuedAt))
	}
	l.play = append(l.play, step)
}

// bringBack replays a message, if it is dead in that queue, or resurrects one, if it has left its
// queue for good. n is its next life.
func (s *stage) bringBack(e *event.Event, of, n *life) {
	q, _ := s.machine.Queue(e.ToQueue)
	switch {
	case e.Type == event.Replayed:
		s.bring(n, &event.Command{Replay: &event.Replay{
			Queue: e.DiedIn, To: e.ToQueue, Order: e.Order, Revision: q.Revision,
			Items: []event.ReplayItem{{ID: of.playID, Edited: e.Edited, Size: e.Size}},
		}})
		n.assumed = n.assumed || of.assumed && !n.playID.IsZero()
	case of.gone:
		s.bring(n, &event.Command{Resurrect: &event.Resurrect{
			To: e.ToQueue, Order: e.Order, Revision: q.Revision, Looked: forgetsNothing,
			Items: []event.ResurrectItem{{
				ID: of.playID, Last: of.last, First: of.playID, Key: e.Key, Kind: e.Kind,
				SourceID: e.SourceID, Priority: e.Priority, Size: e.Size, Edited: e.Edited,
			}},
		}})
	}
}

// Append implements fsm.Log.
func (s *stage) Append(b *event.Block) error {
	for i := range b.Events {
		s.decided(&b.Events[i])
	}
	return nil
}

func (s *stage) decided(e *event.Event) {
	at, l := event.ClockOf(e.ID), s.byPlayID[e.Subject]
	if l == nil {
		return // of a queue, or of what bring brings
	}
	l.last = event.RefOf(e.ID)
	if step, ok := stepOf(e, at); ok {
		step.Assumed = l.assumed
		l.play = append(l.play, step)
	}
	switch due, ok := again(e, at); {
	case !ok:
	case e.Type != event.Rescheduled:
		l.moved = 0
		s.available(l, due)
	default:
		l.moved++
		if l.open != nil && !l.open.done { // its worker comes at another time
			d := *l.open
			l.open.done = true
			d.base = due
			s.expect(&d)
		}
	}
	if unblocks(e) {
		l.unblockedAt = append(l.unblockedAt, at)
		l.gone = l.gone || leaves(e.Type)
		s.planWaiters(l)
	}
	if e.Type == event.DeadLettered && e.IsMove() {
		n := l.next
		if n == nil || n.queue != e.ToQueue || n.playID != (event.ID{}) {
			n = &life{queue: e.ToQueue, key: l.key, kind: l.kind} // in the play only
		}
		n.assumed = l.assumed
		s.arrives(n, e.ID, at)
	}
	if leaves(e.Type) {
		delete(s.byPlayID, e.Subject)
		if l.open != nil {
			l.open.done = true // no worker comes for a message that has left
		}
	}
}

// arrives gives a life its message in the play, which is leasable from base on.
func (s *stage) arrives(n *life, id event.ID, base int64) {
	n.playID, n.last = id, event.RefOf(id)
	s.byPlayID[id] = n
	s.available(n, base)
}

// planWaiters plans the workers that come after this message has unblocked its partition, if it
// has, or has left.
func (s *stage) planWaiters(l *life) {
	left := l.waiters[:0]
	for _, d := range l.waiters {
		n := min(d.nth, len(l.unblockedAt))
		switch {
		case d.done:
		case n == d.nth || l.gone && n > 0:
			s.at(max(d.base, l.unblockedAt[n-1])+d.lag, d.id, d.ask)
		default:
			left = append(left, d)
		}
	}
	l.waiters = left
}

// compare finds message by message where the play differs from reality.
func (s *stage) compare() (*WhatIfSummary, error) {
	parts := strings.Split(strings.TrimSpace(basis), "\n\n")
	lines := func(i int) []string { return strings.Split(parts[i], "\n") }
	out := &WhatIfSummary{
		FirstIndex: s.first, LastIndex: s.last, All: newCounts(), Queues: map[string]*Counts{},
		LateSettles: s.late, Given: lines(0), Decided: lines(1), Unknown: lines(2),
	}
	for _, w := range s.waiting {
		out.Unserved += int64(len(w))
	}
	for _, l := range s.lives {
		f := &s.o.Filter
		if f.Queue != "" && l.queue != f.Queue || f.Message != (event.ID{}) && l.id != f.Message {
			continue
		}
		if l.back && l.playID == (event.ID{}) && len(l.play) == 0 {
			out.Unneeded++ // the message itself is reported
			continue
		}
		q := out.Queues[l.queue]
		if q == nil {
			q = newCounts()
			out.Queues[l.queue] = q
		}
		d, delay, same := s.difference(l)
		for _, c := range []*Counts{out.All, q} {
			c.Messages++
			if l.assumed {
				c.Assumed++
			}
			if d == nil {
				c.Same++
				continue
			}
			c.Effects[d.Effect]++
			if same {
				c.delays = append(c.delays, delay)
			}
		}
		if d != nil && s.o.Diverged != nil {
			if err := s.o.Diverged(d); err != nil {
				return nil, err
			}
		}
	}
	out.All.sum()
	for _, q := range out.Queues {
		q.sum()
	}
	return out, nil
}

func (c *Counts) sum() {
	if len(c.delays) == 0 {
		return
	}
	slices.Sort(c.delays)
	c.DelayMedianMS, c.DelayMaxMS = c.delays[len(c.delays)/2], c.delays[len(c.delays)-1]
	c.delays = nil
}

// difference returns what is different in a message's life, nil if nothing is.
// delay is by how long it ends later, if it ends the same way.
func (s *stage) difference(l *life) (d *Divergence, delay int64, sameEnd bool) {
	at, both := 0, min(len(l.real), len(l.play))
	for at < both && !s.differ(&l.real[at], &l.play[at]) {
		at++
	}
	if at == len(l.real) && at == len(l.play) {
		return nil, 0, false
	}
	d = &Divergence{
		MessageID: l.id.String(), Queue: l.queue, Key: l.key, Real: endOf(l.real),
		WhatIf: endOf(l.play), First: FirstDivergence{Step: at},
	}
	if at < len(l.real) {
		d.First.Real = &l.real[at]
	}
	if at < len(l.play) {
		d.First.WhatIf = &l.play[at]
	}
	d.WhatIf.Assumed = l.assumed
	d.Effect, sameEnd = s.effect(&d.Real, &d.WhatIf)
	return d, int64(d.WhatIf.Time - d.Real.Time), sameEnd
}

func (s *stage) differ(a, b *Step) bool {
	late := int64(a.Time - b.Time)
	x, y := *a, *b
	x.Time, y.Time, x.Assumed, y.Assumed = 0, 0, false, false
	return x != y || max(late, -late) > s.o.ToleranceMS
}

// endOf returns how a life ended, or how far it came.
func endOf(steps []Step) End {
	e := End{State: "waiting"}
	for i := range steps {
		st := &steps[i]
		e.Time, e.Reason, e.State = st.Time, st.Reason, "waiting"
		switch st.Type {
		case string(Refused):
			e.State = st.Type
			if st.Code == string(Duplicate) {
				e.State = st.Code
			}
		case "leased":
			e.State = st.Type
			e.Attempts++
		case "acked", "dead_lettered", "discarded", "replayed":
			e.State = st.Type
		}
	}
	return e
}

// effect returns the effect on a message; same is true if both end the same way, for good.
func (s *stage) effect(real, play *End) (_ Effect, same bool) {
	lost := func(e *End) bool {
		return e.State == "dead_lettered" || e.State == "discarded" &&
			e.Reason != event.ReasonDeleted.String() && e.Reason != event.ReasonPurged.String() &&
			e.Reason != event.ReasonQueueDeleted.String()
	}
	late := int64(play.Time - real.Time)
	over := func(e *End) bool { return e.State != "waiting" && e.State != "leased" }
	switch {
	case play.State == string(Refused):
		return Refused, false
	case play.State == string(Duplicate):
		return Duplicate, false
	case lost(play) && (!lost(real) || play.State != real.State):
		return Effect(play.State), false
	case lost(real) && !lost(play):
		return Spared, false
	case over(real) && !over(play):
		return Delayed, false
	case !over(real) && over(play):
		return Sooner, false
	case late > s.o.ToleranceMS:
		return Delayed, over(play) && play.State == real.State
	case -late > s.o.ToleranceMS:
		return Sooner, over(play) && play.State == real.State
	}
	return Otherwise, false
}

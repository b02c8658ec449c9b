package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log/clock"
	"github.com/qlogd/qlogd/raft/peer"
)

// batcher turns commands into entries, in one goroutine with one rule: while batches are in flight,
// the next one gathers (see gathersLocked). There is no artificial delay. On a node that does not
// lead, the same goroutine forwards the batches to the leader instead: forward.go.
type batcher struct {
	o       *Options
	room    room
	clock   *clock.Clock
	fsm     *fsm
	fatal   func(error)
	apply   func(data []byte) hraft.ApplyFuture
	idle    chan struct{} // of capacity one: see notifyCommits
	later   *time.Timer   // the same, for commitPause
	forward forwarder
	// unavailable returns why nothing is accepted or applied here now; nil: it is.
	unavailable func() *event.Problem
	wake        chan struct{} // of capacity one: something changed that run may act upon

	mu      sync.Mutex
	changed sync.Cond // on mu: broadcast for until when leadership, queues or flight change
	queues  queues
	flight  []*batch // in the order in which they left
	lead    leadership
	owed    bool // another node waits to apply the entry that its commands were in
}

// commitPause is how long the leader leaves a follower without the commit index that no client
// there is known to wait for: the next entry usually comes sooner, and carries it.
const commitPause = 2 * time.Millisecond

// clockLook is how often the batcher looks for a time to stamp, while nothing is known of it.
const clockLook = 50 * time.Millisecond

// leadership is what the batcher knows of who leads, and of its own stage.
type leadership struct {
	leader bool
	term   uint64 // counts this node's leaderships
	// ready: an entry of this leadership is applied. Before, reads are not
	// linearizable and hashicorp/raft takes no snapshots.
	ready   bool
	first   bool // an entry is proposed next, even if no command waits
	holds   int  // of hold: nothing new is proposed, leadership is being transferred
	closing bool // no new commands are accepted
	ended   bool // nothing leaves this node any more

	failed   bool      // the last attempt to reach a leader failed
	retryAt  time.Time // when the next one is due
	accepted time.Time // when a leader last accepted something
}

// batch is a group of commands in flight: an entry of this node's own, or a call to the leader.
type batch struct {
	group []*pending
	bytes int
	class [event.Classes]int // commands
	start time.Time
	to    peer.Target // the leader; zero: an entry of this node's own

	// Of an entry. owner is who completes it, once: await does, or giveUp.
	term  uint64
	owner atomic.Pointer[batcher]

	answered bool // the leader's answers wait until their entries are applied here
}

// isCall reports whether it is a call to the leader.
func (e *batch) isCall() bool { return e.to != peer.Target{} }

func newBatcher(o *Options, f *fsm, c *clock.Clock, fatal func(error)) *batcher {
	b := &batcher{
		o: o, clock: c, fsm: f, fatal: fatal,
		wake: make(chan struct{}, 1), idle: make(chan struct{}, 1), later: time.NewTimer(never),
	}
	b.room = room{o: o, space: watchdog.Space{Read: o.FreeBytes}, warned: oncePerMinute()}
	b.changed.L = &b.mu
	b.forward.ctx, b.forward.cancel = context.WithCancel(context.Background())
	return b
}

func (b *batcher) signal() {
	signal(b.wake)
	b.changed.Broadcast()
}

// applied follows each batch that the FSM applied: something may be due earlier now.
// While entries are in flight their completion signals instead.
func (b *batcher) applied() {
	b.mu.Lock()
	lone := b.lead.leader && len(b.flight) == 0
	b.mu.Unlock()
	if lone {
		b.signal()
	}
}

// until waits for a condition of leadership, queues or flight, which is evaluated under the lock,
// and reports whether it came true before ctx ended.
func (b *batcher) until(ctx context.Context, ok func() bool) bool {
	defer context.AfterFunc(ctx, func() {
		b.mu.Lock() // so that it comes before the look at ctx, or finds the waiter
		defer b.mu.Unlock()
		b.changed.Broadcast()
	})()
	b.mu.Lock()
	defer b.mu.Unlock()
	for !ok() {
		if ctx.Err() != nil {
			return false
		}
		b.changed.Wait()
	}
	return true
}

// Load returns how many commands wait, and which part of the room for them is used.
func (r *Replica) Load() (waiting int, utilization float64) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	q, l := &r.b.queues, r.o.Limits
	return q.n, max(float64(q.n)/float64(l.Waiting), float64(q.bytes)/float64(l.WaitingBytes))
}

// leading returns what is known of this node's leadership.
func (b *batcher) leading() leadership {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lead
}

// setLeader follows each change of this node's leadership. Waiting commands stay: the
// next leader gets them, wherever it is.
func (b *batcher) setLeader(leader bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.lead
	l.leader, l.ready = leader, false
	if leader {
		l.term++
		// hashicorp/raft refuses a snapshot after a start or a change of members until
		// a command is applied, and a new leader does not know what is committed until
		// an entry of its own is: so it proposes one.
		l.first = true
	} else {
		b.sendBackLocked(noLeader(), (*pending).foreign)
	}
	b.movedLocked()
}

// sendBackLocked answers waiting commands that this node has not proposed and never will, and
// returns their number: commands of other nodes, which learn sooner who the next leader is, and
// commands that only a leader proposes for itself.
func (b *batcher) sendBackLocked(p *event.Problem, match func(*pending) bool) int {
	list := b.queues.remove(match)
	for _, d := range list {
		d.sendBack(p)
	}
	b.changed.Broadcast()
	return len(list)
}

func (b *batcher) propose(ctx context.Context, c *event.Command) (event.Result, error) {
	if ctx.Err() != nil {
		detail := "the request ended before it was proposed"
		return event.Result{}, refused(event.CodeOverloaded, detail, 0)
	}
	d := newPending(c)
	b.enqueue(d)
	return b.wait(ctx, d)
}

func (b *batcher) begin(commands ...*event.Command) []Wait {
	list := make([]*pending, len(commands))
	for i, c := range commands {
		list[i] = newPending(c)
	}
	b.enqueue(list...)
	waits := make([]Wait, len(list))
	for i, d := range list {
		waits[i] = func(ctx context.Context) (event.Result, error) { return b.wait(ctx, d) }
	}
	return waits
}

// enqueue adds commands to their queues, or answers why not. Where the first one is
// refused, the others are too.
func (b *batcher) enqueue(list ...*pending) {
	all, free := b.unavailable(), b.room.space.Free()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, d := range list {
		p := all
		if p == nil {
			p = b.admitLocked(d, free)
		}
		if p != nil {
			d.answer(event.Answer{Refusal: p})
		}
		if i == 0 {
			all = p
		}
	}
	if !b.gathersLocked() {
		b.signal()
	}
}

// wait returns the answer to a command.
func (b *batcher) wait(ctx context.Context, d *pending) (event.Result, error) {
	var a event.Answer
	select {
	case a = <-d.done:
	case <-ctx.Done():
		a = b.abandon(d)
	}
	if a.Refusal != nil { // never a nil *Problem in an error
		return event.Result{}, a.Refusal
	}
	return a.Result, nil
}

// abandon returns the answer for a caller that cannot wait any longer.
func (b *batcher) abandon(d *pending) event.Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.queued {
		b.queues.remove(func(o *pending) bool { return o == d })
		b.signal()
		if b.troubledLocked() {
			return event.Answer{Refusal: noLeader()}
		}
		detail := "the request ended while it waited; it was not proposed"
		return event.Answer{Refusal: b.overloadedLocked(detail)}
	}
	select {
	case a := <-d.done:
		return a
	default:
	}
	d.gone = true
	p := unknown(event.CodeNoLeader, "the request ended while the write was in flight")
	return event.Answer{Refusal: p}
}

// underWayLocked sums the batches in flight to the destination of the next one: this node's own
// log, or the leader. Batches stuck at a former leader do not delay the next one.
func (b *batcher) underWayLocked() (batches, commands, bytes int) {
	last := event.Classes - 1
	if !b.lead.leader {
		// At the leader, a forwarded command waits behind the classes before its own.
		waits := func(q []*pending) bool { return len(q) > 0 }
		last = event.Class(max(0, slices.IndexFunc(b.queues.class[:], waits)))
	}
	for _, e := range b.flight {
		if e.isCall() == b.lead.leader || e.isCall() && e.to != b.forward.to || e.answered {
			continue
		}
		batches++
		bytes += e.bytes
		for _, n := range e.class[:last+1] {
			commands += n
		}
	}
	return batches, commands, bytes
}

// gathersLocked reports whether the waiting commands wait for more to come, or for
// something in flight to return.
//
// The cost of an entry, its fsyncs and its messages, hardly depends on its size. So another batch
// is worth it if it is full, or as large as all those in flight, in commands or in bytes: a lone
// command never waits while nothing is in flight, and callers that wait for their answers fall into
// step, about half of them in each of two batches.
func (b *batcher) gathersLocked() bool {
	_, commands, bytes := b.underWayLocked()
	l := b.o.Limits
	return b.queues.n < min(commands, l.GroupCommands) && b.queues.bytes < min(bytes, l.GroupBytes)
}

// run proposes or forwards until stop is closed.
func (b *batcher) run(stop <-chan struct{}) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		e, wait := b.next()
		switch {
		case e == nil:
			timer.Reset(wait)
			select {
			case <-b.wake:
			case <-timer.C:
			case <-stop:
				return
			}
		case e.isCall():
			go b.send(e)
		default:
			b.submit(e)
		}
	}
}

// never is the duration of a timer that nothing waits for.
const never = time.Hour

// next returns the batch to send now, or how long to wait for one unless woken.
func (b *batcher) next() (*batch, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	wait := never
	if b.queues.n > 0 && b.troubledLocked() {
		b.expireLocked(now)
		wait = retryPause
	}
	l := &b.lead
	idle := l.retryAt.Sub(now)
	switch {
	case l.ended || l.leader && l.holds > 0:
		idle = never
	case idle > 0:
	case l.leader:
		idle = b.entryWaitLocked()
	default:
		idle = b.forwardWaitLocked()
	}
	if idle > 0 {
		return nil, min(wait, idle)
	}
	e := &batch{start: now}
	e.group, e.bytes = b.queues.batch(b.o.Limits)
	if l.leader {
		l.first = false
		e.term = l.term
		e.owner.Store(b)
	} else {
		e.to = b.forward.to
		b.forward.sending.Add(1)
	}
	b.flight = append(b.flight, e)
	for _, d := range e.group {
		e.class[d.class]++
	}
	return e, 0
}

// entryWaitLocked returns how long this node, as the leader, proposes nothing if nothing changes.
func (b *batcher) entryWaitLocked() time.Duration {
	entries, _, bytes := b.underWayLocked()
	if entries >= b.o.Limits.Entries || bytes >= b.o.Limits.Bytes {
		return never
	}
	if b.clock.Unset() {
		return clockLook
	}
	switch {
	case b.lead.first:
		return 0
	case b.gathersLocked():
		return never
	case b.queues.n > 0:
		return 0
	case b.lead.closing || entries > 0: // entries in flight carry the time
		return never
	}
	// An empty entry is proposed so that due work happens although no client asks for
	// anything. Much can be due at one millisecond and is done in bounded parts.
	return b.fsm.progress().dueIn(b.clock.Now())
}

// submit hands an entry to Raft. It may block while Raft is busy with the entry
// before: the next one gathers meanwhile.
func (b *batcher) submit(e *batch) {
	at := b.fsm.progress()
	entry := event.Entry{Rules: at.rules, Time: b.clock.Stamp(at.clock)}
	entry.Commands = make([][]byte, len(e.group))
	b.mu.Lock()
	if e.owner.Load() == nil { // given up: its commands are answered already
		b.mu.Unlock()
		return
	}
	for i, d := range e.group {
		entry.Commands[i] = d.data
		entry.Rules = max(entry.Rules, d.rules)
	}
	b.mu.Unlock()
	go e.await(b.apply(entry.Encode()))
}

// await completes an entry when Raft has answered. hashicorp/raft forgets the futures
// of entries that were committed but not applied when it shut down: giveUp completes
// those, and the goroutine that stays behind holds the entry alone.
func (e *batch) await(f hraft.ApplyFuture) {
	err := f.Error()
	if b := e.owner.Swap(nil); b != nil {
		b.complete(e, f, err)
	}
}

// complete answers the commands of an entry. Raft's answer is err or, if that is nil, in f.
func (b *batcher) complete(e *batch, f hraft.ApplyFuture, err error) {
	deposed := errors.Is(err, hraft.ErrNotLeader)
	back := deposed || errors.Is(err, hraft.ErrLeadershipTransferInProgress)
	answers, failure := b.answersOf(e, f, err)
	if failure != nil {
		answers = slices.Repeat([]event.Answer{{Refusal: failure, Back: back}}, len(e.group))
	}
	now := time.Now()

	b.mu.Lock()
	l := &b.lead
	if current := l.leader && e.term == l.term; current {
		switch {
		case failure == nil:
			l.ready = true
			b.acceptedLocked(now)
		case deposed: // Raft's notification is on its way
			l.leader, l.ready = false, false
			b.movedLocked()
		case back: // a transfer can fail, and hashicorp/raft does not notify of that
			l.first = true
			b.failedLocked(now)
		case !l.ready: // there is still no entry of this leadership
			l.first = true
		}
	}
	if back {
		b.sendBackLocked(noLeader(), (*pending).foreign)
	}
	b.finishLocked(e, answers)
	b.owed = b.owed || slices.ContainsFunc(e.group, func(d *pending) bool { return d.from != nil })
	idle, owed := !b.busyLocked(), b.owed
	if idle {
		b.owed = false
	}
	if b.queues.n > 0 || l.first || idle && b.fsm.progress().hasDue {
		b.signal()
	}
	b.mu.Unlock()
	switch {
	case idle && owed:
		signal(b.idle)
	case idle:
		b.later.Reset(commitPause)
	}
}

// answersOf returns the answers to an entry's commands, or the problem that answers all of them.
func (b *batcher) answersOf(e *batch, f hraft.ApplyFuture, err error) (
	[]event.Answer, *event.Problem) {
	if err != nil {
		return nil, outcome(err)
	}
	switch r := f.Response().(type) {
	case results:
		if len(r.results) == len(e.group) {
			b.o.Metrics.Observe("entry_seconds", time.Since(e.start).Seconds())
			b.o.Metrics.Observe("entry_commands", float64(len(e.group)))
			answers := make([]event.Answer, len(e.group))
			for i, result := range r.results {
				result.Index = cmp.Or(result.Index, r.index)
				answers[i].Result = result
			}
			return answers, nil
		}
		err = fmt.Errorf("entry %d: %d results, %d commands", r.index, len(r.results), len(e.group))
	case error:
		return nil, outcome(r)
	default:
		err = fmt.Errorf("unexpected response to an entry: %T", r)
	}
	b.fatal(err)
	return nil, outcome(err)
}

// finishLocked removes a batch from those in flight and answers its commands. Own ones that
// were certainly not proposed return to their queues.
func (b *batcher) finishLocked(e *batch, answers []event.Answer) {
	b.flight = slices.DeleteFunc(b.flight, func(o *batch) bool { return o == e })
	b.changed.Broadcast()
	for i, d := range e.group {
		switch {
		case !answers[i].Back:
			d.answer(answers[i])
		case d.gone:
		case b.lead.ended:
			d.sendBack(shuttingDown())
		case d.from != nil || d.local && !b.lead.leader:
			d.sendBack(noLeader())
		default:
			b.queues.push(d)
		}
	}
}

// expireLocked refuses commands that have waited too long for a leader. Time under load
// does not count: only the time since a leader accepted something.
func (b *batcher) expireLocked(now time.Time) {
	limit := now.Add(-b.o.LeaderWait)
	if b.lead.accepted.After(limit) {
		return
	}
	late := func(d *pending) bool { return !d.since.After(limit) }
	if n := b.sendBackLocked(noLeader(), late); n > 0 {
		b.o.Metrics.Count("no_leader", float64(n))
	}
}

// troubledLocked reports whether no leader accepts the waiting commands, as far as this node knows.
func (b *batcher) troubledLocked() bool {
	l := &b.lead
	return l.failed || l.holds > 0 || !l.leader && b.forward.to == peer.Target{}
}

// acceptedLocked records that a leader accepted something.
func (b *batcher) acceptedLocked(now time.Time) {
	b.lead.failed, b.lead.retryAt, b.lead.accepted = false, time.Time{}, now
}

// failedLocked records that no leader accepted it. The next attempt follows after a pause.
func (b *batcher) failedLocked(now time.Time) {
	b.lead.failed, b.lead.retryAt = true, now.Add(retryPause)
}

// hold stops proposals here until the returned function is called.
func (b *batcher) hold() (release func()) {
	add := func(n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lead.holds += n
		b.sendBackLocked(noLeader(), (*pending).foreign)
		b.lead.accepted = time.Now() // from here on, waiting commands wait for a leader
		b.signal()
	}
	add(1)
	return func() { add(-1) }
}

// probe proposes an entry even if no command waits, and returns the instant before.
func (b *batcher) probe() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lead.first = true
	b.signal()
	return time.Now()
}

func (b *batcher) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lead.closing = true
	b.signal()
}

// stop ends the calls to other nodes; nothing leaves this node any more, and what waits is refused.
func (b *batcher) stop() {
	b.mu.Lock()
	b.lead.leader, b.lead.ready, b.lead.closing, b.lead.ended = false, false, true, true
	b.forward.cancel()
	b.sendBackLocked(shuttingDown(), func(*pending) bool { return true })
	b.signal()
	b.mu.Unlock()
	b.fsm.wake()
}

// giveUp answers all callers that still wait: the replica has failed, or Raft has shut down.
func (b *batcher) giveUp() {
	b.stop()
	b.mu.Lock()
	flight := slices.Clone(b.flight)
	b.mu.Unlock()
	for _, e := range flight {
		if e.owner.Swap(nil) != nil {
			b.complete(e, nil, hraft.ErrRaftShutdown)
		}
	}
}

// busy reports whether entries are being replicated.
func (b *batcher) busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busyLocked()
}

func (b *batcher) busyLocked() bool {
	return slices.ContainsFunc(b.flight, func(e *batch) bool { return !e.isCall() })
}

package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// batcher turns commands into entries, in one goroutine with one rule: while entries
// are in flight, the next one gathers (see gathersLocked). There is no artificial
// delay. On a node that does not lead, the same goroutine forwards the group to the
// leader instead: forward.go.
type batcher struct {
	o       *Options
	disk    *disk
	clock   *clock
	fsm     *fsm
	fatal   func(error)
	apply   func(data []byte) hraft.ApplyFuture
	opening func() *event.Command // proposed first in each leadership; nil: nothing
	idle    func()                // called when no entry is in flight any more
	forward *forwarder
	waiters applyWaiters
	wake    chan struct{} // of capacity one: something changed that run may act upon
	gone    chan struct{} // closed when no answer can come any more
	failed  chan struct{} // closed when the replica has failed

	mu      sync.Mutex
	queues  queues
	flight  flight
	lead    leadership
	seq     uint64        // of the newest command
	changed chan struct{} // closed at the next change; nil while nobody waits for one
	rate    rate
}

// flight is what was proposed or forwarded and is not answered yet.
type flight struct {
	entries  []*entry // in order
	commands int      // of entries
	bytes    int      // of entries
	class    [event.Classes]int
}

// leadership is what the batcher knows of who leads, and of its own stage.
type leadership struct {
	leader bool
	// term counts this node's leaderships. An entry of a leadership must be applied
	// before reads are linearizable and snapshots possible: readyTerm is the newest
	// term of which one was.
	term, readyTerm uint64
	first           bool // that entry is still to be proposed
	// deposed: Raft has answered that this node does not lead, and the notification
	// is on its way. Nothing is proposed until it comes.
	deposed bool
	holds   int // of hold: nothing new is proposed, leadership is being transferred
	closing bool
	ended   bool // nothing leaves this node any more

	// failures counts failed attempts in a row to reach a leader; retryAt is when the
	// next one is due, and took when a leader last took something.
	failures int
	retryAt  time.Time
	took     time.Time
	tick     ticker
}

// ready reports whether an entry of this leadership is applied.
func (l *leadership) ready() bool { return l.leader && l.readyTerm == l.term }

// leads reports whether this node leads as far as it knows.
func (l *leadership) leads() bool { return l.leader && !l.deposed }

// entry is one entry in flight.
type entry struct {
	group []*pending
	bytes int
	term  uint64
	start time.Time
	// complete is called once, by await or by giveUp.
	complete atomic.Pointer[func(*entry, completion)]
}

func newBatcher(o *Options, f *fsm, c *clock, fatal func(error), failed chan struct{}) *batcher {
	return &batcher{
		o: o, disk: newDisk(*o), clock: c, fsm: f, fatal: fatal,
		opening: func() *event.Command { return nil }, idle: func() {},
		forward: newForwarder(), waiters: applyWaiters{fsm: f},
		wake: make(chan struct{}, 1), gone: make(chan struct{}), failed: failed,
	}
}

func (b *batcher) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// applied follows each batch that the FSM applied: something may be due earlier now.
// While entries are in flight their completion signals instead.
func (b *batcher) applied() {
	b.mu.Lock()
	lone := b.lead.leader && len(b.flight.entries) == 0
	b.mu.Unlock()
	if lone {
		b.signal()
	}
}

// notifyLocked wakes those who wait for a change of leadership, of readiness or of
// what is in flight.
func (b *batcher) notifyLocked() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// changedLocked is notifyLocked, and wakes run as well.
func (b *batcher) changedLocked() {
	b.notifyLocked()
	b.signal()
}

// watchLocked returns a channel that is closed at the next change.
func (b *batcher) watchLocked() <-chan struct{} {
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

// until waits for a condition, which is evaluated under the lock, and reports whether
// it came true before ctx ended.
func (b *batcher) until(ctx context.Context, ok func() bool) bool {
	for {
		b.mu.Lock()
		yes, changed := ok(), b.watchLocked()
		b.mu.Unlock()
		if yes {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-b.failed:
			return false
		}
	}
}

// view returns what is known of this node's leadership, and a channel that is closed
// at the next change.
func (b *batcher) view() (leadership, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lead, b.watchLocked()
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
	var opening *event.Command
	if leader {
		opening = b.opening()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.lead
	l.leader, l.deposed = leader, false
	if leader {
		l.term++
		// hashicorp/raft refuses a snapshot after a start or a change of members until
		// a command is applied, and a new leader does not know what is committed until
		// an entry of its own is: so it proposes one.
		l.first = true
		if opening != nil {
			b.queueLocked(newPending(opening))
		}
	} else {
		b.sendBackLocked()
	}
	b.movedLocked()
}

// sendBackLocked returns the waiting commands of other nodes to them: they know
// sooner where the next leader is. What the leader proposes for itself is the next
// leader's business too.
func (b *batcher) sendBackLocked() {
	for _, d := range b.queues.drain(func(d *pending) bool { return d.batch != nil || d.local }) {
		d.refuse(noLeader())
	}
}

// propose implements Replica.Propose.
func (b *batcher) propose(ctx context.Context, c *event.Command) (event.Result, error) {
	if ctx.Err() != nil {
		return event.Result{}, problem(CodeOverloaded, "the request ended before it was proposed", false, 0)
	}
	d, refused := b.admit(c)
	if refused == nil {
		refused = b.enqueue(d)
	}
	if refused != nil {
		return event.Result{}, refused
	}
	return b.wait(ctx, d)
}

// begin implements Replica.Begin.
func (b *batcher) begin(c *event.Command, along []*event.Command) []func(context.Context) (event.Result, error) {
	commands := append([]*event.Command{c}, along...)
	list, refused := make([]*pending, len(commands)), make([]*event.Problem, len(commands))
	for i, c := range commands {
		list[i], refused[i] = b.admit(c)
	}
	b.mu.Lock()
	if b.lead.closing {
		refused[0] = shuttingDown()
	}
	for i, d := range list {
		if refused[0] != nil {
			refused[i] = refused[0]
		} else if refused[i] == nil {
			refused[i] = b.pushLocked(d)
		}
	}
	b.changedLocked()
	b.mu.Unlock()
	waits := make([]func(context.Context) (event.Result, error), len(list))
	for i, d := range list {
		waits[i] = func(ctx context.Context) (event.Result, error) {
			if refused[i] != nil {
				return event.Result{}, refused[i]
			}
			return b.wait(ctx, d)
		}
	}
	return waits
}

// admit encodes a command. It refuses one that is too large or, on a full disk, of a
// class that must not write.
func (b *batcher) admit(c *event.Command) (*pending, *event.Problem) {
	d := newPending(c)
	if limit := b.o.Limits.CommandBytes; len(d.data) > limit {
		detail := fmt.Sprintf("a request of %d bytes is over the limit of %d", len(d.data), limit)
		return nil, problem(CodePayloadTooLarge, detail, false, 0)
	}
	return d, b.disk.refuses(d.class)
}

// enqueue adds a command to its queue, or refuses it.
func (b *batcher) enqueue(d *pending) *event.Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lead.closing {
		return shuttingDown()
	}
	if full := b.pushLocked(d); full != nil {
		return full
	}
	b.notifyLocked()
	if !b.gathersLocked() {
		b.signal()
	}
	return nil
}

// pushLocked adds a command if its class has room. Each class may fill a smaller part
// of the room: what empties the queues is still accepted when what fills them is
// refused.
func (b *batcher) pushLocked(d *pending) *event.Problem {
	l := b.o.Limits
	n, bytes := b.queues.n, b.queues.bytes
	if n >= share(l.Waiting, d.class) || n > 0 && bytes+len(d.data) > share(l.WaitingBytes, d.class) {
		return b.overloadedLocked("too many writes wait; this one was not proposed")
	}
	b.queueLocked(d)
	return nil
}

func (b *batcher) queueLocked(d *pending) {
	b.seq++
	d.seq = b.seq
	b.queues.push(d)
}

func (b *batcher) overloadedLocked(detail string) *event.Problem {
	p := problem(CodeOverloaded, detail, false, b.rate.wait(b.queues.n))
	p.QueueDepth = int64(b.queues.n)
	return p
}

// share is the part of a limit that a class may fill: all of it, 6/8, 4/8, 2/8.
func share(limit int, c event.Class) int { return max(1, limit/8*(8-2*int(c))+limit%8) }

// wait returns the answer to a queued command.
func (b *batcher) wait(ctx context.Context, d *pending) (event.Result, error) {
	select {
	case a := <-d.done:
		return a.unwrap()
	case <-ctx.Done():
		return b.abandon(d)
	case <-b.gone:
	case <-b.failed:
	}
	select {
	case a := <-d.done:
		return a.unwrap()
	default:
		return event.Result{}, outcome(hraft.ErrRaftShutdown)
	}
}

func (a answer) unwrap() (event.Result, error) {
	if a.problem != nil { // never a nil *Problem in an error
		return event.Result{}, a.problem
	}
	return a.result, nil
}

// abandon is for a caller that cannot wait any longer.
func (b *batcher) abandon(d *pending) (event.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch d.state {
	case waiting:
		b.queues.remove(d, settled)
		b.changedLocked()
		if b.troubledLocked() {
			return event.Result{}, noLeader()
		}
		return event.Result{}, b.overloadedLocked("the request ended while it waited; it was not proposed")
	case settled: // the answer is in the channel
		return (<-d.done).unwrap()
	}
	d.gone = true
	return event.Result{}, problem(CodeNoLeader,
		"the request ended while the write was in flight; it may still be committed", true, 1000)
}

// gathersLocked reports whether the waiting commands wait for more to come, or for
// something in flight to return.
//
// The cost of an entry, its fsyncs and its messages, hardly depends on its size. So
// another entry is worth it if it is full, or as large as all those in flight, in
// commands or in bytes: a lone command never waits while nothing is in flight, and
// callers that wait for their answers fall into step, about half of them in each of
// two entries.
func (b *batcher) gathersLocked() bool {
	commands, bytes := b.flight.commands, b.flight.bytes
	if !b.lead.leader {
		// At the leader, a forwarded command waits behind the classes before its own.
		commands, bytes = b.forward.inFlight(b.queues.top())
	}
	l := b.o.Limits
	return b.queues.n < min(commands, l.GroupCommands) && b.queues.bytes < min(bytes, l.GroupBytes)
}

// run proposes or forwards until stop is closed.
func (b *batcher) run(stop <-chan struct{}) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		e, f, wait := b.next()
		switch {
		case e != nil:
			b.submit(e)
		case f != nil:
			go b.send(f)
		default:
			timer.Reset(wait)
			select {
			case <-b.wake:
			case <-timer.C:
			case <-stop:
				return
			}
		}
	}
}

// next returns the entry to propose now, or the batch to forward, or for how long
// there is nothing to do unless woken.
func (b *batcher) next() (*entry, *forwardBatch, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	wait := b.expireLocked(now)
	l := &b.lead
	if pause := l.retryAt.Sub(now); pause > 0 {
		return nil, nil, min(wait, pause)
	}
	switch {
	case l.leader && (l.deposed || l.holds > 0):
		return nil, nil, wait
	case l.leader:
		e, idle := b.entryLocked()
		return e, nil, min(wait, idle)
	}
	f, idle := b.forwardLocked(now)
	return nil, f, min(wait, idle)
}

// entryLocked makes the next entry.
func (b *batcher) entryLocked() (*entry, time.Duration) {
	if len(b.flight.entries) >= b.o.Limits.Entries || b.flight.bytes >= b.o.Limits.Bytes {
		return nil, never
	}
	if wait := b.clock.unset(); wait > 0 {
		return nil, wait
	}
	l := &b.lead
	if !l.first && b.gathersLocked() {
		return nil, never
	}
	group, bytes := b.queues.group(b.o.Limits)
	if len(group) == 0 && !l.first {
		// Entries in flight carry the time: due work happens with them.
		if l.closing || len(b.flight.entries) > 0 {
			return nil, never
		}
		if wait := l.tick.wait(b.fsm.progress(), b.clock.now()); wait > 0 {
			return nil, wait
		}
	}
	l.first = false
	e := &entry{group: group, bytes: bytes, term: l.term, start: time.Now()}
	complete := b.complete
	e.complete.Store(&complete)
	b.flight.entries = append(b.flight.entries, e)
	b.flight.commands += len(group)
	b.flight.bytes += bytes
	b.departLocked(group)
	return e, 0
}

// departLocked counts commands that leave the queues.
func (b *batcher) departLocked(group []*pending) {
	for _, d := range group {
		b.flight.class[d.class]++
	}
	b.notifyLocked()
}

// submit hands an entry to Raft. It may block while Raft is busy with the entry
// before: the next one gathers meanwhile.
func (b *batcher) submit(e *entry) {
	commands := make([][]byte, len(e.group))
	for i, d := range e.group {
		commands[i] = d.data
	}
	at := b.fsm.progress()
	data := event.Entry{Rules: rulesOf(at.rules, e.group), Time: b.clock.stamp(at.clock), Commands: commands}
	go e.await(b.apply(data.Encode()))
}

// await completes an entry when Raft has answered. hashicorp/raft forgets the futures
// of entries that were committed but not applied when it shut down: giveUp completes
// those, and the goroutine that stays behind holds the entry alone.
func (e *entry) await(f hraft.ApplyFuture) {
	err := f.Error()
	if complete := e.complete.Swap(nil); complete != nil {
		(*complete)(e, completion{err: err, response: f})
	}
}

// completion is Raft's answer to an entry.
type completion struct {
	err      error
	response hraft.ApplyFuture // read only if err is nil
}

// complete answers the commands of an entry.
func (b *batcher) complete(e *entry, c completion) {
	index, results, failure := b.resultsOf(e, c)
	b.mu.Lock()
	f, l := &b.flight, &b.lead
	f.entries = slices.DeleteFunc(f.entries, func(o *entry) bool { return o == e })
	f.commands -= len(e.group)
	f.bytes -= e.bytes
	for _, d := range e.group {
		f.class[d.class]--
	}
	now := time.Now()
	current := e.term == l.term
	if failure == nil {
		l.readyTerm = max(l.readyTerm, e.term)
		b.rate.add(len(e.group), now)
		if current {
			b.tookLocked(now)
		}
	} else if current && l.leader && l.readyTerm != l.term {
		l.first = true // there is still no entry of this term
	}
	deposed := errors.Is(c.err, hraft.ErrNotLeader)
	if deposed || errors.Is(c.err, hraft.ErrLeadershipTransferInProgress) {
		b.refusedLocked(e, deposed, now)
	} else {
		for i, d := range e.group {
			a := answer{problem: failure}
			if failure == nil {
				a.result = results[i]
				if a.result.Index == 0 {
					a.result.Index = index
				}
			}
			d.state = settled
			d.deliver(a)
		}
	}
	b.notifyLocked()
	idle := len(f.entries) == 0
	if b.queues.n > 0 || l.first || !l.leads() || idle && b.fsm.progress().hasDue {
		b.signal()
	}
	b.mu.Unlock()
	if idle {
		b.idle()
	}
}

// resultsOf returns an entry's results, one for each of its commands, or the problem
// that answers all of them.
func (b *batcher) resultsOf(e *entry, c completion) (uint64, []event.Result, *event.Problem) {
	if c.err != nil {
		return 0, nil, outcome(c.err)
	}
	var err error
	switch r := c.response.Response().(type) {
	case results:
		if len(r.results) == len(e.group) {
			b.o.Metrics.Observe("entry_seconds", time.Since(e.start).Seconds())
			b.o.Metrics.Observe("entry_commands", float64(len(e.group)))
			return r.index, r.results, nil
		}
		err = fmt.Errorf("entry %d: %d results for %d commands", r.index, len(r.results), len(e.group))
	case error:
		return 0, nil, outcome(r)
	default:
		err = fmt.Errorf("unexpected response to an entry: %T", r)
	}
	b.fatal(err)
	return 0, nil, outcome(err)
}

// refusedLocked handles an entry that Raft did not take because this node does not
// lead, or is transferring its leadership.
func (b *batcher) refusedLocked(e *entry, deposed bool, now time.Time) {
	if e.term == b.lead.term && b.lead.leader {
		if deposed {
			b.lead.deposed = true
		} else {
			// A transfer can fail, and hashicorp/raft does not notify of that.
			b.failedLocked(now)
			b.lead.first = true
		}
	}
	b.requeueLocked(e.group)
	if b.lead.deposed || b.lead.failures > 0 {
		b.sendBackLocked()
	}
}

// requeueLocked returns commands that were certainly not proposed to their queues.
func (b *batcher) requeueLocked(group []*pending) {
	var keep []*pending
	for _, d := range group {
		d.state = settled
		switch {
		case d.gone:
		case b.lead.ended:
			d.refuse(shuttingDown())
		case d.batch != nil || d.local && !b.lead.leads():
			d.refuse(noLeader())
		default:
			keep = append(keep, d)
		}
	}
	b.queues.restore(keep)
}

// expireLocked refuses commands that have waited too long for a leader, and returns
// when the next one will have.
func (b *batcher) expireLocked(now time.Time) time.Duration {
	if b.queues.n == 0 || !b.troubledLocked() {
		return never
	}
	// Time under load does not count: only the time since a leader took something.
	if end := b.lead.took.Add(b.o.LeaderWait); now.Before(end) {
		return end.Sub(now)
	}
	late, oldest := b.queues.expire(now.Add(-b.o.LeaderWait))
	for _, d := range late {
		d.refuse(noLeader())
	}
	if len(late) > 0 {
		b.o.Metrics.Count("no_leader", float64(len(late)))
		b.notifyLocked()
	}
	if oldest.IsZero() {
		return never
	}
	return oldest.Add(b.o.LeaderWait).Sub(now)
}

// troubledLocked reports whether no leader takes the waiting commands, as far as this
// node knows.
func (b *batcher) troubledLocked() bool {
	l := &b.lead
	if l.failures > 0 || l.deposed || l.holds > 0 {
		return true
	}
	return !l.leader && !(b.forward.known && b.forward.call != nil)
}

// tookLocked records that a leader took something.
func (b *batcher) tookLocked(now time.Time) {
	b.lead.failures, b.lead.retryAt, b.lead.took = 0, time.Time{}, now
}

// failedLocked records that no leader took it, and backs off.
func (b *batcher) failedLocked(now time.Time) {
	l := &b.lead
	l.failures = min(l.failures+1, 30)
	l.retryAt = now.Add(min(firstRetry<<min(l.failures-1, 10), lastRetry))
}

// hold stops proposals here until the returned function is called.
func (b *batcher) hold() (release func()) {
	add := func(n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lead.holds += n
		b.sendBackLocked()
		b.lead.took = time.Now() // from here on, waiting commands wait for a leader
		b.changedLocked()
	}
	add(1)
	return func() { add(-1) }
}

// probe proposes an entry even if no command waits, and returns the instant before.
func (b *batcher) probe() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lead.first = true
	b.changedLocked()
	return time.Now()
}

// close refuses new commands.
func (b *batcher) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lead.closing = true
	b.changedLocked()
}

// drain waits until every accepted command is answered. When ctx ends, it refuses
// those that still wait.
func (b *batcher) drain(ctx context.Context) {
	empty := func() bool {
		return b.queues.n == 0 && len(b.flight.entries) == 0 && b.forward.idle()
	}
	if b.until(ctx, empty) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuseAllLocked()
}

func (b *batcher) refuseAllLocked() {
	for _, d := range b.queues.drain(func(*pending) bool { return true }) {
		d.refuse(shuttingDown())
	}
}

// end lets nothing leave this node any more, and accepts nothing from others.
func (b *batcher) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lead.ended = true
}

// settle waits until no entry is in flight, or ctx ends.
func (b *batcher) settle(ctx context.Context) {
	for {
		b.mu.Lock()
		n, changed := len(b.flight.entries), b.watchLocked()
		b.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// giveUp answers everybody who still waits. Raft has shut down before.
func (b *batcher) giveUp() {
	b.mu.Lock()
	b.refuseAllLocked()
	entries := slices.Clone(b.flight.entries)
	b.mu.Unlock()
	for _, e := range entries {
		if complete := e.complete.Swap(nil); complete != nil {
			(*complete)(e, completion{err: hraft.ErrRaftShutdown})
		}
	}
	close(b.gone)
}

// inFlight reports whether entries are being replicated.
func (b *batcher) inFlight() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.flight.entries) > 0
}

package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

// proposer turns commands into entries. It collects what all handlers bring
// until the pipeline has room (while one entry is being synced, the next
// gathers; there is no artificial delay) and proposes the group. On a node that
// is not the leader it takes the group to the leader instead: forward.go.
type proposer struct {
	limits  Limits
	patient time.Duration // Options.LeaderWait
	logger  *slog.Logger
	metrics Metrics
	disk    *disk
	clock   *clock
	fsm     *fsm
	fatal   func(error)
	apply   func(data []byte) hraft.ApplyFuture
	retire  chan *flight          // entries under way, in their order
	wake    chan struct{}         // takes one: something changed that run may act upon
	opening func() *event.Command // what the first entry of a leadership is to carry; nil nothing
	gone    chan struct{}         // closed when no answer can come any more
	failed  chan struct{}         // closed when the replica has failed
	idle    func()                // told that nothing is under way any more
	landed  landings

	// Of forwarding: who leads, where it is another node, and how to reach it;
	// nil on a node without a network.
	target func() (peer.Target, bool)
	call   func(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, error)
	ctx    context.Context // of calls under way
	cancel context.CancelFunc
	wg     sync.WaitGroup // those who carry groups
	served sync.WaitGroup // those who wait for other nodes' commands

	mu     sync.Mutex
	q      queues
	seq    uint64    // of the newest command
	flying []*flight // Invariant: what was proposed and not yet answered, in order
	// answering: an entry has left flying, and its callers are being answered.
	answering bool
	fly       [event.Classes]int
	flyN      int // commands of flying
	flyByte   int
	leader    bool
	// term counts this node's leaderships. An entry of one must be applied
	// before reads are linearizable and snapshots possible: readyTerm says of
	// which one was.
	term, readyTerm uint64
	first           bool // that entry is still to be proposed
	closing         bool
	ended           bool          // nothing leaves this node any more
	changed         chan struct{} // closed when any of this changes; nil while nobody waits
	tick            ticks
	rate            rate

	// deposed: Raft has said that it does not lead, and the notification that
	// tells why is on its way. Nothing is proposed until it comes.
	deposed bool
	handing int // holds of hold: nothing new is proposed, leadership is given away
	away    convoys
	// fails counts what went wrong in a row on the way to a leader; retryAt is
	// when the next try is due, good when a leader last took something.
	fails   int
	retryAt time.Time
	good    time.Time
}

// flight is an entry under way.
type flight struct {
	group  []*pending
	bytes  int
	term   uint64
	start  time.Time
	future hraft.ApplyFuture
}

func newProposer(o Options, f *fsm, c *clock, fatal func(error), failed chan struct{}) *proposer {
	p := &proposer{
		limits: o.Limits, patient: o.LeaderWait, logger: o.Logger, metrics: o.Metrics, disk: newDisk(o), clock: c, fsm: f, fatal: fatal,
		retire: make(chan *flight, o.Limits.Entries), wake: make(chan struct{}, 1),
		gone: make(chan struct{}), failed: failed, idle: func() {},
		target: func() (peer.Target, bool) { return peer.Target{}, false },
	}
	p.landed.fsm = f
	p.away.ripe = map[*ripe]struct{}{}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

func (p *proposer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// applied is told of each batch that was applied: something may be due earlier
// now. Behind an entry of its own reap tells run, and a follower proposes nothing.
func (p *proposer) applied() {
	p.mu.Lock()
	alone := p.leader && len(p.flying) == 0
	p.mu.Unlock()
	if alone {
		p.signal()
	}
}

// changedLocked tells run, and whoever waits for a change of leadership, of
// readiness or of what is in hand.
func (p *proposer) changedLocked() {
	p.tellLocked()
	p.signal()
}

func (p *proposer) tellLocked() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// watchLocked returns a channel that is closed at the next change.
func (p *proposer) watchLocked() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// setLeader is told of each change of this node's leadership. What waits stays:
// the next leader gets it, wherever it is.
func (p *proposer) setLeader(leader bool) {
	var opening *event.Command
	if leader {
		opening = p.opening()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leader, p.deposed = leader, false
	if leader {
		p.term++
		// hashicorp/raft refuses a snapshot after a start or a change of
		// members until a command is applied, and a new leader does not know
		// what is committed until an entry of its own is: so it proposes one.
		p.first = true
		if opening != nil {
			d := newPending(opening)
			p.seq++
			d.seq = p.seq
			p.q.class[d.class].push(d)
		}
	} else {
		p.sendBackLocked()
	}
	p.movedLocked()
}

// leadsLocked tells whether this node is the leader as far as it knows.
func (p *proposer) leadsLocked() bool { return p.leader && !p.deposed }

// sendBackLocked gives other nodes their commands back that wait here: they
// know better where the next leader is than this node. What the leader itself
// proposes is the next one's business, too.
func (p *proposer) sendBackLocked() {
	for _, d := range p.q.drain(func(d *pending) bool { return d.batch != nil || d.here }) {
		d.refuse(noLeader())
	}
}

// propose is Replica.Propose.
func (p *proposer) propose(ctx context.Context, c *event.Command) (event.Result, error) {
	if err := ctx.Err(); err != nil {
		return event.Result{}, problem(CodeOverloaded, "the request ended before it was proposed", false, 0)
	}
	d, refused := p.admit(c)
	if refused == nil {
		refused = p.enqueue(d)
	}
	if refused != nil {
		return event.Result{}, refused
	}
	return p.wait(ctx, d)
}

// begin is Replica.Begin.
func (p *proposer) begin(c *event.Command, along []*event.Command) []func(context.Context) (event.Result, error) {
	list, why := p.admitAll(append([]*event.Command{c}, along...))
	p.mu.Lock()
	if p.closing {
		why[0] = shuttingDown()
	}
	if p.pushAllLocked(list[:1], why[:1]); why[0] == nil {
		p.pushAllLocked(list[1:], why[1:])
	} else {
		for i := range why {
			why[i] = why[0]
		}
	}
	p.changedLocked()
	p.mu.Unlock()
	return p.waits(list, why)
}

// admitAll admits commands; why says why not.
func (p *proposer) admitAll(cmds []*event.Command) (list []*pending, why []*event.Problem) {
	list, why = make([]*pending, len(cmds)), make([]*event.Problem, len(cmds))
	for i, c := range cmds {
		list[i], why[i] = p.admit(c)
	}
	return list, why
}

// pushAllLocked lets those wait that were admitted.
func (p *proposer) pushAllLocked(list []*pending, why []*event.Problem) {
	for i, d := range list {
		if why[i] == nil {
			why[i] = p.pushLocked(d)
		}
	}
}

// waits returns what waits for the answers, each to be called once.
func (p *proposer) waits(list []*pending, why []*event.Problem) []func(context.Context) (event.Result, error) {
	waits := make([]func(context.Context) (event.Result, error), len(list))
	for i, d := range list {
		waits[i] = func(ctx context.Context) (event.Result, error) {
			if why[i] != nil {
				return event.Result{}, why[i]
			}
			return p.wait(ctx, d)
		}
	}
	return waits
}

// admit encodes a command and refuses what is too large or, on a full disk, of
// its class.
func (p *proposer) admit(c *event.Command) (*pending, *event.Problem) {
	d := newPending(c)
	if len(d.data) > p.limits.CommandBytes {
		return nil, problem(CodePayloadTooLarge, fmt.Sprintf("a request of %d bytes is over the limit of %d", len(d.data), p.limits.CommandBytes), false, 0)
	}
	return d, p.disk.refuses(d.class)
}

// wait returns the answer to a command that was enqueued.
func (p *proposer) wait(ctx context.Context, d *pending) (event.Result, error) {
	select {
	case a := <-d.done:
		return a.unwrap()
	case <-ctx.Done():
		return p.abandon(d)
	case <-p.gone:
	case <-p.failed:
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

// enqueue lets a command wait, or refuses it.
func (p *proposer) enqueue(d *pending) *event.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return shuttingDown()
	}
	if full := p.pushLocked(d); full != nil {
		return full
	}
	p.tellLocked()
	if !p.gathersLocked() {
		p.signal()
	}
	return nil
}

// gathersLocked tells whether what waits is to wait for more, or until something
// that is under way returns: which wakes run.
//
// What an entry costs, three fsyncs and the messages about it, hardly depends on
// what is in it. So one is worth it beside others if it is full, or as much as
// they are together, in commands or in bytes: a lone command never waits for
// company where nothing is under way, and callers that wait for their answers
// fall into step, about a half of them in each of two entries.
func (p *proposer) gathersLocked() bool {
	n, bytes := p.q.len()
	flyN, flyByte := p.flyN, p.flyByte
	if !p.leader {
		// What the leader has not proposed yet stands in line there by class: so
		// a class waits only for its own and for those before it.
		flyN, flyByte = p.away.flying(p.q.top())
	}
	return n < min(flyN, p.limits.GroupCommands) && bytes < min(flyByte, p.limits.GroupBytes)
}

func (p *proposer) pushLocked(d *pending) *event.Problem {
	// Each class may fill a smaller part of the room: what relieves the queues
	// still gets in when what fills them is turned away.
	if n, bytes := p.q.len(); n >= share(p.limits.Waiting, d.class) || n > 0 && bytes+len(d.data) > share(p.limits.WaitingBytes, d.class) {
		full := problem(CodeOverloaded, "too many writes wait; this one was not proposed", false, p.rate.wait(n))
		full.QueueDepth = int64(n)
		return full
	}
	p.seq++
	d.seq = p.seq
	p.q.class[d.class].push(d)
	return nil
}

// share is the part of a limit that a class may fill: all of it, 6/8, 4/8, 2/8.
func share(limit int, c event.Class) int { return max(1, limit/8*(8-2*int(c))+limit%8) }

// abandon is for a caller that cannot wait any longer.
func (p *proposer) abandon(d *pending) (event.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch d.state {
	case waiting:
		p.q.class[d.class].remove(d)
		d.state = settled
		p.changedLocked()
		if p.troubledLocked() {
			return event.Result{}, noLeader()
		}
		n, _ := p.q.len()
		late := problem(CodeOverloaded, "the request ended while it waited; it was not proposed", false, p.rate.wait(n))
		late.QueueDepth = int64(n)
		return event.Result{}, late
	case settled: // the answer is on its way into a channel that has room
		return (<-d.done).unwrap()
	}
	d.gone = true
	return event.Result{}, problem(CodeNoLeader, "the request ended while the write was under way; it may still be committed", true, 1000)
}

// run proposes, or takes to the leader, until stop is closed.
func (p *proposer) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		fl, c, wait := p.next()
		if c != nil {
			go p.carry(c)
			continue
		}
		if fl == nil {
			timer.Reset(wait)
			select {
			case <-p.wake:
			case <-timer.C:
			case <-stop:
				return
			}
			continue
		}
		cmds := make([][]byte, len(fl.group))
		for i, d := range fl.group {
			cmds[i] = d.data
		}
		at := p.fsm.progress()
		e := event.Entry{Rules: rulesOf(at.rules, fl.group), Time: p.clock.stamp(at.clock), Commands: cmds}
		// May block while Raft is busy with the entry before: meanwhile the next
		// group gathers.
		fl.future = p.apply(e.Encode())
		p.retire <- fl // has room for all that may be under way
	}
}

const never = time.Hour

// next returns the entry to propose now, or the group to take to the leader, or
// how long there is nothing to do unless something wakes.
func (p *proposer) next() (*flight, *convoy, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	wait := p.expireLocked(now)
	if pause := p.retryAt.Sub(now); pause > 0 {
		return nil, nil, min(wait, pause)
	}
	switch {
	case p.leader && (p.deposed || p.handing > 0):
		return nil, nil, wait
	case p.leader:
		fl, idle := p.entryLocked()
		return fl, nil, min(wait, idle)
	}
	c, idle := p.convoyLocked(now)
	return nil, c, min(wait, idle)
}

// entryLocked makes the next entry.
func (p *proposer) entryLocked() (*flight, time.Duration) {
	if len(p.flying) >= p.limits.Entries || p.flyByte >= p.limits.Bytes {
		return nil, never
	}
	if wait := p.clock.unset(); wait > 0 {
		return nil, wait
	}
	if !p.first && p.gathersLocked() {
		return nil, never
	}
	group, bytes := p.q.group(p.limits)
	if len(group) == 0 && !p.first {
		// Under way entries carry the time: what is due happens with them.
		if p.closing || len(p.flying) > 0 {
			return nil, never
		}
		if wait := p.tick.wait(p.fsm.progress(), p.clock.now()); wait > 0 {
			return nil, wait
		}
	}
	p.first = false
	fl := &flight{group: group, bytes: bytes, term: p.term, start: time.Now()}
	p.flying = append(p.flying, fl)
	p.flyN += len(group)
	p.flyByte += bytes
	p.departLocked(group)
	return fl, 0
}

// departLocked counts what is under way from here on.
func (p *proposer) departLocked(group []*pending) {
	for _, d := range group {
		p.fly[d.class]++
	}
	p.tellLocked()
}

// reap answers entries, in the order in which they were proposed, until retire
// is closed.
func (p *proposer) reap() {
	for fl := range p.retire {
		got := p.await(fl)
		p.mu.Lock()
		p.flying, p.answering = p.flying[1:], true
		idle := len(p.flying) == 0
		p.flyN -= len(fl.group)
		p.flyByte -= fl.bytes
		for _, d := range fl.group {
			p.fly[d.class]--
		}
		now := time.Now()
		if got.problem == nil {
			p.readyTerm = max(p.readyTerm, fl.term)
			p.rate.add(len(fl.group), now)
			if fl.term == p.term {
				p.tookLocked(now)
			}
		} else if fl.term == p.term && p.leader && p.readyTerm != p.term {
			p.first = true // still no entry of this term
		}
		if got.back {
			p.refusedLocked(fl, got.deposed, now)
			fl.group = nil
		}
		for _, d := range fl.group {
			d.state = settled
		}
		p.tellLocked()
		if n, _ := p.q.len(); n > 0 || p.first || !p.leadsLocked() || idle && p.fsm.progress().hasDue {
			p.signal() // else there is nothing to do for run
		}
		p.mu.Unlock()
		if idle {
			p.idle()
		}
		for i, d := range fl.group {
			a := answer{problem: got.problem}
			if a.problem == nil {
				a.result = got.results[i]
				if a.result.Index == 0 {
					a.result.Index = got.index
				}
			}
			d.deliver(a)
		}
		p.mu.Lock()
		p.answering = false
		if p.closing {
			p.tellLocked()
		}
		p.mu.Unlock()
	}
}

// refusedLocked is for an entry that Raft did not take because this node does
// not lead, or will not in a moment.
func (p *proposer) refusedLocked(fl *flight, deposed bool, now time.Time) {
	if fl.term == p.term && p.leader {
		if deposed {
			p.deposed = true
		} else {
			// A handover can fail: nobody tells when.
			p.failedLocked(now)
		}
	}
	p.requeueLocked(fl.group)
	if p.deposed || p.fails > 0 {
		p.sendBackLocked()
	}
}

// fate is what became of an entry.
type fate struct {
	index   uint64
	results []event.Result
	problem *event.Problem
	// back: it was not taken for want of leadership, which is lost (deposed) or
	// on its way to another node.
	back, deposed bool
}

func (p *proposer) await(fl *flight) fate {
	if err := fl.future.Error(); err != nil {
		deposed := errors.Is(err, hraft.ErrNotLeader)
		return fate{problem: outcome(err), back: deposed || errors.Is(err, hraft.ErrLeadershipTransferInProgress), deposed: deposed}
	}
	switch r := fl.future.Response().(type) {
	case results:
		if len(r.results) == len(fl.group) {
			p.metrics.Observe("entry_seconds", time.Since(fl.start).Seconds())
			p.metrics.Observe("entry_commands", float64(len(fl.group)))
			return fate{index: r.index, results: r.results}
		}
		err := fmt.Errorf("entry %d: %d results for %d commands", r.index, len(r.results), len(fl.group))
		p.fatal(err)
		return fate{problem: outcome(err)}
	case error:
		return fate{problem: outcome(r)}
	default:
		err := fmt.Errorf("an entry was answered with %T", r)
		p.fatal(err)
		return fate{problem: outcome(err)}
	}
}

package raft

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/event"
)

// proposer turns commands into entries. It collects what all handlers bring
// until the pipeline has room (while one entry is being synced, the next
// gathers; there is no artificial delay) and proposes the group.
type proposer struct {
	limits  Limits
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

	mu      sync.Mutex
	q       queues
	flying  []*flight // Invariant: what was proposed and not yet answered, in order
	fly     [event.Classes]int
	flyByte int
	leader  bool
	// term counts this node's leaderships. An entry of one must be applied
	// before reads are linearizable and snapshots possible: readyTerm says of
	// which one was.
	term, readyTerm uint64
	first           bool // that entry is still to be proposed
	closing         bool
	changed         chan struct{} // closed when any of this changes; nil while nobody waits
	tick            ticks
	rate            rate
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
	return &proposer{
		limits: o.Limits, logger: o.Logger, metrics: o.Metrics, disk: newDisk(o), clock: c, fsm: f, fatal: fatal,
		retire: make(chan *flight, o.Limits.Entries), wake: make(chan struct{}, 1),
		gone: make(chan struct{}), failed: failed,
	}
}

func (p *proposer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
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

// setLeader is told of each change of this node's leadership.
func (p *proposer) setLeader(leader bool) {
	var opening *event.Command
	if leader {
		opening = p.opening()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leader = leader
	var dropped []*pending
	if leader {
		p.term++
		// hashicorp/raft refuses a snapshot after a start or a change of
		// members until a command is applied, and a new leader does not know
		// what is committed until an entry of its own is: so it proposes one.
		p.first = true
		if opening != nil {
			d := newPending(opening)
			p.q.class[d.class].push(d)
		}
	} else {
		dropped = p.q.drain()
	}
	p.changedLocked()
	for _, d := range dropped {
		d.done <- answer{problem: noLeader()}
	}
}

// propose is Replica.Propose.
func (p *proposer) propose(ctx context.Context, c *event.Command) (event.Result, error) {
	if err := ctx.Err(); err != nil {
		return event.Result{}, problem(CodeOverloaded, "the request ended before it was proposed", false, 0)
	}
	d := newPending(c)
	if len(d.data) > p.limits.CommandBytes {
		return event.Result{}, problem(CodePayloadTooLarge, fmt.Sprintf("a request of %d bytes is over the limit of %d", len(d.data), p.limits.CommandBytes), false, 0)
	}
	if refused := p.disk.refuses(d.class); refused != nil {
		return event.Result{}, refused
	}
	if refused := p.enqueue(d); refused != nil {
		return event.Result{}, refused
	}
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
	switch n, bytes := p.q.len(); {
	case p.closing:
		return shuttingDown()
	case !p.leader:
		return noLeader()
	// Each class may fill a smaller part of the room: what relieves the queues
	// still gets in when what fills them is turned away.
	case n >= share(p.limits.Waiting, d.class) || n > 0 && bytes+len(d.data) > share(p.limits.WaitingBytes, d.class):
		full := problem(CodeOverloaded, "too many writes wait; this one was not proposed", false, p.rate.wait(n))
		full.QueueDepth = int64(n)
		return full
	}
	p.q.class[d.class].push(d)
	p.changedLocked()
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
		n, _ := p.q.len()
		late := problem(CodeOverloaded, "the request ended while it waited; it was not proposed", false, p.rate.wait(n))
		late.QueueDepth = int64(n)
		return event.Result{}, late
	case settled: // the answer is on its way into a channel that has room
		return (<-d.done).unwrap()
	}
	return event.Result{}, problem(CodeNoLeader, "the request ended while the write was under way; it may still be committed", true, 1000)
}

// run proposes until stop is closed.
func (p *proposer) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		fl, wait := p.next()
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
		e := event.Entry{Rules: wants(at.rules, fl.group), Time: p.clock.stamp(at.clock), Commands: cmds}
		// Blocks while Raft is busy with the entry before: meanwhile the next
		// group gathers.
		fl.future = p.apply(e.Encode())
		p.retire <- fl // has room for all that may be under way
	}
}

const never = time.Hour

// next returns the entry to propose now, or how long there is nothing to do
// unless something wakes.
func (p *proposer) next() (*flight, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.leader || len(p.flying) >= p.limits.Entries || p.flyByte >= p.limits.Bytes {
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
	p.flyByte += bytes
	for _, d := range group {
		p.fly[d.class]++
	}
	p.tellLocked()
	return fl, 0
}

// reap answers entries, in the order in which they were proposed, until retire
// is closed.
func (p *proposer) reap() {
	for fl := range p.retire {
		got := p.await(fl)
		p.mu.Lock()
		p.flying = p.flying[1:]
		p.flyByte -= fl.bytes
		for _, d := range fl.group {
			p.fly[d.class]--
			d.state = settled
		}
		if got.problem == nil {
			p.readyTerm = max(p.readyTerm, fl.term)
			p.rate.add(len(fl.group), time.Now())
		} else if fl.term == p.term && p.leader && p.readyTerm != p.term {
			p.first = true // still no entry of this term
		}
		p.changedLocked()
		p.mu.Unlock()
		for i, d := range fl.group {
			a := answer{problem: got.problem}
			if a.problem == nil {
				a.result = got.results[i]
				if a.result.Index == 0 {
					a.result.Index = got.index
				}
			}
			d.done <- a
		}
	}
}

// landed is what became of an entry.
type landed struct {
	index   uint64
	results []event.Result
	problem *event.Problem
}

func (p *proposer) await(fl *flight) landed {
	if err := fl.future.Error(); err != nil {
		return landed{problem: outcome(err)}
	}
	switch r := fl.future.Response().(type) {
	case results:
		if len(r.results) == len(fl.group) {
			p.metrics.Observe("entry_seconds", time.Since(fl.start).Seconds())
			p.metrics.Observe("entry_commands", float64(len(fl.group)))
			return landed{index: r.index, results: r.results}
		}
		err := fmt.Errorf("entry %d: %d results for %d commands", r.index, len(r.results), len(fl.group))
		p.fatal(err)
		return landed{problem: outcome(err)}
	case error:
		return landed{problem: outcome(r)}
	default:
		err := fmt.Errorf("an entry was answered with %T", r)
		p.fatal(err)
		return landed{problem: outcome(err)}
	}
}

package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

// A node that is not the leader groups its own clients' commands as the leader
// does and takes each group to the leader in one call. What becomes of a
// command on the way:
//
//	the call surely reached nobody, or the leader
//	answers that it did not propose it             back to the front of its queue
//	the leader answers                             its client is told, once the entry is applied here
//	anything else                                  unknown
//
// Nothing is proposed twice: a command goes back only if whoever had it says
// that it never proposed it, and never will.

const callForward = "raft.forward"

const (
	// maxConvoys is how many groups may be on their way at a time: enough that
	// the leader's disk does not wait for the network.
	maxConvoys = 8
	// maxHanging is how many times as many there are at most where leaders that
	// are cut off follow each other.
	maxHanging = 4
	// lookAgain is how often a node without a leader looks for one although
	// nobody told of one.
	lookAgain = 250 * time.Millisecond
	// firstRetry doubles up to lastRetry while nobody takes what waits.
	firstRetry = 10 * time.Millisecond
	lastRetry  = 200 * time.Millisecond
)

// convoy is a group on its way to the leader.
type convoy struct {
	group   []*pending
	bytes   int
	classes [event.Classes]int
	to      peer.Target
	start   time.Time
	ctx     context.Context
	cancel  context.CancelFunc
	late    *time.Timer // ends the call: the leader it went to is none any more
}

// convoys are those under way.
type convoys struct {
	list    []*convoy
	bytes   int
	to      peer.Target // the leader, as known
	known   bool
	ripe    map[*ripe]struct{} // groups answered by the leader and not yet applied here
	landing int                // commands of those
}

// flying counts what is on its way to the leader, of a class and of those before
// it. What hangs with a leader of before does not hold up the way to the next.
func (a *convoys) flying(top event.Class) (commands, bytes int) {
	for _, c := range a.list {
		if c.to != a.to {
			continue
		}
		n := 0
		for _, k := range c.classes[:top+1] {
			n += k
		}
		if n > 0 {
			commands += n
			bytes += c.bytes
		}
	}
	return commands, bytes
}

// movedLocked is for a change of leadership, here or elsewhere.
func (p *proposer) movedLocked() {
	p.fails, p.retryAt = 0, time.Time{}
	p.lookLocked()
	p.changedLocked()
}

// moved is told that another node leads, or that none is known any more.
func (p *proposer) moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.movedLocked()
}

// lookLocked asks Raft who leads. A call to a node that does not any more may
// hang as long as that is cut off: it gets as much time as a request gets to
// find a leader.
func (p *proposer) lookLocked() {
	a := &p.away
	a.to, a.known = p.target()
	for _, c := range a.list {
		if c.late == nil && !(a.known && a.to == c.to) {
			c.late = time.AfterFunc(p.patient, func() { p.tooLate(c) })
		}
	}
}

func (p *proposer) tooLate(c *convoy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.late = nil
	if p.away.known && p.away.to == c.to {
		return // it leads again
	}
	c.cancel()
}

// troubledLocked tells whether no leader takes what waits, as far as is known.
func (p *proposer) troubledLocked() bool {
	if p.fails > 0 || p.deposed || p.handing > 0 {
		return true
	}
	return !p.leader && !(p.away.known && p.call != nil)
}

// expireLocked answers those who have waited too long for a leader, and returns
// when the next one has.
func (p *proposer) expireLocked(now time.Time) time.Duration {
	if n, _ := p.q.len(); n == 0 || !p.troubledLocked() {
		return never
	}
	// Time under load does not count: only that since a leader took something.
	if end := p.good.Add(p.patient); now.Before(end) {
		return end.Sub(now)
	}
	late, oldest := p.q.expire(now.Add(-p.patient))
	for _, d := range late {
		d.refuse(noLeader())
	}
	if len(late) > 0 {
		p.metrics.Count("no_leader", float64(len(late)))
		p.tellLocked()
	}
	if oldest.IsZero() {
		return never
	}
	return oldest.Add(p.patient).Sub(now)
}

// tookLocked notes that a leader took something.
func (p *proposer) tookLocked(now time.Time) {
	p.fails, p.retryAt, p.good = 0, time.Time{}, now
}

// failedLocked notes that it did not, and puts the next try off.
func (p *proposer) failedLocked(now time.Time) {
	p.fails = min(p.fails+1, 30)
	p.retryAt = now.Add(min(firstRetry<<min(p.fails-1, 10), lastRetry))
}

// requeueLocked lets wait again what surely was not proposed.
func (p *proposer) requeueLocked(group []*pending) {
	keep := group[:0:0]
	for _, d := range group {
		switch {
		case d.gone:
			d.state = settled
		case p.ended:
			d.state = settled
			d.refuse(shuttingDown())
		case d.batch != nil || d.here && !p.leadsLocked():
			d.state = settled
			d.refuse(noLeader())
		default:
			keep = append(keep, d)
		}
	}
	p.q.restore(keep)
}

// convoyLocked makes the next group for the leader.
func (p *proposer) convoyLocked(now time.Time) (*convoy, time.Duration) {
	a := &p.away
	if n, _ := p.q.len(); n == 0 || p.call == nil || p.ended {
		return nil, never
	}
	if !a.known || p.fails > 0 {
		p.lookLocked() // it may have moved to another address
	}
	// Those that hang with a leader of before do not hold up the way to the next.
	n, busy := 0, 0
	for _, c := range a.list {
		if c.to == a.to {
			n++
			busy += c.bytes
		}
	}
	switch {
	case !a.known:
		return nil, lookAgain
	case p.fails > 0 && n > 0: // one at a time until a way is found
		return nil, never
	case n >= maxConvoys || busy >= p.limits.Bytes || len(a.list) >= maxHanging*maxConvoys || a.bytes >= maxHanging*p.limits.Bytes:
		return nil, never
	case a.landing >= p.limits.Waiting:
		return nil, never
	case p.gathersLocked():
		return nil, never
	}
	group, bytes := p.q.group(p.limits)
	c := &convoy{group: group, bytes: bytes, to: a.to, start: now}
	for _, d := range group {
		c.classes[d.class]++
	}
	c.ctx, c.cancel = context.WithCancel(p.ctx)
	a.list = append(a.list, c)
	a.bytes += bytes
	p.departLocked(group)
	p.wg.Add(1)
	return c, 0
}

// frames are the buffers of calls.
var frames = sync.Pool{New: func() any { return new([]byte) }}

// carry takes a group to the leader.
func (p *proposer) carry(c *convoy) {
	defer p.wg.Done()
	defer c.cancel()
	group := make([]event.Forwarded, len(c.group))
	for i, d := range c.group {
		group[i] = event.Forwarded{Class: d.class, Weight: uint32(d.weight), Data: d.data}
	}
	buf := frames.Get().(*[]byte)
	*buf = event.AppendGroup(slices.Grow((*buf)[:0], event.GroupSize(group)), group)
	body, err := p.call(c.ctx, c.to, callForward, *buf)
	if err == nil && cap(*buf) <= 2*p.limits.GroupBytes {
		frames.Put(buf) // after an error the network may still read it
	}
	var answers []event.Answer
	if err == nil {
		answers, err = event.DecodeAnswers(body, len(c.group))
	}
	p.metrics.Count("forwarded_groups", 1)
	p.metrics.Count("forwarded_commands", float64(len(c.group)))
	p.metrics.Observe("forward_seconds", time.Since(c.start).Seconds())
	p.returned(c, answers, err)
}

// returned sorts out what became of a group.
func (p *proposer) returned(c *convoy, answers []event.Answer, err error) {
	var told *peer.Error
	var refusal *event.Problem
	switch {
	case err == nil, peer.NotSent(err):
	case errors.As(err, &told) && told.Code == codeNoMember: // not yet, or no more
	case errors.As(err, &told) && told.Code == codeBadGroup:
		refusal = problem(CodeNoLeader, "the leader could not read the write; it was not proposed", false, 1000)
		p.logger.Warn("the leader could not read what this node forwarded to it", "leader", c.to.Node, "error", err)
	default:
		refusal = problem(CodeNoLeader, "the connection to the leader failed while the write was under way; it may still be committed", true, 1000)
		p.logger.Debug("a group was lost on its way to the leader", "leader", c.to.Node, "commands", len(c.group), "error", err)
	}
	var back []*pending
	ripe := &ripe{p: p}
	p.mu.Lock()
	p.away.list = slices.DeleteFunc(p.away.list, func(o *convoy) bool { return o == c })
	p.away.bytes -= c.bytes
	if c.late != nil {
		c.late.Stop()
	}
	now := time.Now()
	index, took := uint64(0), false
	for i, d := range c.group {
		switch {
		case refusal != nil:
			p.settleLocked(d, answer{problem: refusal})
		case err != nil || answers[i].Back:
			p.fly[d.class]--
			back = append(back, d)
		case answers[i].Refusal != nil:
			took = true
			p.settleLocked(d, answer{problem: answers[i].Refusal})
		default:
			took = true
			index = max(index, answers[i].Result.Index)
			ripe.group = append(ripe.group, d)
			ripe.results = append(ripe.results, answers[i].Result)
		}
	}
	switch {
	case took:
		p.tookLocked(now)
	case !p.leader: // else it is of no account any more
		p.failedLocked(now)
	}
	p.requeueLocked(back)
	if len(ripe.group) > 0 {
		p.away.ripe[ripe] = struct{}{}
		p.away.landing += len(ripe.group)
	}
	p.changedLocked()
	p.mu.Unlock()
	if len(ripe.group) > 0 {
		// The api reads payloads from this node's log, and a client that asks
		// this node next shall find what it was told.
		p.landed.at(index, ripe.fall)
	}
}

func (p *proposer) settleLocked(d *pending, a answer) {
	p.fly[d.class]--
	d.state = settled
	d.deliver(a)
}

// ripe is a group that the leader has answered, until it is applied here.
type ripe struct {
	p       *proposer
	group   []*pending
	results []event.Result
}

// fall answers. Most answers are made up with this node's own log and state:
// where these will not come, its client can't be told what became of its write.
func (r *ripe) fall(here bool) {
	p := r.p
	p.mu.Lock()
	delete(p.away.ripe, r)
	p.away.landing -= len(r.group)
	p.rate.add(len(r.group), time.Now())
	for i, d := range r.group {
		a := answer{result: r.results[i]}
		if !here && !tellsAll(&r.results[i]) {
			a = answer{problem: problem(CodeNoLeader, "this node fetches what it has missed and can't tell the answer; ask another one, with the same Idempotency-Key", true, 1000)}
		}
		p.settleLocked(d, a)
	}
	p.changedLocked()
	p.mu.Unlock()
}

// tellsAll reports whether a result is the whole answer: messages that were
// enqueued, leases that were settled. What was leased, what a duplicate or a
// repeated settle had become, what a queue is now: that is read here.
func tellsAll(r *event.Result) bool {
	return r.Problem == nil && r.Kept.IsZero() && len(r.Produced)+len(r.Settled) > 0 && len(r.Leased) == 0 &&
		!slices.ContainsFunc(r.Produced, func(p event.Produced) bool { return p.Duplicate }) &&
		!slices.ContainsFunc(r.Settled, func(s event.Settled) bool { return s.Status == event.StatusRejected })
}

// codeBadGroup is a peer.Error's: the group was not read, and nothing of it was
// proposed.
const codeBadGroup = "bad_group"

// serveForward is the leader's side: it queues another node's commands with its own
// and answers them together.
func (p *proposer) serveForward(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	// Several times what any group has: the other side's limits may be others.
	group, err := event.DecodeGroup(body, 4*p.limits.GroupCommands, p.limits.CommandBytes)
	if err != nil {
		return nil, &peer.Error{Code: codeBadGroup, Detail: err.Error()}
	}
	b := newBatch(len(group))
	b.from = from
	var refused [event.Classes]*event.Problem
	for c := range refused {
		refused[c] = p.disk.refuses(event.Class(c))
	}
	list := make([]pending, len(group))
	now := time.Now()

	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return b.allBack(), nil
	}
	p.served.Add(1)
	defer p.served.Done()
	if !p.leadsLocked() || p.handing > 0 || p.closing || p.fails > 0 || p.hasFailed() {
		p.mu.Unlock()
		return b.allBack(), nil
	}
	for i := range group {
		f, d := &group[i], &list[i]
		*d = pending{
			data: f.Data, class: f.Class, weight: max(1, int(min(f.Weight, maxWeight))), kind: "forwarded",
			since: now, batch: b, pos: i,
		}
		if why := refused[f.Class]; why != nil {
			d.state = settled
			d.deliver(answer{problem: why})
		} else if why := p.pushLocked(d); why != nil {
			d.state = settled
			d.deliver(answer{problem: why})
		}
	}
	p.changedLocked()
	p.mu.Unlock()

	select {
	case <-b.done:
	case <-ctx.Done():
		// Nobody waits for the answers any more: what was not proposed is not.
		p.leave(list)
		return nil, ctx.Err()
	case <-p.gone:
	case <-p.failed:
		p.leave(list)
	}
	return b.encode(), nil
}

// maxWeight bounds what another node says of a command: a larger one goes alone
// in any case.
const maxWeight = 1 << 20

// leave takes out what still waits of a batch.
func (p *proposer) leave(list []pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range list {
		d := &list[i]
		switch d.state {
		case waiting:
			p.q.class[d.class].remove(d)
			d.state = settled
			d.refuse(nil)
		case inFlight:
			d.gone = true
		}
	}
	p.changedLocked()
}

// batch gathers the answers to another node's commands.
type batch struct {
	from peer.Identity
	done chan struct{} // closed with the last one

	mu      sync.Mutex
	answers []event.Answer
	have    []bool
	left    int
	sealed  bool // encoded: what comes later is not told
}

func newBatch(n int) *batch {
	return &batch{done: make(chan struct{}), answers: make([]event.Answer, n), have: make([]bool, n), left: n}
}

func (b *batch) deliver(i int, a answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sealed || b.have[i] {
		return
	}
	b.have[i] = true
	switch {
	case a.back:
		b.answers[i].Back = true
	case a.problem != nil:
		b.answers[i].Refusal = a.problem
	default:
		b.answers[i].Result = a.result
	}
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// encode returns the answers. One that is not there is not known.
func (b *batch) encode() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
	for i := range b.answers {
		if !b.have[i] {
			b.answers[i].Refusal = problem(CodeShuttingDown, "the leader ended while the write was under way; it may still be committed", true, 1000)
		}
	}
	return event.EncodeAnswers(b.answers)
}

// allBack refuses a group whole.
func (b *batch) allBack() []byte {
	for i := range b.answers {
		b.answers[i].Back = true
	}
	return event.EncodeAnswers(b.answers)
}

// watchLeader tells of each change of who leads, until stop is closed.
func (r *Replica) watchLeader() {
	seen := make(chan hraft.Observation, 1)
	// Not blocking: one that finds the channel full is lost, and the one in it
	// makes us look at what is true by then.
	o := hraft.NewObserver(seen, false, func(o *hraft.Observation) bool {
		_, ok := o.Data.(hraft.LeaderObservation)
		return ok
	})
	r.raft.RegisterObserver(o)
	defer r.raft.DeregisterObserver(o)
	for {
		r.moved()
		select {
		case <-seen:
		case <-r.stop:
			return
		}
	}
}

// moved is called when another node leads, or none is known any more, or what
// is known of the others has changed in that.
func (r *Replica) moved() {
	leader, _ := r.otherLeader()
	r.leaderAddr.Store(leader.HTTPAddr)
	r.p.moved()
	r.barriers.moved()
	r.asked.moved(r.p.target)
}

// connect lets this node reach the leader, and be reached where it leads.
func (r *Replica) connect() {
	n := r.o.Net
	if n == nil {
		return
	}
	r.p.target = r.leaderTarget
	r.p.call = func(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, error) {
		answer, from, err := n.Call(ctx, to, name, body)
		if err == nil && to.Node != "" && from.Node != to.Node {
			err = fmt.Errorf("%s answered in place of %s", from.Node, to.Node)
		}
		return answer, err
	}
	n.Handle(callForward, r.forMembers(r.p.serveForward))
	n.Handle(callReadIndex, r.forMembers(r.serveReadIndex))
}

// codeNoMember is a peer.Error's: who asks is not of the cluster, or no member of
// it as far as this node knows. Nothing was done.
const codeNoMember = "no_member"

// forCluster lets only nodes of this cluster call; they need not be members yet.
func (r *Replica) forCluster(h peer.Handler) peer.Handler {
	return func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if from.Cluster != r.o.ClusterID {
			return nil, &peer.Error{Code: codeNoMember, Detail: fmt.Sprintf("node %q is of cluster %q, not of %q", from.Node, from.Cluster, r.o.ClusterID)}
		}
		return h(ctx, from, body)
	}
}

// forMembers lets only members call: what they forward was let in by their own
// API, tokens and all.
func (r *Replica) forMembers(h peer.Handler) peer.Handler {
	return r.forCluster(func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if !r.member(serverID(from.Node, from.Incarnation)) && !r.member(serverID(from.Node, "")) {
			return nil, &peer.Error{Code: codeNoMember, Detail: fmt.Sprintf("node %q is no member", from.Node)}
		}
		return h(ctx, from, body)
	})
}

// disconnect is the inverse of connect. It returns when nothing of this node is
// on its way to the leader any more.
func (r *Replica) disconnect() {
	if n := r.o.Net; n != nil {
		n.Handle(callForward, nil)
		n.Handle(callReadIndex, nil)
	}
	r.p.cancel()
	r.p.wg.Wait()
}

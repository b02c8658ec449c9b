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

// A node that does not lead groups its own clients' commands as the leader does, and
// forwards each group in one call. The fate of a command:
//
//	the call certainly reached nobody, or the leader
//	answers that it did not propose it              back to its place in the queue
//	the leader answers                              answered once the entry is applied here
//	anything else                                   unknown
//
// Nothing is proposed twice: a command goes back only if the leader answers that it
// has not proposed it and never will.

const callForward = "raft.forward"

const (
	// maxForwards is how many batches may be on their way to one leader: enough that
	// its disk does not wait for the network.
	maxForwards = 8
	// maxLeaders is for how many leaders batches may be on their way at most, where
	// leaders that are cut off follow each other.
	maxLeaders = 4
	// lookAgain is how often a node without a leader looks for one.
	lookAgain = 250 * time.Millisecond
	// firstRetry doubles up to lastRetry while no leader takes what waits.
	firstRetry = 10 * time.Millisecond
	lastRetry  = 200 * time.Millisecond
)

// forwarder is the batcher's way to another leader. The batcher's lock guards what is
// below call.
type forwarder struct {
	ctx     context.Context // of the calls
	cancel  context.CancelFunc
	sending sync.WaitGroup
	serving sync.WaitGroup // calls of other nodes
	// target returns the leader, if it is another node.
	target func() (peer.Target, bool)
	call   func(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, error) // nil: no network

	batches   []*forwardBatch
	bytes     int         // of batches
	to        peer.Target // the leader, as last looked up
	known     bool
	answered  map[*answeredBatch]struct{} // waiting until their entries are applied here
	answeredN int                         // commands of answered
}

// forwardBatch is a batch of commands in flight to the leader.
type forwardBatch struct {
	group   []*pending
	bytes   int
	classes [event.Classes]int
	to      peer.Target
	start   time.Time
	ctx     context.Context
	cancel  context.CancelFunc
	late    *time.Timer // cancels the call, because its target no longer leads
}

// answeredBatch is a batch that the leader has answered.
type answeredBatch struct {
	group   []*pending
	results []event.Result
}

func newForwarder() *forwarder {
	f := &forwarder{
		target:   func() (peer.Target, bool) { return peer.Target{}, false },
		answered: map[*answeredBatch]struct{}{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

func (f *forwarder) idle() bool { return len(f.batches) == 0 && f.answeredN == 0 }

// inFlight counts what is on its way to the leader of a class and of those before it.
// What hangs with a former leader does not hold up the next.
func (f *forwarder) inFlight(top event.Class) (commands, bytes int) {
	for _, b := range f.batches {
		if b.to != f.to {
			continue
		}
		n := 0
		for _, k := range b.classes[:top+1] {
			n += k
		}
		if n > 0 {
			commands += n
			bytes += b.bytes
		}
	}
	return commands, bytes
}

// movedLocked follows a change of leadership, here or elsewhere.
func (b *batcher) movedLocked() {
	b.lead.failures, b.lead.retryAt = 0, time.Time{}
	b.lookLocked()
	b.changedLocked()
}

// moved follows a change of leadership between other nodes.
func (b *batcher) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.movedLocked()
}

// lookLocked looks up the leader. A call to a former one may hang while that is cut
// off: it gets as much time as a request gets to find a leader.
func (b *batcher) lookLocked() {
	f := b.forward
	f.to, f.known = f.target()
	for _, c := range f.batches {
		if c.late == nil && !(f.known && f.to == c.to) {
			c.late = time.AfterFunc(b.o.LeaderWait, func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				c.late = nil
				if !(f.known && f.to == c.to) { // else it leads again
					c.cancel()
				}
			})
		}
	}
}

// forwardLocked makes the next batch for the leader.
func (b *batcher) forwardLocked(now time.Time) (*forwardBatch, time.Duration) {
	f, l := b.forward, b.o.Limits
	if b.queues.n == 0 || f.call == nil || b.lead.ended {
		return nil, never
	}
	if !f.known || b.lead.failures > 0 {
		b.lookLocked() // its address may have changed
	}
	if !f.known {
		return nil, lookAgain
	}
	n, bytes := 0, 0
	for _, c := range f.batches {
		if c.to == f.to {
			n++
			bytes += c.bytes
		}
	}
	switch {
	case b.lead.failures > 0 && n > 0, // one at a time until a way is found
		n >= maxForwards || bytes >= l.Bytes,
		len(f.batches) >= maxLeaders*maxForwards || f.bytes >= maxLeaders*l.Bytes,
		f.answeredN >= l.Waiting,
		b.gathersLocked():
		return nil, never
	}
	c := &forwardBatch{to: f.to, start: now}
	c.group, c.bytes = b.queues.group(l)
	for _, d := range c.group {
		c.classes[d.class]++
	}
	c.ctx, c.cancel = context.WithCancel(f.ctx)
	f.batches = append(f.batches, c)
	f.bytes += c.bytes
	b.departLocked(c.group)
	f.sending.Add(1)
	return c, 0
}

// send forwards a batch to the leader.
func (b *batcher) send(c *forwardBatch) {
	defer b.forward.sending.Done()
	defer c.cancel()
	group := make([]event.Forwarded, len(c.group))
	for i, d := range c.group {
		group[i] = event.Forwarded{Class: d.class, Weight: uint32(d.weight), Data: d.data}
	}
	body := event.AppendGroup(make([]byte, 0, event.GroupSize(group)), group)
	body, err := b.forward.call(c.ctx, c.to, callForward, body)
	var answers []event.Answer
	if err == nil {
		answers, err = event.DecodeAnswers(body, len(c.group))
	}
	m := b.o.Metrics
	m.Count("forwarded_groups", 1)
	m.Count("forwarded_commands", float64(len(c.group)))
	m.Observe("forward_seconds", time.Since(c.start).Seconds())
	b.returned(c, answers, err)
}

// returned settles a batch: err is the call's, answers the leader's.
func (b *batcher) returned(c *forwardBatch, answers []event.Answer, err error) {
	refusal, back := b.failure(c, err)
	b.mu.Lock()
	f := b.forward
	f.batches = slices.DeleteFunc(f.batches, func(o *forwardBatch) bool { return o == c })
	f.bytes -= c.bytes
	if c.late != nil {
		c.late.Stop()
	}
	var requeue []*pending
	done := &answeredBatch{}
	index, took := uint64(0), false
	for i, d := range c.group {
		switch {
		case refusal != nil:
			b.settleLocked(d, answer{problem: refusal})
		case back || answers[i].Back:
			b.flight.class[d.class]--
			requeue = append(requeue, d)
		case answers[i].Refusal != nil:
			took = true
			b.settleLocked(d, answer{problem: answers[i].Refusal})
		default:
			took = true
			index = max(index, answers[i].Result.Index)
			done.group = append(done.group, d)
			done.results = append(done.results, answers[i].Result)
		}
	}
	switch {
	case took:
		b.tookLocked(time.Now())
	case !b.lead.leader: // else the way to another leader no longer matters
		b.failedLocked(time.Now())
	}
	b.requeueLocked(requeue)
	if len(done.group) > 0 {
		f.answered[done] = struct{}{}
		f.answeredN += len(done.group)
	}
	b.changedLocked()
	b.mu.Unlock()
	if len(done.group) > 0 {
		// The API reads payloads from this node's log, and a client that reads here
		// next must find its write.
		b.waiters.add(index, func(applied bool) { b.answerForwarded(done, applied) })
	}
}

// failure returns the problem that answers a whole batch, or whether it goes back to
// the queues.
func (b *batcher) failure(c *forwardBatch, err error) (refusal *event.Problem, back bool) {
	var remote *peer.Error
	switch {
	case err == nil:
		return nil, false
	case peer.NotSent(err), errors.As(err, &remote) && remote.Code == codeNoMember:
		return nil, true
	case remote != nil && remote.Code == codeBadGroup:
		b.o.Logger.Warn("leader could not decode forwarded commands", "leader", c.to.Node, "error", err)
		return problem(CodeNoLeader, "the leader could not read the write; it was not proposed", false, 1000), false
	}
	b.o.Logger.Debug("forwarded batch lost", "leader", c.to.Node, "commands", len(c.group), "error", err)
	return problem(CodeNoLeader, "the connection to the leader failed while the write was in flight; "+
		"it may still be committed", true, 1000), false
}

func (b *batcher) settleLocked(d *pending, a answer) {
	b.flight.class[d.class]--
	d.state = settled
	d.deliver(a)
}

// answerForwarded answers a batch whose entries are applied here or, if applied is
// false, never will be. Most answers are completed from this node's own log and state:
// without them, the outcome is unknown to its client.
func (b *batcher) answerForwarded(done *answeredBatch, applied bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.forward.answered, done)
	b.forward.answeredN -= len(done.group)
	b.rate.add(len(done.group), time.Now())
	for i, d := range done.group {
		a := answer{result: done.results[i]}
		if !applied && !done.results[i].Complete() {
			a = answer{problem: problem(CodeNoLeader, "node is catching up with the leader and cannot complete "+
				"the answer; retry on another node with the same Idempotency-Key", true, 1000)}
		}
		b.settleLocked(d, a)
	}
	b.changedLocked()
}

// codeBadGroup is the code of a peer.Error: the batch could not be decoded, and none of
// it was proposed.
const codeBadGroup = "bad_group"

// maxWeight bounds the weight that another node claims: a heavier command travels
// alone in any case.
const maxWeight = 1 << 20

// serveForward is the leader's side: it queues another node's commands with its own
// and answers them together.
func (b *batcher) serveForward(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	// Several times what any batch has: the other node's limits may differ.
	group, err := event.DecodeGroup(body, 4*b.o.Limits.GroupCommands, b.o.Limits.CommandBytes)
	if err != nil {
		return nil, &peer.Error{Code: codeBadGroup, Detail: err.Error()}
	}
	s := newServed(len(group))
	var full [event.Classes]*event.Problem
	for c := range full {
		full[c] = b.disk.refuses(event.Class(c))
	}
	list := make([]pending, len(group))
	now := time.Now()

	b.mu.Lock()
	l := &b.lead
	if l.ended || !l.leads() || l.holds > 0 || l.closing || l.failures > 0 || b.hasFailed() {
		b.mu.Unlock()
		return s.allBack(), nil
	}
	b.forward.serving.Add(1)
	defer b.forward.serving.Done()
	for i, f := range group {
		d := &list[i]
		*d = pending{
			data: f.Data, class: f.Class, weight: max(1, int(min(f.Weight, maxWeight))),
			since: now, batch: s, pos: i,
		}
		refused := full[f.Class]
		if refused == nil {
			refused = b.pushLocked(d)
		}
		if refused != nil {
			d.state = settled
			d.deliver(answer{problem: refused})
		}
	}
	b.changedLocked()
	b.mu.Unlock()

	select {
	case <-s.done:
	case <-ctx.Done():
		// Nobody waits for the answers any more: what was not proposed is dropped.
		b.leave(list)
		return nil, ctx.Err()
	case <-b.gone:
	case <-b.failed:
		b.leave(list)
	}
	return s.encode(), nil
}

func (b *batcher) hasFailed() bool {
	select {
	case <-b.failed:
		return true
	default:
		return false
	}
}

// leave removes the waiting commands of a served batch.
func (b *batcher) leave(list []pending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		d := &list[i]
		switch d.state {
		case waiting:
			b.queues.remove(d, settled)
			d.refuse(nil)
		case inFlight:
			d.gone = true
		}
	}
	b.changedLocked()
}

// served collects the answers to the commands of another node.
type served struct {
	done chan struct{} // closed with the last answer

	mu      sync.Mutex
	answers []event.Answer
	left    map[int]struct{} // positions without an answer; nil once encoded
}

func newServed(n int) *served {
	s := &served{done: make(chan struct{}), answers: make([]event.Answer, n), left: make(map[int]struct{}, n)}
	for i := range n {
		s.left[i] = struct{}{}
	}
	return s
}

func (s *served) deliver(i int, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		return
	}
	switch {
	case a.back:
		s.answers[i].Back = true
	case a.problem != nil:
		s.answers[i].Refusal = a.problem
	default:
		s.answers[i].Result = a.result
	}
	if delete(s.left, i); len(s.left) == 0 {
		close(s.done)
	}
}

// encode returns the answers. The outcome of a command without one is unknown.
func (s *served) encode() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.left {
		s.answers[i].Refusal = problem(CodeShuttingDown,
			"the leader ended while the write was in flight; it may still be committed", true, 1000)
	}
	s.left = nil
	return event.EncodeAnswers(s.answers)
}

// allBack returns a whole batch to its node.
func (s *served) allBack() []byte {
	for i := range s.answers {
		s.answers[i].Back = true
	}
	return event.EncodeAnswers(s.answers)
}

// watchLeader follows who leads until stop is closed.
func (r *Replica) watchLeader() {
	seen := make(chan hraft.Observation, 1)
	// Not blocking: an observation that finds the channel full is dropped, and the one
	// in it makes us look at the newest state.
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
		case <-r.run.stop:
			return
		}
	}
}

// moved follows a change of leadership between other nodes, and of what is known of
// the leader.
func (r *Replica) moved() {
	leader, _ := r.otherLeader()
	r.peers.leaderAddr.Store(leader.HTTPAddr)
	r.b.moved()
	r.barriers.moved()
}

// connect lets this node reach the leader, and be reached when it leads.
func (r *Replica) connect() {
	n := r.o.Net
	if n == nil {
		return
	}
	f := r.b.forward
	f.target = r.leaderTarget
	f.call = func(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, error) {
		answer, from, err := n.Call(ctx, to, name, body)
		if err == nil && to.Node != "" && from.Node != to.Node {
			err = fmt.Errorf("%s answered in place of %s", from.Node, to.Node)
		}
		return answer, err
	}
	n.Handle(callForward, r.forMembers(r.b.serveForward))
	n.Handle(callReadIndex, r.forMembers(r.serveReadIndex))
}

// disconnect is the inverse of connect. It returns when no call to the leader is open
// any more.
func (r *Replica) disconnect() {
	if n := r.o.Net; n != nil {
		n.Handle(callForward, nil)
		n.Handle(callReadIndex, nil)
	}
	r.b.forward.cancel()
	r.b.forward.sending.Wait()
}

// codeNoMember is the code of a peer.Error: the caller is not of the cluster, or not a
// member of it as far as this node knows. Nothing was done.
const codeNoMember = "no_member"

// forCluster accepts calls only from nodes of this cluster; they need not be members.
func (r *Replica) forCluster(h peer.Handler) peer.Handler {
	return func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if from.Cluster != r.o.ClusterID {
			detail := fmt.Sprintf("node %q is of cluster %q, not of %q", from.Node, from.Cluster, r.o.ClusterID)
			return nil, &peer.Error{Code: codeNoMember, Detail: detail}
		}
		return h(ctx, from, body)
	}
}

// forMembers accepts calls only from members: their own API has checked what they
// forward, tokens included.
func (r *Replica) forMembers(h peer.Handler) peer.Handler {
	return r.forCluster(func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if !r.member(serverID(from.Node, from.Incarnation)) && !r.member(serverID(from.Node, "")) {
			return nil, &peer.Error{Code: codeNoMember, Detail: fmt.Sprintf("node %q is no member", from.Node)}
		}
		return h(ctx, from, body)
	})
}

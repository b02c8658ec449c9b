package raft

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

// A node that does not lead batches its own clients' commands as the leader does, and
// forwards each batch in one call. The outcome of a command:
//
//	the call certainly reached nobody, or the leader
//	answers that it did not propose it              back to the queue
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
	// lookAgain is how often a node without a leader looks for one.
	lookAgain = 250 * time.Millisecond
	// retryPause is between attempts while no leader accepts what waits.
	retryPause = 50 * time.Millisecond
)

// forwarder is the batcher's way to another leader.
type forwarder struct {
	ctx     context.Context // of the calls
	cancel  context.CancelFunc
	sending sync.WaitGroup
	serving sync.WaitGroup // calls of other nodes
	// target returns the leader, if it is another node; zero: none is known.
	target func() peer.Target
	call   func(ctx context.Context, to peer.Target, name string, body []byte) (
		[]byte, peer.Identity, error)

	to peer.Target // the leader, as last looked up; guarded by the batcher's lock
}

// movedLocked follows a change of leadership, here or elsewhere. A former leader that is
// cut off does not answer; peer.Net.Call notices that.
func (b *batcher) movedLocked() {
	b.lead.failed, b.lead.retryAt = false, time.Time{}
	b.forward.to = b.forward.target()
	b.signal()
}

// moved follows a change of leadership between other nodes.
func (b *batcher) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.movedLocked()
}

// forwardWaitLocked returns for how long nothing is forwarded unless something changes.
func (b *batcher) forwardWaitLocked() time.Duration {
	if b.queues.n == 0 {
		return never
	}
	f := &b.forward
	if f.to == (peer.Target{}) || b.lead.failed {
		f.to = f.target() // its address may have changed
		b.changed.Broadcast()
	}
	if f.to == (peer.Target{}) {
		return lookAgain
	}
	calls, _, bytes := b.underWayLocked()
	switch {
	case b.lead.failed && calls > 0, // one at a time until a way is found
		calls >= maxForwards || bytes >= b.o.Limits.Bytes,
		b.gathersLocked():
		return never
	}
	return 0
}

// send forwards a batch to the leader, and answers its commands once they are applied here: the API
// reads payloads from this node's log, and a client that reads here next must find its write.
func (b *batcher) send(e *batch) {
	defer b.forward.sending.Done()
	answers, err := b.callLeader(e)
	if err != nil {
		answers = slices.Repeat([]event.Answer{b.failure(e, err)}, len(e.group))
	}
	accepted, index := false, uint64(0)
	for _, a := range answers {
		accepted = accepted || err == nil && !a.Back
		index = max(index, a.Result.Index)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case accepted:
		b.acceptedLocked(time.Now())
	case !b.lead.leader: // else the way to another leader no longer matters
		b.failedLocked(time.Now())
	}
	if index > 0 {
		e.answered = true
		b.signal()
		b.mu.Unlock()
		b.awaitApplied(index, answers)
		b.mu.Lock()
	}
	b.finishLocked(e, answers)
	b.signal()
}

// awaitApplied waits until index is applied here. If it will not be, it replaces incomplete
// answers by a problem: those need this node's own log and state.
func (b *batcher) awaitApplied(index uint64, answers []event.Answer) {
	if b.waitApplied(b.forward.ctx, index) == nil {
		return
	}
	for i, a := range answers {
		if a.Refusal == nil && !a.Back && !a.Result.Complete() {
			p := catchingUp()
			p.Unknown = true
			p.Detail = "node is catching up with the leader and cannot complete the answer; " +
				"retry on another node with the same Idempotency-Key"
			answers[i] = event.Answer{Refusal: p}
		}
	}
}

// callLeader returns the leader's answers, one for each command of the batch.
func (b *batcher) callLeader(e *batch) ([]event.Answer, error) {
	group := make([]event.Forwarded, len(e.group))
	for i, d := range e.group {
		group[i] = event.Forwarded{Class: d.class, Weight: uint32(d.weight), Data: d.data}
	}
	body := event.AppendGroup(make([]byte, 0, event.GroupSize(group)), group)
	body, _, err := b.forward.call(b.forward.ctx, e.to, callForward, body)
	m := b.o.Metrics
	m.Count("forwarded_groups", 1)
	m.Count("forwarded_commands", float64(len(e.group)))
	m.Observe("forward_seconds", time.Since(e.start).Seconds())
	if err != nil {
		return nil, err
	}
	return event.DecodeAnswers(body, len(e.group))
}

// failure returns what answers all commands of a batch whose call failed.
func (b *batcher) failure(e *batch, err error) event.Answer {
	var remote *peer.Error
	switch {
	case peer.NotSent(err), errors.As(err, &remote) && remote.Code == codeNoMember:
		return event.Answer{Refusal: noLeader(), Back: true}
	case remote != nil && remote.Code == codeBadGroup:
		b.o.Logger.Warn("leader could not decode a batch", "leader", e.to.Node, "error", err)
		p := notNow("the leader could not read the write; it was not proposed")
		return event.Answer{Refusal: p}
	}
	b.o.Logger.Debug("forwarded batch lost", "leader", e.to.Node, "error", err)
	return event.Answer{Refusal: unknown(event.CodeNoLeader,
		"the connection to the leader failed while the write was in flight")}
}

// codeBadGroup is the code of a peer.Error: the batch could not be decoded, and none of
// it was proposed.
const codeBadGroup = "bad_group"

// maxWeight bounds the weight that another node claims: a heavier command travels
// alone in any case.
const maxWeight = 1 << 20

// serveForward is the leader's side: it queues another node's commands with its own
// and answers them together.
func (b *batcher) serveForward(ctx context.Context, _ peer.Identity, body []byte) ([]byte, error) {
	// Several times what any batch has: the other node's limits may differ.
	group, err := event.DecodeGroup(body, 4*b.o.Limits.GroupCommands, b.o.Limits.CommandBytes)
	if err != nil {
		return nil, &peer.Error{Code: codeBadGroup, Detail: err.Error()}
	}
	s := &served{left: len(group), done: make(chan struct{})}
	s.answers = make([]event.Answer, len(group))
	list := make([]pending, len(group))
	free, now := b.room.space.Free(), time.Now()

	b.mu.Lock()
	l := &b.lead
	takes := l.leader && l.holds == 0 && !l.closing && !l.failed
	if takes {
		b.forward.serving.Add(1)
		defer b.forward.serving.Done()
	}
	for i, f := range group {
		d := &list[i]
		*d = pending{
			data: f.Data, class: f.Class, weight: max(1, int(min(f.Weight, maxWeight))),
			since: now, from: s, pos: i,
		}
		if !takes {
			d.sendBack(nil)
		} else if refused := b.admitLocked(d, free); refused != nil {
			d.answer(event.Answer{Refusal: refused})
		}
	}
	b.signal()
	b.mu.Unlock()

	select {
	case <-s.done:
		return event.EncodeAnswers(s.answers), nil
	case <-ctx.Done():
	}
	// Nobody waits for the answers any more: what was not proposed is dropped.
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queues.remove(func(d *pending) bool { return d.from == s })
	for i := range list {
		list[i].gone = true
	}
	b.signal()
	return nil, ctx.Err()
}

// served collects the answers to the commands of another node. The batcher's lock guards
// it until done is closed.
type served struct {
	answers []event.Answer
	left    int           // commands without an answer
	done    chan struct{} // closed with the last answer
}

func (s *served) answer(i int, a event.Answer) {
	if a.Back {
		a = event.Answer{Back: true}
	}
	s.answers[i] = a
	if s.left--; s.left == 0 {
		close(s.done)
	}
}

package raft

import (
	"context"
	"sync"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/event"
)

// barriers make reads linearizable. Readers that come while a confirmation is
// under way share the next one: it begins after all of them.
type barriers struct {
	r *Replica

	mu      sync.Mutex
	next    *round
	running bool
	wg      sync.WaitGroup
}

// round is one confirmation and those who wait for it.
type round struct {
	done chan struct{}
	err  *event.Problem // set before done is closed
}

// Barrier returns nil when everything that was committed before the call is
// applied here, and this node was still the leader after the call began: a read
// of the state is then linearizable. Else the error is an *event.Problem.
func (r *Replica) Barrier(ctx context.Context) error {
	if r.p.confirmedAlone(r) {
		return nil
	}
	rd, refused := r.barriers.join()
	if refused != nil {
		return refused
	}
	select {
	case <-rd.done:
		if rd.err != nil {
			return rd.err
		}
		return nil
	case <-ctx.Done():
		return problem(CodeNoLeader, "the request ended before leadership was confirmed", false, 1000)
	}
}

// confirmedAlone is the shortcut of a sole voter that has nothing to wait for:
// nobody else can have become leader. hashicorp/raft would answer the same, but
// only between two fsyncs.
func (p *proposer) confirmedAlone(r *Replica) bool {
	p.mu.Lock()
	ready := p.leader && p.readyTerm == p.term
	p.mu.Unlock()
	return ready && r.alone() && r.raft.State() == hraft.Leader && r.fsm.progress().index >= r.raft.CommitIndex()
}

func (b *barriers) join() (*round, *event.Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.r.stop:
		return nil, problem(CodeShuttingDown, "the node is shutting down", false, 1000)
	default:
	}
	if b.next == nil {
		b.next = &round{done: make(chan struct{})}
	}
	rd := b.next
	if !b.running {
		b.running = true
		b.wg.Go(b.run)
	}
	return rd, nil
}

// run confirms round after round until nobody waits.
func (b *barriers) run() {
	for {
		b.mu.Lock()
		rd := b.next
		b.next = nil
		b.running = rd != nil
		b.mu.Unlock()
		if rd == nil {
			return
		}
		rd.err = b.confirm()
		close(rd.done)
	}
}

func (b *barriers) confirm() *event.Problem {
	r := b.r
	lost := problem(CodeNoLeader, "this node is not the leader", false, 1000)
	// Until an entry of its own term is committed, a new leader does not know
	// how far the log is.
	for {
		r.p.mu.Lock()
		leader, ready, changed := r.p.leader, r.p.readyTerm == r.p.term, r.p.watchLocked()
		r.p.mu.Unlock()
		if !leader {
			return lost
		}
		if ready {
			break
		}
		select {
		case <-changed:
		case <-r.stop:
			return problem(CodeShuttingDown, "the node is shutting down", false, 1000)
		}
	}
	// Taken before the confirmation: what is committed later need not be seen.
	index := r.raft.CommitIndex()
	if r.verify() != nil {
		return lost
	}
	for {
		wait := r.fsm.reached(index)
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-r.failed:
			return lost
		case <-r.stop:
			return problem(CodeShuttingDown, "the node is shutting down", false, 1000)
		}
	}
}

// verify asks the other voters whether this node still leads. A replica that has
// failed would leave the question without an answer.
func (r *Replica) verify() error {
	done := make(chan error, 1)
	go func() { done <- r.raft.VerifyLeader().Error() }()
	select {
	case err := <-done:
		return err
	case <-r.failed:
		return *r.dead.Load()
	}
}

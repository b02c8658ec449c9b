package raft

import (
	"context"
	"errors"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/raft/peer"
)

const callReadIndex = "raft.readindex"

// reads makes reads linearizable. Readers that come while a round of confirmation is in progress
// share the next one, which begins after all of them; on the leader those of other nodes do too.
type reads struct {
	wake chan struct{} // of capacity one
	busy sync.Map      // of hraft.ServerID: voters that have yet to answer a heartbeat

	mu   sync.Mutex
	next *round // nil while nobody waits
}

// round is one confirmation.
type round struct {
	done chan struct{} // closed when index or err is set
	// index covers all that was committed before the round began.
	index uint64
	err   error // an *event.Problem
}

// confirmReads confirms rounds while somebody waits for one, until the replica stops.
func (r *Replica) confirmReads() {
	for {
		select {
		case <-r.reads.wake:
		case <-r.run.stop:
			return
		}
		r.reads.mu.Lock()
		rd := r.reads.next
		r.reads.next = nil
		r.reads.mu.Unlock()
		rd.index, rd.err = r.readIndex()
		close(rd.done)
	}
}

// Barrier returns nil when everything that was committed before the call is applied here: a read of
// the state is then linearizable. The leader makes sure that it still is after the call began; any
// other node asks it. Else the error is an *event.Problem.
func (r *Replica) Barrier(ctx context.Context) error {
	// A sole voter has nothing to wait for: nobody else can have become leader.
	if r.leadsReady() && r.alone() && r.raft.State() == hraft.Leader &&
		r.fsm.progress().index >= r.raft.CommitIndex() {
		return nil
	}
	if p := r.unavailable(); p != nil {
		return p
	}
	index, err := r.confirmed(ctx)
	if err != nil {
		return err
	}
	err = r.b.waitApplied(ctx, index)
	if err != nil && ctx.Err() != nil {
		return notNow("the request ended before this node had caught up with the leader: %d of %d",
			r.fsm.progress().index, index)
	}
	return err
}

// confirmed returns the index of a round that begins after the call. Errors: *event.Problem.
func (r *Replica) confirmed(ctx context.Context) (uint64, error) {
	r.reads.mu.Lock()
	if r.reads.next == nil {
		r.reads.next = &round{done: make(chan struct{})}
		signal(r.reads.wake)
	}
	rd := r.reads.next
	r.reads.mu.Unlock()
	select {
	case <-rd.done:
		return rd.index, rd.err
	case <-ctx.Done():
		return 0, notNow("the request ended before leadership was confirmed")
	case <-r.run.stop:
		return 0, r.unavailable()
	}
}

var errNotLeader = errors.New("this node is not the leader")

const (
	// readAttempt is how long one node may take to confirm that it leads: it may be cut off and
	// never answer.
	readAttempt = time.Second
	readRetry   = 10 * time.Millisecond // between two attempts
)

// readIndex asks the leader, be it this node, until one has confirmed that it leads or the round
// has taken as long as a request may wait for a leader.
func (r *Replica) readIndex() (uint64, error) {
	all, cancel := r.within(r.o.LeaderWait)
	defer cancel()
	for all.Err() == nil {
		ctx, cancel := context.WithTimeout(all, readAttempt)
		var index uint64
		ok := false
		if r.Leader() {
			index, ok = r.confirmHere(ctx)
		} else {
			ok = r.AskLeader(ctx, callReadIndex, nil, &index) == nil
		}
		cancel()
		if ok {
			return index, nil
		}
		select {
		case <-all.Done():
		case <-time.After(readRetry):
		}
		if p := r.unavailable(); p != nil {
			return 0, p
		}
	}
	return 0, notNow("no leader is known that confirms what was committed")
}

// confirmHere is the leader's: it returns its commit index if it still leads after the call began.
//
// Why that is enough. In one term at most one node leads. Its commit index covers all that earlier
// terms committed once an entry of its own term is, and whatever is committed in its term, it
// commits first. So this node must have applied an entry of the current term, and the leadership
// that a majority confirms afterwards must be of that term: one that was lost and won again might
// not know yet what was committed in between. Raft's own term, read before and after, is not late,
// as notifications of leadership are.
func (r *Replica) confirmHere(ctx context.Context) (index uint64, ok bool) {
	term := r.raft.CurrentTerm()
	if r.fsm.progress().term != term {
		return 0, false // nothing of this term is committed yet
	}
	index = r.stores.log.delivered(r.raft.CommitIndex())
	// After the term is read: a node that follows in it leads in none.
	ok = r.raft.State() == hraft.Leader && r.confirmLeadership(ctx, term) &&
		r.raft.CurrentTerm() == term
	return index, ok
}

// confirmLeadership returns true once a majority of voters has responded, to a heartbeat that was
// sent after the call, that it knows no later term. hashicorp/raft's VerifyLeader accepts responses
// to older requests too, since which another node may have been elected and have acknowledged
// writes, and counts nodes that have no vote.
func (r *Replica) confirmLeadership(ctx context.Context, term uint64) bool {
	servers := r.servers()
	responses := make(chan bool, len(servers))
	voters, yes, asked := 0, 0, 0
	for _, s := range servers {
		switch {
		case s.Suffrage != hraft.Voter:
			continue
		case s.ID == r.id:
			yes++
		case r.trans.ping(&r.reads.busy, s, hraft.AppendEntriesRequest{Term: term},
			func(ok bool) { responses <- ok }):
			asked++
		}
		voters++
	}
	for ; asked > 0 && yes <= voters/2; asked-- {
		select {
		case ok := <-responses:
			if ok {
				yes++
			}
		case <-ctx.Done():
			return false
		}
	}
	return yes > voters/2
}

// serveReadIndex answers other nodes' readers, if this node leads.
func (r *Replica) serveReadIndex(ctx context.Context, _ peer.Identity, _ any) (uint64, error) {
	if !r.Leader() {
		return 0, errNotLeader
	}
	return r.confirmed(ctx)
}

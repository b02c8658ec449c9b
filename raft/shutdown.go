package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Shutdown gives leadership away, takes nothing new, waits until what was taken
// is answered or ctx ends, and closes everything. What is unanswered then is
// answered: not applied where it was not proposed yet, else unknown.
func (r *Replica) Shutdown(ctx context.Context) error {
	if err := r.StepDown(ctx); err != nil {
		r.o.Logger.Warn("leadership was not handed over before the end", "error", err)
	}
	r.b.close()
	r.b.drain(ctx)
	var err error
	r.run.once.Do(func() { err = r.end() })
	return err
}

func (r *Replica) end() error {
	r.stores.snaps.stopped.Store(true) // a checkpoint in progress is given up
	r.barriers.mu.Lock()               // join reads stop under this lock
	close(r.run.stop)
	r.barriers.mu.Unlock()
	r.b.end()
	r.disconnect()
	// Before Raft ends: nobody would answer VerifyLeader after it.
	r.barriers.wg.Wait()
	// hashicorp/raft forgets the futures of entries that are committed but not applied
	// when it shuts down. So nothing commits any more, and what has is applied first.
	closeTransport(r.trans)
	settled, cancel := context.WithTimeout(context.Background(), settleTime)
	r.b.settle(settled)
	cancel()
	errs := []error{r.raft.Shutdown().Error()}
	r.run.wg.Wait()
	r.confirmer.wg.Wait() // its requests ended with the transport
	r.b.giveUp()
	r.b.forward.serving.Wait()
	errs = append(errs, r.stores.close())
	return errors.Join(errs...)
}

// settleTime is how long committed entries may take to be applied at the end.
const settleTime = 100 * time.Millisecond

// StepDown hands leadership over to another voter, if this node has it and there
// is one. Until Shutdown this node goes on taking requests, as one that does not
// lead. The error says why it still leads.
//
// Called first when a node is drained: while the next leader begins, the
// commands in hand wait here, and are then taken to it.
func (r *Replica) StepDown(ctx context.Context) error {
	var errs []error
	for _, v := range r.successors() {
		if !r.canHandOver() || ctx.Err() != nil {
			break
		}
		err := r.handOver(ctx, v)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		r.run.wg.Go(r.unstick)
	}
	if !r.canHandOver() || r.alone() {
		return nil
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// canHandOver tells whether this node leads. A replica that has ended leaves
// hashicorp/raft's question without an answer.
func (r *Replica) canHandOver() bool {
	select {
	case <-r.run.stop:
		return false
	case <-r.run.failed:
		return false
	default:
		return r.Leader()
	}
}

// successors are the other voters, whoever can take over soonest first.
func (r *Replica) successors() []peerView {
	all := slices.DeleteFunc(r.remotes(), func(v peerView) bool { return !v.Votes || v.Status.Held })
	slices.SortStableFunc(all, func(a, b peerView) int {
		if a.Reachable != b.Reachable { // lately; in the first second nobody is
			if a.Reachable {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.Status.Last, a.Status.Last)
	})
	return all
}

// quiesce is how long a handover waits for the entries under way. One that is
// not committed when leadership ends would be unknown to its clients.
const quiesce = time.Second

// handOver proposes nothing new, lets what is under way end, gives leadership
// to another voter, and returns when this node does not lead any more.
func (r *Replica) handOver(ctx context.Context, to peerView) error {
	b := r.b
	defer b.hold()()
	settled, cancel := context.WithTimeout(ctx, quiesce)
	b.until(settled, func() bool { return len(b.flight.entries) == 0 || !b.lead.leader })
	cancel()
	r.membership.yielding.Store(time.Now().Add(3 * r.o.ElectionTimeout).UnixNano())
	// Its future is not awaited: hashicorp/raft does not complete it in every case.
	r.raft.LeadershipTransferToServer(to.serverID(), to.serverAddress())
	// The library's attempt ends within an election timeout; then the other node stands
	// for election, and may still lose it.
	won, cancel := context.WithTimeout(ctx, 3*r.o.ElectionTimeout)
	defer cancel()
	if !b.until(won, func() bool { return !b.lead.leader }) {
		return fmt.Errorf("transfer leadership to %s: it did not take over", to.ID)
	}
	// Not needed, but what is in hand then need not wait: a leader is known.
	b.until(won, func() bool { return b.lead.leader || b.forward.known })
	return nil
}

// yields tells whether a transfer of leadership may be under way. hashicorp/raft
// has the other one brought up to date first, and waits for whoever replicates to
// it, without an end: if that one stood waiting for a node that has just died
// (transport.AppendEntries), nothing could be written any more.
func (r *Replica) yields() bool { return time.Now().UnixNano() < r.membership.yielding.Load() }

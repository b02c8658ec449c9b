package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
)

// Shutdown gives leadership away, takes nothing new, waits until what was taken
// is answered or ctx ends, and closes everything. What is unanswered then is
// answered: not applied where it was not proposed yet, else unknown.
func (r *Replica) Shutdown(ctx context.Context) error {
	if err := r.StepDown(ctx); err != nil {
		r.o.Logger.Warn("leadership was not handed over before the end", "error", err)
	}
	r.p.close()
	r.p.drained(ctx)
	var err error
	r.stopOnce.Do(func() { err = r.end() })
	return err
}

func (r *Replica) end() error {
	r.stores.snaps.stopped.Store(true) // a checkpoint under way is given up
	r.barriers.mu.Lock()               // join looks at stop under this lock
	close(r.stop)
	r.barriers.mu.Unlock()
	r.p.end()
	r.disconnect()
	// Before Raft ends: nobody would answer VerifyLeader after it.
	r.barriers.wg.Wait()
	errs := []error{r.raft.Shutdown().Error()}
	closeTransport(r.trans) // Raft does it only at the first call, whose end fatal does not wait for
	r.wg.Wait()
	r.confirmer.wg.Wait() // its questions ended with the transport
	close(r.p.retire)     // run, its one sender, has ended
	r.p.giveUp()
	select {
	case <-r.reaped:
	case <-time.After(100 * time.Millisecond):
		// hashicorp/raft forgets the futures of entries that were committed, but
		// not applied, when it was shut down. Their callers have been told.
	}
	close(r.silent)
	<-r.reaped
	r.p.served.Wait()
	errs = append(errs, r.stores.close())
	return errors.Join(errs...)
}

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
		r.wg.Go(r.unstick)
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
	case <-r.stop:
		return false
	case <-r.failed:
		return false
	default:
		return r.Leader()
	}
}

// successors are the other voters, whoever can take over soonest first.
func (r *Replica) successors() []peerView {
	all := slices.DeleteFunc(r.peers(), func(v peerView) bool { return !v.Votes || v.Status.Held })
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
	p := r.p
	defer p.hold()()
	settled, cancel := context.WithTimeout(ctx, quiesce)
	p.until(settled, func() bool { return len(p.flying) == 0 || !p.leader })
	cancel()
	r.yielding.Store(time.Now().Add(2 * r.o.ElectionTimeout).UnixNano())
	done := make(chan error, 1)
	go func() { // bounded by the election timeout
		done <- bound(r, r.raft.LeadershipTransferToServer(to.serverID(), to.serverAddress())).Error()
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("hand leadership over to %s: %w", to.ID, err)
		}
	case <-ctx.Done():
		return fmt.Errorf("hand leadership over to %s: %w", to.ID, ctx.Err())
	case <-r.failed:
		return *r.dead.Load()
	case <-r.stop:
		return hraft.ErrRaftShutdown
	}
	// The other one stands for election, and may still lose it.
	won, cancel := context.WithTimeout(ctx, 2*r.o.ElectionTimeout)
	defer cancel()
	if !p.until(won, func() bool { return !p.leader }) {
		return fmt.Errorf("hand leadership over to %s: it did not take it", to.ID)
	}
	// Not needed, but what is in hand then need not wait: a leader is known.
	p.until(won, func() bool { return p.leader || p.away.known })
	return nil
}

// yields tells whether a transfer of leadership may be under way. hashicorp/raft
// has the other one brought up to date first, and waits for whoever replicates to
// it, without an end: if that one stood waiting for a node that has just died
// (transport.AppendEntries), nothing could be written any more.
func (r *Replica) yields() bool { return time.Now().UnixNano() < r.yielding.Load() }

// hold lets nothing new be proposed here until the returned function is called.
func (p *proposer) hold() (release func()) {
	add := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.handing += n
		p.sendBackLocked()
		p.good = time.Now() // from here on what waits, waits for a leader
		p.changedLocked()
	}
	add(1)
	return func() { add(-1) }
}

// until waits for something of the proposer's, and tells whether it has come.
// ok is called under the lock.
func (p *proposer) until(ctx context.Context, ok func() bool) bool {
	for {
		p.mu.Lock()
		yes, changed := ok(), p.watchLocked()
		p.mu.Unlock()
		if yes {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-p.failed:
			return false
		}
	}
}

// close refuses new commands.
func (p *proposer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	p.changedLocked()
}

// drained waits until nothing waits and nothing is under way, here or with the
// leader, and all have their answers. When ctx ends it refuses what still waits.
func (p *proposer) drained(ctx context.Context) {
	if p.until(ctx, p.drainedLocked) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.emptyLocked()
}

func (p *proposer) drainedLocked() bool {
	n, _ := p.q.len()
	return n == 0 && len(p.flying) == 0 && !p.answering && len(p.away.list) == 0 && p.away.landing == 0
}

func (p *proposer) emptyLocked() {
	for _, d := range p.q.drain(nil) {
		d.refuse(shuttingDown())
	}
}

func (p *proposer) hasFailed() bool {
	select {
	case <-p.failed:
		return true
	default:
		return false
	}
}

// end lets nothing leave this node any more, and nothing of others in.
func (p *proposer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// giveUp lets everybody go who still waits for an answer.
func (p *proposer) giveUp() {
	p.mu.Lock()
	p.emptyLocked()
	p.mu.Unlock()
	close(p.gone)
}

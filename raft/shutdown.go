package raft

import (
	"context"
	"errors"
	"time"
)

// Shutdown takes nothing new, waits until what was taken is answered or ctx
// ends, and closes everything. What is unanswered then is answered: not applied
// where it was not proposed yet, else unknown.
func (r *Replica) Shutdown(ctx context.Context) error {
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
	// Before Raft ends: nobody would answer VerifyLeader after it.
	r.barriers.wg.Wait()
	errs := []error{r.raft.Shutdown().Error()}
	r.wg.Wait()
	close(r.p.retire) // run, its one sender, has ended
	r.p.giveUp()
	select {
	case <-r.reaped:
	case <-time.After(100 * time.Millisecond):
		// hashicorp/raft forgets the futures of entries that were committed, but
		// not applied, when it was shut down. Their callers have been told.
	}
	errs = append(errs, r.stores.close())
	return errors.Join(errs...)
}

// close refuses new commands.
func (p *proposer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	p.changedLocked()
}

// drained waits until nothing waits and nothing is under way. When ctx ends it
// refuses what still waits.
func (p *proposer) drained(ctx context.Context) {
	for {
		p.mu.Lock()
		n, _ := p.q.len()
		idle, changed := n == 0 && len(p.flying) == 0, p.watchLocked()
		if !idle && (ctx.Err() != nil || p.hasFailed()) {
			left := p.q.drain()
			p.mu.Unlock()
			for _, d := range left {
				d.done <- answer{problem: shuttingDown()}
			}
			return
		}
		p.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-p.failed:
		}
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

// giveUp lets everybody go who still waits for an answer.
func (p *proposer) giveUp() {
	p.mu.Lock()
	left := p.q.drain()
	p.mu.Unlock()
	for _, d := range left {
		d.done <- answer{problem: shuttingDown()}
	}
	close(p.gone)
}

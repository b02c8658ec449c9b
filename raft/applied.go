package raft

import (
	"context"
	"slices"
	"sync"
)

// applyWaiters holds callers until this node has applied an index: responses that the
// leader sent, and linearizable reads. The FSM goroutine releases them, without a
// goroutine for each: a node that lags has many.
//
// A node that lacks the log before an index never applies it: it fetches what it lacks
// and starts again (see lack). All waiters are then released at once.
type applyWaiters struct {
	fsm     *fsm
	lacking func() bool // nil: never

	mu   sync.Mutex
	list []applyWaiter // ordered by index
}

type applyWaiter struct {
	index uint64
	// release is called once; applied is false if this node will not apply index. It
	// must not block.
	release func(applied bool)
}

// add calls release as soon as index is applied here, or will not be; perhaps before
// it returns.
func (w *applyWaiters) add(index uint64, release func(applied bool)) {
	w.mu.Lock()
	if w.fsm.progress().index >= index {
		w.mu.Unlock()
		release(true)
		return
	}
	i := len(w.list)
	for i > 0 && w.list[i-1].index > index { // they arrive nearly in order
		i--
	}
	w.list = slices.Insert(w.list, i, applyWaiter{index, release})
	w.mu.Unlock()
	if w.lacking != nil && w.lacking() {
		w.releaseAll()
	}
}

// releaseAll releases every waiter: this node lacks the log before what they wait for.
func (w *applyWaiters) releaseAll() {
	w.mu.Lock()
	all := w.list
	w.list = nil
	w.mu.Unlock()
	for _, a := range all {
		a.release(false)
	}
}

// applied releases the waiters up to index. The FSM publishes its progress before it
// calls applied, so that add and applied cannot both miss an index.
func (w *applyWaiters) applied(index uint64) {
	w.mu.Lock()
	n := 0
	for n < len(w.list) && w.list[n].index <= index {
		n++
	}
	due := slices.Clone(w.list[:n])
	w.list = slices.Delete(w.list, 0, n)
	w.mu.Unlock()
	for _, a := range due {
		a.release(true)
	}
}

// waitApplied returns when this node has applied index. The error is an *event.Problem
// if it never will, because it lacks the log before index.
func (r *Replica) waitApplied(ctx context.Context, index uint64) error {
	done := make(chan bool, 1)
	r.b.waiters.add(index, func(applied bool) { done <- applied })
	select {
	case applied := <-done:
		if !applied {
			return catchingUp()
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-r.failed:
		return r.refuses()
	}
}

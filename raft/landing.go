package raft

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// landings are what waits until this node has applied an entry: answers that
// came from the leader, and readers. They are let go by whoever applies, not by
// a goroutine each: a node that lags has many of them.
//
// A node that lacks the log up to an entry never applies it: it fetches what it
// lacks and begins anew (offer.go). Who waits here is then let go at once.
type landings struct {
	fsm     *fsm
	lacking func() bool // nil: never

	n    atomic.Int64 // len(list), or one more
	mu   sync.Mutex
	list []landing // by index
}

type landing struct {
	index uint64
	// fire is told whether the entry is applied here; it must not block.
	fire func(here bool)
}

// at calls fire as soon as the entry at index is applied here, or will not be;
// perhaps at once.
func (l *landings) at(index uint64, fire func(here bool)) {
	l.mu.Lock()
	// Before the look at what is applied: whoever applies more after that look
	// sees that somebody waits.
	l.n.Add(1)
	if l.fsm.progress().index >= index {
		l.n.Add(-1)
		l.mu.Unlock()
		fire(true)
		return
	}
	i := len(l.list)
	for i > 0 && l.list[i-1].index > index { // they come nearly in order
		i--
	}
	l.list = slices.Insert(l.list, i, landing{index, fire})
	l.mu.Unlock()
	if l.lacking != nil && l.lacking() {
		l.strand()
	}
}

// Landed returns when the entry at an index is applied here, or with an
// *event.Problem when that will not be: this node lacks what leads there.
func (r *Replica) Landed(ctx context.Context, index uint64) error {
	landed := make(chan bool, 1)
	r.p.landed.at(index, func(here bool) { landed <- here })
	select {
	case here := <-landed:
		if !here {
			return catchingUp()
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-r.failed:
		return r.refuses()
	}
}

// strand lets all go who wait: this node lacks what they wait for.
func (l *landings) strand() {
	l.mu.Lock()
	all := l.list
	l.list = nil
	l.n.Add(-int64(len(all)))
	l.mu.Unlock()
	for _, d := range all {
		d.fire(false)
	}
}

// reached is told of each batch that was applied.
func (l *landings) reached(index uint64) {
	if l.n.Load() == 0 {
		return
	}
	l.mu.Lock()
	n := 0
	for n < len(l.list) && l.list[n].index <= index {
		n++
	}
	due := slices.Clone(l.list[:n])
	l.list = slices.Delete(l.list, 0, n)
	l.n.Add(int64(-n))
	l.mu.Unlock()
	for _, d := range due {
		d.fire(true)
	}
}

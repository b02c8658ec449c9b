package raft

import (
	"slices"
	"sync"
	"sync/atomic"
)

// landings are what waits until this node has applied an entry: answers that
// came from the leader, and readers. They are let go by whoever applies, not by
// a goroutine each: a node that lags has many of them.
type landings struct {
	fsm *fsm

	n    atomic.Int64 // len(list), or one more
	mu   sync.Mutex
	list []landing // by index
}

type landing struct {
	index uint64
	fire  func() // must not block
}

// at calls fire as soon as the entry at index is applied here; perhaps at once.
func (l *landings) at(index uint64, fire func()) {
	l.mu.Lock()
	// Before the look at what is applied: whoever applies more after that look
	// sees that somebody waits.
	l.n.Add(1)
	if l.fsm.progress().index >= index {
		l.n.Add(-1)
		l.mu.Unlock()
		fire()
		return
	}
	i := len(l.list)
	for i > 0 && l.list[i-1].index > index { // they come nearly in order
		i--
	}
	l.list = slices.Insert(l.list, i, landing{index, fire})
	l.mu.Unlock()
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
		d.fire()
	}
}

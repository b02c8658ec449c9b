package raft

import (
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// contacts remember when the leader told how far it had committed, so that a
// read of this node's own state can say how old it is.
type contacts struct {
	mu  sync.Mutex
	all []contact // oldest first
}

type contact struct {
	at     time.Time
	commit uint64
}

const (
	contactsKept  = 64
	contactsApart = 100 * time.Millisecond
)

// heard keeps the newest contact, and older ones somewhat apart.
func (c *contacts) heard(commit uint64) {
	if commit == 0 {
		return // a heartbeat tells nothing of it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := contact{time.Now(), commit}
	if n := len(c.all); n > 1 && c.all[n-1].at.Sub(c.all[n-2].at) < contactsApart {
		c.all[n-1] = now
		return
	}
	if len(c.all) == contactsKept {
		c.all = append(c.all[:0], c.all[1:]...)
	}
	c.all = append(c.all, now)
}

// committed returns how far the leader had committed when it last told; 0 where
// none has since the start.
func (c *contacts) committed() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) == 0 {
		return 0
	}
	return c.all[len(c.all)-1].commit
}

// upTo returns the newest contact at which nothing was committed that is not
// applied here.
func (c *contacts) upTo(applied uint64) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.all) - 1; i >= 0; i-- {
		if c.all[i].commit <= applied {
			return c.all[i].at, true
		}
	}
	return time.Time{}, false
}

// Age tells how old the state of this node is at most: what it lacks was
// committed within that time. false: nobody knows.
func (r *Replica) Age() (time.Duration, bool) {
	if r.leadsReady() {
		return 0, true
	}
	p := r.fsm.progress()
	if at, ok := r.contact.upTo(p.index); ok {
		return time.Since(at), true
	}
	// Further behind than contacts reach back: by how much the log's time has
	// gone on at the leader.
	_, id := r.raft.LeaderWithID()
	for _, v := range r.peers() {
		if v.serverID() == hraft.ServerID(id) && !v.Seen.IsZero() && v.Status.Clock > 0 && p.clock > 0 {
			there := v.Status.Clock + time.Since(v.Seen).Milliseconds()
			return time.Duration(max(0, there-p.clock)) * time.Millisecond, true
		}
	}
	return 0, false
}

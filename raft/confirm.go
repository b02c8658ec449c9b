package raft

import (
	"errors"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// confirmer lets the other voters say that this node still leads: with messages
// that are sent after it was asked, to voters only. hashicorp/raft's
// VerifyLeader takes any answer that comes in afterwards, also to a question
// that is older than the read it is to confirm, and by the time that a slow
// line brings it another node may have been elected and have acknowledged
// writes. It also counts nodes that have no vote.
type confirmer struct {
	mu      sync.Mutex
	asked   uint64 // rounds
	of      map[hraft.ServerID]*confirming
	changed chan struct{} // closed at the next answer
	wg      sync.WaitGroup
}

// confirming is one voter. One question is on its way to it at a time: one that
// hangs is not asked again and again.
type confirming struct {
	busy     bool
	said     uint64 // the newest round that it has confirmed
	answered uint64 // the newest that it has answered, or failed to
}

func newConfirmer() *confirmer {
	return &confirmer{of: map[hraft.ServerID]*confirming{}, changed: make(chan struct{})}
}

var errNotConfirmed = errors.New("a majority of voters does not confirm that this node leads")

// confirmTime is how long a majority may take; rpcTimeout bounds each question.
const confirmTime = 2 * time.Second

// confirm returns nil once a majority of voters has answered, to a message that
// was sent after the call, that it knows no later term than this one.
func (r *Replica) confirm(t *transport, term uint64) error {
	c := r.confirmer
	var others []hraft.Server
	own := 0
	for _, s := range r.servers() {
		switch {
		case s.Suffrage != hraft.Voter:
		case s.ID == r.id:
			own = 1
		default:
			others = append(others, s)
		}
	}
	need := (len(others)+own)/2 + 1
	c.mu.Lock()
	c.asked++
	round := c.asked
	for _, s := range others {
		v := c.of[s.ID]
		if v == nil {
			v = &confirming{}
			c.of[s.ID] = v
		}
		if !v.busy {
			v.busy = true
			c.wg.Go(func() { r.question(t, s, v) })
		}
	}
	c.mu.Unlock()
	late := time.NewTimer(confirmTime)
	defer late.Stop()
	for {
		c.mu.Lock()
		said, left := own, 0
		for _, s := range others {
			switch v := c.of[s.ID]; {
			case v.said >= round:
				said++
			case v.answered < round:
				left++
			}
		}
		changed := c.changed
		c.mu.Unlock()
		if said >= need {
			return nil
		}
		if said+left < need || r.raft.CurrentTerm() != term {
			return errNotConfirmed
		}
		select {
		case <-changed:
		case <-late.C:
			return errNotConfirmed
		case <-r.failed:
			return *r.dead.Load()
		case <-r.stop:
			return hraft.ErrRaftShutdown
		}
	}
}

// question asks one voter until it has answered the newest round.
func (r *Replica) question(t *transport, s hraft.Server, v *confirming) {
	c := r.confirmer
	for {
		c.mu.Lock()
		round := c.asked
		if v.answered >= round {
			v.busy = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		// A heartbeat as hashicorp/raft sends it: whoever knows no later term
		// says yes.
		term := r.raft.CurrentTerm()
		yes := false
		if r.raft.State() == hraft.Leader {
			var resp hraft.AppendEntriesResponse
			err := t.append(s.ID, s.Address, &hraft.AppendEntriesRequest{
				RPCHeader: t.header(), Term: term,
			}, &resp)
			yes = err == nil && resp.Success && resp.Term == term
		}
		c.mu.Lock()
		v.answered = round
		if yes {
			v.said = round
		}
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

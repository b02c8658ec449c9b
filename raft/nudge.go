package raft

import (
	"sync"

	hraft "github.com/hashicorp/raft"
)

// nudges tell the followers at once how far the log is committed.
//
// hashicorp/raft tells them with the next entries, or after CommitTimeout where
// there are none: up to a tenth of a second in which a follower's clients wait
// for an answer, and its long polls for a message. So when nothing more is under
// way the leader sends what hashicorp/raft would send then: no entries, and the
// index. It is true whoever leads by the time it arrives: what was committed
// stays so. A follower is told when it has acknowledged the entry: one that lacks
// it yet would refuse.
type nudges struct {
	want chan struct{} // takes one: something was committed

	mu   sync.Mutex
	has  map[hraft.ServerID]uint64 // up to where a server's log is known to agree
	told map[hraft.ServerID]uint64 // the commit index that it has taken
	busy map[hraft.ServerID]bool   // one is on its way
	wg   sync.WaitGroup
}

func newNudges() *nudges {
	return &nudges{want: make(chan struct{}, 1), has: map[hraft.ServerID]uint64{}, told: map[hraft.ServerID]uint64{}, busy: map[hraft.ServerID]bool{}}
}

// signal says that there may be something to tell.
func (n *nudges) signal() {
	select {
	case n.want <- struct{}{}:
	default:
	}
}

// took notes that a server has the log up to last, and knows that it is committed
// up to an index. A restarted one may have forgotten that; it is told anew by
// hashicorp/raft.
func (n *nudges) took(id hraft.ServerID, last, committed uint64) {
	n.mu.Lock()
	n.has[id] = last
	n.told[id] = max(n.told[id], min(committed, last))
	n.mu.Unlock()
}

// begin reports whether a server is to be told now.
func (n *nudges) begin(id hraft.ServerID, index uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[id] || n.has[id] < index || n.told[id] >= index {
		return false
	}
	n.busy[id] = true
	return true
}

func (n *nudges) end(id hraft.ServerID, taken bool) {
	n.mu.Lock()
	delete(n.busy, id)
	n.mu.Unlock()
	if taken {
		n.signal() // more may have been committed meanwhile
	}
}

// nudge runs until the replica stops.
func (r *Replica) nudge(t *transport) {
	n := r.nudges
	defer n.wg.Wait()
	for {
		select {
		case <-n.want:
		case <-r.stop:
			return
		}
		// The term before the state: a state that follows is of this term or of
		// a later one, and then the message is refused.
		term := r.raft.CurrentTerm()
		if r.raft.State() != hraft.Leader || r.p.underWay() {
			continue
		}
		p := r.fsm.progress()
		if p.term == 0 {
			continue // known from a snapshot only: the next entry has one
		}
		for _, s := range r.servers() {
			if s.ID == r.id || !n.begin(s.ID, p.index) {
				continue
			}
			n.wg.Go(func() {
				var resp hraft.AppendEntriesResponse
				err := t.append(s.ID, s.Address, &hraft.AppendEntriesRequest{
					RPCHeader: t.header(),
					Term:      term, PrevLogEntry: p.index, PrevLogTerm: p.term, LeaderCommitIndex: p.index,
				}, &resp)
				// After a failure it is hashicorp/raft's to go on.
				n.end(s.ID, err == nil && resp.Success)
			})
		}
	}
}

// underWay tells whether entries are being replicated: those that follow them
// tell the followers what is committed.
func (p *proposer) underWay() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.flying) > 0
}

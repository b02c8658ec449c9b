package raft

import (
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/peer"
)

// nudges tell the followers how far the log is committed.
//
// hashicorp/raft tells them with the next entries, or after CommitTimeout where
// there are none: up to a tenth of a second in which a follower's clients wait
// for an answer, and its long polls for a message. So when nothing more is under
// way the leader sends what hashicorp/raft would send then: no entries, and the
// index. It is true whoever leads by the time it arrives: what was committed
// stays so. A follower is told when it has acknowledged the entry: one that lacks
// it yet would refuse.
//
// Such a message costs both sides about as much as replicating a small entry. So
// only a follower that is known to wait (whose clients' commands are in the
// entry, or who was just answered and now waits for its own apply) is told at
// once. The others hear of it after nudgePause, unless an entry takes it along.
type nudges struct {
	want chan struct{} // takes one: a follower may wait
	// pause ends nudgePause after the newest thing to tell.
	pause *time.Timer

	mu    sync.Mutex
	has   map[hraft.ServerID]uint64 // up to where a server's log is known to agree
	told  map[hraft.ServerID]uint64 // the commit index that it has taken
	due   map[hraft.ServerID]uint64 // the index that it waits for, or has waited for
	busy  map[hraft.ServerID]bool   // one is on its way
	armed bool                      // pause runs
	news  time.Time                 // when there last was something to tell
	wg    sync.WaitGroup
}

// nudgePause is how long followers that are not known to wait may lag behind what
// is committed: far below what anybody is promised, and longer than one small
// entry takes to follow another.
const nudgePause = 2 * time.Millisecond

func newNudges() *nudges {
	n := &nudges{
		want: make(chan struct{}, 1), pause: time.NewTimer(time.Hour),
		has: map[hraft.ServerID]uint64{}, told: map[hraft.ServerID]uint64{}, due: map[hraft.ServerID]uint64{}, busy: map[hraft.ServerID]bool{},
	}
	n.pause.Stop()
	return n
}

// signal says that there may be something to tell at once.
func (n *nudges) signal() {
	select {
	case n.want <- struct{}{}:
	default:
	}
}

// waits notes that a server waits for an index, which is committed.
func (n *nudges) waits(id hraft.ServerID, index uint64) {
	n.mu.Lock()
	n.due[id] = max(n.due[id], index)
	late := n.told[id] < index
	n.mu.Unlock()
	if late {
		n.signal()
	}
}

// idle is told that nothing is under way any more which would take along what was
// committed.
func (n *nudges) idle() {
	n.mu.Lock()
	n.newsLocked()
	late := false
	for id, index := range n.due {
		late = late || n.told[id] < index
	}
	n.mu.Unlock()
	if late {
		n.signal()
	}
}

func (n *nudges) newsLocked() {
	n.news = time.Now()
	if !n.armed {
		n.armed = true
		n.pause.Reset(nudgePause)
	}
}

// paused reports whether those who do not wait are to be told now; if not, there
// was something new meanwhile, and the pause goes on.
func (n *nudges) paused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if left := nudgePause - time.Since(n.news); left > 0 {
		n.pause.Reset(left)
		return false
	}
	n.armed = false
	return true
}

// took notes that a server has the log up to last, and knows that it is committed
// up to an index. A restarted one may have forgotten that; it is told anew by
// hashicorp/raft.
func (n *nudges) took(id hraft.ServerID, last, committed uint64, entries bool) {
	n.mu.Lock()
	if entries || n.has[id] < last { // else one that was overtaken
		n.has[id] = last
	}
	n.told[id] = max(n.told[id], min(committed, last))
	late := n.told[id] < n.due[id]
	if n.told[id] < n.has[id] {
		n.newsLocked()
	}
	n.mu.Unlock()
	if late {
		n.signal()
	}
}

// begin reports whether a server is to be told now: all that lack something, or
// those that wait.
func (n *nudges) begin(id hraft.ServerID, index uint64, all bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[id] || n.has[id] < index || n.told[id] >= index || !all && n.told[id] >= n.due[id] {
		return false
	}
	n.busy[id] = true
	return true
}

// end is the inverse of begin. What was committed while the message was on its
// way is still to be told, if this was taken.
func (n *nudges) end(id hraft.ServerID, taken bool) {
	n.mu.Lock()
	delete(n.busy, id)
	late := taken && n.told[id] < n.due[id]
	if taken && n.told[id] < n.has[id] {
		n.newsLocked()
	}
	n.mu.Unlock()
	if late {
		n.signal()
	}
}

// nudge runs until the replica stops.
func (r *Replica) nudge(t *transport) {
	n := r.nudges
	defer n.wg.Wait()
	defer n.pause.Stop()
	for {
		all := false
		select {
		case <-n.want:
		case <-n.pause.C:
			if all = n.paused(); !all {
				continue
			}
		case <-r.stop:
			return
		}
		// The term before the state: a state that follows is of this term or of
		// a later one, and then the message is refused.
		term := r.raft.CurrentTerm()
		if r.raft.State() != hraft.Leader || r.p.underWay() {
			continue // idle will come
		}
		p := r.fsm.progress()
		if p.term == 0 {
			continue // known from a snapshot only: the next entry has one
		}
		for _, s := range r.servers() {
			if s.ID == r.id || !n.begin(s.ID, p.index, all) {
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

// awaited notes that a member waits until it has applied an entry.
func (r *Replica) awaited(by peer.Identity, index uint64) {
	full, bare := serverID(by.Node, by.Incarnation), serverID(by.Node, "")
	for _, s := range r.servers() {
		if s.ID == full || s.ID == bare {
			r.nudges.waits(s.ID, index)
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

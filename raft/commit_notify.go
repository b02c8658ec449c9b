package raft

import (
	"sync"

	hraft "github.com/hashicorp/raft"
)

// commitNotifier sends followers the commit index once it has moved and no entry is
// in flight that would carry it.
//
// hashicorp/raft sends it with the next entries, or after CommitTimeout: up to a
// tenth of a second in which a follower's clients wait for their responses. The
// message is the one that the library would send then: an AppendEntries without
// entries. It is true whoever leads when it arrives, since what was committed
// stays committed.
type commitNotifier struct {
	wake chan struct{} // of capacity one

	mu        sync.Mutex
	followers map[hraft.ServerID]*followerCommit
	wg        sync.WaitGroup
}

// followerCommit is what a leader knows of one follower.
type followerCommit struct {
	matched uint64 // its log agrees up to here
	commit  uint64 // the commit index that it has acknowledged
	sending bool
}

func newCommitNotifier() *commitNotifier {
	return &commitNotifier{wake: make(chan struct{}, 1), followers: map[hraft.ServerID]*followerCommit{}}
}

// signal makes the notifier look whether a follower lacks the commit index.
func (n *commitNotifier) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// acked records that a follower's log agrees up to last, and that it knows the
// commit index of the request.
func (n *commitNotifier) acked(id hraft.ServerID, last, commit uint64, entries bool) {
	n.mu.Lock()
	f := n.followers[id]
	if f == nil {
		f = &followerCommit{}
		n.followers[id] = f
	}
	if entries || f.matched < last { // else a request that was overtaken
		f.matched = last
	}
	f.commit = max(f.commit, min(commit, last))
	lacking := f.commit < f.matched
	n.mu.Unlock()
	if lacking {
		n.signal()
	}
}

// begin reports whether a follower lacks the commit index and has the entry. The
// caller calls end after it has sent it.
func (n *commitNotifier) begin(id hraft.ServerID, index uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.followers[id]
	if f == nil || f.sending || f.matched < index || f.commit >= index {
		return false
	}
	f.sending = true
	return true
}

func (n *commitNotifier) end(id hraft.ServerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.followers[id].sending = false
}

// notifyCommits runs until the replica stops.
func (r *Replica) notifyCommits(t *transport) {
	n := r.peers.commits
	defer n.wg.Wait()
	for {
		select {
		case <-n.wake:
		case <-r.run.stop:
			return
		}
		// The term before the state: if this node still leads, the term is its own
		// or an older one, and then the followers reject the message.
		term := r.raft.CurrentTerm()
		p := r.fsm.progress()
		if r.raft.State() != hraft.Leader || r.b.inFlight() || p.term == 0 {
			continue // the next entry carries it
		}
		for _, s := range r.servers() {
			if s.ID == r.id || !n.begin(s.ID, p.index) {
				continue
			}
			n.wg.Go(func() {
				var resp hraft.AppendEntriesResponse
				// After a failure hashicorp/raft continues.
				_ = t.append(s.ID, s.Address, &hraft.AppendEntriesRequest{
					RPCHeader: t.header(), Term: term,
					PrevLogEntry: p.index, PrevLogTerm: p.term, LeaderCommitIndex: p.index,
				}, &resp)
				n.end(s.ID)
			})
		}
	}
}

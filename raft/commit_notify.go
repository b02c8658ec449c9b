package raft

import (
	"sync"
	"sync/atomic"

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
	wake      chan struct{} // of capacity one
	followers sync.Map      // hraft.ServerID to *followerCommit
}

// followerCommit is what a leader knows of one follower.
type followerCommit struct {
	matched atomic.Uint64 // its log agreed up to here
	commit  atomic.Uint64 // the commit index that it has acknowledged
	sending atomic.Bool
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
func (n *commitNotifier) acked(id hraft.ServerID, last, commit uint64) {
	v, _ := n.followers.LoadOrStore(id, &followerCommit{})
	f := v.(*followerCommit)
	raise(&f.matched, last)
	raise(&f.commit, min(commit, last))
	if f.commit.Load() < f.matched.Load() {
		n.signal()
	}
}

func raise(to *atomic.Uint64, v uint64) {
	for old := to.Load(); v > old && !to.CompareAndSwap(old, v); old = to.Load() {
	}
}

// notifyCommits runs until the replica stops.
func (r *Replica) notifyCommits(t *transport) {
	n := &r.peers.commits
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
		if r.raft.State() != hraft.Leader || r.b.busy() || p.term == 0 {
			continue // the next entry carries it
		}
		for _, s := range r.servers() {
			v, _ := n.followers.Load(s.ID)
			f, ok := v.(*followerCommit)
			if !ok || s.ID == r.id || f.matched.Load() < p.index || f.commit.Load() >= p.index ||
				!f.sending.CompareAndSwap(false, true) {
				continue
			}
			r.run.wg.Go(func() {
				defer f.sending.Store(false)
				var resp hraft.AppendEntriesResponse
				// After a failure hashicorp/raft continues.
				_ = t.append(s.ID, s.Address, &hraft.AppendEntriesRequest{
					RPCHeader: t.header(), Term: term,
					PrevLogEntry: p.index, PrevLogTerm: p.term, LeaderCommitIndex: p.index,
				}, &resp)
			})
		}
	}
}

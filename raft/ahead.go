package raft

import (
	"sync"
	"sync/atomic"

	hraft "github.com/hashicorp/raft"
)

// ahead are entries of a leader's that the log shows and that are still being
// written: they are on their way to the others meanwhile, so that two disks work
// at the same time (Ongaro, Consensus: Bridging Theory and Practice, 10.2.1). A
// leader without others has Raft's goroutine free for what the entry before has to
// become: else each second entry was applied only when the next was on disk, too.
//
// hashicorp/raft takes an entry for durable once it has stored it, and counts the
// leader among those who have it: of a leader without others it is committed then.
// So whatever could be made of that waits for the write here (logStore.settled), or
// does not look beyond it (logStore.onDisk):
//
//	what another node has acknowledged   transport.AppendEntries: one of them is needed
//	                                     to commit, where there are others who vote
//	what this node acknowledges          transport.settled, should another one lead by then
//	what it stands for election with     transport.RequestVote
//	what is applied                      fsm.ApplyBatch, likewise
//	what is told to be committed         Replica.committed
//	what one is sent that was removed    transport.append: nobody is needed to commit it
//
// and so I1 and the order of the two logs hold as if it had been durable before.
//
// Its zero value is ready.
type ahead struct {
	mu      sync.Mutex
	changed chan struct{} // closed when entries has become shorter, or the log is broken; nil while nobody waits
	entries []hraft.Log   // as many as the proposer lets be under way, at most
	taken   int           // how many of them the goroutine has in hand that writes; 0: there is none
	// first is the index of the first of them; 0: there are none. It is set under
	// mu and read without: who comes later than an entry sees that it is here.
	first atomic.Uint64
}

// tell wakes who waits, to look again.
func (a *ahead) tell() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tellLocked()
}

func (a *ahead) tellLocked() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// leadsAhead tells whether what is stored are commands of this node's own as the
// leader, and may be sent before it is written: where others vote, and all know
// that it is done so (peerStatus.Ahead). To an older program what it was sent is
// what this node has on disk, and it would take that for a directory that went
// back should this node die now. To one without a vote, beside a leader that nobody
// has to agree with, what is committed is (hadOnDisk). Where there is nobody else,
// nobody is misled.
func (r *Replica) leadsAhead() bool {
	if !r.started.Load() || r.raft.State() != hraft.Leader {
		return false
	}
	othersVote := false
	servers := r.servers()
	if len(servers) == 1 && servers[0].ID == r.id {
		return true
	}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	for _, s := range servers {
		if s.ID == r.id || isExpected(s) {
			continue
		}
		othersVote = othersVote || s.Suffrage == hraft.Voter
		if e := r.table.seen[s.ID]; e == nil || !e.status.Ahead {
			return false
		}
	}
	return othersVote
}

// hadOnDisk is up to where the sender of a request is known to have had its log on
// disk when it sent that: what it had before it led, Raft's own entries, behind all
// before them, and what is committed.
func hadOnDisk(a *hraft.AppendEntriesRequest) uint64 {
	has := min(lastOf(a), a.LeaderCommitIndex)
	if a.PrevLogTerm < a.Term {
		has = max(has, a.PrevLogEntry)
	}
	for _, e := range a.Entries {
		if e.Term < a.Term || e.Type != hraft.LogCommand {
			has = max(has, e.Index)
		}
	}
	return has
}

// get copies an entry to l. Its data is shared.
func (a *ahead) get(index uint64, l *hraft.Log) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.entries) == 0 || index < a.entries[0].Index || index-a.entries[0].Index >= uint64(len(a.entries)) {
		return false
	}
	*l = a.entries[index-a.entries[0].Index]
	return true
}

// last is the index of the newest entry; 0: there are none.
func (a *ahead) last() uint64 {
	if a.first.Load() == 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.entries); n > 0 {
		return a.entries[n-1].Index
	}
	return 0
}

// storeAhead takes entries that are to be written, and returns at once.
func (s *logStore) storeAhead(logs []*hraft.Log) {
	a := &s.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range logs {
		a.entries = append(a.entries, *l)
	}
	a.first.Store(a.entries[0].Index)
	if a.taken == 0 {
		a.taken = len(a.entries)
		go s.catchUp(a.entries[:a.taken:a.taken])
	}
}

// catchUp writes entries, and what has come meanwhile, until there is nothing
// more to write, or the log is broken.
func (s *logStore) catchUp(entries []hraft.Log) {
	a := &s.ahead
	for len(entries) > 0 {
		logs := make([]*hraft.Log, len(entries))
		for i := range entries {
			logs[i] = &entries[i]
		}
		err := s.write(logs)
		a.mu.Lock()
		if err == nil {
			a.entries = a.entries[a.taken:]
			a.taken = len(a.entries)
		}
		entries = a.entries[:a.taken:a.taken]
		first := uint64(0)
		if len(entries) > 0 {
			first = entries[0].Index
		} else {
			a.entries = nil // and what they hold
		}
		a.first.Store(first)
		a.tellLocked()
		a.mu.Unlock()
		if err != nil {
			return // for good: see guard
		}
	}
}

// onDisk returns an index, or the newest before it that is durable.
func (s *logStore) onDisk(index uint64) uint64 {
	if first := s.ahead.first.Load(); first > 0 && index >= first {
		return first - 1
	}
	return index
}

// committed is up to where the log is committed, as far as this node may say so:
// Raft's own word may be ahead of the disk. That of a leader among others is not,
// for their acknowledgements wait for it.
func (r *Replica) committed() uint64 { return r.stores.log.onDisk(r.raft.CommitIndex()) }

// settled returns when the entries up to an index are durable, as far as the log
// has them. An error says that it cannot be known of them.
func (s *logStore) settled(index uint64) error {
	a := &s.ahead
	if first := a.first.Load(); first == 0 || index < first {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.entries) > 0 && index >= a.entries[0].Index {
		if s.broken.Load() {
			return errBroken
		}
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		<-changed
		a.mu.Lock()
	}
	return nil
}

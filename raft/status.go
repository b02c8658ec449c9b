package raft

import (
	"fmt"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// Status is where a replica stands.
type Status struct {
	NodeID, ClusterID, Addr string
	State                   string // Follower, Candidate, Leader, Shutdown
	Term                    uint64
	LeaderID, LeaderAddr    string // empty: not known
	LastIndex               uint64 // of the Raft log, or of the newest snapshot
	CommitIndex             uint64
	AppliedIndex            uint64 // Raft's: of the newest entry that the Machine has seen in this process
	Head                    uint64 // of the event log
	HeldFirst, HeldLast     uint64 // what the Raft log holds; 0, 0 nothing
	Clock                   int64  // the log's time now, Unix ms
	Servers                 []Server
	Checkpoints             []checkpoint.Meta // newest first
	Fatal                   error             // why the replica cannot go on
}

// Server is one member of the cluster.
type Server struct {
	Member
	Votes bool
}

// Status returns where the replica stands.
func (r *Replica) Status() Status {
	leaderAddr, leaderID := r.raft.LeaderWithID()
	p := r.fsm.progress()
	s := Status{
		NodeID: r.o.NodeID, ClusterID: r.o.ClusterID, Addr: string(r.trans.LocalAddr()),
		State: r.raft.State().String(), Term: r.raft.CurrentTerm(),
		LeaderID: string(leaderID), LeaderAddr: string(leaderAddr),
		LastIndex: r.raft.LastIndex(), CommitIndex: r.raft.CommitIndex(), AppliedIndex: p.index, Head: p.head,
		Clock: r.clock.now(), Checkpoints: r.stores.snaps.metas(),
	}
	// 0 where the log is closed already: a status is asked for at any time.
	s.HeldFirst, _ = r.stores.log.FirstIndex()
	s.HeldLast, _ = r.stores.log.LastIndex()
	for _, m := range r.servers() {
		s.Servers = append(s.Servers, Server{Member: memberOf(m.ID, m.Address), Votes: m.Suffrage == hraft.Voter})
	}
	if err := r.run.dead.Load(); err != nil {
		s.Fatal = *err
	}
	return s
}

// Ready tells whether this node can serve: a leader is known and what was
// committed before is applied here. If not, it says why.
func (r *Replica) Ready() (bool, []string) {
	var reasons []string
	if err := r.run.dead.Load(); err != nil {
		reasons = append(reasons, "failed: "+(*err).Error())
	}
	for _, why := range []string{r.consistency.agreement.undecided(), r.consistency.apart.reason()} {
		if why != "" {
			reasons = append(reasons, why)
		}
	}
	lead := r.b.leading()
	if lead.closing {
		reasons = append(reasons, "shutting down")
	}
	reasons = append(reasons, r.outside()...)
	// Raft's own commit index goes no further than this node's log.
	applied, commit := r.fsm.progress().index, max(r.raft.CommitIndex(), r.peers.contact.committed())
	switch addr, _ := r.raft.LeaderWithID(); {
	case addr == "":
		reasons = append(reasons, "no leader is known")
	case lead.leader && !lead.ready():
		reasons = append(reasons, fmt.Sprintf("the log is being applied: %d of %d", applied, r.raft.LastIndex()))
	case !lead.leader && r.peers.contact.committed() == 0:
		reasons = append(reasons, "the leader has not told yet how far the log is committed")
	case !lead.leader && applied+maxLag < commit:
		reasons = append(reasons, fmt.Sprintf("behind the leader: %d of %d", applied, commit))
	}
	return len(reasons) == 0, reasons
}

// outside returns why this node is no part of its cluster, or not yet.
func (r *Replica) outside() (reasons []string) {
	if why := r.rollback.holding.Load(); why != nil && *why != "" && !r.vouched() {
		reasons = append(reasons, *why)
	}
	if r.o.Net == nil {
		return reasons
	}
	if why := r.membership.join.Load(); !r.member(r.id) {
		detail := ""
		if why != nil {
			detail = ": " + *why
		}
		reasons = append(reasons, "not in the cluster's configuration"+detail)
	}
	if upTo, lacking := r.lacking.now(); lacking {
		reasons = append(reasons, fmt.Sprintf("fetching the event log: %d of %d", r.fsm.progress().head, upTo))
	}
	return reasons
}

// maxLag is how many entries a follower may be behind and still count as ready.
const maxLag = 64

// Leader tells whether this node is the leader.
func (r *Replica) Leader() bool {
	return r.b.leading().leader
}

// Load is the batcher's load.
type Load struct {
	Classes      [event.Classes]ClassLoad
	Waiting      int // commands, of all classes
	WaitingBytes int
	Entries      int     // in flight, and batches in flight to the leader
	Utilization  float64 // of the room for waiting commands, 0 to 1
	PerSecond    float64 // commands executed, lately
}

// ClassLoad is the part of one class. Oldest is zero if none waits.
type ClassLoad struct {
	Waiting, InFlight int
	Oldest            time.Time
}

// Load returns the batcher's load.
func (r *Replica) Load() Load {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	limits := b.o.Limits
	l := Load{
		Waiting: b.queues.n, WaitingBytes: b.queues.bytes, PerSecond: b.rate.perSecond,
		Entries: len(b.flight.entries) + len(b.forward.batches),
		Utilization: max(float64(b.queues.n)/float64(limits.Waiting),
			float64(b.queues.bytes)/float64(limits.WaitingBytes)),
	}
	for c := range event.Classes {
		l.Classes[c] = ClassLoad{Waiting: b.queues.class[c].Len(), InFlight: b.flight.class[c]}
		if first := b.queues.first(c); first != nil {
			l.Classes[c].Oldest = first.since
		}
	}
	return l
}

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
	if at, ok := r.peers.contact.upTo(p.index); ok {
		return time.Since(at), true
	}
	// Further behind than contacts reach back: by how much the log's time has
	// gone on at the leader.
	_, id := r.raft.LeaderWithID()
	for _, v := range r.remotes() {
		if v.serverID() == hraft.ServerID(id) && !v.Seen.IsZero() && v.Status.Clock > 0 && p.clock > 0 {
			there := v.Status.Clock + time.Since(v.Seen).Milliseconds()
			return time.Duration(max(0, there-p.clock)) * time.Millisecond, true
		}
	}
	return 0, false
}

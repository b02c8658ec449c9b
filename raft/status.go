package raft

import (
	"fmt"
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
	if err := r.dead.Load(); err != nil {
		s.Fatal = *err
	}
	return s
}

// Ready tells whether this node can serve: a leader is known and what was
// committed before is applied here. If not, it says why.
func (r *Replica) Ready() (bool, []string) {
	var reasons []string
	if err := r.dead.Load(); err != nil {
		reasons = append(reasons, "failed: "+(*err).Error())
	}
	for _, why := range []string{r.agreement.undecided(), r.apart.reason()} {
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
	applied, commit := r.fsm.progress().index, max(r.raft.CommitIndex(), r.contact.committed())
	switch addr, _ := r.raft.LeaderWithID(); {
	case addr == "":
		reasons = append(reasons, "no leader is known")
	case lead.leader && !lead.ready():
		reasons = append(reasons, fmt.Sprintf("the log is being applied: %d of %d", applied, r.raft.LastIndex()))
	case !lead.leader && r.contact.committed() == 0:
		reasons = append(reasons, "the leader has not told yet how far the log is committed")
	case !lead.leader && applied+maxLag < commit:
		reasons = append(reasons, fmt.Sprintf("behind the leader: %d of %d", applied, commit))
	}
	return len(reasons) == 0, reasons
}

// outside returns why this node is no part of its cluster, or not yet.
func (r *Replica) outside() (reasons []string) {
	if why := r.holding.Load(); why != nil && *why != "" && !r.vouched() {
		reasons = append(reasons, *why)
	}
	if r.o.Net == nil {
		return reasons
	}
	if why := r.join.Load(); !r.member(r.id) {
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

// Pending is a write that was accepted and is not answered yet.
type Pending struct {
	Key      event.Hash // of its Idempotency-Key; zero: none
	Type     string
	Class    event.Class
	Since    time.Time
	InFlight bool
	Position int // among the waiting writes, from 1; 0 in flight
	WaitMS   int64
}

// Pending returns the unanswered writes with this Idempotency-Key (its hash). The node
// that accepted a write reports it; the leader does not report forwarded ones.
func (r *Replica) Pending(key event.Hash) (out []Pending) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	add := func(d *pending, position int) {
		if d.key == key && !key.IsZero() {
			out = append(out, Pending{
				Key: d.key, Type: d.kind, Class: d.class, Since: d.since,
				InFlight: position == 0, Position: position, WaitMS: b.rate.wait(position),
			})
		}
	}
	inFlight := func(group []*pending) {
		for _, d := range group {
			add(d, 0)
		}
	}
	for _, e := range b.flight.entries {
		inFlight(e.group)
	}
	for _, f := range b.forward.batches {
		inFlight(f.group)
	}
	for f := range b.forward.answered {
		inFlight(f.group)
	}
	n := 0
	for c := range b.queues.class {
		for e := b.queues.class[c].Front(); e != nil; e = e.Next() {
			n++
			add(e.Value.(*pending), n)
		}
	}
	return out
}

package raft

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// Once a second the members exchange their status. Nothing that Raft decides depends on it. It is
// what /v1/cluster shows, and decides which member is promoted, whether logs agree, and by how
// much clocks differ.

const (
	rpcStatus     = "raft.status"
	statusEvery   = time.Second
	statusTimeout = time.Second
	reachableFor  = 3 * time.Second // after the last answer
	maxLag        = 64              // entries that a node may lag and still count as ready
)

// peerStatus is what a member reports about itself.
type peerStatus struct {
	ID      hraft.ServerID `json:"id"`
	Term    uint64         `json:"term"`
	Leads   bool           `json:"leads,omitempty"` // and has applied an entry of its own term
	Held    bool           `json:"held,omitempty"`  // takes no part in Raft yet
	Lacking bool           `json:"lacking,omitempty"`
	Full    bool           `json:"full,omitempty"` // its disk takes no produce
	Last    uint64         `json:"last"`           // of the Raft log, or of the newest snapshot
	Commit  uint64         `json:"commit"`         // as far as it knows
	Applied uint64         `json:"applied"`        // of the newest entry applied in this process
	Head    uint64         `json:"head"`           // of the event log
	Chain   event.Chain    `json:"chain"`
	Wall    int64          `json:"wall"`  // its wall clock, Unix ms
	Clock   int64          `json:"clock"` // the log's time there, Unix ms
	Rules   uint16         `json:"rules"` // the newest that its program knows
	Known   configuration  `json:"known"`
	Marks   marks          `json:"marks,omitempty"` // its newest
	Health  datadir.Health `json:"health,omitzero"`
	// Forked is, in an answer, whether another chain is here where the log of the node that asks ends.
	Forked bool `json:"forked,omitempty"`
	// Objection is, in an answer, why the node that asks is not admitted: see rollback.go.
	Objection string `json:"objection,omitempty"`
	// Unconfirmed are voters that were silent when this node was admitted: see there.
	Unconfirmed []string `json:"unconfirmed,omitempty"`
}

// refresh asks the other servers that have not answered since an instant, and returns when each
// has, or ctx ends. It forgets those that are no longer members.
func (r *Replica) refresh(ctx context.Context, since time.Time) {
	r.peers.mu.Lock()
	maps.DeleteFunc(r.peers.seen, func(id hraft.ServerID, _ MemberStatus) bool {
		return !r.member(id)
	})
	r.peers.mu.Unlock()
	r.rollback.silent.Forget(r.member)
	var asking sync.WaitGroup
	for _, m := range r.remotes() {
		if !m.Seen.After(since) && m.Incarnation != "" {
			asking.Go(func() { r.askStatus(ctx, m) })
		}
	}
	asking.Wait()
}

// answer returns a server's last answer.
func (p *peers) answer(id hraft.ServerID) MemberStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[id]
}

// askPeers asks all members now, rather than within a second.
func (r *Replica) askPeers() {
	r.run.wg.Go(func() { r.refresh(r.run.ctx, time.Now()) })
}

func (r *Replica) askStatus(ctx context.Context, m MemberStatus) {
	own, wait := r.statusFor(m.serverID()), statusTimeout
	if own.Held {
		wait = rpcTimeout // Raft's messages wait for it
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var a peerStatus
	if _, err := peer.Ask(ctx, r.o.Net, m.target(), rpcStatus, own, &a); err != nil {
		return
	}
	r.object(a)
	seen := MemberStatus{Status: a, Seen: time.Now(), asked: own.Commit}
	seen.forked = a.Forked || r.forked(a)
	r.peers.mu.Lock()
	r.peers.seen[m.serverID()] = seen
	r.peers.mu.Unlock()
	r.settle(m, a.Objection)
	signal(r.agreement.wake)
	r.heardOf(a)
	r.agreeOnTime()
}

// forked reports whether this node has another chain where the log of another one ends. It does not
// know if that is ahead, or if that history is deleted.
func (r *Replica) forked(s peerStatus) bool {
	chain, err := r.o.Machine.ChainAt(s.Head)
	return err == nil && s.Head > 0 && chain != s.Chain
}

func (r *Replica) serveStatus(_ context.Context, from peer.Identity, s peerStatus) (
	a peerStatus, err error) {
	if s.ID != serverID(from.Node, from.Incarnation) {
		return a, fmt.Errorf("node %s sends the status of %s", from.Node, s.ID)
	}
	r.heardOf(s)
	a = r.statusFor(s.ID)
	if a.Objection, a.Forked = r.object(s), r.forked(s); a.Forked {
		r.peers.mu.Lock()
		seen := r.peers.seen[s.ID]
		seen.forked = true // before it is admitted, and may ask for votes
		r.peers.seen[s.ID] = seen
		r.peers.mu.Unlock()
	}
	if r.rollback.silent.Awaits(s.ID) {
		r.askPeers()
	}
	return a, nil
}

// statusFor is the status that a server is shown: one that this node awaits compares with what it
// came with.
func (r *Replica) statusFor(id hraft.ServerID) peerStatus {
	s := r.ownStatus()
	if came := &r.rollback.came; r.rollback.silent.Awaits(id) {
		s.Held, s.Term, s.Last, s.Commit, s.Applied = true, came.Term, came.Last, 0, 0
	}
	return s
}

func (r *Replica) ownStatus() peerStatus {
	p := r.fsm.progress()
	return peerStatus{
		ID: r.id, Term: r.raft.CurrentTerm(), Leads: r.leadsReady(),
		Held: !r.admitted(), Lacking: r.missing() > 0, Full: r.full(),
		Last: r.raft.LastIndex(), Commit: r.raft.CommitIndex(), Applied: p.index,
		Head: p.head, Chain: p.chain, Wall: r.o.Wall().UnixMilli(), Clock: r.clock.Now(),
		Rules: r.o.Rules, Known: r.known(), Marks: p.marks[max(0, len(p.marks)-reportMarks):],
		Unconfirmed: r.unconfirmed(),
		Health:      r.o.Health(),
	}
}

// heardOf checks a status for evidence that this directory is no longer a member.
func (r *Replica) heardOf(s peerStatus) {
	r.rollback.evidence.Note(s.ID, witness.Promise{Commit: max(s.Commit, s.Applied)})
	if !r.admitted() {
		return
	}
	if err := r.outdated(s.Known, s.Leads, r.raft.LastIndex(), r.alone()); err != nil {
		r.fatal(err)
	}
}

// outdated returns how a configuration that another node knows, the leader perhaps, shows that this
// directory is no member any more, or an old copy; nil: it does not. last is where its log ends,
// alone whether it knows no other voter.
//
// It may be the only evidence: promises are forgotten with the server, and the members that this
// node knows may all have been replaced since.
func (r *Replica) outdated(c configuration, leads bool, last uint64, alone bool) error {
	known := r.known().Index
	if _, in := c.find(r.id); !in && r.membership.joined.Load() {
		for _, s := range c.Servers { // a server id never returns
			m := memberOf(s.ID, s.Address)
			if m.ID == r.o.NodeID && !announced(s.ID) && c.Index > known {
				return fmt.Errorf("%w: in the configuration of entry %d node %s has the directory %s",
					ErrRolledBack, c.Index, m.ID, m.Incarnation)
			}
		}
		if leads && c.Index >= known {
			return fmt.Errorf("%w: the configuration of entry %d lacks this node", ErrRemoved, c.Index)
		}
	}
	// A sole voter has every entry that was ever committed. One that hears of a later
	// configuration in which it is not alone was restored from a time when it was.
	if others, _ := c.otherVoters(r.id); alone && len(others) > 0 && c.Index > last {
		return fmt.Errorf("%w: it knows no other voter and ends at entry %d, that of entry %d has others",
			ErrRolledBack, last, c.Index)
	}
	return nil
}

// RefreshMembers asks the other members that have not answered for a moment, and returns when
// each has, or ctx ends.
func (r *Replica) RefreshMembers(ctx context.Context) {
	r.refresh(ctx, time.Now().Add(-200*time.Millisecond))
}

// LeaderHTTP returns the HTTP address of the leader where that is another node, as the members
// know it; "" where this node leads, or none is known.
func (r *Replica) LeaderHTTP() string {
	addr, _ := r.peers.leaderAddr.Load().(string)
	return addr
}

// Leader reports whether this node is the leader.
func (r *Replica) Leader() bool { return r.b.leading().leader }

// leadsReady reports whether this node leads and has applied an entry of its term.
func (r *Replica) leadsReady() bool { return r.b.leading().ready }

// leadsIn reports whether this node is the leader of a term.
func (r *Replica) leadsIn(term uint64) bool {
	return r.raft.State() == hraft.Leader && r.raft.CurrentTerm() == term
}

// replicatesUntil waits until done, and reports whether there is still a reason to replicate to a
// server: this node leads in that term, and the server is a member, at that address. There is none
// during a transfer of leadership: hashicorp/raft brings the other node up to date first, and waits
// without an end for the goroutine that replicates to it. While that waited for a node that has
// just died (transport.AppendEntries), nothing could be written any more.
func (r *Replica) replicatesUntil(id hraft.ServerID, addr hraft.ServerAddress, term uint64,
	done func() bool) bool {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		s, in := r.find(id)
		if !in || s.Address != addr || !r.leadsIn(term) || r.b.leading().holds > 0 {
			return false
		}
		if done() {
			return true
		}
		select {
		case <-tick.C:
		case <-r.run.stop:
			return false
		}
	}
}

// awaitPeer waits until a server answers again that did not.
func (r *Replica) awaitPeer(id hraft.ServerID, addr hraft.ServerAddress, term uint64) bool {
	since := time.Now()
	r.askPeers()
	return r.replicatesUntil(id, addr, term, func() bool {
		return r.peers.answer(id).Seen.After(since) && !r.stores.disk.Stalled()
	})
}

// response is what a node answered to callEach.
type response[A any] struct {
	to     peer.Target
	from   peer.Identity // as far as known, if there is an error too
	answer A
	err    error
}

// callEach calls nodes, all at once, and returns the response of each.
func callEach[A any](ctx context.Context, n *peer.Net, nodes []peer.Target, name string,
	ask any) []response[A] {
	out := make([]response[A], len(nodes))
	var wg sync.WaitGroup
	for i, to := range nodes {
		wg.Go(func() {
			a := &out[i]
			a.to = to
			a.from, a.err = peer.Ask(ctx, n, to, name, ask, &a.answer)
		})
	}
	wg.Wait()
	return out
}

// answerOthers serves the calls of other nodes.
func (r *Replica) answerOthers() {
	for name, h := range map[string]peer.Handler{
		rpcStatus:     r.forCluster(peer.Answer(r.serveStatus)),
		rpcAdmission:  r.forCluster(peer.Answer(r.serveStatus)),
		rpcOffer:      r.forCluster(peer.Answer(r.takeOffer)),
		rpcAdmin:      r.forMembers(peer.Answer(r.serveAdmin)),
		rpcJoin:       r.forCluster(peer.Answer(r.serveJoin)),
		callForward:   r.forMembers(r.b.serveForward),
		callReadIndex: r.forMembers(peer.Answer(r.serveReadIndex)),
	} {
		r.o.Net.Handle(r.run.ctx, name, h)
	}
}

// Status is the state of a replica.
type Status struct {
	NodeID, ClusterID string
	LeaderID          string            // the leader's NodeID; "": not known
	Checkpoints       []checkpoint.Meta // newest first
	peerStatus
}

// Status returns the state of the replica.
func (r *Replica) Status() Status {
	_, leader := r.raft.LeaderWithID()
	return Status{
		r.o.NodeID, r.o.ClusterID, memberOf(leader, "").ID, r.stores.snaps.Metas(), r.ownStatus(),
	}
}

// Ready reports whether this node can serve: a leader is known and what was committed before is
// applied here. If not, it returns why.
func (r *Replica) Ready() (bool, []string) {
	var reasons []string
	not := func(format string, args ...any) {
		reasons = append(reasons, fmt.Sprintf(format, args...))
	}
	if err := r.run.dead.Load(); err != nil {
		not("failed: %v", *err)
		return false, reasons // what else there is follows from it
	}
	if r.stores.disk.Stalled() {
		not("%v", watchdog.ErrStalled)
	}
	if f := r.agreement.found.Load(); f != nil && f.undecided {
		not("%s: %v", noMajority, f)
	}
	lead := r.b.leading()
	if lead.closing {
		not("shutting down")
	}
	if why := r.rollback.holding.Load(); why != nil && !r.admitted() {
		not("%s", *why)
	}
	if !r.member(r.id) {
		if why := r.membership.why.Load(); why != nil && *why != "" {
			not("not in the cluster's configuration: %s", *why)
		} else {
			not("not in the cluster's configuration")
		}
	}
	applied, committed := r.fsm.progress(), r.peers.contact.Load().commit
	if upTo := r.missing(); upTo > 0 {
		not("fetching the event log: %d of %d", applied.head, upTo)
	}
	// Raft's own commit index goes no further than this node's log.
	commit := max(r.raft.CommitIndex(), committed)
	switch addr, _ := r.raft.LeaderWithID(); {
	case addr == "":
		not("no leader is known")
	case lead.leader && !lead.ready:
		not("the log is being applied: %d of %d", applied.index, r.raft.LastIndex())
	case !lead.leader && committed == 0:
		not("the leader has not reported its commit index yet")
	case !lead.leader && applied.index+maxLag < commit:
		not("behind the leader: %d of %d", applied.index, commit)
	}
	leaderFull := func(m MemberStatus) bool {
		return m.Leader && (m.serverID() == r.id || m.Status.Full)
	}
	if r.full() && slices.ContainsFunc(r.Members(), leaderFull) {
		not("the disk is nearly full: produce is refused")
	}
	return len(reasons) == 0, reasons
}

// contact is when this node last heard how far the leader had committed. A heartbeat does not say.
type contact struct {
	at     time.Time
	commit uint64 // 0: never since the start
}

// Age returns how old the state of this node is at most: what it lacks was committed within
// that time. false: not known.
func (r *Replica) Age() (time.Duration, bool) {
	if r.leadsReady() {
		// Nobody else is elected within the lease. After it, as when this process was paused, a
		// majority may follow another leader.
		age := time.Since(r.confirmedAt())
		if age <= r.o.LeaderLeaseTimeout {
			age = 0
		}
		return age, true
	}
	c, p := r.peers.contact.Load(), r.fsm.progress()
	if c.commit > 0 && c.commit <= p.index {
		return time.Since(c.at), true
	}
	// What it lacks was stamped after what it has applied.
	return time.Duration(max(0, r.Clock()-p.clock)) * time.Millisecond, p.clock > 0
}

// confirmedAt returns when this node, which leads, sent the newest request by which a majority of
// the voters has accepted it as the leader.
func (r *Replica) confirmedAt() time.Time {
	var at []time.Time // of the others
	for _, s := range r.servers() {
		if s.Suffrage == hraft.Voter && s.ID != r.id {
			sent, _ := r.peers.accepted.Load(s.ID)
			t, _ := sent.(time.Time)
			at = append(at, t)
		}
	}
	if len(at) == 0 {
		return time.Now()
	}
	slices.SortFunc(at, func(a, b time.Time) int { return b.Compare(a) })
	return at[(len(at)+1)/2-1] // with this node's own
}

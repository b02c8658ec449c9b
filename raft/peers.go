package raft

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/raft/peer"
)

// Each second the members tell each other where they stand. Nothing that Raft
// decides rests on it; it is what /v1/cluster shows, who is promoted, whether
// logs agree, and by how much clocks differ.

const (
	rpcStatus    = "raft.status"
	askEvery     = time.Second
	askWithin    = time.Second
	reachableFor = 3 * time.Second
)

// peerStatus is what a member tells about itself.
type peerStatus struct {
	ID      hraft.ServerID   `json:"id"`
	Term    uint64           `json:"term"`
	Leads   bool             `json:"leads,omitempty"` // and has applied an entry of its own term
	Held    bool             `json:"held,omitempty"`  // takes no part in Raft yet
	Lacking bool             `json:"lacking,omitempty"`
	Full    bool             `json:"full,omitempty"` // its disk takes no produce
	Last    uint64           `json:"last"`
	Commit  uint64           `json:"commit"`
	Applied uint64           `json:"applied"`
	Head    uint64           `json:"head"`
	Chain   checkpoint.Chain `json:"chain"`
	Wall    int64            `json:"wall"`  // its wall clock, Unix ms
	Clock   int64            `json:"clock"` // the log's time there, Unix ms
	Rules   uint16           `json:"rules"` // the newest that its program knows
	Known   configuration    `json:"known"`
	Marks   []mark           `json:"marks,omitempty"` // its newest
}

// peerView is what this node knows of another member.
type peerView struct {
	Member
	Votes     bool
	Reachable bool      // has answered lately
	Seen      time.Time // when it last did; zero: never
	Status    peerStatus
	// Offset is its wall clock minus this node's, ms, as of Seen.
	Offset int64
	// Asked is what this node knew to be committed when it asked for Status:
	// under load the one is far ahead of the other by the time it is looked at.
	Asked uint64
}

// level tells whether the member has all but the newest of what was committed
// when it was asked, and takes part.
func (v *peerView) level() bool {
	s := &v.Status
	return v.Reachable && !s.Held && !s.Lacking && s.ID == v.serverID() && s.Applied+maxLag >= v.Asked
}

// table keeps the newest answer of each server.
type table struct {
	mu      sync.Mutex
	seen    map[hraft.ServerID]*seen
	changed chan struct{} // closed at the next answer
	round   chan struct{} // takes one: ask now
}

type seen struct {
	status peerStatus
	at     time.Time
	offset int64
	commit uint64 // here, when it was asked
	asking bool
}

func newTable() *table {
	return &table{seen: map[hraft.ServerID]*seen{}, changed: make(chan struct{}), round: make(chan struct{}, 1)}
}

func (t *table) watch() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// lastSeen is when a server last answered; zero: never.
func (t *table) lastSeen(id hraft.ServerID) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.seen[id]; s != nil {
		return s.at
	}
	return time.Time{}
}

// peers returns what is known of each other member, in the configuration's order.
func (r *Replica) remotes() []peerView {
	servers := r.servers()
	now := time.Now()
	r.peers.table.mu.Lock()
	defer r.peers.table.mu.Unlock()
	var out []peerView
	for _, s := range servers {
		if s.ID == r.id {
			continue
		}
		v := peerView{Member: memberOf(s.ID, s.Address), Votes: s.Suffrage == hraft.Voter}
		if e := r.peers.table.seen[s.ID]; e != nil && !e.at.IsZero() {
			v.Seen, v.Status, v.Offset, v.Asked = e.at, e.status, e.offset, e.commit
			v.Reachable = now.Sub(e.at) < reachableFor
		}
		out = append(out, v)
	}
	return out
}

// askPeers asks all members now, rather than within a second.
func (r *Replica) askPeers() {
	select {
	case r.peers.table.round <- struct{}{}:
	default:
	}
}

// watchPeers asks the others, and does what follows from their answers.
func (r *Replica) watchPeers() {
	if r.o.Net == nil {
		return
	}
	t := time.NewTicker(askEvery)
	defer t.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		r.peers.table.keep(r.servers())
		for _, s := range r.servers() {
			if s.ID == r.id || r.expected(s.ID) || !r.peers.table.begin(s.ID) {
				continue
			}
			asking.Go(func() { r.askStatus(s) })
		}
		select {
		case <-t.C:
		case <-r.peers.table.round:
		case <-r.run.stop:
			return
		}
	}
}

// begin marks that a server is being asked; false: it is already.
func (t *table) begin(id hraft.ServerID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.seen[id]
	if s == nil {
		s = &seen{}
		t.seen[id] = s
	}
	if s.asking {
		return false
	}
	s.asking = true
	return true
}

// keep forgets servers that are none any more.
func (t *table) keep(servers []hraft.Server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.seen {
		if !s.asking && !slices.ContainsFunc(servers, func(s hraft.Server) bool { return s.ID == id }) {
			delete(t.seen, id)
		}
	}
}

func (r *Replica) askStatus(s hraft.Server) {
	var a peerStatus
	ctx, cancel := r.within(askWithin)
	defer cancel()
	wall, began := r.o.Wall(), time.Now()
	own := r.ownStatus()
	err := r.call(ctx, memberOf(s.ID, s.Address).target(), rpcStatus, own, &a)
	now := time.Now()
	rtt := now.Sub(began)
	r.peers.table.mu.Lock()
	e := r.peers.table.seen[s.ID]
	if e == nil {
		e = &seen{}
		r.peers.table.seen[s.ID] = e
	}
	e.asking = false
	if err == nil {
		e.status, e.at, e.commit = a, now, own.Commit
		// Its clock was read about halfway.
		e.offset = a.Wall - wall.Add(rtt/2).UnixMilli()
		close(r.peers.table.changed)
		r.peers.table.changed = make(chan struct{})
	}
	r.peers.table.mu.Unlock()
	if err == nil {
		r.consistency.agreement.signal()
		r.heardOf(a)
	}
}

// tellStatus answers another member, and hears where it stands.
func (r *Replica) tellStatus(_ context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var theirs peerStatus
	if err := json.Unmarshal(body, &theirs); err != nil {
		return nil, err
	}
	r.heardOf(theirs)
	return json.Marshal(r.ownStatus())
}

func (r *Replica) ownStatus() peerStatus {
	p := r.fsm.progress()
	_, lacking := r.lacking.now()
	return peerStatus{
		ID: r.id, Term: r.raft.CurrentTerm(), Leads: r.leadsReady(), Held: !r.vouched(), Lacking: lacking, Full: r.full(),
		Last: r.raft.LastIndex(), Commit: r.raft.CommitIndex(), Applied: p.index, Head: p.head, Chain: p.chain,
		Wall: r.o.Wall().UnixMilli(), Clock: r.clock.now(), Rules: r.o.Rules, Known: r.known(), Marks: r.consistency.agreement.tell(),
	}
}

// heardOf looks for what shows that this directory is out of its cluster.
func (r *Replica) heardOf(s peerStatus) {
	r.rollback.evidence.toldCommit(s.ID, max(s.Commit, s.Applied))
	if !r.vouched() {
		return
	}
	r.compareLogs(s)
	if why := r.replaced(s.Known); why != "" {
		r.out(WentBack, why)
		return
	}
	if _, in := s.Known.find(r.id); !in && s.Leads && r.membership.joined.Load() && s.Known.Index >= r.known().Index {
		r.out(Removed, fmt.Sprintf("the configuration of entry %d, told by its leader %s, has this node no more", s.Known.Index, s.ID))
		return
	}
	// A sole voter has every entry that was ever committed. One that hears of
	// a later configuration in which it is not alone was put back from a time
	// when it was: nobody vouched for it, since nobody is in its configuration.
	if others, _ := s.Known.jury(r.id); len(others) > 0 && s.Known.Index > r.raft.LastIndex() && r.alone() {
		r.out(WentBack, fmt.Sprintf("%s knows the configuration of entry %d, and this node's Raft log ends at %d", s.ID, s.Known.Index, r.raft.LastIndex()))
	}
}

// replaced says how a configuration shows that another directory of this node
// has taken the place of this one, which is an old copy then: a server id never
// comes back. "" if it does not. It may be the only thing that does: its promises
// are forgotten with the server, and the members that it knows may all have been
// replaced since.
func (r *Replica) replaced(c configuration) string {
	if _, in := c.find(r.id); in || !r.membership.joined.Load() || c.Index <= r.known().Index {
		return ""
	}
	for _, s := range c.Servers {
		if m := memberOf(s.ID, s.Address); m.ID == r.o.NodeID && !isExpected(s) {
			return fmt.Sprintf("in the configuration of entry %d another data directory is node %s, incarnation %s", c.Index, m.ID, m.Incarnation)
		}
	}
	return ""
}

// leaderTarget returns the node that leads, as far as is known, where it is
// another one.
func (r *Replica) leaderTarget() (peer.Target, bool) {
	m, ok := r.otherLeader()
	return m.target(), ok
}

// otherLeader returns the leader where that is another node.
func (r *Replica) otherLeader() (Member, bool) {
	addr, id := r.raft.LeaderWithID()
	if id == "" || id == r.id {
		return Member{}, false
	}
	for _, s := range r.servers() {
		if s.ID == id {
			addr = s.Address // the newest: a leader may have moved
		}
	}
	return memberOf(id, addr), true
}

// LeaderHTTP returns the HTTP address of the leader where that is another node, as
// the members know it; "" where this node leads, or none is known.
func (r *Replica) LeaderHTTP() string {
	addr, _ := r.peers.leaderAddr.Load().(string)
	return addr
}

// leadsReady tells whether this node leads and has applied an entry of its term.
func (r *Replica) leadsReady() bool {
	l := r.b.leading()
	return l.ready()
}

// leadsIn tells whether this node is the leader of a term.
func (r *Replica) leadsIn(term uint64) bool {
	return r.raft.State() == hraft.Leader && r.raft.CurrentTerm() == term
}

// leadsOn waits, and tells whether there is still a reason to go on with a
// server: this node leads in that term, and the server is a member, and where
// it was.
func (r *Replica) leadsOn(id hraft.ServerID, addr hraft.ServerAddress, term uint64, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		if !r.leadsIn(term) || !r.at(id, addr) || r.yields() {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-look.C:
		case <-r.run.stop:
			return false
		case <-r.run.failed:
			return false
		}
	}
}

// awaitPeer waits until a server answers again that did not, and tells whether
// there is still a reason to go on with it.
func (r *Replica) awaitPeer(id hraft.ServerID, addr hraft.ServerAddress, term uint64) bool {
	// It may be there and refuse, while it starts: not at once again.
	if !r.leadsOn(id, addr, term, 50*time.Millisecond) {
		return false
	}
	since := time.Now()
	r.askPeers()
	for {
		changed := r.peers.table.watch()
		if r.peers.table.lastSeen(id).After(since) {
			return r.leadsIn(term) && r.at(id, addr)
		}
		look := time.NewTimer(50 * time.Millisecond)
		select {
		case <-changed:
		case <-look.C:
		case <-r.run.stop:
			look.Stop()
			return false
		case <-r.run.failed:
			look.Stop()
			return false
		}
		look.Stop()
		if !r.leadsIn(term) || !r.at(id, addr) || r.yields() {
			return false
		}
	}
}

func (r *Replica) member(id hraft.ServerID) bool {
	return slices.ContainsFunc(r.servers(), func(s hraft.Server) bool { return s.ID == id })
}

// at tells whether a server is a member, at that address.
func (r *Replica) at(id hraft.ServerID, addr hraft.ServerAddress) bool {
	return slices.ContainsFunc(r.servers(), func(s hraft.Server) bool { return s.ID == id && s.Address == addr })
}

// expected tells whether a server is announced and has not come yet: nobody
// knows its incarnation. A voter without one is older than incarnations.
func (r *Replica) expected(id hraft.ServerID) bool {
	for _, s := range r.servers() {
		if s.ID == id {
			return isExpected(s)
		}
	}
	return false
}

func isExpected(s hraft.Server) bool {
	return s.Suffrage != hraft.Voter && memberOf(s.ID, s.Address).Incarnation == ""
}

// call asks another node in JSON.
func (r *Replica) call(ctx context.Context, to peer.Target, name string, ask, answer any) error {
	b, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	if b, _, err = r.o.Net.Call(ctx, to, name, b); err != nil {
		return err
	}
	return json.Unmarshal(b, answer)
}

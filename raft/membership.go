package raft

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

// MemberStatus is a member as this node sees it.
type MemberStatus struct {
	Member
	Votes        bool // is a voter of the configuration; else it may be on its way
	Leader       bool
	Reachable    bool      // has answered lately
	Seen         time.Time // of its last answer; zero: never
	AppliedIndex uint64
	LogHead      uint64 // index of the event log's newest block
	Chain        [32]byte
}

// Out is why a data directory is no member of its cluster any more.
type Out int

const (
	// Removed: the configuration no longer has this node.
	Removed Out = iota + 1
	// WentBack: others have seen more from this directory than it holds. It was
	// put back from an old copy, or has lost what it had promised, and must come
	// back as another server.
	WentBack
)

func (o Out) String() string {
	switch o {
	case Removed:
		return "removed"
	case WentBack:
		return "went back"
	}
	return "member"
}

// CodeNodeNotFound is for a member that is none.
const CodeNodeNotFound = "node_not_found"

func conflict(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeConflict, field, format, args...)
}

// Members returns the members of the newest configuration, as far as this node
// knows them. It asks nobody.
func (r *Replica) Members() []MemberStatus {
	views := map[hraft.ServerID]peerView{}
	for _, v := range r.remotes() {
		views[v.serverID()] = v
	}
	_, leader := r.raft.LeaderWithID()
	var out []MemberStatus
	for _, s := range r.servers() {
		m := MemberStatus{Member: memberOf(s.ID, s.Address), Votes: s.Suffrage == hraft.Voter, Leader: s.ID == leader}
		if s.ID == r.id {
			p := r.fsm.progress()
			m.Reachable, m.AppliedIndex, m.LogHead, m.Chain = true, p.index, p.head, p.chain
			m.Seen = time.Now()
		} else if v := views[s.ID]; !v.Seen.IsZero() {
			m.Reachable, m.AppliedIndex, m.LogHead, m.Chain = v.Reachable, v.Status.Applied, v.Status.Head, v.Status.Chain
			m.Seen = v.Seen
		}
		out = append(out, m)
	}
	return out
}

// RefreshMembers asks the other members that have not answered for a moment, and returns
// when each has, or ctx ends.
func (r *Replica) RefreshMembers(ctx context.Context) {
	const recent = 200 * time.Millisecond
	began := time.Now()
	for {
		changed := r.peers.table.watch()
		old := func(s hraft.Server) bool { return s.ID != r.id && began.Sub(r.peers.table.lastSeen(s.ID)) > recent }
		if !slices.ContainsFunc(r.servers(), old) {
			return
		}
		r.askPeers()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

const rpcAdmin = "raft.admin"

// adminAsk is a change that a node asks of another: of the leader, but for a
// snapshot.
type adminAsk struct {
	Do     string `json:"do"` // add, remove, transfer, address, snapshot
	Member Member `json:"member"`
	ID     string `json:"id,omitempty"` // of whom to remove, or to make the leader
	Force  bool   `json:"force,omitempty"`
}

type adminAnswer struct {
	Problem *event.Problem `json:"problem,omitempty"`
	// Elsewhere: not this node is the leader.
	Elsewhere bool   `json:"elsewhere,omitempty"`
	Index     uint64 `json:"index,omitempty"`
}

// AddMember takes a node into the cluster: as one that does not vote, which the
// leader promotes when it has caught up, if it is to vote. A node that does not
// answer yet is announced, and taken in when it comes. Errors are an
// *event.Problem.
func (r *Replica) AddMember(ctx context.Context, m Member) error {
	if p := m.check(); p != nil {
		return p
	}
	return r.ask(ctx, adminAsk{Do: "add", Member: m})
}

// RemoveMember takes a node out; without force not one whose going would leave
// the voters without a majority that can be reached, never the last voter.
func (r *Replica) RemoveMember(ctx context.Context, id string, force bool) error {
	return r.ask(ctx, adminAsk{Do: "remove", ID: id, Force: force})
}

// TransferLeadership hands leadership over, to the voter named or, for "", to
// the one that is furthest.
func (r *Replica) TransferLeadership(ctx context.Context, to string) error {
	return r.ask(ctx, adminAsk{Do: "transfer", ID: to})
}

// SnapshotAll lets each node that can be reached write a checkpoint, and
// returns up to which index each then has one.
func (r *Replica) SnapshotAll(ctx context.Context) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, m := range r.Members() {
		if m.serverID() == r.id {
			index, err := r.snapshotNow()
			if err != nil {
				return out, problem(CodeNoLeader, fmt.Sprintf("node %s wrote no checkpoint: %v", m.ID, err), false, 1000)
			}
			out[m.ID] = index
		} else if m.Reachable {
			var a adminAnswer
			if err := r.call(ctx, m.target(), rpcAdmin, adminAsk{Do: "snapshot"}, &a); err != nil {
				// It has gone meanwhile: what is left out says so.
				r.o.Logger.Warn("a node wrote no checkpoint", "node", m.ID, "error", err)
			} else if a.Problem != nil {
				return out, a.Problem
			} else {
				out[m.ID] = a.Index
			}
		}
	}
	return out, nil
}

func (r *Replica) snapshotNow() (uint64, error) {
	if err := r.Snapshot(); err != nil {
		return 0, err
	}
	newest, _ := r.stores.snaps.newest()
	return newest.Index, nil
}

// check refuses what no configuration could hold.
func (m Member) check() *event.Problem {
	if !event.ValidNode(m.ID) {
		return event.Problemf(event.CodeInvalidArgument, "id", "%.64q is no node id: %s", m.ID, event.NodeNames)
	}
	for field, addr := range map[string]string{"raft_addr": m.RaftAddr, "http_addr": m.HTTPAddr} {
		if addr == "" && field == "http_addr" {
			continue
		}
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" || strings.ContainsAny(addr, " ?/\n") {
			return event.Problemf(event.CodeInvalidArgument, field, "%.64q is no address: host:port is wanted", addr)
		}
	}
	return nil
}

// ask carries a change out, here or at the leader, whoever that is by then.
func (r *Replica) ask(ctx context.Context, q adminAsk) error {
	for {
		a, err := r.askOnce(ctx, q)
		if err != nil {
			return err
		}
		if a.Problem != nil {
			return a.Problem
		}
		if !a.Elsewhere {
			return nil
		}
		// Leadership has moved meanwhile; nothing was done.
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return problem(CodeNoLeader, "the request ended before a leader was found", false, 1000)
		case <-r.run.stop:
			return shuttingDown()
		}
	}
}

func (r *Replica) askOnce(ctx context.Context, q adminAsk) (adminAnswer, error) {
	to, here, err := r.findLeader(ctx)
	if err != nil {
		return adminAnswer{}, err
	}
	if here {
		return r.administer(ctx, q), nil
	}
	var a adminAnswer
	if err := r.call(ctx, to, rpcAdmin, q, &a); err != nil {
		return a, problem(CodeNoLeader, fmt.Sprintf("the leader %s did not answer: %v", to.Node, err), !peer.NotSent(err), 1000)
	}
	return a, nil
}

// findLeader waits until a leader is known.
func (r *Replica) findLeader(ctx context.Context) (to peer.Target, here bool, err error) {
	late := time.NewTimer(r.o.LeaderWait)
	defer late.Stop()
	for {
		if r.leadsReady() {
			return to, true, nil
		}
		if to, ok := r.leaderTarget(); ok {
			return to, false, nil
		}
		// A node that the leader does not reach, since it has moved, may know it
		// all the same.
		if to, ok := r.saysItLeads(); ok {
			return to, false, nil
		}
		look := time.NewTimer(20 * time.Millisecond)
		select {
		case <-look.C:
			continue
		case <-late.C:
			err = problem(CodeNoLeader, "no leader is known; nothing was changed", false, 1000)
		case <-ctx.Done():
			err = problem(CodeNoLeader, "the request ended before a leader was known; nothing was changed", false, 1000)
		case <-r.run.stop:
			err = shuttingDown()
		}
		look.Stop()
		return to, false, err
	}
}

// saysItLeads returns the member that has said so lately, of the newest term.
func (r *Replica) saysItLeads() (to peer.Target, ok bool) {
	var term uint64
	for _, v := range r.remotes() {
		if v.Reachable && v.Status.Leads && v.Status.Term > term {
			to, ok, term = v.target(), true, v.Status.Term
		}
	}
	return to, ok
}

// answerAdmin is raft.admin.
func (r *Replica) answerAdmin(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var q adminAsk
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	// A node tells of its own addresses only.
	if q.Do == "address" && (q.Member.ID != from.Node || q.Member.Incarnation != "" && q.Member.Incarnation != from.Incarnation) {
		return nil, fmt.Errorf("node %s tells the addresses of %s", from.Node, q.Member.ID)
	}
	return json.Marshal(r.administer(ctx, q))
}

// administer carries a change out, at the leader.
func (r *Replica) administer(ctx context.Context, q adminAsk) adminAnswer {
	if q.Do == "snapshot" {
		index, err := r.snapshotNow()
		if err != nil {
			return adminAnswer{Problem: problem(CodeNoLeader, fmt.Sprintf("node %s wrote no checkpoint: %v", r.o.NodeID, err), false, 1000)}
		}
		return adminAnswer{Index: index}
	}
	if !r.leadsReady() {
		return adminAnswer{Elsewhere: true}
	}
	// One at a time: each looks at the configuration first.
	select {
	case r.membership.changing <- struct{}{}:
		defer func() { <-r.membership.changing }()
	case <-ctx.Done():
		return adminAnswer{Problem: problem(CodeNoLeader, "the request ended while another change was under way", false, 1000)}
	case <-r.run.stop:
		return adminAnswer{Problem: shuttingDown()}
	}
	var err error
	switch q.Do {
	case "add":
		err = r.add(ctx, q.Member)
	case "remove":
		err = r.remove(ctx, q.ID, q.Force)
	case "transfer":
		err = r.transfer(q.ID)
	case "address":
		err = r.readdress(q.Member)
	default:
		err = event.Problemf(event.CodeInvalidArgument, "do", "%.64q is not known here", q.Do)
	}
	return adminAnswerOf(err)
}

// lastVoter tells whether nobody but the node has a vote.
func lastVoter(servers []hraft.Server, id string) bool {
	return !slices.ContainsFunc(servers, func(s hraft.Server) bool {
		return s.Suffrage == hraft.Voter && memberOf(s.ID, s.Address).ID != id
	})
}

// errElsewhere is why a leader did not carry something out: it is none any more.
var errElsewhere = errors.New("leadership has moved")

func adminAnswerOf(err error) adminAnswer {
	var p *event.Problem
	switch {
	case err == nil:
		return adminAnswer{}
	case errors.As(err, &p):
		return adminAnswer{Problem: p}
	case errors.Is(err, errElsewhere), errors.Is(err, hraft.ErrNotLeader):
		return adminAnswer{Elsewhere: true}
	case errors.Is(err, hraft.ErrLeadershipTransferInProgress):
		return adminAnswer{Elsewhere: true}
	case errors.Is(err, hraft.ErrLeadershipLost), errors.Is(err, hraft.ErrRaftShutdown):
		return adminAnswer{Problem: problem(CodeNoLeader, "leadership was lost while the configuration was changed; whether it comes is unknown", true, 1000)}
	}
	return adminAnswer{Problem: conflict("", "%v", err)}
}

func (r *Replica) serversOf(id string) (out []hraft.Server) {
	for _, s := range r.servers() {
		if memberOf(s.ID, s.Address).ID == id {
			out = append(out, s)
		}
	}
	return out
}

// add is AddMember at the leader.
func (r *Replica) add(ctx context.Context, m Member) error {
	if p := m.check(); p != nil {
		return p
	}
	if r.o.Net == nil {
		return conflict("", "this node has no port for others")
	}
	if m.ID == r.o.NodeID && m.RaftAddr == r.o.self().RaftAddr {
		if m.Voter {
			return nil // it is this one, and it leads
		}
		return r.demoteSelf(ctx)
	}
	hello, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	who, err := r.o.Net.Hello(hello, m.RaftAddr)
	m.Incarnation = ""
	if err == nil {
		switch {
		case who.Node != m.ID:
			return conflict("id", "at %s answers node %q, not %q", m.RaftAddr, who.Node, m.ID)
		case who.Cluster != "" && who.Cluster != r.o.ClusterID:
			return conflict("raft_addr", "node %s at %s belongs to another cluster (%s): start it with an empty data directory and --join", who.Node, m.RaftAddr, who.Cluster)
		}
		if m.HTTPAddr != "" && who.HTTP != "" && m.HTTPAddr != who.HTTP {
			return conflict("http_addr", "node %s tells that clients reach it at %s, not at %s", m.ID, who.HTTP, m.HTTPAddr)
		}
		m.HTTPAddr = cmp.Or(m.HTTPAddr, who.HTTP)
		m.Incarnation = who.Incarnation
	}
	if !m.Voter {
		if err := r.without(ctx, m.ID); err != nil {
			return err
		}
	}
	return r.admit(m, true)
}

// demoteSelf takes the leader's own vote: whoever leads next carries it out.
func (r *Replica) demoteSelf(ctx context.Context) error {
	if err := r.without(ctx, r.o.NodeID); err != nil {
		return err
	}
	if err := r.transfer(""); err != nil {
		return err
	}
	return errElsewhere
}

// reachTime is how long a voter may take to say that it is there.
const reachTime = 500 * time.Millisecond

// without refuses what would leave the voters, where the node's vote goes,
// without a majority that can be reached. They are asked now: what was known of
// one may be older than its death.
func (r *Replica) without(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	left, reached, votes := 0, 0, false
	for _, s := range r.servers() {
		m := memberOf(s.ID, s.Address)
		switch {
		case s.Suffrage != hraft.Voter:
		case m.ID == id:
			votes = true
		case s.ID == r.id:
			left++
			mu.Lock()
			reached++
			mu.Unlock()
		default:
			left++
			wg.Go(func() {
				who, err := r.o.Net.Hello(ctx, m.RaftAddr)
				if err == nil && who.Node == m.ID && (m.Incarnation == "" || who.Incarnation == m.Incarnation) {
					mu.Lock()
					reached++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	switch {
	case !votes:
		return nil
	case left == 0:
		return conflict("id", "node %s is the last voter", id)
	case reached < left/2+1:
		return conflict("id", "without node %s only %d of %d voters can be reached, which is no majority; force it only if you know better", id, reached, left)
	}
	return nil
}

// admit puts a node into the configuration that is at m's address, in m's
// incarnation; "" announces one. asked: by an operator, whose wish to let it
// vote counts; else what is known of the node does.
func (r *Replica) admit(m Member, asked bool) error {
	var old []Member
	for _, s := range r.servers() {
		is := memberOf(s.ID, s.Address)
		known := m.Incarnation != "" && is.Incarnation == m.Incarnation // it may have moved
		switch {
		case is.ID == m.ID && is.RaftAddr != m.RaftAddr && !known:
			return conflict("id", "node %s is a member already, at %s; remove it first: qlogd cluster remove %s", m.ID, is.RaftAddr, m.ID)
		case is.ID != m.ID && is.RaftAddr == m.RaftAddr:
			return conflict("raft_addr", "%s is the address of node %s", m.RaftAddr, is.ID)
		case is.ID != m.ID:
			continue
		case known && is.RaftAddr != m.RaftAddr && r.twin(is, m.RaftAddr):
			return twinConflict(is)
		}
		if !asked {
			m.Voter = is.Voter
		}
		if is.Incarnation == m.Incarnation || m.Incarnation == "" {
			m.Incarnation = is.Incarnation // what is known stays known
			return r.readmit(s, m)
		}
		old = append(old, is)
	}
	// The old directory is not where it was: m is. Nobody can be it any more,
	// so it goes, with its vote, before the new one comes.
	for _, is := range old {
		if is.Incarnation != "" {
			r.o.Logger.Warn("a node has come with a new data directory; the old one is no member any more", "node", m.ID, "old", is.Incarnation, "new", m.Incarnation)
		}
		if err := r.raft.RemoveServer(is.serverID(), 0, 0).Error(); err != nil {
			return err
		}
	}
	r.o.Logger.Info("taking a node in", "node", m.ID, "incarnation", m.Incarnation, "raft_addr", m.RaftAddr, "voter", m.Voter)
	return r.raft.AddNonvoter(m.serverID(), m.serverAddress(), 0, 0).Error()
}

// readmit changes what the configuration says of a member: addresses, and
// whether it is to vote.
func (r *Replica) readmit(s hraft.Server, m Member) error {
	if s.Suffrage == hraft.Voter && !m.Voter {
		if s.ID == r.id { // add sees to it that another one leads
			return conflict("voter", "node %s leads; transfer leadership first", m.ID)
		}
		if err := r.raft.DemoteVoter(s.ID, 0, 0).Error(); err != nil {
			return err
		}
		s.Suffrage = hraft.Nonvoter
	}
	addr := m.serverAddress()
	if addr == s.Address {
		return nil
	}
	if s.Suffrage == hraft.Voter {
		return r.raft.AddVoter(s.ID, addr, 0, 0).Error()
	}
	return r.raft.AddNonvoter(s.ID, addr, 0, 0).Error()
}

// fieldTwin is of the conflict that ends a node: another process is it.
const fieldTwin = "incarnation"

func twinConflict(m Member) *event.Problem {
	return conflict(fieldTwin, "node %s runs already, at %s, on the same data directory or a copy of it", m.ID, m.RaftAddr)
}

// twin tells whether a member that says to be elsewhere is still where the
// configuration has it: another process on the same directory, or on a copy. The
// same one may be reached by its old address too, but tells the new one.
func (r *Replica) twin(m Member, now string) bool {
	ctx, cancel := r.within(2 * reachTime)
	defer cancel()
	who, err := r.o.Net.Hello(ctx, m.RaftAddr)
	return err == nil && who.Node == m.ID && who.Incarnation == m.Incarnation && who.Raft != now
}

// readdress takes a member's own word on its addresses.
func (r *Replica) readdress(m Member) error {
	for _, s := range r.servers() {
		is := memberOf(s.ID, s.Address)
		if is.ID != m.ID && is.RaftAddr == m.RaftAddr {
			return conflict("raft_addr", "%s is the address of node %s", m.RaftAddr, is.ID)
		}
	}
	for _, s := range r.servers() {
		is := memberOf(s.ID, s.Address)
		if is.ID == m.ID && is.Incarnation == m.Incarnation {
			if is.RaftAddr != m.RaftAddr && r.twin(is, m.RaftAddr) {
				return twinConflict(is)
			}
			is.RaftAddr, is.HTTPAddr = m.RaftAddr, m.HTTPAddr
			return r.readmit(s, is)
		}
	}
	return event.Problemf(CodeNodeNotFound, "id", "node %s is no member", m.ID)
}

// remove is RemoveMember at the leader.
func (r *Replica) remove(ctx context.Context, id string, force bool) error {
	gone := r.serversOf(id)
	if len(gone) == 0 {
		return event.Problemf(CodeNodeNotFound, "id", "node %s is no member", id)
	}
	self := slices.ContainsFunc(gone, func(g hraft.Server) bool { return g.ID == r.id })
	if r.o.Net == nil {
		return conflict("id", "node %s is the last voter", id)
	}
	if err := r.without(ctx, id); err != nil && (!force || lastVoter(r.servers(), id)) {
		return err
	}
	if self {
		// The new leader carries it out: ask goes there.
		if err := r.transfer(""); err != nil {
			return err
		}
		return errElsewhere
	}
	for _, s := range gone {
		if err := r.raft.RemoveServer(s.ID, 0, 0).Error(); err != nil {
			return err
		}
	}
	return nil
}

// transferSticks is how long a transfer may leave hashicorp/raft refusing
// everything (#696) before this replica ends: another one then leads.
const transferSticks = 10 * time.Second

// transfer hands leadership over.
func (r *Replica) transfer(to string) error {
	var pick *peerView
	for _, v := range r.remotes() {
		if to != "" && v.ID != to {
			continue
		}
		fits := v.Votes && v.Reachable && !v.Status.Held
		if to != "" && !fits {
			switch {
			case !v.Votes:
				return conflict("to", "node %s is no voter", to)
			default:
				return conflict("to", "node %s cannot be reached", to)
			}
		}
		if fits && (pick == nil || v.Status.Last > pick.Status.Last) {
			pick = &v
		}
	}
	switch {
	case to == r.o.NodeID:
		return nil // it leads
	case pick == nil && to != "":
		return event.Problemf(CodeNodeNotFound, "to", "node %s is no member", to)
	case pick == nil:
		return conflict("", "there is no other voter that can be reached")
	}
	ctx, cancel := r.within(transferSticks)
	defer cancel()
	err := r.handOver(ctx, *pick)
	if err == nil {
		return nil
	}
	r.run.wg.Go(r.unstick)
	return problem(CodeNoLeader, fmt.Sprintf("leadership was not handed over: %v", err), true, 1000)
}

// unstick watches, after a transfer that failed, that hashicorp/raft accepts entries
// again: its transfer may never end, and it refuses every entry meanwhile.
func (r *Replica) unstick() {
	began := r.b.probe()
	ctx, cancel := context.WithTimeout(r.run.ctx, transferSticks)
	defer cancel()
	accepts := func() bool { return !r.b.lead.leader || r.b.lead.took.After(began) }
	if !r.b.until(ctx, accepts) && r.run.ctx.Err() == nil {
		r.fatal(fmt.Errorf("leadership transfer has not ended for %v and blocks all writes", transferSticks))
	}
}

// promote lets vote who is to, and has caught up. It takes two of its statuses:
// whoever is only just up to date is not ready yet.
func (r *Replica) promote(ready map[hraft.ServerID]time.Time) {
	for _, v := range r.remotes() {
		if !v.Voter || v.Votes || !v.level() || v.Status.Applied == 0 {
			delete(ready, v.serverID())
			continue
		}
		if first, ok := ready[v.serverID()]; !ok || v.Seen.Equal(first) {
			ready[v.serverID()] = v.Seen
			continue
		}
		delete(ready, v.serverID())
		select {
		case r.membership.changing <- struct{}{}:
		default:
			continue // next time
		}
		r.o.Logger.Info("a node has caught up and votes from now on", "node", v.ID, "incarnation", v.Incarnation)
		err := r.raft.AddVoter(v.serverID(), v.serverAddress(), 0, time.Second).Error()
		<-r.membership.changing
		if err != nil {
			r.o.Logger.Warn("a node could not be promoted", "node", v.ID, "error", err)
		}
	}
}

const rpcJoin = "raft.join"

type joinAsk struct {
	Member Member `json:"member"`
}

type joinAnswer struct {
	In      bool           `json:"in,omitempty"`
	Leader  string         `json:"leader,omitempty"` // raft address of whom to ask instead
	Problem *event.Problem `json:"problem,omitempty"`
	// Healing: the refusal may pass by itself.
	Healing bool `json:"healing,omitempty"`
}

// tend does what is due now and then beside Raft.
func (r *Replica) tend() {
	if r.o.Net == nil {
		return
	}
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	ready := map[hraft.ServerID]time.Time{}
	var told throttle
	for {
		if r.member(r.id) && r.vouched() {
			if r.admitted() {
				r.membership.join.Store(nil)
				r.noteJoined()
			}
			keep := map[hraft.ServerID]bool{}
			for _, s := range r.servers() {
				keep[s.ID] = true
			}
			r.rollback.evidence.forget(keep)
			if r.leadsReady() {
				r.promote(ready)
				r.makeRoom()
			} else {
				clear(ready)
				r.correctAddress()
			}
		}
		// Also where the newest configuration has it, as long as that is not known
		// to be committed: the leader that took it in may have failed.
		if !r.admitted() && !r.membership.joined.Load() && r.rollback.outed.Load() == 0 {
			why, heals := r.askToJoin()
			r.membership.join.Store(&why)
			if why != "" && told.due(time.Now()) {
				if heals {
					r.o.Logger.Info("this node is not in the cluster yet", "why", why)
				} else {
					r.o.Logger.Error("the cluster does not take this node in", "why", why)
				}
			}
		}
		select {
		case <-t.C:
		case <-r.run.stop:
			return
		}
	}
}

const keyJoined = "Joined"

// noteJoined remembers that the configuration has had this server: one that is
// in none after that was removed, and does not ask to come back.
func (r *Replica) noteJoined() {
	if r.membership.told.CompareAndSwap(false, true) {
		r.o.OnJoined()
	}
	if r.membership.joined.Load() {
		return
	}
	if err := r.stores.votes.remember(keyJoined, []byte(r.id)); err != nil {
		r.fatal(err)
		return
	}
	r.membership.joined.Store(true)
}

// admitted tells whether a configuration that is known to be committed has this
// server.
func (r *Replica) admitted() bool {
	r.conf.mu.Lock()
	defer r.conf.mu.Unlock()
	_, in := r.conf.newest.find(r.id)
	return in
}

// hasJoined reads it. The first configuration needs no commit: it was decided
// when the cluster was formed.
func (r *Replica) hasJoined() (bool, error) {
	first := r.o.first()
	if _, in := first.find(r.id); in || r.admitted() || r.o.Joined {
		return true, nil
	}
	return r.stores.votes.hasJoined(r.id)
}

func (v *votes) hasJoined(id hraft.ServerID) (bool, error) {
	b, err := v.get(keyJoined)
	if errors.Is(err, errNotFound) {
		return false, nil
	}
	return string(b) == string(id), err
}

// askToJoin asks whoever may know the leader, and returns why this node is not
// in; "" if it is.
func (r *Replica) askToJoin() (why string, heals bool) {
	var addrs []string
	addrs = append(addrs, r.o.Contacts...)
	for _, s := range r.servers() {
		addrs = append(addrs, memberOf(s.ID, s.Address).RaftAddr)
	}
	for _, s := range r.known().Servers {
		addrs = append(addrs, memberOf(s.ID, s.Address).RaftAddr)
	}
	self := r.o.self()
	why, heals = "no contact is known: start it with --join", false
	asked := map[string]bool{self.RaftAddr: true}
	for len(addrs) > 0 {
		addr := addrs[0]
		addrs = addrs[1:]
		if asked[addr] || addr == "" {
			continue
		}
		asked[addr] = true
		ctx, cancel := r.within(5 * time.Second)
		var a joinAnswer
		err := r.call(ctx, peer.Target{Addr: addr}, rpcJoin, joinAsk{self}, &a)
		cancel()
		switch {
		case err != nil:
			why, heals = fmt.Sprintf("%s did not answer: %v", addr, err), true
		case a.In:
			return "waiting for the leader's first entries", true
		case a.Problem != nil && a.Problem.Field == fieldTwin:
			// One of the two must not go on: they would vote twice.
			r.fatal(a.Problem)
			return a.Problem.Detail, false
		case a.Problem != nil:
			return a.Problem.Detail, a.Healing
		case a.Leader != "":
			addrs = append([]string{a.Leader}, addrs...)
			why, heals = "the leader at "+a.Leader+" did not answer", true
		default:
			why, heals = fmt.Sprintf("%s knows no leader", addr), true
		}
		if r.run.ctx.Err() != nil {
			return "shutting down", true
		}
	}
	return why, heals
}

// letJoin answers a node that asks to be taken in.
func (r *Replica) letJoin(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var ask joinAsk
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	if !r.leadsReady() {
		var a joinAnswer
		if to, ok := r.leaderTarget(); ok {
			a.Leader = to.Addr
		}
		return json.Marshal(a)
	}
	m := ask.Member
	m.ID, m.Incarnation = from.Node, from.Incarnation // what the handshake says
	heals, err := r.takeIn(ctx, m)
	a := joinAnswer{In: err == nil, Healing: heals}
	if err != nil {
		adm := adminAnswerOf(err)
		if a.Problem = adm.Problem; adm.Elsewhere {
			a.Problem = problem(CodeNoLeader, "leadership is moving", false, 1000)
			a.Healing = true
		}
	}
	return json.Marshal(a)
}

// takeIn takes in a node that asks for it.
func (r *Replica) takeIn(ctx context.Context, m Member) (heals bool, err error) {
	if p := m.check(); p != nil {
		return false, p
	}
	// Who asks must be where it says: the other one under its name, if it is
	// at that address, is then nowhere any more.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	who, err := r.o.Net.Hello(ctx, m.RaftAddr)
	if err != nil {
		return true, conflict("raft_addr", "the leader does not reach %s: %v", m.RaftAddr, err)
	}
	if who.Node != m.ID || who.Incarnation != m.Incarnation {
		return true, conflict("raft_addr", "at %s is node %s with another data directory", m.RaftAddr, who.Node)
	}
	select {
	case r.membership.changing <- struct{}{}:
		defer func() { <-r.membership.changing }()
	case <-ctx.Done():
		return true, problem(CodeNoLeader, "another change is under way", false, 1000)
	}
	m.Voter = true // unless it was announced as one that does not
	err = r.admit(m, false)
	var p *event.Problem
	return !errors.As(err, &p), err
}

// Member is one node as the cluster's configuration names it.
//
// Its incarnation is part of Raft's server id: a data directory that was wiped,
// or put back from an old copy, is another server, which has no vote. What else
// must be known of a member on every node is part of Raft's server address,
// which is replicated and opaque to hashicorp/raft.
type Member struct {
	ID          string
	Incarnation string // "" only of clusters of one that are older than incarnations
	RaftAddr    string // host:port
	HTTPAddr    string // host:port; "" unknown
	// Voter tells whether it is to vote; whether it does already is the
	// configuration's to say.
	Voter bool
}

func (m Member) serverID() hraft.ServerID { return serverID(m.ID, m.Incarnation) }

// voter is the member as a voter of a configuration.
func (m Member) voter() hraft.Server {
	return hraft.Server{Suffrage: hraft.Voter, ID: m.serverID(), Address: m.serverAddress()}
}

// Server is what the member is called in the configuration: its id and its
// incarnation.
func (m Member) Server() string { return string(m.serverID()) }

func serverID(node, incarnation string) hraft.ServerID {
	if incarnation == "" {
		return hraft.ServerID(node)
	}
	return hraft.ServerID(node + "/" + incarnation)
}

func (m Member) serverAddress() hraft.ServerAddress {
	q := url.Values{}
	if m.HTTPAddr != "" {
		q.Set("http", m.HTTPAddr)
	}
	if !m.Voter {
		q.Set("voter", "false")
	}
	if len(q) == 0 {
		return hraft.ServerAddress(m.RaftAddr)
	}
	return hraft.ServerAddress(m.RaftAddr + "?" + q.Encode())
}

// memberOf is the inverse of serverID and serverAddress.
func memberOf(id hraft.ServerID, addr hraft.ServerAddress) Member {
	m := Member{Voter: true}
	m.ID, m.Incarnation, _ = strings.Cut(string(id), "/")
	var query string
	m.RaftAddr, query, _ = strings.Cut(string(addr), "?")
	if q, err := url.ParseQuery(query); err == nil {
		m.HTTPAddr, m.Voter = q.Get("http"), q.Get("voter") != "false"
	}
	return m
}

// configuration is one of the cluster's, as its nodes tell it to each other.
type configuration struct {
	Index   uint64         `json:"index"` // of its entry; 0: none is known
	Servers []hraft.Server `json:"servers"`
}

func (c configuration) find(id hraft.ServerID) (hraft.Server, bool) {
	for _, s := range c.Servers {
		if s.ID == id {
			return s, true
		}
	}
	return hraft.Server{}, false
}

// jury returns the voters but for one server, and how many of them make up a
// majority together with it, whether it votes already or not.
func (c configuration) jury(but hraft.ServerID) (others []Member, need int) {
	for _, s := range c.Servers {
		if s.Suffrage == hraft.Voter && s.ID != but {
			others = append(others, memberOf(s.ID, s.Address))
		}
	}
	return others, (len(others) + 1) / 2
}

func (m Member) target() peer.Target {
	return peer.Target{Addr: m.RaftAddr, Node: m.ID, Incarnation: m.Incarnation}
}

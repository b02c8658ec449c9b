package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

func conflict(field, format string, args ...any) *event.Problem {
	return event.Problemf(event.CodeConflict, field, format, args...)
}

func noMember(field, id string) *event.Problem {
	return event.Problemf(event.CodeNodeNotFound, field, "node %s is no member", id)
}

const (
	rpcAdmin = "raft.admin"
	rpcJoin  = "raft.join" // an adminRequest of a node that need not be a member
)

// adminRequest is a change of the configuration, or a checkpoint.
type adminRequest struct {
	Do     string `json:"do"`           // add, join, remove, transfer, snapshot
	Member Member `json:"member"`       // to add, or that joins
	ID     string `json:"id,omitempty"` // of the node to remove, or to make the leader
	Force  bool   `json:"force,omitempty"`
	Joined bool   `json:"joined,omitempty"` // the member that joins has been in the configuration
}

type adminResponse struct {
	Problem   *event.Problem `json:"problem,omitempty"`
	NotLeader bool           `json:"not_leader,omitempty"` // nothing was done
	Leader    string         `json:"leader,omitempty"`     // then: its Raft address, if known
	Index     uint64         `json:"index,omitempty"`      // of the checkpoint
}

// AddMember adds a node to the cluster as a nonvoter. If it is to vote, it is promoted once it has
// caught up. A node that does not answer yet is announced, and added when it connects.
// Errors are an *event.Problem.
func (r *Replica) AddMember(ctx context.Context, m Member) error {
	return r.change(ctx, adminRequest{Do: "add", Member: m})
}

// RemoveMember removes a node. It refuses if the remaining voters would have no reachable majority,
// unless forced, and always for the last voter.
func (r *Replica) RemoveMember(ctx context.Context, id string, force bool) error {
	return r.change(ctx, adminRequest{Do: "remove", ID: id, Force: force})
}

// TransferLeadership makes a voter the leader: the one named or, for "", the one whose log is
// longest.
func (r *Replica) TransferLeadership(ctx context.Context, to string) error {
	return r.change(ctx, adminRequest{Do: "transfer", ID: to})
}

// SnapshotAll has each node that can be reached write a checkpoint, and returns the index of
// each one's newest.
func (r *Replica) SnapshotAll(ctx context.Context) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, m := range r.Members() {
		var a adminResponse
		q := adminRequest{Do: "snapshot"}
		if m.serverID() == r.id {
			a = r.administer(ctx, q)
		} else if !m.Reachable {
			continue
		} else if _, err := peer.Ask(ctx, r.o.Net, m.target(), rpcAdmin, q, &a); err != nil {
			r.o.Logger.Warn("node wrote no checkpoint", "node", m.ID, "error", err)
			continue // the response lacks it
		}
		if a.Problem != nil {
			return out, a.Problem
		}
		out[m.ID] = a.Index
	}
	return out, nil
}

// change executes a change here or at the leader, even if leadership moves meanwhile.
func (r *Replica) change(ctx context.Context, q adminRequest) error {
	late := time.Now().Add(r.o.LeaderWait)
	for {
		var a adminResponse
		var err error
		if r.leadsReady() {
			a = r.administer(ctx, q)
		} else {
			err = r.AskLeader(ctx, rpcAdmin, q, &a)
		}
		switch {
		case err == errNotLeader && time.Now().After(late):
			return notNow("no leader is known; nothing was changed")
		case err == errNotLeader:
		case err != nil:
			p := notNow("%v", err)
			p.Unknown = !peer.NotSent(err)
			return p
		case a.Problem != nil:
			return a.Problem
		case !a.NotLeader:
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return notNow("the request ended before a leader was known; nothing was changed")
		case <-r.run.stop:
			return shuttingDown()
		}
	}
}

func (r *Replica) serveAdmin(ctx context.Context, _ peer.Identity, q adminRequest) (
	adminResponse, error) {
	return r.administer(ctx, q), nil
}

func (r *Replica) serveJoin(ctx context.Context, _ peer.Identity, q adminRequest) (
	adminResponse, error) {
	q.Do = "join"
	return r.administer(ctx, q), nil
}

// administer carries a request out on this node.
func (r *Replica) administer(ctx context.Context, q adminRequest) adminResponse {
	if q.Do == "snapshot" {
		if err := r.Snapshot(); err != nil {
			p := notNow("node %s wrote no checkpoint: %v", r.o.NodeID, err)
			if outOfSpace(err) {
				p.Code, p.Detail = event.CodeInsufficientStorage, "the disk is full: "+p.Detail
			}
			return responseOf(p)
		}
		return adminResponse{Index: r.stores.snaps.Newest().Index}
	}
	if !r.leadsReady() {
		return adminResponse{NotLeader: true, Leader: r.otherLeader().RaftAddr}
	}
	// One at a time: each looks at the configuration first.
	select {
	case r.membership.changing <- struct{}{}:
		defer func() { <-r.membership.changing }()
	case <-ctx.Done():
		return responseOf(notNow("the request ended while another change was in progress"))
	case <-r.run.stop:
		return responseOf(shuttingDown())
	}
	switch q.Do {
	case "add":
		return responseOf(r.add(ctx, q.Member))
	case "join":
		return responseOf(r.join(ctx, q.Member, q.Joined))
	case "remove":
		return responseOf(r.remove(ctx, q.ID, q.Force))
	case "transfer":
		return responseOf(r.transfer(q.ID))
	}
	return responseOf(conflict("do", "%.64q is not known here", q.Do))
}

// outOfSpace reports whether a checkpoint failed because the disk was full. hashicorp/raft keeps
// only the text of the cause.
func outOfSpace(err error) bool {
	text := err.Error()
	return strings.Contains(text, syscall.ENOSPC.Error()) ||
		strings.Contains(text, syscall.EDQUOT.Error())
}

func responseOf(err error) adminResponse {
	var p *event.Problem
	switch {
	case err == nil:
		return adminResponse{}
	case errors.As(err, &p):
		return adminResponse{Problem: p}
	case errors.Is(err, errNotLeader), errors.Is(err, hraft.ErrNotLeader),
		errors.Is(err, hraft.ErrLeadershipTransferInProgress):
		return adminResponse{NotLeader: true}
	case errors.Is(err, hraft.ErrLeadershipLost), errors.Is(err, hraft.ErrRaftShutdown):
		p := notNow("leadership was lost during the change; the outcome is unknown")
		p.Unknown = true
		return adminResponse{Problem: p}
	}
	return adminResponse{Problem: conflict("", "%v", err)}
}

// add is AddMember at the leader.
func (r *Replica) add(ctx context.Context, m Member) error {
	if !m.Voter {
		if err := r.canLose(ctx, m.ID, false); err != nil {
			return err
		}
	}
	if m.ID == r.o.NodeID && m.RaftAddr == r.o.self().RaftAddr {
		if m.Voter {
			return nil
		}
		return cmp.Or(r.transfer(""), errNotLeader) // the next leader takes this one's vote
	}
	if why := r.o.Net.Closed(); why != "" {
		return conflict("raft_addr", "%s", why)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m.Incarnation = ""
	if is, err := r.o.Net.Hello(ctx, m.RaftAddr); err == nil {
		switch {
		case is.Node != m.ID:
			return conflict("id", "at %s answers node %q, not %q", m.RaftAddr, is.Node, m.ID)
		case is.Cluster != "" && is.Cluster != r.o.ClusterID:
			return conflict("raft_addr", "node %s at %s belongs to another cluster (%s): "+
				"start it with an empty data directory and --join", is.Node, m.RaftAddr, is.Cluster)
		case m.HTTPAddr != "" && is.HTTP != "" && m.HTTPAddr != is.HTTP:
			return conflict("http_addr", "node %s advertises %s to clients, not %s",
				m.ID, is.HTTP, m.HTTPAddr)
		}
		m.HTTPAddr, m.Incarnation = cmp.Or(m.HTTPAddr, is.HTTP), is.Incarnation
	}
	return r.place(m, true)
}

// reachTime is how long a voter may take to answer before it counts as unreachable.
const reachTime = 500 * time.Millisecond

// canLose returns a problem if the voters without a node would have no reachable majority. It asks
// them now, because the last known status of a voter may be from before its failure.
func (r *Replica) canLose(ctx context.Context, id string, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	began := time.Now()
	r.refresh(ctx, began)
	left, reached, votes := 0, 0, false
	for _, m := range r.Members() {
		switch {
		case m.Votes && m.ID == id:
			votes = true
		case m.Votes:
			left++
			if m.Seen.After(began) {
				reached++
			}
		}
	}
	switch {
	case !votes:
		return nil
	case left == 0:
		return conflict("id", "node %s is the last voter", id)
	case reached < left/2+1 && !force:
		return conflict("id", "without node %s only %d of %d voters can be reached, "+
			"which is no majority; force it only if you know better", id, reached, left)
	}
	return nil
}

// join is for a node that asks to be in the configuration, at its present addresses. It must
// answer there: another one of its name, if it was at that address, is then gone. One that has
// been a member (joined) and no longer is was removed.
func (r *Replica) join(ctx context.Context, m Member, joined bool) error {
	if joined && !r.member(m.serverID()) {
		return noMember("id", m.ID)
	}
	if m.serverID() != r.id {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		is, err := r.o.Net.Hello(ctx, m.RaftAddr)
		if err != nil {
			return notNow("the leader does not reach %s: %v", m.RaftAddr, err)
		}
		if is.Node != m.ID || is.Incarnation != m.Incarnation {
			return conflict("raft_addr", "at %s is node %s with another data directory",
				m.RaftAddr, is.Node)
		}
	}
	return r.place(m, false)
}

// fieldTwin is of the conflict that ends a node: another process is running as it.
const fieldTwin = "incarnation"

// place puts a node into the configuration that is at m's address, in m's incarnation; ""
// announces one. asked: by an operator, who says whether it votes; else the announcement counts.
func (r *Replica) place(m Member, asked bool) error {
	if !event.ValidNode(m.ID) {
		return event.Problemf(event.CodeInvalidArgument, "id", "%.64q: %s", m.ID, event.NodeNames)
	}
	var old hraft.Server
	var is Member // the old one
	for _, s := range r.servers() {
		switch o := memberOf(s.ID, s.Address); {
		case o.ID == m.ID:
			old, is = s, o
		case o.RaftAddr == m.RaftAddr:
			return conflict("raft_addr", "%s is the address of node %s", m.RaftAddr, o.ID)
		}
	}
	if old.ID != "" && is.RaftAddr != m.RaftAddr {
		if m.Incarnation == "" || m.Incarnation != is.Incarnation {
			return conflict("id", "node %s is a member already, at %s; "+
				"remove it first: qlogd cluster remove %s", m.ID, is.RaftAddr, m.ID)
		}
		if r.twin(is, m.RaftAddr) {
			return conflict(fieldTwin, "node %s runs already, at %s, "+
				"on the same data directory or a copy of it", m.ID, is.RaftAddr)
		}
	}
	if old.ID != "" && !asked {
		m.Voter, m.Explicit = is.Voter, is.Explicit
	}
	if old.ID == "" && !asked && r.o.AnnouncedOnly {
		r.membership.refused.Do(func() {
			r.o.Logger.Warn("node that is not announced was refused",
				"node", m.ID, "incarnation", m.Incarnation, "raft_addr", m.RaftAddr)
		})
		return conflict("id", "node %s is not announced at %s, and node %s admits no other: "+
			"qlogd cluster add %[1]s %[2]s (POST /v1/cluster/nodes)", m.ID, m.RaftAddr, r.o.NodeID)
	}
	switch {
	case old.ID == "":
	case m.Incarnation == "" || m.Incarnation == is.Incarnation:
		m.Incarnation, m.HTTPAddr = is.Incarnation, cmp.Or(m.HTTPAddr, is.HTTPAddr)
		if old.Suffrage == hraft.Voter && !m.Voter {
			if old.ID == r.id {
				return conflict("voter", "node %s leads; transfer leadership first", m.ID)
			}
			if err := r.raft.DemoteVoter(old.ID, 0, 0).Error(); err != nil {
				return err
			}
		}
		if m.serverAddress() == old.Address {
			return nil
		}
	default:
		// Another directory is at the address of the old one, which therefore goes, with its
		// vote, before the new one comes.
		if !announced(old.ID) {
			r.o.Logger.Warn("node came with a new data directory; removing the old one",
				"node", m.ID, "old", is.Incarnation, "new", m.Incarnation)
		}
		if err := r.raft.RemoveServer(old.ID, 0, 0).Error(); err != nil {
			return err
		}
	}
	r.o.Logger.Info("adding node, or changing its address", "node", m.ID,
		"incarnation", m.Incarnation, "raft_addr", m.RaftAddr, "voter", m.Voter)
	// A voter keeps its vote.
	return r.raft.AddNonvoter(m.serverID(), m.serverAddress(), 0, 0).Error()
}

// twin reports whether a member that claims to be at another address is still where the
// configuration has it: another process on the same directory, or on a copy. The same process
// may be reached by its old address too, but advertises the new one.
func (r *Replica) twin(m Member, now string) bool {
	ctx, cancel := r.within(2 * reachTime)
	defer cancel()
	is, err := r.o.Net.Hello(ctx, m.RaftAddr)
	return err == nil && is.Node == m.ID && is.Incarnation == m.Incarnation && is.Raft != now
}

// remove is RemoveMember at the leader.
func (r *Replica) remove(ctx context.Context, id string, force bool) error {
	all := r.servers()
	at := slices.IndexFunc(all, func(s hraft.Server) bool { return memberOf(s.ID, "").ID == id })
	if at < 0 {
		return noMember("id", id)
	}
	gone := all[at].ID
	if err := r.canLose(ctx, id, force); err != nil {
		return err
	}
	if gone == r.id {
		return cmp.Or(r.transfer(""), errNotLeader) // the next leader removes this one
	}
	return r.raft.RemoveServer(gone, 0, 0).Error()
}

// promote makes members voters once they have caught up, if they are to vote. With two voters,
// neither may fail, so a sole voter gets a second voter only together with a third, or if an
// operator asked for it.
func (r *Replica) promote() {
	due := slices.DeleteFunc(r.remotes(), func(m MemberStatus) bool {
		return m.Votes || !m.Voter || m.Status.Applied == 0 || !m.level()
	})
	if len(due) == 1 && !due[0].Explicit && r.alone() {
		return
	}
	for _, m := range due {
		select {
		case r.membership.changing <- struct{}{}:
		default:
			return // next time
		}
		logger := r.o.Logger.With("node", m.ID, "incarnation", m.Incarnation)
		logger.Info("node has caught up and gets its vote")
		err := r.raft.AddVoter(m.serverID(), m.serverAddress(), 0, time.Second).Error()
		<-r.membership.changing
		if err != nil {
			logger.Warn("node was not promoted", "error", err)
		}
	}
}

// tendMembership does what is due now and then beside Raft: the leader promotes members; each node
// sees to it that it is a member, at its present addresses.
func (r *Replica) tendMembership() {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	reported := r.o.Joined
	for {
		// The newest configuration may have this node and never be committed: its leader may have failed.
		// Only a committed one counts as having joined, also where a newer one already lacks this node.
		joined := r.fsm.progress().joined
		if joined && !reported {
			r.o.OnJoined() // durable first: from here on, not being a member means removal
			reported = true
			r.membership.joined.Store(true)
		}
		self, member := r.find(r.id)
		member = member && r.admitted()
		if member {
			r.rollback.evidence.Forget(r.member)
			if r.leadsReady() {
				r.promote()
				r.makeRoom()
			}
		}
		want, is := r.o.self(), memberOf(self.ID, self.Address)
		want.Voter, want.Explicit = is.Voter, is.Explicit
		want.HTTPAddr = cmp.Or(want.HTTPAddr, is.HTTPAddr)
		if member && want.serverAddress() != self.Address ||
			!joined && !r.membership.joined.Load() {
			r.askToJoin()
		}
		select {
		case <-t.C:
		case <-r.run.stop:
			return
		}
	}
}

// askToJoin asks the leader, or those that may know it, to have this node in the configuration at
// its present addresses.
func (r *Replica) askToJoin() {
	q := adminRequest{Do: "join", Member: r.o.self(), Joined: r.membership.joined.Load()}
	ask := append([]string{r.otherLeader().RaftAddr}, r.o.Contacts...)
	for _, s := range append(r.servers(), r.known().Servers...) {
		ask = append(ask, memberOf(s.ID, s.Address).RaftAddr)
	}
	leads := r.leadsReady()
	if leads {
		ask = []string{q.Member.RaftAddr}
	}
	why, level := "no contact is known: start it with --join", slog.LevelInfo
	asked := map[string]bool{"": true, q.Member.RaftAddr: !leads}
	for done := false; !done && len(ask) > 0 && r.run.ctx.Err() == nil; ask = ask[1:] {
		addr := ask[0]
		if asked[addr] {
			continue
		}
		asked[addr] = true
		var a adminResponse
		var err error
		ctx, cancel := r.within(5 * time.Second)
		if leads {
			a = r.administer(ctx, q)
		} else {
			_, err = peer.Ask(ctx, r.o.Net, peer.Target{Addr: addr}, rpcJoin, q, &a)
		}
		cancel()
		switch p := a.Problem; {
		case err != nil:
			why = fmt.Sprintf("%s did not answer: %v", addr, err)
		case a.NotLeader:
			why, ask = addr+" knows no leader", append(ask, a.Leader)
		case p == nil:
			why, done = "waiting for the leader's first entries", true
		case p.Code == event.CodeNoLeader:
			why = p.Detail
		default:
			why, level, done = p.Detail, slog.LevelError, true
			if p.Field == fieldTwin {
				r.fatal(p) // one of the two must end: they would vote twice
			}
		}
	}
	r.membership.why.Store(&why)
	r.membership.logged.Do(func() {
		r.o.Logger.Log(r.run.ctx, level, "not in the configuration at this address", "why", why)
	})
}

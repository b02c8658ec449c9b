package raft

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/raft/peer"
)

// Member is one node as the cluster's configuration names it.
//
// Its incarnation is part of Raft's server id: a data directory that was wiped, or restored
// from an old copy, is another server, which has no vote. What else every node must know of a
// member is part of Raft's server address, which is replicated and opaque to hashicorp/raft.
type Member struct {
	ID          string
	Incarnation string // "": announced, its data directory is not known yet
	RaftAddr    string // host:port
	HTTPAddr    string // host:port; "": not known
	Voter       bool   // it gets a vote once it has caught up
	Explicit    bool   // an operator asked for the vote: also as the second of two voters
}

func (m Member) serverID() hraft.ServerID { return serverID(m.ID, m.Incarnation) }

// Server is the member's id in the configuration: its node id and its incarnation.
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
	if !m.Voter || m.Explicit {
		q.Set("voter", strconv.FormatBool(m.Voter))
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
		m.HTTPAddr = q.Get("http")
		m.Voter, m.Explicit = q.Get("voter") != "false", q.Get("voter") == "true"
	}
	return m
}

func (m Member) target() peer.Target {
	return peer.Target{Addr: m.RaftAddr, Node: m.ID, Incarnation: m.Incarnation}
}

// voter is the member as a voter of a configuration.
func (m Member) voter() hraft.Server {
	return hraft.Server{Suffrage: hraft.Voter, ID: m.serverID(), Address: m.serverAddress()}
}

// announced reports whether a server is announced and has not come yet: its incarnation is not
// known, so nothing is sent to whatever is at its address.
func announced(id hraft.ServerID) bool { return !strings.Contains(string(id), "/") }

// configuration is one of the cluster's, as its nodes report it to each other.
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

// otherVoters returns the voters except one server, and how many of them make up a majority
// together with it, whether it votes already or not.
func (c configuration) otherVoters(but hraft.ServerID) (others []Member, need int) {
	for _, s := range c.Servers {
		if s.Suffrage == hraft.Voter && s.ID != but {
			others = append(others, memberOf(s.ID, s.Address))
		}
	}
	return others, (len(others) + 1) / 2
}

// known is the newest configuration that this node knows to be committed. Until the log as of
// the start is applied it is the newest on disk, committed or not.
func (r *Replica) known() configuration {
	p := r.fsm.progress()
	if disk := r.stores.known; disk.Index > p.conf.Index && p.index < disk.Index {
		return disk
	}
	return p.conf
}

// servers are those of the newest configuration, committed or not.
func (r *Replica) servers() []hraft.Server {
	return r.raft.GetConfiguration().Configuration().Servers // never an error: from memory
}

func (r *Replica) find(id hraft.ServerID) (hraft.Server, bool) {
	return configuration{Servers: r.servers()}.find(id)
}

func (r *Replica) member(id hraft.ServerID) bool {
	_, in := r.find(id)
	return in
}

func (r *Replica) voters() (ids []hraft.ServerID) {
	for _, s := range r.servers() {
		if s.Suffrage == hraft.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// alone reports whether this node is the only voter.
func (r *Replica) alone() bool {
	voters := r.voters()
	return len(voters) == 1 && voters[0] == r.id
}

// self is this node as it asks the configuration to name it.
func (o *Options) self() Member {
	m := Member{ID: o.NodeID, Incarnation: o.Incarnation, Voter: true}
	m.RaftAddr = m.ID // of Seed: the first start corrects it
	if o.Net != nil {
		is := o.Net.Self()
		m.RaftAddr, m.HTTPAddr = cmp.Or(is.Raft, o.Net.Addr()), is.HTTP
	}
	return m
}

// first is the first configuration of a new cluster: all of its nodes vote.
func (o *Options) first() (c configuration) {
	for _, m := range o.Initial {
		n := Member{m.ID, m.Incarnation, m.RaftAddr, m.HTTPAddr, true, false}
		if n.RaftAddr == "" { // formed alone: nobody else had to know the address
			n.RaftAddr, n.HTTPAddr = o.self().RaftAddr, o.self().HTTPAddr
		}
		c.Servers = append(c.Servers, n.voter())
	}
	return c
}

// MemberStatus is a member as this node knows it.
type MemberStatus struct {
	Member
	Votes     bool // is a voter of the configuration; else it may become one
	Leader    bool
	Reachable bool      // has answered lately
	Seen      time.Time // of its last answer; zero: never
	// Differs: its log or state is not that of other nodes, and either a majority contradicts it, or
	// none decides.
	Differs bool
	Status  peerStatus // its last answer
	// asked is what this node knew to be committed when it asked for Status: under load that
	// is soon far behind.
	asked uint64
	// forked: where its event log or this node's ended, the other's had another chain.
	forked bool
}

// level reports whether the member takes part, and has all but the newest of what was committed
// when it was asked.
func (v *MemberStatus) level() bool {
	s := &v.Status
	return v.Reachable && !s.Held && !s.Lacking && s.Applied+maxLag >= v.asked
}

// Members returns the members of the newest configuration, as far as this node knows them,
// without asking any.
func (r *Replica) Members() []MemberStatus { return r.members(r.servers()) }

func (r *Replica) members(of []hraft.Server) (out []MemberStatus) {
	_, leader := r.raft.LeaderWithID()
	now, found := time.Now(), r.agreement.found.Load()
	for _, s := range of {
		m := r.peers.answer(s.ID)
		if s.ID == r.id {
			p := r.fsm.progress()
			m.Status, m.Seen = peerStatus{Applied: p.index, Head: p.head, Chain: p.chain,
				Full: r.full(), Unconfirmed: r.unconfirmed(), Health: r.o.Health()}, now
		}
		if found != nil {
			m.Differs = m.forked || slices.Contains(found.who, s.ID) || found.undecided && s.ID == r.id
		}
		m.Member, m.Votes = memberOf(s.ID, s.Address), s.Suffrage == hraft.Voter
		m.Leader, m.Reachable = s.ID == leader, now.Sub(m.Seen) < reachableFor
		out = append(out, m)
	}
	return out
}

// remotes are the members except this one.
func (r *Replica) remotes() []MemberStatus {
	here := func(s hraft.Server) bool { return s.ID == r.id }
	return r.members(slices.DeleteFunc(slices.Clone(r.servers()), here))
}

// otherLeader returns the leader where that is another node; zero: none is known.
func (r *Replica) otherLeader() Member {
	addr, id := r.raft.LeaderWithID()
	if id == "" || id == r.id {
		return Member{}
	}
	if s, in := r.find(id); in {
		addr = s.Address // the newest: a leader may have moved
	}
	return memberOf(id, addr)
}

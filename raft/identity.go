package raft

import (
	"net/url"
	"strings"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/raft/peer"
)

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

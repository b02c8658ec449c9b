package raft

import (
	"time"

	"github.com/qlogd/qlogd/internal/peer"
)

// peerView is what this node knows of another member.
type peerView struct {
	Member
	Votes     bool
	Reachable bool      // has answered lately
	Seen      time.Time // when it last did; zero: never
	Status    peerStatus
	// Offset is its wall clock minus this node's, ms, as of Seen.
	Offset int64
}

// peerStatus is what a member tells about itself (raft.status).
type peerStatus struct {
	Term                  uint64
	Last, Commit, Applied uint64
	Leads                 bool
	Head                  uint64
	Chain                 [32]byte
	Wall                  int64 // its wall clock, Unix ms
	Clock                 int64 // the log's time there, Unix ms
	Rules                 uint16
	HTTPAddr              string
	FirstIndex            uint64 // of its Raft log
	Marks                 []mark // its newest
}

// peers returns what is known of each other member, in the configuration's order.
func (r *Replica) peers() []peerView {
	var out []peerView
	for _, s := range r.Status().Servers {
		if s.serverID() != r.id {
			out = append(out, peerView{Member: s.Member, Votes: s.Votes})
		}
	}
	return out
}

// leaderTarget returns the node that leads, as far as is known, where it is
// another one.
func (r *Replica) leaderTarget() (peer.Target, bool) {
	addr, id := r.raft.LeaderWithID()
	if id == "" || id == r.id {
		return peer.Target{}, false
	}
	for _, s := range r.servers() {
		if s.ID == id {
			addr = s.Address // the newest: a leader may have moved
		}
	}
	return memberOf(id, addr).target(), true
}

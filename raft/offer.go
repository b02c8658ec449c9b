package raft

import (
	"github.com/qlogd/qlogd/internal/checkpoint"
	"github.com/qlogd/qlogd/internal/peer"
)

// Offer is a leader's checkpoint, which this node needs and whose event log it
// lacks.
type Offer struct {
	From  peer.Target
	Meta  checkpoint.Meta
	First uint64 // of the leader's Raft log: what it can replicate from
}

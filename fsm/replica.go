package fsm

import "github.com/qlogd/qlogd/projections"

// EventLog is a node's event log (log.Log).
type EventLog interface {
	Log
	// Tip returns the newest block's index and the chain there.
	Tip() (index uint64, chain [32]byte)
	// Sync makes all that was appended durable.
	Sync() error
	// ChainAt returns the chain at an index up to the tip, or log.ErrGone where history
	// is deleted.
	ChainAt(index uint64) ([32]byte, error)
}

// Replica is a machine with its node's event log. It has the methods that raft calls.
type Replica struct {
	*Machine
	EventLog
}

// NewReplica returns a replica that continues from state, which is the fold of log.
func NewReplica(state *projections.State, log EventLog) *Replica {
	return &Replica{New(state, log), log}
}

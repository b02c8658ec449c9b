package fsm

import (
	"errors"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
)

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
	log EventLog
}

// NewReplica returns a replica that continues from state, which is the fold of log.
func NewReplica(state *projections.State, log EventLog, opts Options) *Replica {
	return &Replica{Machine: New(state, log, opts), log: log}
}

// Head returns the newest block's index and the chain there.
func (r *Replica) Head() (uint64, [32]byte) { return r.log.Tip() }

// SyncLog makes the event log durable.
func (r *Replica) SyncLog() error { return r.log.Sync() }

// Freeze returns the state as of now, to be written as a checkpoint beside Apply.
func (r *Replica) Freeze() (checkpoint.State, error) { return r.Machine.Freeze(), nil }

// ChainAt returns the event log's chain at an index up to its head; known is false where history
// is deleted.
func (r *Replica) ChainAt(index uint64) (chain [32]byte, known bool, err error) {
	chain, err = r.log.ChainAt(index)
	if errors.Is(err, log.ErrGone) {
		return chain, false, nil
	}
	return chain, err == nil, err
}

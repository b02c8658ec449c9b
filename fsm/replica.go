package fsm

import (
	"errors"
	"fmt"
	"io"

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

// Restore verifies a checkpoint against the event log. It never replaces the state: a node that
// lacks what a checkpoint covers fetches segments and checkpoint, and opens them again.
func (r *Replica) Restore(meta checkpoint.Meta, _ io.Reader) error {
	if head, _ := r.log.Tip(); meta.HeadIndex > head {
		return fmt.Errorf("checkpoint %s is of index %d, event log ends at %d: segments are missing",
			meta.Name(), meta.HeadIndex, head)
	}
	chain, known, err := r.ChainAt(meta.HeadIndex)
	if err != nil || !known {
		return err // below the history that is kept there is nothing to compare with
	}
	if chain != meta.Chain {
		return fmt.Errorf("checkpoint %s has chain %x, event log has %x: different histories",
			meta.Name(), meta.Chain, chain)
	}
	return nil
}

// ChainAt returns the event log's chain at an index up to its head; known is false where history
// is deleted.
func (r *Replica) ChainAt(index uint64) (chain [32]byte, known bool, err error) {
	chain, err = r.log.ChainAt(index)
	if errors.Is(err, log.ErrGone) {
		return chain, false, nil
	}
	return chain, err == nil, err
}

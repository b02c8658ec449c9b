// Package machine puts a node's deciding state machine, its state and its event
// log together, as Raft drives them: the one place below cmd that knows all
// three. It is what stands on a data directory between the files and Raft.
package machine

import (
	"errors"
	"fmt"
	"io"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/raft"
)

// Machine is what Raft drives: the deciding state machine and the event log
// that it writes, as one.
type Machine struct {
	*fsm.Machine
	log *eventlog.Log
}

var _ raft.Machine = (*Machine)(nil)

// Options of a machine.
type Options struct {
	fsm.Options
	// Log, if set, takes the blocks in the event log's place, and is expected to
	// hand them on to it.
	Log fsm.Log
	// Count, if set, is told the events of each block once it is appended. It
	// must not keep them.
	Count func([]event.Event)
}

// New returns a machine that goes on from a state, which is the fold of log.
func New(state *projections.State, log *eventlog.Log, o Options) *Machine {
	a := &appender{log: o.Log, count: o.Count}
	if a.log == nil {
		a.log = log
	}
	return &Machine{Machine: fsm.New(state, a, o.Options), log: log}
}

// Head implements raft.Machine.
func (m *Machine) Head() (uint64, [32]byte) { return m.log.Tip() }

// SyncLog implements raft.Machine.
func (m *Machine) SyncLog() error { return m.log.Sync() }

// Freeze implements raft.Machine.
func (m *Machine) Freeze() (raft.Frozen, error) { return m.Machine.Freeze(), nil }

// Restore implements raft.Machine. A checkpoint's state is only good together
// with the log up to it: what is missing is fetched, and put in place beside
// Raft. Here it is only held against the chain.
func (m *Machine) Restore(meta checkpoint.Meta, _ io.Reader) error {
	head, _ := m.log.Tip()
	if meta.HeadIndex > head {
		return fmt.Errorf("checkpoint %s is of index %d, but the event log ends at %d: the segments between are missing", meta.Name(), meta.HeadIndex, head)
	}
	chain, known, err := m.ChainAt(meta.HeadIndex)
	if err != nil || !known {
		return err // below the history that is kept there is nothing to compare with
	}
	if chain != meta.Chain {
		return fmt.Errorf("checkpoint %s has chain %x, the event log %x: they are of different histories", meta.Name(), meta.Chain, chain)
	}
	return nil
}

// ChainAt returns the event log's chain at an index up to its head, if history
// still has it. Raft asks for it when a leader offers an older checkpoint.
func (m *Machine) ChainAt(index uint64) (chain [32]byte, known bool, err error) {
	chain, err = m.log.ChainAt(index)
	if errors.Is(err, eventlog.ErrGone) {
		return chain, false, nil
	}
	return chain, err == nil, err
}

// appender lets the state machine write, and counts what it wrote.
type appender struct {
	log   fsm.Log
	count func([]event.Event)
}

// Append implements fsm.Log.
func (a *appender) Append(b *event.Block) error {
	if err := a.log.Append(b); err != nil {
		return err
	}
	if a.count != nil && len(b.Events) > 0 {
		a.count(b.Events)
	}
	return nil
}

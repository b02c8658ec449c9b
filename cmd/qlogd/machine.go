package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/checkpoint"
	"github.com/qlogd/qlogd/internal/event"
	"github.com/qlogd/qlogd/internal/eventlog"
	"github.com/qlogd/qlogd/raft"
)

// machine is what Raft drives: the deciding state machine and the event log
// that it writes, as one.
type machine struct {
	*fsm.Machine
	log *eventlog.Log
}

var _ raft.Machine = (*machine)(nil)

// Head implements raft.Machine.
func (m *machine) Head() (uint64, [32]byte) { return m.log.Tip() }

// SyncLog implements raft.Machine.
func (m *machine) SyncLog() error { return m.log.Sync() }

// Freeze implements raft.Machine.
func (m *machine) Freeze() (raft.Frozen, error) { return m.Machine.Freeze(), nil }

// Restore implements raft.Machine. A checkpoint's state is only good together
// with the log up to it, which a single node always has: there it is only held
// against the chain.
func (m *machine) Restore(meta checkpoint.Meta, body io.Reader) error {
	head, _ := m.log.Tip()
	if meta.HeadIndex > head {
		return fmt.Errorf("checkpoint %s is of index %d, but the event log ends at %d: the segments between are missing", meta.Name(), meta.HeadIndex, head)
	}
	chain, err := m.log.ChainAt(meta.HeadIndex)
	if errors.Is(err, eventlog.ErrGone) {
		return nil // below the history that is kept: nothing to compare with
	}
	if err != nil {
		return err
	}
	if chain != meta.Chain {
		return fmt.Errorf("checkpoint %s has chain %x, the event log %x: they are of different histories", meta.Name(), meta.Chain, chain)
	}
	return nil
}

// appender lets the state machine write, and counts what it wrote.
type appender struct {
	log   *eventlog.Log
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

// reader gives the api a state in its own words: its Messages says whether the
// queue is there, the state's whether there are more.
type reader struct{ stateReader }

// liveReader is the live state's: its now is the log's, which in a copy of the
// past lies behind the wall's time.
type liveReader struct {
	reader
	now interface{ Clock() int64 }
}

// Now is the log's time at this instant, Unix ms.
func (r liveReader) Now() int64 { return max(r.Clock(), r.now.Clock()) }

type stateReader interface {
	Queue(name string) (event.QueueView, bool)
	Queues() []event.QueueView
	Message(id event.ID) (event.MessageView, bool)
	Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool)
	Leasable(queue string, kinds []string) int
	Clock() int64
	Index() uint64
}

// Messages implements api.State.
func (r reader) Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool) {
	if _, ok := r.Queue(queue); !ok {
		return nil, false
	}
	out, _ := r.stateReader.Messages(queue, f)
	return out, true
}

package raft

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// fsm is what hashicorp/raft drives: it puts committed entries into the Machine
// and keeps what the rest of the replica needs to know of it.
type fsm struct {
	o     Options
	snaps *snapshots
	fatal func(error)
	disk  *disk
	// applied is called after each batch.
	applied func(progress)

	// Only hashicorp/raft's FSM goroutine uses these.
	dead error // why nothing is applied any more

	mu      sync.Mutex
	now     progress
	changed chan struct{} // closed when now changes; nil: nobody waits
}

// progress is how far the Machine has come.
type progress struct {
	index  uint64 // Raft's: of the newest command or configuration seen
	term   uint64 // of that entry; 0: none since the start
	head   uint64 // of the event log
	chain  [32]byte
	clock  int64
	due    int64
	hasDue bool
	// entries and bytes were applied, and not skipped, since the last checkpoint was begun.
	entries, bytes uint64

	rules  uint16        // in force
	conf   configuration // the newest that is known to be committed
	joined bool          // that or an older one has had this server
	// marks are of this node's newest entries with a Mark, except those that it skipped.
	marks    marks
	markedAt time.Time // when the newest was applied, or the replica opened
	unmarked uint64    // entries applied since
}

// dueIn returns for how long nothing is due.
func (p progress) dueIn(now int64) time.Duration {
	if !p.hasDue {
		return never
	}
	return time.Duration(min(max(0, p.due-now), never.Milliseconds())) * time.Millisecond
}

var _ hraft.BatchingFSM = (*fsm)(nil)

func newFSM(o Options, snaps *snapshots, fatal func(error)) *fsm {
	f := &fsm{o: o, snaps: snaps, fatal: fatal}
	f.now = f.look(progress{markedAt: time.Now()})
	return f
}

// look returns p with the Machine's current state.
func (f *fsm) look(p progress) progress {
	p.head, p.chain = f.o.Machine.Tip()
	p.clock = f.o.Machine.Clock()
	p.due, p.hasDue = f.o.Machine.NextDue()
	p.rules = f.o.Machine.Rules()
	return p
}

func (f *fsm) progress() progress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// watch returns the progress, and a channel that is closed when it changes.
func (f *fsm) watch() (progress, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.now, f.changed
}

// wake wakes all waiters for progress: there is some, or there will be none.
func (f *fsm) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wakeLocked()
}

func (f *fsm) wakeLocked() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// results is what an entry's future answers with.
type results struct {
	index   uint64
	results []event.Result // nil: skipped
}

func (f *fsm) Apply(l *hraft.Log) any { return f.ApplyBatch([]*hraft.Log{l})[0] }

// ApplyBatch implements hraft.BatchingFSM. hashicorp/raft hands over commands
// and configurations only.
func (f *fsm) ApplyBatch(logs []*hraft.Log) []any {
	out := make([]any, len(logs))
	p := f.progress()
	for i, l := range logs {
		if f.dead != nil {
			out[i] = f.dead
			continue
		}
		if l.Type == hraft.LogCommand {
			// After a restart Raft applies everything since its newest snapshot
			// again: what the event log holds is never decided twice (I4).
			skipped := l.Index <= p.head
			var res []event.Result
			var err error
			f.disk.Watch("append to the event log", func() {
				res, err = f.o.Machine.Apply(l.Index, l.Data)
			})
			if err != nil {
				f.dead = fmt.Errorf("apply entry %d: %w", l.Index, err)
				out[i] = f.dead
				f.fatal(f.dead)
				continue
			}
			if !skipped {
				p.head = l.Index
				p.entries++
				p.bytes += uint64(len(l.Data))
				p.unmarked++
				if digest, ok := digestOf(res); ok {
					_, chain := f.o.Machine.Tip()
					p.marks = p.marks.add(mark{l.Index, hex.EncodeToString(chain[:]),
						hex.EncodeToString(digest[:])})
					p.markedAt, p.unmarked = time.Now(), 0
				}
			}
			out[i] = results{index: l.Index, results: res}
		}
		if l.Type == hraft.LogConfiguration {
			p.conf = configuration{l.Index, hraft.DecodeConfiguration(l.Data).Servers}
			_, in := p.conf.find(f.o.self().serverID())
			p.joined = p.joined || in
		}
		p.index, p.term = l.Index, l.Term
	}
	p = f.look(p)
	f.mu.Lock()
	f.now = p
	f.wakeLocked()
	f.mu.Unlock()
	f.applied(p)
	return out
}

// errCatchingUp is why a snapshot is refused for now.
var errCatchingUp = errors.New("no snapshot yet: Raft has not applied the event log's newest block")

// Snapshot implements hraft.FSM. Raft labels the snapshot with the index that it applied last in
// this process. After a restart the state is already at the event log's head: labelled too low, it
// would be applied to twice. So it is refused until Raft has caught up.
func (f *fsm) Snapshot() (hraft.FSMSnapshot, error) {
	if f.dead != nil {
		return nil, f.dead
	}
	p := f.progress()
	head, chain := f.o.Machine.Tip()
	if p.index < head {
		return nil, errCatchingUp
	}
	if f.snaps.Newest().Index >= p.index {
		return nil, hraft.ErrNothingNewToSnapshot
	}
	began := time.Now()
	// Whether or not it comes to a checkpoint: the next attempt is after as much again.
	f.mu.Lock()
	f.now.entries, f.now.bytes = 0, 0
	f.mu.Unlock()
	state := f.o.Machine.Freeze()
	// Nothing is applied meanwhile: this is all that a checkpoint delays.
	f.o.Metrics.Observe("checkpoint_hold_seconds", time.Since(began).Seconds())
	return &frozen{fsm: f, state: state, head: head, chain: chain}, nil
}

// Restore implements hraft.FSM, for a snapshot that a leader sends: none does.
func (f *fsm) Restore(io.ReadCloser) error { return errNoBulk }

// frozen is a snapshot that is written while Apply continues.
type frozen struct {
	fsm   *fsm
	state checkpoint.State
	head  uint64
	chain [32]byte
}

// Persist implements hraft.FSMSnapshot. The order is what makes a snapshot safe: the event log is
// made durable up to here, then the checkpoint, and only then Raft truncates its log. In another
// order a power cut could lose blocks that cannot be recreated (I1).
func (s *frozen) Persist(to hraft.SnapshotSink) error {
	own := to.(*sink)
	began := time.Now()
	if err := s.fsm.o.Machine.Sync(); err != nil {
		err = fmt.Errorf("sync the event log before a snapshot: %w", err)
		s.fsm.fatal(err) // an fsync is never retried
		return err
	}
	m := &own.meta
	m.HeadIndex, m.Chain, m.CreatedAt = s.head, s.chain, time.Now().UnixMilli()
	m.Clock, m.Digest = s.state.Clock(), s.state.Digest()
	if err := s.fsm.snaps.Write(m, s.state); err != nil {
		return err
	}
	s.fsm.o.Metrics.Observe("checkpoint_seconds", time.Since(began).Seconds())
	return nil
}

func (s *frozen) Release() { s.state.Release() }

// waitApplied returns when this node has applied index. The error is ctx's, or an
// *event.Problem where it will not apply it.
func (b *batcher) waitApplied(ctx context.Context, index uint64) error {
	for {
		p, changed := b.fsm.watch()
		if p.index >= index {
			return nil
		}
		if why := b.unavailable(); why != nil {
			return why
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

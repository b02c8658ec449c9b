package raft

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/checkpoint"
)

// snapshots is Raft's SnapshotStore over the checkpoints: they are one copy.
type snapshots struct {
	o Options
	// stopped makes a snapshot that is being written fail, so that a shutdown
	// does not wait for gigabytes.
	stopped atomic.Bool

	mu   sync.Mutex
	have []checkpoint.Meta // newest first
	pins map[string]pinned // by receiver: see offer.go
}

var _ hraft.SnapshotStore = (*snapshots)(nil)

func openSnapshots(o Options) (*snapshots, error) {
	if err := checkpoint.Clean(o.FS, o.CheckpointDir); err != nil {
		return nil, err
	}
	metas, bad, err := checkpoint.List(o.FS, o.CheckpointDir)
	if err != nil {
		return nil, err
	}
	// After a kill a name may be seen that is not on disk yet.
	if err := o.FS.SyncDir(o.CheckpointDir); err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	for _, b := range bad {
		// Told, and left for a person to look at: an older one is used, whose
		// entries the Raft log still holds.
		o.Logger.Error("a checkpoint cannot be used", "name", b.Name, "error", b.Err)
	}
	return &snapshots{o: o, have: metas}, nil
}

func (s *snapshots) metas() []checkpoint.Meta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]checkpoint.Meta(nil), s.have...)
}

func (s *snapshots) newest() (checkpoint.Meta, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.have) == 0 {
		return checkpoint.Meta{}, false
	}
	return s.have[0], true
}

// floor is up to where the Raft log may be truncated: the newest checkpoint but
// one. If the newest turns out to be bad, the one before it and the Raft log
// still make up everything. Nor is anything truncated that a node will need
// which is fetching an older one: that is also the entry at its index, whose
// term the leader tells with those behind it. (Of its own newest checkpoint it
// knows the term; by then that is another one.)
func (s *snapshots) floor() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.have) < 2 {
		return 0
	}
	to := s.have[1].Index
	if _, lowest := s.pinnedLocked(time.Now()); lowest > 0 {
		to = min(to, lowest-1)
	}
	return to
}

// List implements hraft.SnapshotStore.
func (s *snapshots) List() ([]*hraft.SnapshotMeta, error) {
	var out []*hraft.SnapshotMeta
	for _, m := range s.metas() {
		out = append(out, snapshotMeta(m))
	}
	return out, nil
}

func snapshotMeta(m checkpoint.Meta) *hraft.SnapshotMeta {
	return &hraft.SnapshotMeta{
		Version: hraft.SnapshotVersion(m.SnapshotVersion), ID: m.Name(), Index: m.Index, Term: m.Term,
		Configuration: hraft.DecodeConfiguration(m.Configuration), ConfigurationIndex: m.ConfigurationIndex,
		Size: m.Size,
	}
}

// Open implements hraft.SnapshotStore. The stream is the checkpoint file as it
// is: whoever takes it verifies it.
func (s *snapshots) Open(id string) (*hraft.SnapshotMeta, io.ReadCloser, error) {
	meta, head, err := checkpoint.Open(s.o.FS, s.o.CheckpointDir, id)
	if err != nil {
		return nil, nil, err
	}
	head.Close()
	raw, size, err := checkpoint.OpenRaw(s.o.FS, s.o.CheckpointDir, id)
	if err != nil {
		return nil, nil, err
	}
	meta.Size = size
	return snapshotMeta(meta), raw, nil
}

// Create implements hraft.SnapshotStore.
func (s *snapshots) Create(version hraft.SnapshotVersion, index, term uint64, c hraft.Configuration, cIndex uint64, _ hraft.Transport) (hraft.SnapshotSink, error) {
	return &sink{store: s, meta: checkpoint.Meta{
		Index: index, Term: term, SnapshotVersion: uint16(version),
		Configuration: hraft.EncodeConfiguration(c), ConfigurationIndex: cIndex,
		ClusterID: s.o.ClusterID,
	}}, nil
}

// added takes a new checkpoint in, and removes those that are too many.
func (s *snapshots) added(name string) error {
	meta, body, err := checkpoint.Open(s.o.FS, s.o.CheckpointDir, name)
	if err != nil {
		return err
	}
	body.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	have := []checkpoint.Meta{meta}
	for _, m := range s.have {
		if m.Name() != name {
			have = append(have, m)
		}
	}
	var names []string
	gone := map[string]bool{}
	kept, _ := s.pinnedLocked(time.Now())
	for _, m := range checkpoint.Thin(have, s.o.KeepCheckpoints) {
		if kept[m.Name()] {
			continue
		}
		names, gone[m.Name()] = append(names, m.Name()), true
	}
	s.have = s.have[:0:0]
	for _, m := range have {
		if !gone[m.Name()] {
			s.have = append(s.have, m)
		}
	}
	if err := checkpoint.Remove(s.o.FS, s.o.CheckpointDir, names...); err != nil {
		// Not worth the new one: the next start lists it again.
		s.o.Logger.Warn("old checkpoints stay", "error", err)
	}
	return nil
}

// sink is a checkpoint on its way. It is filled in one of two ways: by persist,
// from this node's state, or by Write, with the bytes of another node's file.
type sink struct {
	store *snapshots
	meta  checkpoint.Meta
	in    *checkpoint.Incoming // of Write
	done  bool
}

var errStopped = errors.New("the replica is shutting down")

// ID implements hraft.SnapshotSink.
func (s *sink) ID() string { return s.meta.Name() }

// persist writes this node's state.
func (s *sink) persist(f *frozen) error {
	s.meta.HeadIndex, s.meta.Chain = f.head, f.chain
	s.meta.Clock, s.meta.Digest = f.state.Clock(), f.state.Digest()
	s.meta.CreatedAt = time.Now().UnixMilli()
	if err := checkpoint.Write(s.store.o.FS, s.store.o.CheckpointDir, s.meta, stoppable{f.state, &s.store.stopped}); err != nil {
		return err
	}
	s.done = true
	return s.store.added(s.ID())
}

// Write implements hraft.SnapshotSink, for a snapshot that the leader sends.
func (s *sink) Write(p []byte) (int, error) {
	if s.store.stopped.Load() {
		return 0, errStopped
	}
	if s.in == nil {
		in, err := checkpoint.Receive(s.store.o.FS, s.store.o.CheckpointDir, s.ID())
		if err != nil {
			return 0, err
		}
		s.in = in
	}
	return s.in.Write(p)
}

// Close implements hraft.SnapshotSink. When it returns nil the checkpoint is
// whole, verified and durable.
func (s *sink) Close() error {
	if s.done {
		return nil
	}
	if s.in == nil {
		return fmt.Errorf("snapshot %s: nothing was written", s.ID())
	}
	// As in Persist, and for the same reason: this node's event log reaches up to
	// the checkpoint (the offer was judged), but perhaps not on disk, and Raft
	// empties its log behind this.
	if err := s.store.o.Machine.SyncLog(); err != nil {
		return fmt.Errorf("sync the event log before snapshot %s: %w", s.ID(), err)
	}
	if err := s.in.Commit(); err != nil {
		return err
	}
	s.done = true
	return s.store.added(s.ID())
}

// Cancel implements hraft.SnapshotSink.
func (s *sink) Cancel() error {
	if s.in != nil && !s.done {
		s.in.Abort()
	}
	return nil
}

// stoppable fails a long write once the flag is set.
type stoppable struct {
	body io.WriterTo
	flag *atomic.Bool
}

func (s stoppable) WriteTo(w io.Writer) (int64, error) {
	return s.body.WriteTo(stopWriter{w, s.flag})
}

type stopWriter struct {
	w    io.Writer
	flag *atomic.Bool
}

func (s stopWriter) Write(p []byte) (int, error) {
	if s.flag.Load() {
		return 0, errStopped
	}
	return s.w.Write(p)
}

// snapped is what the next checkpoint counts from. It is kept here, because to ask
// the store may take as long as an old checkpoint is being removed, and entries are
// applied meanwhile.
type snapped struct {
	entries, bytes uint64 // applied when the newest was begun
	size           int64  // of it
}

// snappedAt notes where the Machine stood when the newest checkpoint was begun.
func (r *Replica) snappedAt(p progress) {
	newest, _ := r.stores.snaps.newest()
	r.checkpoints.snapped.Store(&snapped{p.entries, p.bytes, newest.Size})
}

// snapshotDue tells whether enough entries, or bytes of them, were applied since the
// last checkpoint, which has newest bytes. There must be as many: a large state is
// not written more often than all that happens to it.
func (o *Options) snapshotDue(entries, bytes uint64, newest int64) bool {
	return entries >= o.SnapshotThreshold || bytes >= max(o.SnapshotBytes, uint64(newest))
}

// takeSnapshots writes a checkpoint when enough was applied since the last, or
// when some time has passed with anything applied.
func (r *Replica) takeSnapshots() {
	var interval <-chan time.Time
	if r.o.SnapshotInterval > 0 {
		t := time.NewTicker(r.o.SnapshotInterval)
		defer t.Stop()
		interval = t.C
	}
	for {
		select {
		case <-r.checkpoints.snapNow:
		case <-interval:
		case <-r.run.stop:
			return
		}
		p := r.fsm.progress()
		if p.entries == r.checkpoints.snapped.Load().entries {
			continue
		}
		if err := r.Snapshot(); err != nil {
			r.o.Logger.Warn("no checkpoint was written", "error", err)
		}
		// Also after a failure: the next is tried after as much again, not at
		// each entry.
		r.snappedAt(p)
	}
}

// unapplied returns the index of a configuration that was committed, and not yet
// applied, when a checkpoint was to be written: hashicorp/raft then writes none, and
// has no type for that error. 0 is any other, or none.
func unapplied(err error) (index uint64) {
	if err != nil {
		_, _ = fmt.Sscanf(err.Error(), "cannot take snapshot now, wait until the configuration entry at %d has been applied", &index)
	}
	return index
}

// Snapshot writes a checkpoint now and truncates the Raft log behind it. It is
// no error if there is nothing new to write.
func (r *Replica) Snapshot() error {
	err := r.raft.Snapshot().Error()
	if index := unapplied(err); index > 0 {
		if err := r.waitApplied(r.b.forward.ctx, index); err != nil {
			return err
		}
		err = r.raft.Snapshot().Error()
	}
	if !errors.Is(err, hraft.ErrNothingNewToSnapshot) {
		return err
	}
	p := r.fsm.progress()
	if newest, _ := r.stores.snaps.newest(); newest.HeadIndex < p.head {
		return errCatchingUp // nothing was applied in this process yet
	}
	return nil
}

// DropCheckpoints removes the checkpoints below index, but for the newest two:
// the history that they begin has been deleted by retention.
func (r *Replica) DropCheckpoints(index uint64) error { return r.stores.snaps.drop(index) }

func (s *snapshots) drop(index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	kept := s.have[:0:0]
	for i, m := range s.have {
		if i >= 2 && m.Index < index {
			names = append(names, m.Name())
		} else {
			kept = append(kept, m)
		}
	}
	s.have = kept
	return checkpoint.Remove(s.o.FS, s.o.CheckpointDir, names...)
}

package raft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// snapshots is Raft's SnapshotStore. Its snapshots are the node's checkpoints: there is one
// copy. hashicorp/raft only learns which there are: a node that needs one fetches it (I17).
type snapshots struct {
	*checkpoint.Dir
	cluster string
}

var _ hraft.SnapshotStore = (*snapshots)(nil)

func openSnapshots(o Options) (*snapshots, error) {
	dir, err := checkpoint.OpenDir(o.FS, o.CheckpointDir, o.KeepCheckpoints, o.Logger)
	return &snapshots{dir, o.ClusterID}, err
}

// floor returns the index up to which the Raft log may be truncated: before the newest checkpoint
// but one. If the newest turns out to be damaged, the one before it and the Raft log still contain
// everything. And a node that fetches the newest has until the next but one is written: see
// holdFor. The entry at a checkpoint's index stays, because the leader sends its term with those
// after it.
func (s *snapshots) floor() uint64 {
	metas := s.Metas()
	if len(metas) < 2 {
		return 0
	}
	return metas[1].Index - 1
}

func (s *snapshots) List() (out []*hraft.SnapshotMeta, err error) {
	for _, m := range s.Metas() {
		out = append(out, &hraft.SnapshotMeta{
			Version: hraft.SnapshotVersion(m.SnapshotVersion), ID: m.Name(),
			Index: m.Index, Term: m.Term,
			Configuration:      hraft.DecodeConfiguration(m.Configuration),
			ConfigurationIndex: m.ConfigurationIndex, Size: m.Size,
		})
	}
	return out, nil
}

// Open implements hraft.SnapshotStore. Nobody reads the stream: see transport.InstallSnapshot.
func (s *snapshots) Open(id string) (*hraft.SnapshotMeta, io.ReadCloser, error) {
	list, _ := s.List()
	for _, m := range list {
		if m.ID == id {
			return m, io.NopCloser(strings.NewReader("")), nil
		}
	}
	return nil, nil, fmt.Errorf("checkpoint %s was removed", id)
}

func (s *snapshots) Create(version hraft.SnapshotVersion, index, term uint64,
	c hraft.Configuration, cIndex uint64, _ hraft.Transport) (hraft.SnapshotSink, error) {
	return &sink{meta: checkpoint.Meta{
		Index: index, Term: term, SnapshotVersion: uint16(version),
		Configuration: hraft.EncodeConfiguration(c), ConfigurationIndex: cIndex,
		ClusterID: s.cluster,
	}}, nil
}

// DropCheckpoints removes the checkpoints below index, but for the newest two: the history
// at which they begin was deleted by retention.
func (r *Replica) DropCheckpoints(index uint64) error { return r.stores.snaps.DropBefore(index) }

// ReplaceCheckpoint removes a damaged checkpoint, once two that are newer are there: with each of
// the newest two the Raft log contains everything.
func (r *Replica) ReplaceCheckpoint(ctx context.Context, name string) error {
	s := r.stores.snaps
	for range 2 {
		if newest := s.Metas(); len(newest) > 1 && newest[1].Name() > name {
			break
		}
		// Without an entry there would be nothing new to write.
		if _, err := r.Propose(ctx, &event.Command{Mark: &event.Mark{}}); err != nil {
			return err
		}
		if err := r.Snapshot(); err != nil {
			return err
		}
	}
	return s.Remove(name)
}

// sink is a checkpoint that frozen.Persist writes.
type sink struct {
	hraft.DiscardSnapshotSink
	meta checkpoint.Meta
}

var errNoBulk = errors.New("checkpoints are fetched beside Raft")

func (s *sink) ID() string { return s.meta.Name() }

// snapshotDue reports whether enough entries, or bytes of them, were applied since the last
// checkpoint. Its size is a lower bound for the bytes: a large state is not written more often than
// as much has happened to it.
func (r *Replica) snapshotDue(p progress) bool {
	return p.entries >= r.o.SnapshotThreshold ||
		p.bytes >= max(r.o.SnapshotBytes, uint64(r.stores.snaps.Newest().Size))
}

// takeSnapshots writes a checkpoint when enough was applied since the last, or when the
// interval has passed and anything was applied, but none while another node fetches one (holdFor).
func (r *Replica) takeSnapshots() {
	interval := time.NewTicker(cmp.Or(max(r.o.SnapshotInterval, 0), math.MaxInt64)) // or never
	defer interval.Stop()
	for {
		select {
		case <-r.snapNow:
			if !r.snapshotDue(r.fsm.progress()) {
				continue // not any more: a checkpoint was begun since
			}
		case <-interval.C:
		case <-r.run.stop:
			return
		}
		held := r.holdUntil.Load()
		if r.fsm.progress().entries == 0 || held != nil && time.Now().Before(*held) {
			continue
		}
		if err := r.Snapshot(); err != nil {
			r.o.Logger.Warn("writing a checkpoint failed", "error", err)
		}
	}
}

// configurationPending is how the error begins by which hashicorp/raft, which has no type for it,
// refuses a checkpoint while a committed configuration is not applied yet.
const configurationPending = "cannot take snapshot now, wait until the configuration entry at"

// Snapshot writes a checkpoint now and truncates the Raft log behind it. It is no error if there
// is nothing new to write.
func (r *Replica) Snapshot() error {
	for {
		err := r.await(r.raft.Snapshot())
		switch {
		case errors.Is(err, hraft.ErrNothingNewToSnapshot):
			if r.stores.snaps.Newest().HeadIndex < r.fsm.progress().head {
				return errCatchingUp // nothing was applied in this process yet
			}
			return nil
		case err == nil || !strings.HasPrefix(err.Error(), configurationPending):
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-r.run.stop:
			return shuttingDown()
		}
	}
}

package raft

import (
	"errors"
	"fmt"
	"time"

	hraft "github.com/hashicorp/raft"
)

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
	r.snapped.Store(&snapped{p.entries, p.bytes, newest.Size})
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
		case <-r.snapNow:
		case <-interval:
		case <-r.stop:
			return
		}
		p := r.fsm.progress()
		if p.entries == r.snapped.Load().entries {
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
	err := r.await(r.life, r.raft.Snapshot())
	if index := unapplied(err); index > 0 {
		if err := r.waitApplied(r.b.forward.ctx, index); err != nil {
			return err
		}
		err = r.await(r.life, r.raft.Snapshot())
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

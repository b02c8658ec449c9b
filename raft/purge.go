package raft

import (
	"context"
	"fmt"
	"time"

	"github.com/qlogd/qlogd/event"
)

// An erasure is complete on a node when its Raft log does not hold the bytes either (I22). Deleting
// entries is not enough: raft-wal only notes that the front of a file is no longer valid, and
// entries that another leader replaced stay after its end. So full files are deleted, and the
// newest is rewritten without what was deleted. The log always reaches back to the newest
// checkpoint but one (snapshots.floor), so a purge takes up to two new checkpoints, and an entry
// between them: a mark, if there is no other.
const purgeRetry = 10 * time.Millisecond // between two steps

// PurgeLog returns nil when no file of this node's Raft log holds a byte of the entries up to
// an index, nor of those that such entries have replaced. It waits until they are applied here,
// and takes checkpoints until they can be deleted.
func (r *Replica) PurgeLog(ctx context.Context, upTo uint64) error {
	for {
		purged, err := r.purgeStep(ctx, upTo)
		if err != nil {
			return fmt.Errorf("purge the Raft log: %w", err)
		}
		if purged {
			return nil
		}
		select {
		case <-time.After(purgeRetry):
		case <-ctx.Done():
			return ctx.Err()
		case <-r.run.stop:
			return shuttingDown()
		}
	}
}

// purgeStep does the next thing that can be done, if any.
func (r *Replica) purgeStep(ctx context.Context, upTo uint64) (purged bool, err error) {
	log := r.stores.log
	if r.fsm.progress().index < upTo {
		return false, nil
	}
	h, err := log.holding(upTo)
	if err != nil || h.files == 0 {
		return h.files == 0, err
	}
	first, err := log.FirstIndex()
	switch {
	case err != nil:
		return false, err
	// Where the log was discarded for a checkpoint, its file's name says nothing before there
	// is an entry.
	case r.stores.snaps.floor() < h.to, first == 0:
		if r.stores.snaps.Newest().Index >= r.fsm.progress().index {
			if _, err := r.Propose(ctx, &event.Command{Mark: &event.Mark{}}); err != nil {
				return false, err
			}
		}
		return false, r.Snapshot()
	case first <= h.to:
		if err := log.DeleteRange(first, h.to); err != nil || !h.newest {
			return false, err
		}
	}
	// Also if a full file stays that is no longer valid: raft-wal deletes one when nobody reads
	// it, and does not report if that fails.
	r.o.Logger.Info("rewriting the Raft log without deleted entries", "up_to", h.to)
	return false, log.reopen()
}

// holding is what Raft's files have of entries up to an index.
type holding struct {
	files  int    // that may have some of them
	to     uint64 // when the entries up to here are deleted, the files can be removed
	newest bool   // the file that is written to is among them
}

// holding finds the files that have entries up to an index, or had them before others replaced
// these: all that begin at one of them.
func (s *logStore) holding(index uint64) (h holding, err error) {
	// All that have the name of a segment, also those that raft-wal has dropped.
	files, err := s.filer.List()
	if err != nil {
		return h, fmt.Errorf("list the Raft log's files: %w", err)
	}
	h.to, h.newest = index, true
	for _, base := range files {
		switch {
		case base <= index:
			h.files++
		case h.newest || base-1 < h.to:
			h.to, h.newest = base-1, false
		}
	}
	return h, nil
}

// reopen replaces the newest file by one that has only valid entries, and deletes files that
// are no longer valid. Nothing is read or stored meanwhile.
func (s *logStore) reopen() error {
	s.walMu.Lock()
	defer s.walMu.Unlock()
	if _, err := s.wal.FirstIndex(); err != nil {
		return err // it is closed
	}
	return s.write("rewrite the newest file", func() error {
		// From here on it is as after a kill: see repairLog.
		if err := s.wal.Close(); err != nil {
			return err
		}
		w, err := s.open()
		if err != nil {
			return err
		}
		s.wal = w
		return nil
	})
}

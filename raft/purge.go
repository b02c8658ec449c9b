package raft

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/qlogd/qlogd/event"
)

// An erasure is done on a node when its Raft log has let go of the bytes too.
// Deleting entries is not enough: raft-wal only notes that the front of a file
// counts no more, and what a deposed leader had replaced at its end stays behind
// it. So the files themselves go: the full ones by deletion, as soon as a
// checkpoint is behind them; the newest, which does not fill up where little is
// written, by being written anew without what was deleted.
//
// Nothing is deleted that a start could need: as at any time, the log reaches
// back to the newest checkpoint but one (snapshots.floor). So it takes up to two
// new checkpoints, and an entry between them: a mark, where there is no other.

const (
	// shedAnew is how many bytes of entries are copied at most when the newest file
	// is written anew: meanwhile nothing is stored. Where more is written, the file
	// is full soon.
	shedAnew = 8 << 20
	// shedAgain is when it is tried again, where something is to come first.
	shedAgain = 250 * time.Millisecond
	// shedFor is how long a leader waits for members that answer but lack what it
	// is about to let go of: they would have to fetch it.
	shedFor = 10 * time.Second
)

// Shed returns nil when no file of this node's Raft log holds a byte of the
// entries up to an index, nor of what such entries have replaced. It waits until
// they are applied here, and takes checkpoints until they can go.
func (r *Replica) Shed(ctx context.Context, upTo uint64) error {
	began := time.Now()
	for {
		done, again, err := r.shed(ctx, upTo, time.Since(began) < shedFor)
		if done || err != nil {
			return err
		}
		if again {
			continue
		}
		select {
		case <-time.After(shedAgain):
		case <-ctx.Done():
			return ctx.Err()
		case <-r.run.stop:
			return shuttingDown()
		}
	}
}

// shed does one step. again: the next one can follow at once.
func (r *Replica) shed(ctx context.Context, upTo uint64, patient bool) (done, again bool, err error) {
	log := r.stores.log
	if r.fsm.progress().index < upTo {
		return false, false, nil
	}
	h, err := log.holding(upTo)
	if err != nil {
		return false, false, fmt.Errorf("shed the Raft log: %w", err)
	}
	if h.files == 0 {
		return true, false, nil
	}
	if patient && r.others(upTo) {
		return false, false, nil
	}
	if metas := r.stores.snaps.metas(); len(metas) < 2 || metas[1].Index < h.to {
		err := r.checkpointForShed(ctx)
		return false, err == nil, err
	}
	if r.stores.snaps.floor() < h.to {
		// A node is fetching what goes before, or was not long ago: see pin.
		return false, r.unpin(h.to), nil
	}
	first, err := log.FirstIndex()
	if err != nil {
		return false, false, err
	}
	if first == 0 {
		// Emptied for a snapshot: the file is of no use to tell by before there is
		// an entry.
		err := r.checkpointForShed(ctx)
		return false, err == nil, err
	}
	if first <= h.to {
		if err := log.DeleteRange(first, h.to); err != nil {
			return false, false, err
		}
		if !h.newest {
			return false, true, nil
		}
	}
	if h.newest {
		size, err := log.sizeFrom(h.to+1, shedAnew)
		switch {
		case err != nil:
			return false, false, err
		case size >= shedAnew:
			// Much was written since. The next checkpoint but one is behind most of it.
			if err := r.checkpointForShed(ctx); err != nil {
				return false, false, err
			}
			return false, false, log.DeleteRange(h.to+1, r.stores.snaps.floor())
		}
	}
	// Also where a full file stays that counts no more: raft-wal deletes one when
	// nobody reads it, and tells nobody if that fails.
	r.o.Logger.Info("writing the Raft log anew, without what was deleted", "up-to", h.to)
	if err := log.anew(); err != nil {
		return false, false, err
	}
	h, err = log.holding(upTo)
	return h.files == 0 && err == nil, false, err
}

// unpin lets go of what was kept for nodes that have applied an entry since, or are
// no members any more, and tells whether there was any.
func (r *Replica) unpin(index uint64) bool {
	members := r.Members()
	return r.stores.snaps.unpin(func(who string) bool {
		i := slices.IndexFunc(members, func(m MemberStatus) bool { return m.Server() == who })
		return i < 0 || members[i].Reachable && members[i].Status.Applied >= index
	})
}

// others tells whether this node leads members that can be reached and have not
// applied an entry.
func (r *Replica) others(index uint64) bool {
	if !r.Leader() {
		return false
	}
	for _, m := range r.Members() {
		if m.Reachable && m.Status.Applied < index {
			return true
		}
	}
	return false
}

// checkpointForShed writes a checkpoint behind the newest one.
func (r *Replica) checkpointForShed(ctx context.Context) error {
	if newest, _ := r.stores.snaps.newest(); newest.Index >= r.fsm.progress().index {
		if _, err := r.Propose(ctx, &event.Command{Mark: &event.Mark{}}); err != nil {
			return err
		}
	}
	return r.Snapshot()
}

// holding is what Raft's files have of entries up to an index.
type holding struct {
	files  int    // that may have some of them
	to     uint64 // when what is up to there was deleted, they can go
	newest bool   // the one that is written to is among them
}

// holding looks which files have entries up to an index, or had them before
// others replaced these: all that were begun at one of them.
func (s *logStore) holding(index uint64) (h holding, err error) {
	// Whatever lies there by the name of a segment, also what raft-wal has
	// forgotten.
	names, err := s.list(s.dir)
	if err != nil {
		return h, err
	}
	h.to, h.newest = index, true
	for _, name := range names {
		if !strings.HasSuffix(name, ".wal") {
			continue
		}
		var base, id uint64
		if n, err := fmt.Sscanf(name, "%020d-%016x.wal", &base, &id); err != nil || n != 2 {
			return h, fmt.Errorf("%s is no name of a segment", name)
		}
		switch {
		case base <= index:
			h.files++
		case h.newest || base-1 < h.to:
			h.to, h.newest = base-1, false
		}
	}
	return h, nil
}

// sizeFrom returns how many bytes the entries from an index on have, or limit
// where they have more.
func (s *logStore) sizeFrom(index uint64, limit int) (size int, err error) {
	last, err := s.LastIndex()
	if err != nil {
		return 0, err
	}
	for ; index <= last && size < limit; index++ {
		var l hraft.Log
		if err := s.GetLog(index, &l); err != nil {
			return 0, err
		}
		size += len(l.Data)
	}
	return min(size, limit), nil
}

// anew exchanges the newest file for one that has only what counts, and deletes
// files that count no more. Nothing is read or stored meanwhile.
func (s *logStore) anew() error {
	s.walMu.Lock()
	defer s.walMu.Unlock()
	if s.closed {
		return wal.ErrClosed
	}
	return s.guard("write the log anew", func() error {
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

// Package store keeps the read models: counts and lists derived from the event log that
// are not needed for deciding, and too expensive to compute for each request. They are in
// one bbolt file, <data>/projections.db:
//
//	rates        events of each queue by minute, and enqueued by second
//	totals       events of each queue by type
//	dead letters of each queue by reason
//	replayed     dead messages that were replayed, by the queue in which they died
//	operations   which requests with an Idempotency-Key were carried out
//	workers      leases of each worker in each queue, by five minutes
//	dying        dead letters of the last ten minutes, by minute
//	expiries     the newest leases that expired
//
// A Store follows the log outside of the write path, on any node, at a position of
// its own, about one bbolt transaction a second. What it answers is therefore
// up to about a second old; Position says how old.
//
// # The one invariant
//
// At a position, the file is the fold of the log up to there, however the blocks were
// batched and wherever the process died (I13). So position and counts change in the same
// transaction, and old entries are dropped by the log's clock.
//
// # When the file is wrong
//
// It can always be rebuilt from the log, so nothing about it stops a node. It is rebuilt
// when it does not open, when a value's checksum is wrong (bbolt does not notice flipped
// bits), when it belongs to another cluster or another version of this format, and when
// its position is beyond the log's end or has another chain than the log. After a
// rebuild the counts cover the history that the log still holds.
//
// Transactions are synced although the file is expendable: without it, a power
// cut could leave new roots over old pages, which opens and counts wrongly, and
// two fsyncs a second off the write path cost less than a rebuild after each
// unclean stop.
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/pages"
)

// Source is the event log.
type Source interface {
	// Blocks yields the log's blocks with an index in from..to, in order, up to the head. A block
	// is valid until the next one. If whole names types, only type and queue are set of events of
	// all others, and the worker of leased ones.
	Blocks(ctx context.Context, from, to uint64, whole ...event.Type) iter.Seq2[
		*event.Block, error]
	// Head returns the newest block's index, 0 if there is none.
	Head() uint64
	// Begins returns the index of the newest block that retention has deleted, and the
	// log's clock there; zeros if none is.
	Begins() (index uint64, clock int64)
}

// Store holds the read models of one node. Its methods may be called from any
// goroutine; CatchUp from one at a time.
type Store struct {
	path, cluster string
	logger        *slog.Logger

	// maxEvents ends a batch, so that catching up takes bounded memory; an operation, of which
	// each takes some, counts as several.
	maxEvents int
	// maxRows bounds what is kept by minute and queue: a day of it, or less where thousands of
	// queues are busy.
	maxRows int
	// maxWorkers bounds what is kept of workers, whose names anybody can make up.
	maxWorkers int
	// maxExpiries bounds what is kept of leases that expired.
	maxExpiries int

	// mu is held for reading inside a transaction, and for writing while the file is exchanged or
	// at changes.
	mu      sync.RWMutex
	db      *bolt.DB      // nil after Close; another one after Rebuild
	at      state         // what the file holds
	changed chan struct{} // closed when at changes
}

// waitForFile is how long Open waits for another process that has the file open.
const waitForFile = time.Second

// Open opens the read models in the file at path for the cluster with this id, or creates
// new ones if there are none, or if they are damaged or belong to another cluster. The
// caller holds the data directory's lock.
func Open(path, cluster string, logger *slog.Logger) (*Store, error) {
	s := &Store{
		path: path, cluster: cluster, logger: logger,
		maxEvents: 500_000, maxRows: 200_000, maxWorkers: 20_000, maxExpiries: 10_000,
		changed: make(chan struct{}),
	}
	err := s.open()
	if errors.Is(err, errCorrupt) {
		logger.Warn("rebuilding read models", "file", path, "reason", err)
		err = s.begin()
	}
	if err != nil {
		return nil, fmt.Errorf("read models %s: %w", path, err)
	}
	return s, nil
}

// open opens the file, creates missing buckets, and reads its state. A file that is damaged, or
// another cluster's, is an errCorrupt, and is closed again.
func (s *Store) open() error {
	var db *bolt.DB
	var at state
	err := pages.Try(func() (err error) {
		db, err = bolt.Open(s.path, 0o600, &bolt.Options{Timeout: waitForFile,
			FreelistType: bolt.FreelistMapType})
		var path *fs.PathError
		switch {
		case errors.Is(err, berrors.ErrTimeout), errors.As(err, &path):
			return err
		case err != nil:
			return fmt.Errorf("%w: %v", errCorrupt, err)
		}
		return db.Update(func(tx *bolt.Tx) (err error) {
			fresh := tx.Bucket(bucketMeta) == nil
			for _, name := range buckets {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			if fresh {
				at = state{Format: format, Cluster: s.cluster}
				return put(tx.Bucket(bucketMeta), keyState, at)
			}
			if at, err = stateOf(tx); err == nil && at.Cluster != s.cluster {
				err = fmt.Errorf("%w: it is cluster %.64q's", errCorrupt, at.Cluster)
			}
			return err
		})
	})
	if err == nil {
		s.db, s.at = db, at
	} else if db != nil {
		_ = pages.Try(db.Close)
	}
	return err
}

// begin replaces the file by an empty one. The caller holds mu or has not shared s yet.
func (s *Store) begin() error {
	if s.db != nil {
		_ = pages.Try(s.db.Close) // its content is of no use any more
		s.db = nil
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.open()
}

// Rebuild discards the file; CatchUp then reads the log again. Until it has reached the head,
// the answers are those of an older log.
func (s *Store) Rebuild() error { return s.discard(nil, errors.New("requested")) }

// discard replaces db by an empty file, unless it was replaced already; nil is the
// current one.
func (s *Store) discard(db *bolt.DB, reason error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.db == nil:
		return errClosed
	case db != nil && db != s.db:
		return nil
	}
	s.logger.Warn("rebuilding read models", "file", s.path, "reason", reason)
	return s.begin()
}

var errClosed = errors.New("the read models are closed")

// Close closes the file. CatchUp must have returned.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	err := pages.Try(s.db.Close)
	s.db = nil
	return err
}

// CatchUp counts what the log holds beyond the position, and calls counted with each new position.
// A file that is damaged, or does not lie in this log, is discarded, and all is counted again.
// After an error the node can continue: the read models stay as they are.
func (s *Store) CatchUp(ctx context.Context, src Source, counted func(index uint64)) error {
	more, err := true, error(nil)
	for more && err == nil {
		more, err = s.catchUp(ctx, src)
		index, _ := s.Position()
		counted(index)
	}
	return err
}

// catchUp counts a batch, and reports whether the log may hold more already.
func (s *Store) catchUp(ctx context.Context, src Source) (more bool, err error) {
	s.mu.RLock()
	b := s.newBatch()
	s.mu.RUnlock()
	if b.Position == 0 {
		_, b.Clock = src.Begins()
	}
	if more, err = b.read(ctx, src, s.maxEvents); err == nil && b.Position > b.from {
		err = s.commit(b)
	}
	if errors.Is(err, errCorrupt) {
		discarded := s.discard(b.db, err)
		if b.from > 0 {
			return true, discarded
		}
		err = errors.Join(err, discarded) // it is damaged again, and may be the next time too
	}
	return more, err
}

// read counts blocks until the log ends, or the batch is full (more).
func (b *batch) read(ctx context.Context, src Source, maxEvents int) (more bool, err error) {
	if head := src.Head(); head < b.Position {
		return false, fmt.Errorf("%w: its position %d is beyond the log's end %d", errCorrupt,
			b.Position, head)
	}
	for k, err := range src.Blocks(ctx, b.Position, math.MaxUint64, detailed...) {
		switch {
		case err != nil:
			return false, fmt.Errorf("read block after %d: %w", b.Position, err)
		case k.Index > b.Position:
			b.add(k)
		case k.Chain != b.Chain: // the block at the position, unless retention has deleted it
			return false, fmt.Errorf("%w: block %d has another chain in the log", errCorrupt,
				b.Position)
		}
		if b.events >= maxEvents {
			return true, nil
		}
	}
	return false, nil
}

// commit writes a batch to the file that it was begun from. If that was discarded
// meanwhile, so is the batch.
func (s *Store) commit(b *batch) (err error) {
	s.mu.RLock()
	switch s.db {
	case nil:
		err = errClosed
	case b.db:
		err = pages.Try(func() error { return b.db.Update(b.write) })
	}
	s.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("count up to block %d: %w", b.Position, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == b.db {
		s.at = b.state
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return nil
}

func stateOf(tx *bolt.Tx) (state, error) {
	at, _, err := get[state](tx.Bucket(bucketMeta), keyState)
	if err == nil && at.Format != format {
		err = fmt.Errorf("%w: format %d is not this program's %d", errCorrupt, at.Format, format)
	}
	return at, err
}

// view runs fn in a transaction for reading. A file in which it meets damage is discarded, and the
// error is an event.Problem.
func (s *Store) view(fn func(*bolt.Tx) error) error {
	s.mu.RLock()
	db, err := s.db, errClosed
	if db != nil {
		err = pages.Try(func() error { return db.View(fn) })
	}
	s.mu.RUnlock()
	if errors.Is(err, errCorrupt) {
		again := &event.Problem{Code: event.CodeNoLeader, Index: -1, RetryAfterMS: 1000,
			Detail: "the read models of this node (" + filepath.Base(s.path) + ") are damaged and " +
				"are being rebuilt from the log; repeat the request, or ask another node"}
		err = errors.Join(again, err, s.discard(db, err))
	}
	return err
}

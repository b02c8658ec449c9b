package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/qlogd/qlogd/event"
)

// Source is the event log as far as the read models need it.
type Source interface {
	// Follow yields the log's blocks with an index of from or above, in order, to
	// the end that the log has when it is reached. A block is valid until the next
	// one.
	Follow(from uint64) iter.Seq2[*event.Block, error]
	// Wait returns nil as soon as the log holds a block with an index of at
	// least this, or the context's error.
	Wait(ctx context.Context, index uint64) error
	// Head returns the newest block's index, 0 if there is none.
	Head() uint64
	// Begins returns what retention has left off: the index of the newest block
	// that is gone, and the log's clock there. Zeros where none is.
	Begins() (index uint64, clock int64)
}

// Options of a Store. The zero value is right in production.
type Options struct {
	// Interval is the least time between two transactions while the log grows
	// slowly: a second if 0, none if negative.
	Interval time.Duration
	// MaxEvents ends a batch, so that catching up takes bounded memory; an
	// operation, of which each takes some, counts as several.
	MaxEvents int
	// MaxRows bounds what is kept by minute and queue: a day of it, or less
	// where thousands of queues are busy. All openings of a file use the same.
	MaxRows int
	Logger  *slog.Logger
}

// Store holds the read models of one node. Its methods may be called from any
// goroutine; Follow from one at a time.
type Store struct {
	path    string
	cluster string
	opts    Options

	// mu is held for reading by whoever is inside a transaction, and for
	// writing while the file is exchanged or at changes.
	mu      sync.RWMutex
	db      *bolt.DB      // nil after Close
	at      state         // what the file holds
	file    int           // which one it is: rises when it is begun anew
	changed chan struct{} // closed and replaced when at.position rises

	damaged chan struct{} // has one element once a reader met damage
	again   chan struct{} // has one element once Rebuild has begun a new file
}

// waitForFile is how long another process that has the file open is waited for.
const waitForFile = time.Second

// Open opens the read models in the file at path for the cluster with this id,
// or begins new ones where there are none, where they are damaged, or where
// they belong to another cluster. The caller holds the data directory's lock.
func Open(path, cluster string, opts Options) (*Store, error) {
	if opts.Interval == 0 {
		opts.Interval = time.Second
	}
	if opts.MaxEvents == 0 {
		opts.MaxEvents = 500_000
	}
	if opts.MaxRows == 0 {
		opts.MaxRows = 200_000
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{path: path, cluster: cluster, opts: opts, damaged: make(chan struct{}, 1), again: make(chan struct{}, 1), changed: make(chan struct{})}
	err := s.open()
	if err == nil && s.at.cluster != cluster {
		err = fmt.Errorf("%w: it is cluster %.64q's", errCorrupt, s.at.cluster)
	}
	if errors.Is(err, errCorrupt) {
		opts.Logger.Warn("read models are counted anew", "file", path, "reason", err)
		err = s.begin()
	}
	if err != nil {
		return nil, fmt.Errorf("read models %s: %w", path, err)
	}
	return s, nil
}

// open opens the file, making what is missing, and reads its state. Damage is
// an errCorrupt, and the file is closed again.
func (s *Store) open() (err error) {
	var db *bolt.DB
	defer func() {
		if err != nil && db != nil {
			_ = guard(db.Close)
		}
	}()
	err = guard(func() (err error) {
		db, err = bolt.Open(s.path, 0o600, &bolt.Options{Timeout: waitForFile, FreelistType: bolt.FreelistMapType})
		var path *fs.PathError
		if err != nil && !errors.Is(err, berrors.ErrTimeout) && !errors.As(err, &path) {
			return fmt.Errorf("%w: %v", errCorrupt, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	var at state
	err = guard(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			fresh := tx.Bucket(bucketMeta) == nil
			for _, name := range buckets {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			if fresh {
				at = state{cluster: s.cluster}
				return put(tx.Bucket(bucketMeta), keyState, at.encode())
			}
			v, err := get(tx.Bucket(bucketMeta), keyState)
			if err != nil {
				return err
			}
			at, err = decodeState(v)
			return err
		})
	})
	if err != nil {
		return err
	}
	s.db, s.at = db, at
	return nil
}

// begin throws the file away and starts an empty one. Whoever calls it holds mu
// or has not shared s yet.
func (s *Store) begin() error {
	if s.db != nil {
		_ = guard(s.db.Close) // its content is of no use any more
		s.db = nil
	}
	s.file++
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.open()
}

// WaitFor returns nil once the block at index is counted, or the context's
// error.
func (s *Store) WaitFor(ctx context.Context, index uint64) error {
	for {
		s.mu.RLock()
		at, changed := s.at.position, s.changed
		s.mu.RUnlock()
		if at >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Rebuild throws away what is counted; Follow counts the log anew, at once. Until
// it has come to the log's end, what is told is that of the log's beginning.
func (s *Store) Rebuild() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return errClosed
	}
	if err := s.begin(); err != nil {
		return err
	}
	select {
	case s.again <- struct{}{}:
	default:
	}
	return nil
}

var errClosed = errors.New("the read models are closed")

// Close closes the file. Follow must have returned.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	err := guard(s.db.Close)
	s.db = nil
	return err
}

// Follow counts the log's blocks as they come, until ctx ends; its error is
// ctx's, or that of a log or a disk that can't be read or written. The node can
// go on without it: the read models then stay as old as they are.
func (s *Store) Follow(ctx context.Context, src Source) error {
	if err := s.heal(s.compare(src)); err != nil {
		return err
	}
	for more := true; ; {
		b, file := s.next(src)
		if !more {
			if err := s.rest(ctx, src, b); err != nil {
				return err
			}
			select {
			case <-s.damaged:
				if err := s.heal(errCorrupt); err != nil {
					return err
				}
				more = true
				continue
			default:
			}
		}
		var err error
		if more, err = s.catchUp(ctx, src, b, file); err != nil {
			if err = s.heal(err); err != nil {
				return err
			}
			continue // with a pause: it may be damaged again
		}
		s.mu.RLock()
		more = more || s.file != file // begun anew meanwhile
		s.mu.RUnlock()
	}
}

// readAhead is how many times an interval the blocks that have come are read: as
// long as the log has them in memory, however fast they come.
const readAhead = 8

// rest returns when there is something to count and the interval is over, or
// when a reader met damage. What comes during the interval is counted in b.
func (s *Store) rest(ctx context.Context, src Source, b *batch) error {
	if s.opts.Interval > 0 {
		ticker := time.NewTicker(max(s.opts.Interval/readAhead, 1))
		defer ticker.Stop()
		for range readAhead {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			if more, err := b.read(ctx, src, s.opts.MaxEvents); more || err != nil {
				return nil // catchUp sees it, too
			}
		}
	}
	if b.position > b.from {
		return nil
	}
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-s.damaged:
			s.tell() // for Follow to find
			cancel()
		case <-s.again:
			cancel()
		case <-done:
		}
	}()
	index, _ := s.Position()
	err := src.Wait(wait, index+1)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if wait.Err() != nil {
		return nil
	}
	return err
}

// heal begins anew after damage; other errors it returns.
func (s *Store) heal(err error) error {
	if !errors.Is(err, errCorrupt) {
		return err
	}
	s.opts.Logger.Warn("read models are counted anew", "file", s.path, "reason", err)
	select {
	case <-s.damaged: // told by a reader of the same damage
	default:
	}
	if err := s.Rebuild(); err != nil {
		return fmt.Errorf("read models %s: %w", s.path, err)
	}
	return nil
}

// compare finds out whether the file's position lies in this log.
func (s *Store) compare(src Source) error {
	s.mu.RLock()
	at := s.at
	s.mu.RUnlock()
	if at.position == 0 {
		return nil
	}
	if head := src.Head(); head < at.position {
		return fmt.Errorf("%w: its position %d lies beyond the log's end %d", errCorrupt, at.position, head)
	}
	for b, err := range src.Follow(at.position) {
		if err != nil {
			return fmt.Errorf("read models: read block %d: %w", at.position, err)
		}
		// Retention may have taken the block itself, nothing else may.
		if b.Index == at.position && b.Chain != at.chain {
			return fmt.Errorf("%w: block %d has another chain in the log", errCorrupt, at.position)
		}
		break
	}
	return nil
}

// next returns a batch that begins where the file ends, and which file that is.
func (s *Store) next(src Source) (*batch, int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := newBatch(s.at, s.opts.MaxRows)
	if b.position == 0 {
		_, b.clock = src.Begins()
	}
	return b, s.file
}

// catchUp reads a batch to its end, brings it into its file, and reports whether the
// log may hold more already.
func (s *Store) catchUp(ctx context.Context, src Source, b *batch, file int) (more bool, err error) {
	if more, err = b.read(ctx, src, s.opts.MaxEvents); err != nil || b.position == b.from {
		return false, err
	}
	return more, s.commit(b, file)
}

// read counts blocks until the log ends, or the batch is full (more).
func (b *batch) read(ctx context.Context, src Source, maxEvents int) (more bool, err error) {
	for k, err := range src.Follow(b.position + 1) {
		if err != nil {
			return false, fmt.Errorf("read models: read block after %d: %w", b.position, err)
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		b.add(k)
		if b.events >= maxEvents {
			return true, nil
		}
	}
	return false, nil
}

// commit brings a batch into the file that it was begun from; into another one,
// made meanwhile by Rebuild, it must not come.
func (s *Store) commit(b *batch, file int) error {
	s.mu.RLock()
	db := s.db
	if db == nil || s.file != file {
		defer s.mu.RUnlock()
		if db == nil {
			return errClosed
		}
		return nil
	}
	err := guard(func() error { return db.Update(b.write) })
	s.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("read models: count up to block %d: %w", b.position, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != file {
		return nil
	}
	s.at = b.state
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// view runs fn in a transaction for reading. Damage that it meets makes Follow
// begin anew.
func (s *Store) view(fn func(*bolt.Tx, *state) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return errClosed
	}
	err := guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			// Not s.at: a transaction may just have been committed.
			v, err := get(tx.Bucket(bucketMeta), keyState)
			if err != nil {
				return err
			}
			at, err := decodeState(v)
			if err != nil {
				return err
			}
			return fn(tx, &at)
		})
	})
	if errors.Is(err, errCorrupt) {
		s.tell()
	}
	return err
}

// tell wakes Follow up to begin anew.
func (s *Store) tell() {
	select {
	case s.damaged <- struct{}{}:
	default:
	}
}

// guard runs fn and turns what bbolt does on damaged pages (it panics, or
// reads outside the mapped file) into errCorrupt.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errCorrupt, r)
		}
	}()
	return fn()
}

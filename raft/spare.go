package raft

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/internal/vfs"
)

// spareFile is a segment of zeros for the Raft log to go on in, and
// spareFile+vfs.TempSuffix one that is not whole yet. raft-wal passes over names
// that do not end as its own.
const spareFile = "segment.spare"

// spare lets the Raft log be written into blocks that were written before, past
// the page cache where that can be done (direct). An fdatasync then has only data
// to write. Into new blocks (of a sparse or an fallocated file) it also commits the
// file system's journal, which takes twice the time and twice the CPU (measured on
// ext4).
//
// What is under spareFile is always whole, durable and nothing but zeros: it gets
// that name after its last sync, and the name is gone durably before raft-wal
// writes its first byte into the file. A new segment is made in that way, never of
// an old one: what was deleted from the log must be gone.
//
// The zeros are written in the background while a segment fills. They are an aid:
// where it fails, the log goes on in sparse files. And so it does where entries are
// large: past the page cache, too.
type spare struct {
	fsys   vfs.FS
	dir    string
	size   int64
	room   func() bool // whether the disk has room for it
	share  int         // zeroShare; 1 in tests
	logger *slog.Logger

	taken atomic.Uint64 // segments that were made of a spare

	scratch []byte // what direct writes are made of; raft-wal's writer's

	mu    sync.Mutex
	begun bool   // a segment was made without one
	ready bool   // spareFile is there
	full  string // the name of the newest segment that was made of one
	busy  bool
	work  sync.WaitGroup // the one goroutine that writes zeros
	stop  chan struct{}
	end   sync.Once
}

// zeroPiece is written and synced at once: long enough that the journal commits
// that it needs come cheap, short enough to hold up no commit of an entry.
const zeroPiece = 512 << 10

// zeroShare is how much of the time is spent on zeros while they are being
// written: one part in so many.
const zeroShare = 10

// zerosPay is how many bytes a sync may write, on average over a segment, for
// zeros to be worth their cost: about what 100 journal commits cost is spent on a
// segment of 32 MiB.
const zerosPay = 128 << 10

var zeros [zeroPiece]byte

// openSpare looks for what an earlier process left.
func openSpare(o Options) (*spare, error) {
	s := &spare{fsys: o.FS, dir: o.Dir, size: int64(o.SegmentBytes), logger: o.Logger, share: zeroShare, stop: make(chan struct{})}
	s.room = func() bool {
		if o.FreeBytes == nil {
			return true
		}
		left, err := o.FreeBytes()
		return err == nil && left >= o.ReserveBytes+2*uint64(o.SegmentBytes)
	}
	if err := s.remove(s.temp()); err != nil {
		return nil, err
	}
	whole, err := s.whole()
	if err == nil && !whole {
		err = s.remove(s.name())
	}
	if err != nil {
		return nil, fmt.Errorf("raft log: %w", err)
	}
	s.ready = whole
	return s, nil
}

func (s *spare) name() string { return join(s.dir, spareFile) }
func (s *spare) temp() string { return s.name() + vfs.TempSuffix }

func (s *spare) remove(name string) error {
	if err := s.fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// whole tells whether there is a spare of the right size with nothing but zeros.
// No crash leaves another, but whoever has put one there would put it into the log.
func (s *spare) whole() (bool, error) {
	f, err := s.fsys.OpenRead(s.name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if size, err := f.Size(); err != nil || size != s.size {
		return false, err
	}
	buf := make([]byte, zeroPiece)
	for at := int64(0); at < s.size; at += zeroPiece {
		if ok, err := zero(f, buf, at, min(at+zeroPiece, s.size)); !ok {
			return false, err
		}
	}
	return true, nil
}

// zero tells whether a file has only zeros in [from, to), which fits into buf.
func zero(f vfs.File, buf []byte, from, to int64) (bool, error) {
	buf = buf[:to-from]
	if n, err := f.ReadAt(buf, from); n < len(buf) {
		return false, err
	}
	return bytes.Equal(buf, zeros[:len(buf)]), nil
}

// take makes the segment called name of the spare, durably; false: there is none.
func (s *spare) take(name string, size uint64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || size != uint64(s.size) {
		return false, nil
	}
	s.ready = false
	to := join(s.dir, name)
	if _, err := s.fsys.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
		}
		return false, err
	}
	if err := s.fsys.Rename(s.name(), to); err != nil {
		return false, err
	}
	// Before it is written: entries must not be found under the spare's name.
	if err := s.fsys.SyncDir(s.dir); err != nil {
		return false, err
	}
	s.full = name
	s.taken.Add(1)
	return true, nil
}

// spares tells of a segment that is made without a spare that none was wanted: the
// one before was full too soon for zeros to pay, and this one will be, too. It is
// not so of the first.
func (s *spare) spares() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.begun
	s.begun = true
	return !first && !s.busy
}

// pays tells at one of a segment's syncs, counted from 1, that zeros are worth
// writing. Where entries are large, the segment is full before that.
func (s *spare) pays(syncs int64) bool { return syncs == s.size/zerosPay+1 }

// want writes zeros ahead of the segment's end, where they were not written
// before, and then a spare for the next one, in the background.
func (s *spare) want(f *walFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.stop:
		return
	default:
	}
	if s.busy || s.ready && f.direct.Load() != nil || !s.room() {
		return
	}
	s.busy = true
	ahead, next := s.full != f.name, !s.ready
	s.work.Go(func() {
		err := s.write(f, ahead, next)
		if err != nil && !errors.Is(err, errSpareStopped) {
			s.logger.Warn("no zeros were written ahead of the Raft log; its syncs are slower", "error", err)
		}
		s.mu.Lock()
		s.busy = false
		s.ready = s.ready || next && err == nil
		s.mu.Unlock()
	})
}

func (s *spare) write(f *walFile, ahead, next bool) error {
	switch {
	case f.direct.Load() != nil: // into holes: see spares
	case ahead:
		if err := s.ahead(f); err != nil {
			return err
		}
	default:
		// At a start the log's end was copied into a spare, and opened again.
		f.goDirect(s.size)
	}
	if next {
		return s.fill()
	}
	return nil
}

// ahead writes zeros into the holes of a segment, behind all that raft-wal has
// begun to write: whoever reads the file sees no difference, at any moment. It is
// opened anew, so that a failure of this sync is not kept from raft-wal's own.
func (s *spare) ahead(f *walFile) error {
	g, err := s.fsys.OpenReadWrite(join(s.dir, f.name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted since
	}
	if err != nil {
		return err
	}
	defer g.Close()
	buf := make([]byte, zeroPiece)
	gone := false
	err = s.pieces(g, func(at int64) (int64, error) {
		f.mu.Lock() // raft-wal waits here, for one piece
		defer f.mu.Unlock()
		if gone = f.end == unknown; gone {
			return s.size, nil
		}
		if at = max(at, f.end); at >= s.size {
			return s.size, nil
		}
		to := min(at+zeroPiece, s.size)
		if ok, err := zero(g, buf, at, to); !ok {
			return 0, errors.Join(err, fmt.Errorf("%s is no hole behind offset %d", f.name, at))
		}
		_, err := g.WriteAt(zeros[:to-at], at)
		return to, err
	})
	if err != nil || gone {
		return err // one that is gone may be deleted, too
	}
	f.goDirect(s.size)
	return nil
}

// fill makes a spare.
func (s *spare) fill() (err error) {
	if err := s.remove(s.temp()); err != nil {
		return err
	}
	f, err := s.fsys.Create(s.temp())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Never synced again after a failure (design.md 9), but thrown away.
			_ = s.fsys.Remove(s.temp())
		}
	}()
	err = f.Truncate(s.size)
	if err == nil {
		err = s.pieces(f, func(at int64) (int64, error) {
			to := min(at+zeroPiece, s.size)
			_, err := f.WriteAt(zeros[:to-at], at)
			return to, err
		})
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := s.fsys.Rename(s.temp(), s.name()); err != nil {
		return err
	}
	return s.fsys.SyncDir(s.dir)
}

var errSpareStopped = errors.New("stopped")

// pieces writes and syncs one piece after the other up to the size, with pauses
// in which the disk is left to the log. write is given where the last one ended.
func (s *spare) pieces(file vfs.File, write func(at int64) (int64, error)) (err error) {
	var behind vfs.Behind
	for at := int64(0); at < s.size; {
		start := time.Now()
		if at, err = write(at); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		behind.Synced(file, at)
		select {
		case <-s.stop:
			return errSpareStopped
		case <-time.After(time.Duration(s.share-1) * time.Since(start)):
		}
	}
	return nil
}

// close ends the writing, and waits for that.
func (s *spare) close() {
	s.mu.Lock()
	s.end.Do(func() { close(s.stop) })
	s.mu.Unlock()
	s.work.Wait()
}

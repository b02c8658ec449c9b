package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/qlogd/qlogd/log/vfs"
)

func (l *Log) startBackground() {
	if l.inline {
		return
	}
	l.done.Add(2)
	go l.loop(l.wantSync, l.Sync)
	go l.loop(l.wantSide, l.buildSides)
}

// loop does the work each time it is wanted, until Close. An error has broken
// the log, which the next Append says too; but that may take a while.
func (l *Log) loop(want <-chan struct{}, work func() error) {
	defer l.done.Done()
	for {
		select {
		case <-l.stop:
			return
		case <-want:
			if err := work(); err != nil {
				if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrBroken) {
					l.logger.Error("event log is broken", "error", err)
				}
				return
			}
		}
	}
}

func (l *Log) syncSoon() error  { return l.soon(l.wantSync, l.Sync) }
func (l *Log) buildSoon() error { return l.soon(l.wantSide, l.buildSides) }

func (l *Log) soon(want chan<- struct{}, work func() error) error {
	if l.inline {
		return work()
	}
	select {
	case want <- struct{}{}:
	default: // it is wanted already
	}
	return nil
}

// buildSides writes the side files that sealed segments lack, and then those anew
// that an older program has written.
func (l *Log) buildSides() error {
	for {
		begun := time.Now()
		more, remade, err := l.buildOne()
		if !more || err != nil {
			return err
		}
		if !remade || l.inline {
			continue
		}
		// There may be thousands, and nobody waits for them: half of the time is
		// for others' reads and syncs.
		select {
		case <-time.After(time.Since(begun)):
		case <-l.stop:
			return nil
		}
	}
}

func (l *Log) buildOne() (more, remade bool, err error) {
	// Retention must not remove the segment in the middle of this.
	l.buildMu.Lock()
	defer l.buildMu.Unlock()
	if l.usable() != nil {
		return false, false, nil
	}
	var seg *segment
	var old *sideIndex
	l.mu.RLock()
	for i := range max(len(l.segments)-1, 0) {
		if s := l.segments[i]; s.side == nil {
			seg, old = s, nil
			break
		} else if seg == nil && s.side.version < sideVersion && !s.side.stays {
			seg, old = s, s.side
		}
	}
	l.mu.RUnlock()
	if seg == nil {
		return false, false, nil
	}
	b, err := l.sideBytes(seg, old)
	if err != nil {
		// It serves as it is: an older one is no reason to stop.
		l.logger.Warn("side file of an older version is not made anew", "file", old.name, "error", err)
		old.stays = true
		return true, true, nil
	}
	side, err := l.writeSide(seg, b)
	if err != nil {
		err = fmt.Errorf("write side file of segment %s: %w", seg.name, err)
		l.fail(err)
		return false, false, err
	}
	l.mu.Lock()
	seg.side, seg.mem = side, nil
	l.mu.Unlock()
	return true, old != nil, nil
}

// sideBytes returns a segment's side file: of its index in memory, which can't
// fail, or of an older one.
func (l *Log) sideBytes(seg *segment, old *sideIndex) ([]byte, error) {
	if old != nil {
		return l.remade(seg, old)
	}
	return encodeSide(seg, seg.mem), nil // a sealed segment does not change any more
}

func (l *Log) writeSide(seg *segment, b []byte) (*sideIndex, error) {
	name := sideName(seg.header.first)
	if err := vfs.WriteFile(l.fs, path.Join(l.dir, name), b); err != nil {
		return nil, err
	}
	if err := l.files.drop(name); err != nil { // whoever reads an older one reads on
		return nil, err
	}
	return l.openSide(name)
}

// remade returns the side file of which an older version is there. Its tables are
// the same, so they need not be made of the segment again, if they are whole.
func (l *Log) remade(seg *segment, old *sideIndex) ([]byte, error) {
	f, done, err := l.files.borrow(old.name)
	if err != nil {
		return nil, err
	}
	defer done()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := readFull(f, b, 0); err != nil {
		return nil, err
	}
	hashes, err := old.hashes()
	if _, ok := errors.AsType[*CorruptionError](err); ok {
		mem, s, err := l.scanSealed(seg)
		if err != nil {
			return nil, err
		}
		if s.last != seg.last || s.chain != seg.chain {
			return nil, &CorruptionError{Segment: seg.name, Offset: s.off, LastGood: s.last, Reason: "the next segment continues another block"}
		}
		return encodeSide(seg, mem), nil
	} else if err != nil {
		return nil, err
	}
	h := old.sideHeader
	h.version = sideVersion
	h.put(b)
	return appendFilters(b, hashes), nil
}

// openSide loads a side file.
func (l *Log) openSide(name string) (*sideIndex, error) {
	f, done, err := l.files.borrow(name)
	if err != nil {
		return nil, err
	}
	defer done()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	side, err := loadSide(f, size, name)
	if err != nil {
		return nil, err
	}
	side.file = func() (io.ReaderAt, func(), error) {
		f, done, err := l.files.borrow(name)
		if errors.Is(err, fs.ErrNotExist) && l.First() > side.first {
			err = ErrDeleted // retention was faster: see borrow
		}
		return f, done, err
	}
	return side, nil
}

// fits tells whether the side file is that of this segment, whose file has
// this size.
func (s *sideIndex) fits(seg *segment, size int64) error {
	if s.first != seg.header.first || s.salt != seg.salt || s.size != size {
		return errors.New("it belongs to another segment")
	}
	return nil
}

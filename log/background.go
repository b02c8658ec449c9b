package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/qlogd/qlogd/internal/vfs"
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

// buildSides writes the side files that sealed segments lack.
func (l *Log) buildSides() error {
	for {
		more, err := l.buildOne()
		if !more || err != nil {
			return err
		}
	}
}

func (l *Log) buildOne() (more bool, err error) {
	// Retention must not remove the segment in the middle of this.
	l.buildMu.Lock()
	defer l.buildMu.Unlock()
	if l.usable() != nil {
		return false, nil
	}
	var seg *segment
	l.mu.RLock()
	for i := range len(l.segments) - 1 {
		if l.segments[i].side == nil {
			seg = l.segments[i]
			break
		}
	}
	l.mu.RUnlock()
	if seg == nil {
		return false, nil
	}
	side, err := l.writeSide(seg)
	if err != nil {
		err = fmt.Errorf("write side file of segment %s: %w", seg.name, err)
		l.fail(err)
		return false, err
	}
	l.mu.Lock()
	seg.side, seg.mem = side, nil
	l.mu.Unlock()
	return true, nil
}

func (l *Log) writeSide(seg *segment) (*sideIndex, error) {
	name := sideName(seg.header.first)
	b := encodeSide(seg, seg.mem) // a sealed segment does not change any more
	if err := vfs.WriteFile(l.fs, path.Join(l.dir, name), b); err != nil {
		return nil, err
	}
	return l.openSide(name)
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

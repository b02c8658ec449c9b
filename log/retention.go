package log

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// DeleteBefore deletes the segments in which every block has an index below
// index. The active segment stays, and the first one that stays has in its
// header the chain that the rest continues. After a crash some may be deleted
// and some not, from the oldest on; asked again, it goes on.
func (l *Log) DeleteBefore(index uint64) error {
	l.adminMu.Lock()
	defer l.adminMu.Unlock()
	for {
		more, err := l.deleteFirst(index)
		if err != nil {
			return fmt.Errorf("delete blocks before %d: %w", index, err)
		}
		if !more {
			return nil
		}
	}
}

func (l *Log) deleteFirst(index uint64) (bool, error) {
	if err := l.usable(); err != nil {
		return false, err
	}
	// Before anything goes: the chain head that stays must be durable.
	if !l.deletable(index) {
		return false, nil
	}
	if err := l.Sync(); err != nil {
		return false, err
	}
	// The builder may be at work on this very segment.
	l.buildMu.Lock()
	defer l.buildMu.Unlock()
	l.writeMu.Lock()
	l.mu.Lock()
	seg := l.segments[0]
	// A new slice: readers hold the old one.
	l.segments = append([]*segment(nil), l.segments[1:]...)
	l.mu.Unlock()
	l.writeMu.Unlock()
	// The side file first: without its segment it would be a leftover.
	for _, name := range []string{sideName(seg.header.first), seg.name} {
		err := l.files.drop(name)
		if err == nil {
			err = l.fs.Remove(path.Join(l.dir, name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.fail(err)
			return false, err
		}
	}
	// One at a time: names may be lost in any order, and a gap in the middle
	// would be corruption.
	if err := l.fs.SyncDir(l.dir); err != nil {
		l.fail(err)
		return false, err
	}
	return true, nil
}

// deletable tells whether the first segment may go.
func (l *Log) deletable(index uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.segments) > 1 && l.segments[0].last < index
}

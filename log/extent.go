package log

import (
	"fmt"
	"sort"
)

// Extent returns the segment in which the newest block up to index lies, and
// the offset at which that block ends: what a copy of the log up to index takes
// of its last segment. Without such a block it returns ErrNotFound.
func (l *Log) Extent(index uint64) (segment string, end int64, err error) {
	segment, end, err = l.extent(index)
	if err != nil {
		return "", 0, fmt.Errorf("extent up to %d: %w", index, err)
	}
	return segment, end, nil
}

func (l *Log) extent(index uint64) (string, int64, error) {
	l.mu.RLock()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].header.first > index }) - 1
	if i < 0 {
		l.mu.RUnlock()
		return "", 0, ErrNotFound
	}
	seg, last, size := l.segments[i], l.segments[i].last, l.segments[i].size
	l.mu.RUnlock()
	if index >= last {
		return seg.name, size, nil
	}
	c, done, err := l.cursor(seg, size)
	if err != nil {
		return "", 0, err
	}
	defer done()
	off, err := c.block(index + 1)
	return seg.name, off, err
}

package log

import (
	"fmt"
	"sort"
)

// Last returns the newest record of a subject.
func (l *Log) Last(subject [16]byte) (Ref, bool, error) { return l.LastSince(subject, 0) }

// LastSince is Last for a subject of which no record before index from is
// wanted (the one in which it was created, say): older segments are not asked.
func (l *Log) LastSince(subject [16]byte, from uint64) (Ref, bool, error) {
	ref, ok, err := l.newest(tableSubjects, subject, from)
	if err != nil {
		return Ref{}, false, fmt.Errorf("last record of subject %x: %w", subject, err)
	}
	return ref, ok, nil
}

// FindAlias returns the newest record with this alias at an index >= from.
func (l *Log) FindAlias(alias [16]byte, from uint64) (Ref, bool, error) {
	ref, ok, err := l.newest(tableAliases, alias, from)
	if err != nil {
		return Ref{}, false, fmt.Errorf("find alias %x: %w", alias, err)
	}
	return ref, ok, nil
}

// newest asks the segments, newest first: the index in memory, or the side
// file. Its filter, in memory too, says no for most segments that do not have
// the key, so what is read are those that have it (and one in 256 others).
func (l *Log) newest(table int, key [16]byte, from uint64) (Ref, bool, error) {
	if key == [16]byte{} {
		return Ref{}, false, nil
	}
	l.mu.RLock()
	segments := l.segments // elements are never changed in place
	for i := len(segments) - 1; i >= 0; i-- {
		seg := segments[i]
		if seg.last < from {
			break
		}
		if mem := seg.mem; mem != nil {
			// Not under the lock, which Append waits for.
			rows := mem.keys[table].rows
			l.mu.RUnlock()
			p, ok := mem.keys[table].find(rows, key)
			l.mu.RLock()
			if !ok {
				continue
			}
			defer l.mu.RUnlock()
			ref := mem.ref(p)
			return ref, ref.Index >= from, nil
		}
		l.mu.RUnlock()
		ref, ok, err := l.newestInSide(seg, table, key)
		if err != nil {
			if l.First() > seg.header.first {
				return Ref{}, false, nil // retention was faster
			}
			return Ref{}, false, err
		}
		if ok {
			return ref, ref.Index >= from, nil
		}
		l.mu.RLock()
	}
	l.mu.RUnlock()
	return Ref{}, false, nil
}

func (l *Log) newestInSide(seg *segment, table int, key [16]byte) (ref Ref, ok bool, err error) {
	_, side, err := l.indexOf(seg)
	if err != nil || side == nil || side.counts[table] == 0 {
		return Ref{}, false, err
	}
	if may, err := side.may(table, keyHash(key)); err != nil || !may {
		return Ref{}, false, err
	}
	entries, err := side.find(table, key)
	if err != nil || len(entries) == 0 {
		return Ref{}, false, err
	}
	f, done, err := l.borrow(seg)
	if err != nil {
		return Ref{}, false, err
	}
	defer done()
	c := cursor{l: l, seg: seg, side: side, win: window{r: f, limit: seg.size, chunk: 512}}
	for _, e := range entries {
		// The entry has only the key's hash: the record says whether it is ours.
		var r Record
		if _, err := c.recordHeader(int64(e.off), &r); err != nil {
			return Ref{}, false, err
		}
		got := r.Subject
		if table == tableAliases {
			got = r.Alias
		}
		if at := (Ref{e.index, e.number}); got == key && !at.Before(ref) {
			ref, ok = at, true
		}
	}
	return ref, ok, nil
}

// SeekTime returns the index of the first block at which the log's clock (the
// maximum of all times so far) has reached ms, or false if the clock is behind.
// Where retention has deleted that block, it is the first one held.
func (l *Log) SeekTime(ms int64) (index uint64, ok bool, err error) {
	l.mu.RLock()
	if len(l.segments) == 0 || l.clock < ms {
		l.mu.RUnlock()
		return 0, false, nil
	}
	// The last segment before which the clock was behind.
	i := max(0, sort.Search(len(l.segments), func(i int) bool { return l.segments[i].header.clock >= ms })-1)
	seg, size := l.segments[i], l.segments[i].size
	l.mu.RUnlock()
	if seg.header.clock >= ms && seg.header.prevIndex != 0 {
		return seg.header.first, true, nil
	}
	c, done, err := l.cursor(seg, size)
	if err != nil {
		return 0, false, fmt.Errorf("seek time %d: %w", ms, err)
	}
	defer done()
	if index, err = c.clock(ms); err != nil {
		return 0, false, fmt.Errorf("seek time %d: %w", ms, err)
	}
	return index, true, nil
}

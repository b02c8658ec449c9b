package log

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"sort"
	"sync"

	"github.com/qlogd/qlogd/event"
)

// index finds places in one segment: a memIndex for the active one, a sideFile for a
// sealed one.
type index interface {
	// nearest returns the last mark for which before is true, the zero mark if it is for none;
	// before must be true for a beginning of the marks only.
	nearest(before func(mark) bool) (mark, error)
	// newest returns the newest record with a key, the zero Ref if there is none.
	newest(table int, key [16]byte) (event.Ref, error)
}

// mark says where a block begins (number 0), or a later record of a block.
type mark struct {
	index uint64
	// clock is the log's clock before the block for number 0, and at the block
	// otherwise. Invariant: rises with the marks.
	clock  int64
	number uint32
	count  uint32 // records in the block
	off    uint32
}

func (m mark) ref() event.Ref { return event.Ref{Index: m.index, Number: m.number} }

// markGap is the distance between two marks, except for longer records.
const markGap = 4 << 10

// The tables of keys.
const (
	tableSubjects = iota
	tableAliases
	tables
)

// memIndex is a segment's index in memory: of the active one, of a sealed one
// until its side file is written, and of one being scanned.
type memIndex struct {
	mu    sync.RWMutex
	marks []mark
	next  int64 // the next mark is at this offset or after it
	keys  [tables]table
}

// keyed is a record with a key.
type keyed struct {
	key [16]byte
	ref event.Ref
}

// table finds the newest record with a key. Few keys are looked up while their segment is
// active, so Append does not pay for the map.
type table struct {
	all []keyed // in log order; elements never change

	mu     sync.Mutex
	newest map[[16]byte]event.Ref // of the first known records with a key
	known  int
}

func (t *table) find(all []keyed, key [16]byte) event.Ref {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest == nil {
		t.newest = make(map[[16]byte]event.Ref, len(all))
	}
	for ; t.known < len(all); t.known++ {
		t.newest[all[t.known].key] = all[t.known].ref
	}
	return t.newest[key]
}

// add indexes a block at off whose records begin at offs (relative to the block). The
// log's clock was before, and is now after.
func (m *memIndex) add(b *rawBlock, before, after, off int64, offs []uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := uint32(len(b.Records))
	m.mark(mark{index: b.Index, clock: before, count: count, off: uint32(off)})
	for i := range b.Records {
		r, n := &b.Records[i], uint32(i)
		if n > 0 {
			at := uint32(off) + offs[i]
			m.mark(mark{index: b.Index, clock: after, number: n, count: count, off: at})
		}
		for t, key := range [tables][16]byte{r.Subject, r.Alias} {
			if key != [16]byte{} {
				ref := event.Ref{Index: b.Index, Number: n}
				m.keys[t].all = append(m.keys[t].all, keyed{key, ref})
			}
		}
	}
}

func (m *memIndex) mark(k mark) {
	if int64(k.off) >= m.next {
		m.marks = append(m.marks, k)
		m.next = int64(k.off) + markGap
	}
}

func (m *memIndex) nearest(before func(mark) bool) (mark, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	i := sort.Search(len(m.marks), func(i int) bool { return !before(m.marks[i]) }) - 1
	if i < 0 {
		return mark{}, nil
	}
	return m.marks[i], nil
}

func (m *memIndex) newest(table int, key [16]byte) (event.Ref, error) {
	m.mu.RLock()
	all := m.keys[table].all
	m.mu.RUnlock()
	return m.keys[table].find(all, key), nil
}

// sorted returns the newest record with each key of a table, by key.
func (m *memIndex) sorted(table int) []keyed {
	all := slices.Clone(m.keys[table].all)
	slices.SortFunc(all, func(a, b keyed) int {
		if c := bytes.Compare(a.key[:], b.key[:]); c != 0 {
			return c
		}
		return b.ref.Compare(a.ref)
	})
	return slices.CompactFunc(all, func(a, b keyed) bool { return a.key == b.key })
}

// loadSide sets a segment's index and end to what its side file says, unless that is missing or
// wrong.
func (l *Log) loadSide(seg *segment, size int64) error {
	as, err := l.openSide(seg, size)
	switch {
	case err == nil:
		*seg = as
	case errors.Is(err, ErrClosed), errors.Is(err, ErrGone):
		return err
	default:
		l.sideUnusable(seg, err)
		l.files.forget(seg.SideFile)
	}
	return nil
}

// sideUnusable logs why a side file is built again, and reports damage: a missing one is none.
func (l *Log) sideUnusable(seg *segment, why error) {
	l.logger.Warn("rebuilding side file", "file", seg.SideFile, "error", why)
	if !errors.Is(why, fs.ErrNotExist) {
		l.report(&CorruptionError{Segment: seg.SideFile, LastGood: seg.Last, Reason: why.Error()})
	}
}

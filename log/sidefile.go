package log

// A side file is the index of a sealed segment, computed from the segment alone and rebuilt if
// missing or wrong. docs/reference/formats.md draws its bytes; testdata/v1.idx holds an example.
// Behind its header are the tables of marks, subjects and aliases: rows of pages of entries, each
// page with a checksum.

import (
	"bytes"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/qlogd/qlogd/event"
)

const (
	sideMagic      = "qlogside"
	sideHeaderSize = 132
	entrySize      = 28
	pageEntries    = 146
	pageSize       = pageEntries*entrySize + 4

	tableMarks = tables // after the tables of keys in sideFile.tables
)

// sideFile answers from a side file, whose pages it reads as needed.
type sideFile struct {
	l      *Log
	seg    *segment
	mu     sync.Mutex // held while the index is rebuilt
	tables [tables + 1]pages
}

// pages is a table of a side file.
type pages struct{ off, entries int64 }

func (p pages) count() int64 { return (p.entries + pageEntries - 1) / pageEntries }
func (p pages) end() int64   { return p.off + p.entries*entrySize + p.count()*4 }

// encodeSide returns the side file of a segment.
func encodeSide(s *segment, m *memIndex) []byte {
	subjects, aliases := m.sorted(tableSubjects), m.sorted(tableAliases)
	entries := len(m.marks) + len(subjects) + len(aliases)
	b := make([]byte, sideHeaderSize, sideHeaderSize+(entries/pageEntries+3)*pageSize)
	putPreamble(b, sideMagic)
	le.PutUint64(b[16:], uint64(s.Size))
	le.PutUint64(b[24:], s.First)
	le.PutUint64(b[32:], s.Last)
	le.PutUint64(b[40:], uint64(s.Clock))
	copy(b[48:], s.Chain[:])
	copy(b[80:], s.lastID[:])
	le.PutUint32(b[96:], s.salt)
	le.PutUint64(b[100:], uint64(len(m.marks)))
	le.PutUint64(b[108:], uint64(len(subjects)))
	le.PutUint64(b[116:], uint64(len(aliases)))
	le.PutUint32(b[128:], crc(b[16:128]))
	b = appendPages(b, m.marks, func(b []byte, k mark) []byte {
		b = le.AppendUint64(b, k.index)
		b = le.AppendUint64(b, uint64(k.clock))
		b = le.AppendUint32(b, k.number)
		b = le.AppendUint32(b, k.count)
		return le.AppendUint32(b, k.off)
	})
	for _, keys := range [][]keyed{subjects, aliases} {
		b = appendPages(b, keys, func(b []byte, k keyed) []byte {
			b = le.AppendUint64(append(b, k.key[:]...), k.ref.Index)
			return le.AppendUint32(b, k.ref.Number)
		})
	}
	return b
}

func appendPages[T any](b []byte, entries []T, put func([]byte, T) []byte) []byte {
	start := len(b)
	for i, e := range entries {
		b = put(b, e)
		if (i+1)%pageEntries == 0 || i == len(entries)-1 {
			b = le.AppendUint32(b, crc(b[start:]))
			start = len(b)
		}
	}
	return b
}

// openSide reads the header of the side file of a segment of this size, and returns the segment
// with the end that it says and the side file as its index.
func (l *Log) openSide(seg *segment, segSize int64) (as segment, err error) {
	size, err := l.size(seg.SideFile)
	if err != nil {
		return as, err
	}
	b := make([]byte, sideHeaderSize)
	if size < sideHeaderSize {
		return as, fmt.Errorf("side file of %d bytes", size)
	}
	if err := readFull(segmentFile{l, seg.SideFile, seg.First}, b, 0); err != nil {
		return as, err
	}
	if err := checkPreamble(b, sideMagic, seg.SideFile); err != nil {
		return as, err
	}
	if crc(b[16:128]) != le.Uint32(b[128:]) {
		return as, fmt.Errorf("wrong checksum of the side file's header")
	}
	s := &sideFile{l: l, seg: seg}
	as = segment{SegmentInfo: seg.SegmentInfo, salt: seg.salt, index: s}
	as.Size, as.Last = int64(le.Uint64(b[16:])), le.Uint64(b[32:])
	as.Clock = int64(le.Uint64(b[40:]))
	as.Chain, as.lastID = [32]byte(b[48:]), [16]byte(b[80:])
	if le.Uint64(b[24:]) != seg.First || le.Uint32(b[96:]) != seg.salt || as.Size != segSize {
		return as, &CorruptionError{Segment: seg.Name, Offset: min(segSize, as.Size),
			Reason: fmt.Sprintf("its side file is of a segment of %d bytes", as.Size)}
	}
	off := int64(sideHeaderSize)
	for i, t := range []int{tableMarks, tableSubjects, tableAliases} {
		n := le.Uint64(b[100+8*i:])
		if n > uint64(size) {
			return as, fmt.Errorf("a table of %d entries in a side file of %d bytes", n, size)
		}
		s.tables[t] = pages{off, int64(n)}
		off = s.tables[t].end()
	}
	if off != size {
		return as, fmt.Errorf("side file of %d bytes, want %d", size, off)
	}
	return as, nil
}

// lastEntry returns a table's last entry for which before is true, which it must be
// for a beginning of the entries only; nil if it is for none.
func (s *sideFile) lastEntry(t pages, before func(entry []byte) bool) (entry []byte, err error) {
	var page []byte
	// The first page that does not begin before; the entry is in the one before.
	p := sort.Search(int(t.count()), func(i int) bool {
		if err != nil {
			return true
		}
		var b []byte
		if b, err = s.page(t, int64(i)); err != nil || !before(b[:entrySize]) {
			return true
		}
		page = b // the last one kept is the last that begins before
		return false
	})
	if err != nil || p == 0 {
		return nil, err
	}
	n := sort.Search(len(page)/entrySize,
		func(i int) bool { return !before(page[i*entrySize:][:entrySize]) }) - 1
	return page[n*entrySize:][:entrySize], nil
}

// page returns the entries of a page.
func (s *sideFile) page(t pages, i int64) ([]byte, error) {
	n := min(pageEntries, t.entries-i*pageEntries) * entrySize
	off := t.off + i*pageSize
	b := make([]byte, n+4)
	if err := readFull(segmentFile{s.l, s.seg.SideFile, s.seg.First}, b, off); err != nil {
		return nil, err
	}
	if crc(b[:n]) != le.Uint32(b[n:]) {
		return nil, fmt.Errorf("wrong checksum of the page at offset %d", off)
	}
	return b[:n], nil
}

// rebuild returns the segment's index without the side file, which could not be read. While the
// log is open for writing, the side file is written again in the background.
func (s *sideFile) rebuild(why error) (index, error) {
	if errors.Is(why, ErrClosed) || errors.Is(why, ErrGone) {
		return nil, why
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.l.indexOf(s.seg); now != s {
		return now, nil
	}
	s.l.sideUnusable(s.seg, why)
	mem, err := s.l.scan(s.seg, s.seg.Size).index()
	if err != nil {
		return nil, err
	}
	s.l.mu.Lock()
	s.seg.index = mem
	s.l.mu.Unlock()
	if s.l.w != nil {
		s.l.wantTidy()
	}
	return mem, nil
}

func (s *sideFile) nearest(before func(mark) bool) (mark, error) {
	e, err := s.lastEntry(s.tables[tableMarks], func(e []byte) bool { return before(parseMark(e)) })
	if err != nil {
		rebuilt, err := s.rebuild(err)
		if err != nil {
			return mark{}, err
		}
		return rebuilt.nearest(before)
	}
	if e == nil {
		return mark{}, nil
	}
	return parseMark(e), nil
}

func parseMark(b []byte) mark {
	return mark{
		index: le.Uint64(b), clock: int64(le.Uint64(b[8:])),
		number: le.Uint32(b[16:]), count: le.Uint32(b[20:]), off: le.Uint32(b[24:]),
	}
}

func (s *sideFile) newest(table int, key [16]byte) (event.Ref, error) {
	e, err := s.lastEntry(s.tables[table], func(e []byte) bool {
		return bytes.Compare(e[:16], key[:]) <= 0
	})
	if err != nil {
		rebuilt, err := s.rebuild(err)
		if err != nil {
			return event.Ref{}, err
		}
		return rebuilt.newest(table, key)
	}
	if e == nil || [16]byte(e) != key {
		return event.Ref{}, nil
	}
	return event.Ref{Index: le.Uint64(e[16:]), Number: le.Uint32(e[24:])}, nil
}

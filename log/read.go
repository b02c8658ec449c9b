package log

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/qlogd/qlogd/event"
)

// cache holds the newest blocks' bytes, first in, first out, up to a bound: what
// is leased is most often what came last. Guarded by Log.mu.
type cache struct {
	limit, used int64
	blocks      []cached // by index
}

// cached is a whole block and where its records begin in it. Nobody may change it.
type cached struct {
	index uint64
	off   int64 // in its segment
	raw   []byte
	offs  []uint32
}

func (c *cache) add(b cached) {
	c.blocks = append(c.blocks, b)
	for c.used += int64(len(b.raw)); c.used > c.limit; {
		c.dropFirst()
	}
}

func (c *cache) dropFirst() {
	c.used -= int64(len(c.blocks[0].raw))
	c.blocks[0] = cached{}
	c.blocks = c.blocks[1:]
}

// dropUpTo forgets the blocks up to an index.
func (c *cache) dropUpTo(index uint64) {
	for len(c.blocks) > 0 && c.blocks[0].index <= index {
		c.dropFirst()
	}
}

func (c *cache) find(index uint64) (int, bool) {
	return slices.BinarySearchFunc(c.blocks, index, func(b cached, index uint64) int {
		return cmp.Compare(b.index, index)
	})
}

// record returns a record's bytes, or nil.
func (c *cache) record(ref event.Ref) []byte {
	i, ok := c.find(ref.Index)
	if !ok || ref.Number >= uint32(len(c.blocks[i].offs)) {
		return nil
	}
	at := c.blocks[i].raw[c.blocks[i].offs[ref.Number]:]
	n := le.Uint32(at)
	return at[:n:n]
}

// wrap prefixes an error with the operation.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

// from returns the segment of the first block with an index from index on, and its size; nil if
// there is none.
func (l *Log) from(index uint64) (seg *segment, size int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].Last >= index })
	if i == len(l.segments) {
		return nil, 0
	}
	return l.segments[i], l.segments[i].Size
}

// record returns one record, also with an error that is ErrDamaged.
func (l *Log) record(ref event.Ref) (r record, err error) {
	l.mu.RLock()
	raw := l.cache.record(ref)
	l.mu.RUnlock()
	if raw != nil {
		// This process wrote it.
		lay := parseLayout(raw)
		parseRecordHeader(raw[:lay.headerEnd], lay, &r, true)
		if lay.flags&flagContent != 0 {
			r.Content = raw[lay.headerEnd+4:]
		}
		return r, nil
	}
	c, err := l.at(ref.Index)
	if err != nil {
		return r, err
	}
	off, lay := c.record(ref)
	if raw = bytes.Clone(c.at(off, lay.size)); c.err != nil {
		return r, c.err
	}
	parseRecordHeader(raw[:lay.headerEnd], lay, &r, true) // c.record has checked it
	if lay.flags&flagContent == 0 {
		return r, nil
	}
	if d := l.parseContent(&r, raw[lay.headerEnd:], c.seg, off+lay.headerEnd); d != nil {
		err := &CorruptionError{Segment: c.seg.Name, Offset: d.from, LastGood: ref.Index - 1,
			Reason: d.reason}
		if !l.spares(&r, err) {
			c.fail(err)
			return record{}, c.err
		}
		return r, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return r, nil
}

// at returns a cursor over the segment that covers index.
func (l *Log) at(index uint64) (*cursor, error) {
	switch seg, size := l.from(index); {
	case seg != nil && index > 0 && index <= seg.PrevIndex:
		return nil, ErrGone
	case seg == nil || index < seg.First:
		return nil, ErrNotFound
	default:
		return l.cursor(seg, size), nil
	}
}

// ChainAt returns the chain after the last block with an index up to index, zero at index 0. It
// costs a few reads. Past the head it returns ErrNotFound.
func (l *Log) ChainAt(index uint64) (chain [32]byte, err error) {
	defer wrap(&err, "chain at %d", index)
	switch head, chain := l.Tip(); {
	case index == 0:
		return [32]byte{}, nil
	case index == head:
		return chain, nil
	case index > head:
		return [32]byte{}, ErrNotFound
	}
	seg, size := l.from(index)
	if index < seg.PrevIndex {
		return [32]byte{}, ErrGone
	}
	if index < seg.First {
		return seg.PrevChain, nil
	}
	c := l.cursor(seg, size)
	chain = c.chainBefore(c.after(index))
	return chain, c.err
}

// SegmentsTo returns the segments with the blocks up to index, which a copy of the log up to there
// consists of: Last, Size and Chain of the last one are as of index. Without such a block it
// returns ErrNotFound.
func (l *Log) SegmentsTo(index uint64) (segments []SegmentInfo, err error) {
	defer wrap(&err, "segments up to %d", index)
	segments = l.Segments()
	n := sort.Search(len(segments), func(i int) bool { return segments[i].First > index })
	if n == 0 {
		return nil, ErrNotFound
	}
	segments = segments[:n]
	last := &segments[n-1]
	if index >= last.Last {
		return segments, nil
	}
	seg, size := l.from(index)
	if seg.First != last.First {
		return nil, ErrGone // retention was faster
	}
	c := l.cursor(seg, size)
	last.Last, last.Size = index, c.after(index)
	last.Chain = c.chainBefore(last.Size)
	return segments, c.err
}

// newest returns the newest record with a key at an index >= from; older segments
// are not read.
func (l *Log) newest(table int, key [16]byte, from uint64) (event.Ref, bool, error) {
	if key == [16]byte{} {
		return event.Ref{}, false, nil
	}
	l.mu.RLock()
	segments := l.segments // elements are never changed in place
	head := l.end().Last
	l.mu.RUnlock()
	for i := len(segments) - 1; i >= 0; i-- {
		seg := segments[i]
		if i < len(segments)-1 && seg.Last < from || head < from {
			break
		}
		ref, err := l.indexOf(seg).newest(table, key)
		switch {
		case err != nil && l.First() > seg.First:
			return event.Ref{}, false, nil // retention was faster
		case err != nil:
			return event.Ref{}, false, err
		case !ref.IsZero():
			return ref, ref.Index >= from, nil
		}
	}
	return event.Ref{}, false, nil
}

// SeekTime returns the index of the first block at which the log's clock (the
// maximum of all times so far) has reached ms, or false if the clock is behind.
// Where retention has deleted that block, it is the first one held.
func (l *Log) SeekTime(ms int64) (index uint64, ok bool, err error) {
	defer wrap(&err, "seek time %d", ms)
	l.mu.RLock()
	if len(l.segments) == 0 || l.end().Clock < ms {
		l.mu.RUnlock()
		return 0, false, nil
	}
	// The last segment before which the clock was behind.
	i := max(0, sort.Search(len(l.segments),
		func(i int) bool { return l.segments[i].PrevClock >= ms })-1)
	seg, size := l.segments[i], l.segments[i].Size
	l.mu.RUnlock()
	if seg.PrevClock >= ms && seg.PrevIndex != 0 {
		return seg.First, true, nil
	}
	c := l.cursor(seg, size)
	index = c.clock(ms)
	return index, c.err == nil, c.err
}

// cursor finds places in one segment, starting at the nearest mark of its index.
type cursor struct {
	l     *Log
	seg   *segment
	index index
	win   window
	err   error // the first one: what was found counts only without
}

// cursor returns a cursor over the first size bytes of a segment.
func (l *Log) cursor(seg *segment, size int64) *cursor {
	return &cursor{l: l, seg: seg, index: l.indexOf(seg),
		win: window{r: l.file(seg), limit: size, chunk: 2 * markGap}}
}

func (l *Log) indexOf(seg *segment) index {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return seg.index
}

// fail notes an error.
func (c *cursor) fail(err error) {
	c.l.report(err)
	c.err = cmp.Or(c.err, err)
}

func (c *cursor) corrupt(off int64, reason string) {
	c.fail(&CorruptionError{Segment: c.seg.Name, Offset: off, LastGood: c.seg.PrevIndex,
		Reason: reason})
}

// at returns n bytes at off, which must exist; nil after an error.
func (c *cursor) at(off, n int64) []byte {
	if c.err != nil {
		return nil
	}
	b, err := c.win.at(off, n)
	switch {
	case errors.Is(err, errShort):
		c.corrupt(off, "the segment ends too early")
	case err != nil:
		c.fail(fmt.Errorf("segment %s, offset %d: %w", c.seg.Name, off, err))
	}
	return b
}

// blockHeader reads the block header at off.
func (c *cursor) blockHeader(off int64) (h blockHeader) {
	if b := c.at(off, blockSize); b != nil {
		var reason string
		if h, reason = parseBlockHeader(b, c.seg.salt); reason != "" {
			c.corrupt(off, reason)
		}
	}
	return h
}

// recordHeader reads the extent of the record at off and checks its header.
func (c *cursor) recordHeader(off int64) (lay layout) {
	if b := c.at(off, recordMinimum); b != nil {
		if lay = parseLayout(b); !lay.ok {
			c.corrupt(off, "wrong record header")
		}
	}
	if b := c.at(off, lay.headerEnd); b != nil {
		if reason := parseRecordHeader(b, lay, &record{}, false); reason != "" {
			c.corrupt(off, reason)
		}
	}
	return lay
}

// skip returns the offset after n records.
func (c *cursor) skip(off int64, n uint32) int64 {
	for ; n > 0 && c.err == nil; n-- {
		off += c.recordHeader(off).size
	}
	return off
}

// begin returns the first block header at or after the last mark for which
// before is true.
func (c *cursor) begin(before func(mark) bool) int64 {
	m, err := c.index.nearest(before)
	switch {
	case err != nil:
		c.fail(err)
	case m == mark{}:
		return headerSize
	case m.number == 0:
		return int64(m.off)
	case m.count < m.number:
		c.corrupt(int64(m.off), "impossible mark in the side file")
	}
	return c.skip(int64(m.off), m.count-m.number) + trailerSize
}

// record returns the place of a record.
func (c *cursor) record(ref event.Ref) (off int64, lay layout) {
	m, err := c.index.nearest(func(m mark) bool { return ref.Compare(m.ref()) >= 0 })
	if c.fail(err); err == nil && m.index != ref.Index {
		// The block begins after the mark.
		if off = c.block(ref.Index); off == c.win.limit {
			c.fail(ErrNotFound)
		}
		h := c.blockHeader(off)
		m = mark{index: h.index, count: h.count, off: uint32(off)}
	}
	if m.index != ref.Index || ref.Number >= m.count {
		c.fail(ErrNotFound)
	}
	if off = int64(m.off); m.number == 0 {
		off += blockSize
	}
	off = c.skip(off, ref.Number-m.number)
	return off, c.recordHeader(off)
}

// block returns the offset of the first block with an index >= index, or the
// segment's end.
func (c *cursor) block(index uint64) int64 {
	off := c.begin(func(m mark) bool {
		return m.index < index || m.index == index && m.number == 0
	})
	return c.walk(off, func(h blockHeader) bool { return h.index >= index })
}

// after returns the offset after the last block with an index <= index. Behind a block at index
// itself nothing is read: it may be damaged.
func (c *cursor) after(index uint64) int64 {
	off := c.block(index)
	if off < c.win.limit {
		if h := c.blockHeader(off); h.index == index {
			off += h.size()
		}
	}
	return off
}

// walk returns the offset of the first block from off on for which found is true,
// or the segment's end.
func (c *cursor) walk(off int64, found func(blockHeader) bool) int64 {
	for off < c.win.limit {
		h := c.blockHeader(off)
		if c.err != nil || found(h) {
			return off
		}
		off += h.size()
	}
	return off
}

// clock returns the index of the first block at which the log's clock is >= ms.
func (c *cursor) clock(ms int64) (index uint64) {
	off := c.begin(func(m mark) bool { return m.clock < ms })
	// At the mark the clock is below ms, so only later blocks' times count.
	off = c.walk(off, func(h blockHeader) bool { index = h.index; return h.time >= ms })
	if off >= c.win.limit {
		c.fail(ErrNotFound)
	}
	return index
}

// chainBefore returns the chain before the block at off.
func (c *cursor) chainBefore(off int64) (chain [32]byte) {
	if off == headerSize {
		return c.seg.PrevChain
	}
	if b := c.at(off-trailerSize, trailerSize); b != nil {
		var ok bool
		if chain, ok = parseTrailer(b, c.seg.salt); !ok {
			c.corrupt(off-trailerSize, "wrong checksum of the chain")
		}
	}
	return chain
}

package log

import (
	"errors"
	"fmt"
	"sort"
)

// cursor finds places in one segment: by its index in memory where there is
// one, else from the nearest entry of the side file on.
type cursor struct {
	l    *Log
	seg  *segment
	mem  *memIndex // guarded by Log.mu; nil: use side
	side *sideIndex
	win  window
}

// cursor returns a cursor over the first size bytes of a segment. What it reads
// is valid until done is called.
func (l *Log) cursor(seg *segment, size int64) (*cursor, func(), error) {
	mem, side, err := l.indexOf(seg)
	if err != nil {
		return nil, nil, err
	}
	f, done, err := l.borrow(seg)
	if err != nil {
		return nil, nil, err
	}
	buf := walkBuffers.Get().(*[sparseGap + pageSize]byte)
	win := window{r: f, limit: size, chunk: int64(len(buf)), buf: buf[:0]}
	return &cursor{l: l, seg: seg, mem: mem, side: side, win: win}, func() {
		walkBuffers.Put(buf)
		done()
	}, nil
}

// failed says what an error of reading at off means: bytes that must be there.
func (c *cursor) failed(off int64, err error) error {
	if errors.Is(err, errShort) {
		return c.corrupt(off, "the segment ends too early")
	}
	return fmt.Errorf("segment %s, offset %d: %w", c.seg.name, off, err)
}

func (c *cursor) corrupt(off int64, reason string) error {
	return &CorruptionError{Segment: c.seg.name, Offset: off, LastGood: c.seg.header.prevIndex, Reason: reason}
}

// blockHeader reads the block header at off.
func (c *cursor) blockHeader(off int64) (blockHeader, error) {
	b, err := c.win.at(off, blockSize)
	if err != nil {
		return blockHeader{}, c.failed(off, err)
	}
	h, reason := parseBlockHeader(b, c.seg.salt)
	if reason != "" {
		return h, c.corrupt(off, reason)
	}
	return h, nil
}

// recordHeader reads the extent of the record at off and checks its header.
func (c *cursor) recordHeader(off int64, r *Record) (layout, error) {
	b, err := c.win.at(off, recordMinimum)
	if err != nil {
		return layout{}, c.failed(off, err)
	}
	lay := parseLayout(b)
	if !lay.ok {
		return lay, c.corrupt(off, "wrong record header")
	}
	if b, err = c.win.at(off, lay.headerEnd); err != nil {
		return lay, c.failed(off, err)
	}
	if reason := parseRecordHeader(b, lay, r); reason != "" {
		return lay, c.corrupt(off, reason)
	}
	return lay, nil
}

// skip returns the offset behind n records.
func (c *cursor) skip(off int64, n uint32) (int64, error) {
	var r Record
	for range n {
		lay, err := c.recordHeader(off, &r)
		if err != nil {
			return 0, err
		}
		off += lay.size
	}
	return off, nil
}

// begin returns the first block header at or behind a sparse entry.
func (c *cursor) begin(e sparse, ok bool) (int64, error) {
	switch {
	case !ok:
		return headerSize, nil
	case e.number == 0:
		return int64(e.off), nil
	case e.count < e.number:
		return 0, &CorruptionError{Segment: c.side.name, LastGood: c.seg.last, Reason: "impossible sparse entry"}
	}
	off, err := c.skip(int64(e.off), e.count-e.number)
	return off + trailerSize, err
}

// record returns a record's extent.
func (c *cursor) record(ref Ref) (off, size int64, err error) {
	if c.mem != nil {
		c.l.mu.RLock()
		defer c.l.mu.RUnlock()
		off, size, ok := c.mem.record(ref)
		if !ok {
			err = ErrNotFound
		}
		return off, size, err
	}
	e, ok, err := c.side.lastSparse(func(e sparse) bool { return !ref.Before(Ref{e.index, e.number}) })
	if err != nil {
		return 0, 0, err
	}
	if ok && e.index == ref.Index && e.number > 0 {
		if ref.Number >= e.count {
			return 0, 0, ErrNotFound
		}
		off, err = c.skip(int64(e.off), ref.Number-e.number)
	} else {
		if off, err = c.begin(e, ok); err != nil {
			return 0, 0, err
		}
		if off, err = c.blockFrom(off, ref.Index); err != nil {
			return 0, 0, err
		}
		if off == c.win.limit {
			return 0, 0, ErrNotFound
		}
		var h blockHeader
		if h, err = c.blockHeader(off); err != nil {
			return 0, 0, err
		}
		if h.index != ref.Index || ref.Number >= h.count {
			return 0, 0, ErrNotFound
		}
		off, err = c.skip(off+blockSize, ref.Number)
	}
	if err != nil {
		return 0, 0, err
	}
	var r Record
	lay, err := c.recordHeader(off, &r)
	return off, lay.size, err
}

// block returns the offset of the first block with an index >= index, or the
// segment's end.
func (c *cursor) block(index uint64) (int64, error) {
	if c.mem != nil {
		c.l.mu.RLock()
		defer c.l.mu.RUnlock()
		i := c.mem.find(index)
		if i == len(c.mem.blocks) {
			return c.win.limit, nil
		}
		return int64(c.mem.blocks[i].off), nil
	}
	want := Ref{Index: index}
	e, ok, err := c.side.lastSparse(func(e sparse) bool { return !want.Before(Ref{e.index, e.number}) })
	if err != nil {
		return 0, err
	}
	off, err := c.begin(e, ok)
	if err != nil {
		return 0, err
	}
	return c.blockFrom(off, index)
}

// blockFrom is block, from a block header on.
func (c *cursor) blockFrom(off int64, index uint64) (int64, error) {
	for off < c.win.limit {
		h, err := c.blockHeader(off)
		if err != nil {
			return 0, err
		}
		if h.index >= index {
			return off, nil
		}
		off += h.size()
	}
	return off, nil
}

// clock returns the index of the first block at which the log's clock is >= ms.
func (c *cursor) clock(ms int64) (uint64, error) {
	if c.mem != nil {
		c.l.mu.RLock()
		defer c.l.mu.RUnlock()
		blocks := c.mem.blocks
		i := sort.Search(len(blocks), func(i int) bool { return blocks[i].clock >= ms })
		if i == len(blocks) {
			return 0, ErrNotFound
		}
		return blocks[i].index, nil
	}
	e, ok, err := c.side.lastSparse(func(e sparse) bool { return e.clock < ms })
	if err != nil {
		return 0, err
	}
	off, err := c.begin(e, ok)
	if err != nil {
		return 0, err
	}
	// At the entry the clock is below ms, so only later blocks' times count.
	for off < c.win.limit {
		h, err := c.blockHeader(off)
		if err != nil {
			return 0, err
		}
		if h.time >= ms {
			return h.index, nil
		}
		off += h.size()
	}
	return 0, ErrNotFound
}

// chainBefore returns the chain before the block at off.
func (c *cursor) chainBefore(off int64) ([32]byte, error) {
	if off == headerSize {
		return c.seg.header.prevChain, nil
	}
	b, err := c.win.at(off-trailerSize, trailerSize)
	if err != nil {
		return [32]byte{}, c.failed(off-trailerSize, err)
	}
	chain, ok := parseTrailer(b, c.seg.salt)
	if !ok {
		return chain, c.corrupt(off-trailerSize, "wrong checksum of the chain")
	}
	return chain, nil
}

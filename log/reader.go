package log

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sort"
)

// readChunk is how much a Reader reads at once.
const readChunk = 256 << 10

// Reader goes through the log's blocks in order and checks each that it reads of
// the disk: all checksums and the chain (not the contents' digests: Verify
// does). What the log still has in memory it takes from there. It is not for use by
// several goroutines, and needs no closing.
type Reader struct {
	l    *Log
	from uint64 // the next block has an index >= from
	seen bool   // a block was returned; Invariant: from is its index + 1
	err  error  // damage, for good

	seg   *segment // nil: to be found
	off   int64
	chain [32]byte
	win   window
	sha   hash.Hash
	offs  []uint32 // of the records of the outline that was returned last
}

// Blocks returns a reader from the first block on that has an index >= from and
// is still held.
func (l *Log) Blocks(from uint64) *Reader {
	return &Reader{l: l, from: from, sha: sha256.New(), win: window{chunk: readChunk, fresh: true}}
}

// Next returns the next block, whose slices stay as they are. At the head it
// returns io.EOF, and after more was appended the next block. A reader which
// retention has overtaken gets ErrDeleted.
func (r *Reader) Next() (Block, error) {
	if r.err != nil {
		return Block{}, r.err
	}
	b, err := r.next()
	return b, r.note(err)
}

// note keeps an error, since what is behind damage is never read.
func (r *Reader) note(err error) error {
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read block %d: %w", r.from, err)
		r.err = err
	}
	return err
}

func (r *Reader) next() (Block, error) {
	c, limit, err := r.place()
	if err != nil {
		return Block{}, err
	}
	if c.raw == nil {
		var records []Record
		o, err := r.read(limit, &records)
		if err != nil {
			return Block{}, err
		}
		return Block{Index: o.Index, Time: o.Time, Chain: o.Chain, Records: records}, nil
	}
	o := r.take(&c)
	b := Block{Index: o.Index, Time: o.Time, Chain: o.Chain, Records: make([]Record, o.Len())}
	for i := range b.Records {
		raw, lay := o.record(i)
		parseRecord(raw[:lay.headerEnd], lay, &b.Records[i])
		if lay.flags&flagContent != 0 {
			b.Records[i].Content = raw[lay.headerEnd+4 : lay.size : lay.size]
		}
	}
	return b, nil
}

// Outline is Next for those who want little of most records.
func (r *Reader) Outline() (Outline, error) {
	if r.err != nil {
		return Outline{}, r.err
	}
	o, err := r.outline()
	return o, r.note(err)
}

func (r *Reader) outline() (Outline, error) {
	c, limit, err := r.place()
	switch {
	case err != nil:
		return Outline{}, err
	case c.raw != nil:
		return r.take(&c), nil
	}
	return r.read(limit, nil)
}

// place finds the next block: in memory, or else on the disk, at r.off and below
// limit.
func (r *Reader) place() (kept cached, limit int64, err error) {
	for {
		if r.seg == nil {
			if err := r.find(); err != nil {
				return cached{}, 0, err
			}
		}
		r.l.mu.RLock()
		if r.l.closed {
			r.l.mu.RUnlock()
			return cached{}, 0, ErrClosed
		}
		limit = r.seg.size
		active := r.seg == r.l.segments[len(r.l.segments)-1]
		kept, ok := r.l.cache.next(r.from, r.seg, r.off)
		r.l.mu.RUnlock()
		switch {
		case ok:
			return kept, 0, nil
		case r.off < limit:
			return cached{}, limit, nil
		case active:
			return cached{}, 0, io.EOF
		}
		r.seg = nil
	}
}

// take returns the block at r.off from memory: Append has made these bytes, so
// there is nothing to check.
func (r *Reader) take(c *cached) Outline {
	h, _ := parseBlockHeader(c.raw, r.seg.salt)
	o := Outline{Index: h.index, Time: h.time, raw: c.raw, offs: c.offs}
	o.Chain, _ = parseTrailer(c.raw[len(c.raw)-trailerSize:], r.seg.salt)
	r.pass(&o, h.size())
	return o
}

// pass goes on behind a block.
func (r *Reader) pass(o *Outline, size int64) {
	r.from, r.seen = o.Index+1, true
	r.chain = o.Chain
	r.off += size
}

// find goes to the block to be read next.
func (r *Reader) find() error {
	l := r.l
	l.mu.RLock()
	segments := l.segments
	i := sort.Search(len(segments), func(i int) bool { return segments[i].last >= r.from })
	if i == len(segments) {
		l.mu.RUnlock()
		return io.EOF
	}
	seg, size := segments[i], segments[i].size
	l.mu.RUnlock()
	if r.seen && r.from <= seg.header.prevIndex {
		return ErrDeleted
	}
	c, done, err := l.cursor(seg, size)
	if err != nil {
		return err
	}
	defer done()
	off := int64(headerSize)
	if r.from > seg.header.first {
		if off, err = c.block(r.from); err != nil {
			return err
		}
	}
	if r.chain, err = c.chainBefore(off); err != nil {
		return err
	}
	r.seg, r.off, r.win.buf = seg, off, nil
	return nil
}

// read returns the block at r.off, and its records where they are asked for.
func (r *Reader) read(limit int64, records *[]Record) (Outline, error) {
	f, done, err := r.l.borrow(r.seg)
	if err != nil {
		return Outline{}, err
	}
	defer done()
	r.win.r, r.win.limit = f, limit
	raw, h, d, err := readBlock(&r.win, r.off, r.seg.salt)
	if err != nil {
		return Outline{}, err
	}
	o := Outline{Index: h.index, Time: h.time, raw: raw}
	if d == nil {
		r.offs = r.offs[:0]
		if records != nil && h.count > 0 {
			*records = make([]Record, 0, h.count)
		}
		o.Chain, d, err = walkBlock(raw, h, r.off, r.seg.salt, r.sha, r.chain, visitor{
			record: func(rec *Record, off int) error {
				if r.offs = append(r.offs, uint32(off)); records != nil {
					*records = append(*records, *rec)
				}
				return nil
			},
			erasing: func(off, n int64) bool { return r.l.beingErased(r.seg, off, n) },
		})
		if err != nil {
			return Outline{}, err
		}
		o.offs = r.offs
	}
	if d != nil {
		return Outline{}, &CorruptionError{Segment: r.seg.name, Offset: d.from, LastGood: max(r.from, 1) - 1, Reason: d.reason}
	}
	r.pass(&o, h.size())
	return o, nil
}

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
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read block %d: %w", r.from, err)
		r.err = err
	}
	return b, err
}

func (r *Reader) next() (Block, error) {
	for {
		if r.seg == nil {
			if err := r.find(); err != nil {
				return Block{}, err
			}
		}
		r.l.mu.RLock()
		if r.l.closed {
			r.l.mu.RUnlock()
			return Block{}, ErrClosed
		}
		limit := r.seg.size
		active := r.seg == r.l.segments[len(r.l.segments)-1]
		b, kept := r.l.cache.next(r.from, r.seg, r.off)
		r.l.mu.RUnlock()
		if kept {
			return r.take(&b), nil
		}
		if r.off < limit {
			return r.read(limit)
		}
		if active {
			return Block{}, io.EOF
		}
		r.seg = nil
	}
}

// take returns the block at r.off from memory: Append has made these bytes, so
// there is nothing to check.
func (r *Reader) take(c *cached) Block {
	h, _ := parseBlockHeader(c.raw, r.seg.salt)
	b := Block{Index: h.index, Time: h.time, Records: make([]Record, len(c.offs))}
	for i := range c.offs {
		raw := c.record(uint32(i))
		rec := &b.Records[i]
		lay := parseLayout(raw)
		parseRecord(raw[:lay.headerEnd], lay, rec)
		if lay.flags&flagContent != 0 {
			rec.Content = raw[lay.headerEnd+4:]
		}
	}
	b.Chain, _ = parseTrailer(c.raw[len(c.raw)-trailerSize:], r.seg.salt)
	r.pass(&b, h.size())
	return b
}

// pass goes on behind a block.
func (r *Reader) pass(b *Block, size int64) {
	r.from, r.seen = b.Index+1, true
	r.chain = b.Chain
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

// read returns the block at r.off.
func (r *Reader) read(limit int64) (Block, error) {
	f, done, err := r.l.borrow(r.seg)
	if err != nil {
		return Block{}, err
	}
	defer done()
	r.win.r, r.win.limit = f, limit
	raw, h, d, err := readBlock(&r.win, r.off, r.seg.salt)
	if err != nil {
		return Block{}, err
	}
	b := Block{Index: h.index, Time: h.time}
	if d == nil {
		if h.count > 0 {
			b.Records = make([]Record, 0, h.count)
		}
		b.Chain, d, err = walkBlock(raw, h, r.off, r.seg.salt, r.sha, r.chain, visitor{
			record:  func(rec *Record, _ int) error { b.Records = append(b.Records, *rec); return nil },
			erasing: func(off, n int64) bool { return r.l.beingErased(r.seg, off, n) },
		})
		if err != nil {
			return Block{}, err
		}
	}
	if d != nil {
		return Block{}, &CorruptionError{Segment: r.seg.name, Offset: d.from, LastGood: max(r.from, 1) - 1, Reason: d.reason}
	}
	r.pass(&b, h.size())
	return b, nil
}

package log

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sort"
)

// readChunk is how much a reader reads at once.
const readChunk = 256 << 10

// reader goes through the log's blocks in order and checks each: all checksums
// and the chain (not the contents' digests: Verify does). It is not for use by
// several goroutines, and needs no closing.
type reader struct {
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

// blocks returns a reader from the first block on that has an index >= from and
// is still held.
func (l *Log) blocks(from uint64) *reader {
	return &reader{l: l, from: from, sha: sha256.New()}
}

// next returns the next block, whose slices stay as they are. At the head it
// returns io.EOF, and after more was appended the next block. A reader which
// retention has overtaken gets ErrGone.
func (r *reader) next() (rawBlock, error) {
	if r.err != nil {
		return rawBlock{}, r.err
	}
	b, err := r.read()
	if err != nil && err != io.EOF {
		// For good: what is behind damage is never read.
		err = fmt.Errorf("read block %d: %w", r.from, err)
		r.err = err
	}
	return b, err
}

func (r *reader) read() (rawBlock, error) {
	for {
		if r.seg == nil {
			if err := r.find(); err != nil {
				return rawBlock{}, err
			}
		}
		r.l.mu.RLock()
		closed := r.l.closed
		limit, active := r.seg.size, r.seg == r.l.segments[len(r.l.segments)-1]
		r.l.mu.RUnlock()
		switch {
		case closed:
			return rawBlock{}, ErrClosed
		case r.off < limit:
			return r.block(limit)
		case active:
			return rawBlock{}, io.EOF
		}
		r.seg = nil
	}
}

// find goes to the block to be read next.
func (r *reader) find() error {
	l := r.l
	l.mu.RLock()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].last >= r.from })
	if i == len(l.segments) {
		l.mu.RUnlock()
		return io.EOF
	}
	seg, size := l.segments[i], l.segments[i].size
	l.mu.RUnlock()
	if r.seen && r.from <= seg.header.prevIndex {
		return ErrGone
	}
	off, chain := int64(headerSize), seg.header.prevChain
	if r.from > seg.header.first {
		c, err := l.cursor(seg, size)
		if err != nil {
			return err
		}
		if off, err = c.block(r.from); err != nil {
			return err
		}
		if chain, err = c.chainBefore(off); err != nil {
			return err
		}
	}
	r.seg, r.off, r.chain = seg, off, chain
	r.win = window{r: l.file(seg), chunk: readChunk, fresh: true}
	return nil
}

// block returns the block at r.off.
func (r *reader) block(limit int64) (rawBlock, error) {
	r.win.limit = limit
	raw, h, d, err := readBlock(&r.win, r.off, r.seg.salt)
	if err != nil {
		return rawBlock{}, err
	}
	b := rawBlock{Index: h.index, Time: h.time}
	if d == nil {
		if h.count > 0 {
			b.Records = make([]record, 0, h.count)
		}
		b.Chain, d, err = walkBlock(raw, h, r.off, r.seg.salt, r.sha, r.chain, visitor{
			record:  func(rec *record, _ int) error { b.Records = append(b.Records, *rec); return nil },
			erasing: func(off, n int64) bool { return r.l.beingErased(r.seg, off, n) },
		})
		if err != nil {
			return rawBlock{}, err
		}
	}
	if d != nil {
		return rawBlock{}, &CorruptionError{
			Segment: r.seg.name, Offset: d.from, LastGood: max(r.from, 1) - 1, Reason: d.reason,
		}
	}
	r.from, r.seen, r.chain = b.Index+1, true, b.Chain
	r.off += h.size()
	return b, nil
}

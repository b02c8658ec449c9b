package log

import (
	"fmt"
	"io"
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

	seg  *segment // nil: to be found
	scan *scan    // of seg, before the block to be read next
}

// blocks returns a reader from the first block on that has an index >= from and
// is still held.
func (l *Log) blocks(from uint64) *reader {
	return &reader{l: l, from: from}
}

// next returns the next block; its records are valid until the next call, and the bytes of
// their headers and contents stay. At the head it
// returns io.EOF, and after more was appended the next block. A reader which
// retention has overtaken gets ErrGone.
func (r *reader) next() (rawBlock, error) {
	if r.err != nil {
		return rawBlock{}, r.err
	}
	b, err := r.read()
	if err != nil && err != io.EOF {
		// Permanently: nothing after damage is ever read.
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
		limit, active := r.seg.Size, r.seg == r.l.segments[len(r.l.segments)-1]
		r.scan.trusted = false
		if i, _ := r.l.cache.find(max(r.from, r.seg.First)); i < len(r.l.cache.blocks) {
			if b := &r.l.cache.blocks[i]; b.index <= r.seg.Last && b.off == r.scan.off {
				// Instead of reading and checking what this process has just written.
				r.scan.win.buf, r.scan.win.off, r.scan.trusted = b.raw, b.off, true
			}
		}
		r.l.mu.RUnlock()
		switch {
		case closed:
			return rawBlock{}, ErrClosed
		case r.scan.off < limit:
			r.scan.win.limit = limit
			d, err := r.scan.next()
			if d != nil {
				err = r.scan.corrupt(d)
			}
			if err != nil {
				return rawBlock{}, err
			}
			r.from, r.seen = r.scan.last+1, true
			return r.scan.block, nil
		case active:
			return rawBlock{}, io.EOF
		}
		r.seg = nil
	}
}

// find positions the scan at the next block.
func (r *reader) find() error {
	l := r.l
	seg, size := l.from(r.from)
	if seg == nil {
		return io.EOF
	}
	if r.seen && r.from <= seg.PrevIndex {
		return ErrGone
	}
	sc := l.scan(seg, size)
	sc.win.chunk, sc.win.fresh = readChunk, true
	if r.from > seg.First {
		c := l.cursor(seg, size)
		var err error
		if sc.off, err = c.block(r.from); err != nil {
			return err
		}
		if sc.chain, err = c.chainBefore(sc.off); err != nil {
			return err
		}
		sc.last = r.from - 1
	}
	r.seg, r.scan = seg, sc
	return nil
}

package log

import (
	"fmt"
	"io"
	"iter"
)

// readChunk is how much blocks reads at once.
const readChunk = 256 << 10

// blocks yields the blocks with an index >= from that are still held, up to the head, and checks
// each: all checksums and the chain (not the contents' digests: Verify does). A block's records are
// valid until the next one, the bytes of their headers and contents stay. An error is the last:
// nothing after damage is ever read. If retention overtakes, it is ErrGone.
func (l *Log) blocks(from uint64) iter.Seq2[*rawBlock, error] {
	return func(yield func(*rawBlock, error) bool) {
		for seen := false; ; {
			seg, size := l.from(from)
			if seg == nil {
				return
			}
			s, err := l.scanFrom(seg, size, from)
			if seen && from <= seg.PrevIndex {
				err = ErrGone
			}
			for err == nil {
				if err = l.extend(s, seg, from); err == nil {
					err = s.next()
				}
				if err == nil {
					from, seen = s.last+1, true
					if !yield(&s.block, nil) {
						return
					}
				}
			}
			if err != io.EOF { // the segment's end
				yield(nil, fmt.Errorf("read block %d: %w", from, err))
				return
			}
		}
	}
}

// scanFrom returns a scan of a segment that begins at the first block with an index >= from.
func (l *Log) scanFrom(seg *segment, size int64, from uint64) (s *scan, err error) {
	s = l.scan(seg, size)
	s.win.chunk, s.win.fresh = readChunk, true
	if from <= seg.First {
		return s, nil
	}
	c := l.cursor(seg, size)
	s.off = c.block(from)
	s.chain, s.last = c.chainBefore(s.off), from-1
	return s, c.err
}

// extend lets a scan continue to where its segment ends now, and gives it the next block if this
// process has just written that: then it need not be read and checked.
func (l *Log) extend(s *scan, seg *segment, from uint64) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return ErrClosed
	}
	s.win.limit, s.trusted = seg.Size, false
	if i, _ := l.cache.find(max(from, seg.First)); i < len(l.cache.blocks) {
		if b := &l.cache.blocks[i]; b.index <= seg.Last && b.off == s.off {
			s.win.buf, s.win.off, s.trusted = b.raw, b.off, true
		}
	}
	return nil
}

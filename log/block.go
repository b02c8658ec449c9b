package log

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"slices"
)

// rawBlock is what one entry of the Raft log has left.
type rawBlock struct {
	Index   uint64
	Time    int64 // the entry's stamp, Unix milliseconds
	Records []record
	// Chain is SHA-256 over the chain before and this block's headers; set by
	// append and by readers.
	Chain [32]byte
}

// damage is the error for invalid bytes of a block: the extent of the piece whose checksum
// fails. Invariant: final damage is in bytes whose checksums hold, so no torn write
// explains it, and nothing is ever cut because of it.
type damage struct {
	from, to int64
	reason   string
	final    bool
	spares   bool // the block's headers, or all that it says of itself, are right
}

func (d *damage) Error() string { return d.reason }

// readBlock reads the whole block at off.
func readBlock(w *window, off int64, salt uint32) (raw []byte, h blockHeader, err error) {
	b, err := w.at(off, blockSize)
	if errors.Is(err, errShort) {
		err = &damage{from: off, to: w.limit, reason: "the file ends in a block header"}
	}
	if err != nil {
		return nil, h, err
	}
	h, reason := parseBlockHeader(b, salt)
	if reason != "" {
		return nil, h, &damage{from: off, to: off + blockSize, reason: reason}
	}
	raw, err = w.at(off, h.size())
	if errors.Is(err, errShort) {
		reason = fmt.Sprintf("the file ends in block %d", h.index)
		err = &damage{from: off, to: w.limit, reason: reason}
	}
	return raw, h, err
}

// parseContent sets a record's content from its bytes at off in a segment, checksum first, and
// returns damage in them. What an erasure is overwriting counts as erased; l is nil if none can be.
func (l *Log) parseContent(r *record, body []byte, seg *segment, off int64) *damage {
	r.Content = body[4:len(body):len(body)]
	switch {
	case le.Uint32(body) == crc(r.Content):
	case isErased(body), l != nil && l.beingErased(seg, off, int64(len(r.Content))):
		r.Erased = true
	default:
		r.Damaged = true
		return &damage{from: off, to: off + int64(len(body)),
			reason: "wrong checksum of the content", spares: true}
	}
	return nil
}

// spares reports whether a record is read even though its content is damaged.
func (l *Log) spares(r *record, err error) bool {
	if l.only == nil || !l.only() {
		return false
	}
	l.report(err)
	r.Erased = true
	return true
}

// scan reads and checks a segment's blocks in order.
type scan struct {
	l    *Log // nil, as seg: only walk is called
	seg  *segment
	win  window
	salt uint32
	sha  hash.Hash

	off    int64  // where the next block begins
	last   uint64 // index of the block before
	clock  int64
	chain  [32]byte
	lastID [16]byte
	blocks int

	// The block that next has returned, its size, and where in it its records begin.
	block rawBlock
	offs  []uint32
	size  int64

	trusted bool              // the bytes are those that this process wrote
	spare   bool              // Log.spares may pass damage
	check   func(*scan) error // checks more of each block; nil: nothing
}

// scan starts at the first block of a segment and ends at limit.
func (l *Log) scan(seg *segment, limit int64) *scan {
	return &scan{
		l: l, seg: seg, win: window{r: l.file(seg), limit: limit, chunk: 1 << 20},
		salt: seg.salt, sha: sha256.New(),
		off: headerSize, last: seg.PrevIndex, clock: seg.PrevClock, chain: seg.PrevChain,
	}
}

// next reads the next block into s.block, whose slices are valid until the call
// after. It returns io.EOF after the last block, and a *CorruptionError if what follows is
// not a complete, valid block; then the scan does not advance.
func (s *scan) next() error {
	if s.off == s.win.limit {
		return io.EOF
	}
	raw, h, err := readBlock(&s.win, s.off, s.salt)
	if err == nil && (h.index <= s.last || s.off == headerSize && h.index != s.seg.First) {
		reason := fmt.Sprintf("block %d follows block %d", h.index, s.last)
		err = &damage{from: s.off, to: s.off + blockSize, reason: reason, final: true}
	}
	if err != nil {
		return s.failed(err)
	}
	s.block = rawBlock{Index: h.index, Time: h.time,
		Records: slices.Grow(s.block.Records[:0], int(h.count))}
	chain, d := s.walk(raw, h, nil)
	if d != nil {
		return s.failed(d)
	}
	s.block.Chain, s.size = chain, h.size()
	if s.check != nil {
		if err := s.check(s); err != nil {
			return err
		}
	}
	s.off += s.size
	s.last, s.chain, s.clock = h.index, chain, max(s.clock, h.time)
	if n := len(s.block.Records); n > 0 {
		s.lastID = s.block.Records[n-1].ID
	}
	s.blocks++
	return nil
}

// failed returns the error of the scan for one of the next block.
func (s *scan) failed(err error) error {
	if d, ok := errors.AsType[*damage](err); ok {
		return &CorruptionError{Segment: s.seg.Name, Offset: d.from, LastGood: s.last,
			Reason: d.reason, damage: d}
	}
	return fmt.Errorf("read segment %s: %w", s.seg.Name, err)
}

// walk checks the bytes of the block at s.off and reads its records, into s.block and s.offs. It
// returns the chain in the trailer and the first damage. damaged gets each damage; the walk
// continues while it returns true (nil: it ends at the first). Without s.sha the chain is not
// checked.
func (s *scan) walk(raw []byte, h blockHeader, damaged func(*damage) bool) (chain [32]byte,
	first *damage) {
	// report returns true if the walk must end.
	report := func(d *damage) bool {
		if first == nil {
			first = d
		}
		return damaged == nil || !damaged(d)
	}
	chained := s.sha != nil && !s.trusted
	if chained {
		s.sha.Reset()
		s.sha.Write(s.chain[:])
		s.sha.Write(raw[:28])
	}
	s.offs = s.offs[:0]
	at, end := int64(blockSize), int64(blockSize)+int64(h.length)
	for range h.count {
		l := layout{}
		if end-at >= recordMinimum {
			l = parseLayout(raw[at:])
		}
		var r *record
		to, reason := min(at+recordMinimum, end), "wrong record header"
		if l.ok && at+l.size <= end {
			s.block.Records = append(s.block.Records, record{})
			s.offs = append(s.offs, uint32(at))
			r, to = &s.block.Records[len(s.offs)-1], at+l.headerEnd
			reason = parseRecordHeader(raw[at:to], l, r, s.trusted)
		}
		if reason != "" {
			// Its extent is not known, nor where the next one begins.
			if report(&damage{from: s.off + at, to: s.off + to, reason: reason}) {
				return chain, first
			}
			at = end
			break
		}
		head, body := raw[at:to], raw[to:at+l.size]
		if chained {
			s.sha.Write(head)
		}
		switch {
		case l.flags&flagContent == 0:
		case s.trusted:
			r.Content = body[4:len(body):len(body)]
		default:
			d := s.l.parseContent(r, body, s.seg, s.off+at+l.headerEnd)
			if d != nil && !(s.spare && s.l.spares(r, s.failed(d))) && report(d) {
				return chain, first
			}
		}
		at += l.size
	}
	if at != end && first == nil {
		report(&damage{from: s.off + at, to: s.off + end, reason: "bytes behind the last record",
			final: true})
		return chain, first
	}
	chain, ok := parseTrailer(raw[end:], s.salt)
	if !ok {
		report(&damage{from: s.off + end, to: s.off + end + trailerSize,
			reason: "wrong checksum of the chain", spares: true})
		return chain, first
	}
	if chained && first == nil {
		var sum [sha256.Size]byte
		if s.sha.Sum(sum[:0]); sum != chain {
			report(&damage{from: s.off, to: s.off + h.size(),
				reason: "the block does not continue the chain", final: true, spares: true})
		}
	}
	return chain, first
}

// index indexes all blocks, up to the end or to damage.
func (s *scan) index() (*memIndex, error) {
	mem := &memIndex{}
	for {
		before := s.clock
		switch err := s.next(); {
		case err == io.EOF && s.blocks == 0:
			return mem, s.failed(&damage{from: headerSize, to: headerSize,
				reason: "a segment without a block"})
		case err == io.EOF:
			return mem, nil
		case err != nil:
			return mem, err
		}
		mem.add(&s.block, before, s.clock, s.off-s.size, s.offs)
	}
}

// end sets the segment's end to that of the blocks so far.
func (s *scan) end(seg *segment) {
	seg.Size, seg.Last, seg.Chain, seg.Clock, seg.lastID = s.off, s.last, s.chain, s.clock, s.lastID
}

// readChunk is how much blocks reads at once.
const readChunk = 256 << 10

// blocks yields the blocks with an index >= from that are still held, up to the head, and checks
// each: all checksums and the chain (not the contents' digests: Verify does). A block's records are
// valid until the next one, the bytes of their headers and contents stay. An error is the last:
// nothing after damage is ever read, but for Options.Only. If retention overtakes, it is ErrGone.
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
				l.report(err)
				yield(nil, fmt.Errorf("read block %d: %w", from, err))
				return
			}
		}
	}
}

// scanFrom returns a scan of a segment that begins at the first block with an index >= from.
func (l *Log) scanFrom(seg *segment, size int64, from uint64) (s *scan, err error) {
	s = l.scan(seg, size)
	s.win.chunk, s.win.fresh, s.spare = readChunk, true, true
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

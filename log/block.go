package log

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
)

// damage describes invalid bytes of a block: the extent of the piece whose checksum
// fails. Invariant: final damage is in bytes whose checksums hold, so no torn write
// explains it, and nothing is ever cut because of it.
type damage struct {
	from, to int64
	reason   string
	final    bool
}

// readBlock reads the whole block at off, or returns damage of its extent. An error is
// one of reading.
func readBlock(w *window, off int64, salt uint32) (raw []byte, h blockHeader, d *damage,
	err error) {
	b, err := w.at(off, blockSize)
	if errors.Is(err, errShort) {
		return nil, h, &damage{from: off, to: w.limit, reason: "the file ends in a block header"},
			nil
	} else if err != nil {
		return nil, h, nil, err
	}
	h, reason := parseBlockHeader(b, salt)
	if reason != "" {
		return nil, h, &damage{from: off, to: off + blockSize, reason: reason}, nil
	}
	raw, err = w.at(off, h.size())
	if errors.Is(err, errShort) {
		d = &damage{from: off, to: w.limit, reason: fmt.Sprintf("the file ends in block %d",
			h.index)}
		return nil, h, d, nil
	}
	return raw, h, nil, err
}

// visitor receives the parts of a block from walkBlock. Each function may be nil.
type visitor struct {
	// record gets each record, with its content, and its offset in the block.
	record func(r *record, off int) error
	// erasing reports whether an erasure is overwriting a content that fails its
	// checksum; it then counts as erased.
	erasing func(off, size int64) bool
	// damaged gets each damage; the walk continues while it returns true. nil = stop at
	// the first.
	damaged func(d *damage) bool
}

// content sets a record's content from its bytes at off, checksum first, and returns
// damage in them.
func (v *visitor) content(r *record, body []byte, off int64) *damage {
	r.Content = body[4:len(body):len(body)]
	switch checkContent(body) {
	case contentErased:
		r.Erased = true
	case contentWrong:
		if v.erasing == nil || !v.erasing(off, int64(len(r.Content))) {
			return &damage{from: off, to: off + int64(len(body)),
				reason: "wrong checksum of the content"}
		}
		r.Erased = true
	}
	return nil
}

// walkBlock checks the bytes of a whole block at off and visits its records. It returns
// the chain in the trailer and the first damage. With sha it also checks the chain, from
// prev.
func walkBlock(raw []byte, h blockHeader, off int64, salt uint32, sha hash.Hash, prev [32]byte,
	v visitor) (chain [32]byte, first *damage, err error) {
	// report returns true if the walk must end.
	report := func(d *damage) bool {
		if first == nil {
			first = d
		}
		return v.damaged == nil || !v.damaged(d)
	}
	if sha != nil {
		sha.Reset()
		sha.Write(prev[:])
		sha.Write(raw[:28])
	}
	at, end := int64(blockSize), int64(blockSize)+int64(h.length)
	for n := uint32(0); n < h.count; n++ {
		l := layout{}
		if end-at >= recordMinimum {
			l = parseLayout(raw[at:])
		}
		if !l.ok || at+l.size > end {
			// Its extent is not known, nor where the next one begins.
			if report(&damage{from: off + at, to: off + min(at+recordMinimum, end),
				reason: "wrong record header"}) {
				return chain, first, nil
			}
			at = end
			break
		}
		var r record
		if reason := parseRecordHeader(raw[at:], l, &r); reason != "" {
			if report(&damage{from: off + at, to: off + at + l.headerEnd, reason: reason}) {
				return chain, first, nil
			}
		}
		if sha != nil {
			sha.Write(raw[at : at+l.headerEnd])
		}
		if l.flags&flagContent != 0 {
			if d := v.content(&r, raw[at+l.headerEnd:at+l.size], off+at+l.headerEnd); d != nil &&
				report(d) {
				return chain, first, nil
			}
		}
		if first == nil && v.record != nil {
			if err := v.record(&r, int(at)); err != nil {
				return chain, nil, err
			}
		}
		at += l.size
	}
	if at != end && first == nil {
		report(&damage{from: off + at, to: off + end, reason: "bytes behind the last record",
			final: true})
		return chain, first, nil
	}
	chain, ok := parseTrailer(raw[end:], salt)
	if !ok {
		report(&damage{from: off + end, to: off + end + trailerSize,
			reason: "wrong checksum of the chain"})
		return chain, first, nil
	}
	if sha != nil && first == nil {
		var sum [sha256.Size]byte
		if sha.Sum(sum[:0]); sum != chain {
			report(&damage{from: off, to: off + h.size(),
				reason: "the block does not continue the chain",
				final:  true})
		}
	}
	return chain, first, nil
}

// scan reads a segment's blocks in order and checks each.
type scan struct {
	win   window
	file  string
	salt  uint32
	sha   hash.Hash
	first uint64 // index of the segment's first block

	off    int64  // where the next block begins
	last   uint64 // index of the block before
	clock  int64
	chain  [32]byte
	lastID [16]byte
	blocks int

	// Records of the block that next has returned.
	block   rawBlock
	offs    []uint32
	size    int64
	erasing func(off, size int64) bool
}

// scan starts at the first block of a segment and ends at limit.
func (l *Log) scan(seg *segment, limit int64) *scan {
	return &scan{
		win: window{r: l.file(seg), limit: limit, chunk: 1 << 20}, file: seg.Name, salt: seg.salt,
		sha: sha256.New(), first: seg.First,
		off: headerSize, last: seg.PrevIndex, clock: seg.PrevClock, chain: seg.PrevChain,
		erasing: func(off, n int64) bool { return l.beingErased(seg, off, n) },
	}
}

// next reads the next block into s.block, whose slices are valid until the call
// after. It returns io.EOF behind the last block, and damage if what follows is
// not a whole and right block; then the scan stays where it is.
func (s *scan) next() (*damage, error) {
	if s.off == s.win.limit {
		return nil, io.EOF
	}
	raw, h, d, err := readBlock(&s.win, s.off, s.salt)
	if d != nil || err != nil {
		return d, err
	}
	if h.index <= s.last || s.off == headerSize && h.index != s.first {
		reason := fmt.Sprintf("block %d follows block %d", h.index, s.last)
		return &damage{from: s.off, to: s.off + blockSize, reason: reason, final: true}, nil
	}
	s.block = rawBlock{Index: h.index, Time: h.time,
		Records: slices.Grow(s.block.Records[:0], int(h.count))}
	s.offs = s.offs[:0]
	chain, d, err := walkBlock(raw, h, s.off, s.salt, s.sha, s.chain, visitor{
		erasing: s.erasing,
		record: func(r *record, off int) error {
			s.block.Records = append(s.block.Records, *r)
			s.offs = append(s.offs, uint32(off))
			return nil
		},
	})
	if d != nil || err != nil {
		return d, err
	}
	s.block.Chain, s.size = chain, h.size()
	s.off += s.size
	s.last, s.chain, s.clock = h.index, chain, max(s.clock, h.time)
	if n := len(s.block.Records); n > 0 {
		s.lastID = s.block.Records[n-1].ID
	}
	s.blocks++
	return nil, nil
}

// corrupt returns the error for damage.
func (s *scan) corrupt(d *damage) error {
	return &CorruptionError{Segment: s.file, Offset: d.from, LastGood: s.last, Reason: d.reason}
}

// index indexes all blocks, up to the end or to damage. each (if not nil) is called
// behind each block.
func (s *scan) index(each func() error) (*memIndex, *damage, error) {
	mem := newMemIndex()
	for {
		before := s.clock
		d, err := s.next()
		switch {
		case err == io.EOF && s.blocks == 0:
			return mem, &damage{from: headerSize, to: headerSize,
					reason: "a segment without a block"},
				nil
		case err == io.EOF:
			return mem, nil, nil
		case err != nil:
			return mem, nil, fmt.Errorf("read segment %s: %w", s.file, err)
		case d != nil:
			return mem, d, nil
		}
		mem.add(&s.block, before, s.clock, s.off-s.size, s.offs)
		if each != nil {
			if err := each(); err != nil {
				return mem, nil, err
			}
		}
	}
}

// end sets the segment's end to that of the blocks so far.
func (s *scan) end(seg *segment) {
	seg.Size, seg.Last, seg.Chain, seg.Clock, seg.lastID = s.off, s.last, s.chain, s.clock, s.lastID
}

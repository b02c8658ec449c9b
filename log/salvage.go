package log

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Loss is one place at which a log is damaged.
type Loss struct {
	Segment string // file name
	Offset  int64  // of the first thing that is wrong
	Reason  string
	// First and Last are the indexes between which blocks are lost; or, with Kept, of the block
	// that is kept although some of it is damaged.
	First, Last uint64
	Kept        bool
	Damaged     []event.ID // the events of that block whose contents are damaged
}

// SalvageOptions say how Salvage goes on with what it finds.
type SalvageOptions struct {
	// Begin is called before the first block, with the index behind which the log begins. It
	// returns an index and the clock there: the copy does not end before that.
	Begin func(before uint64) (upTo uint64, clock int64)
	// Ends reports whether the copy ends before a block.
	Ends func(index uint64, time int64) bool
	// LeftOut returns which of a block's events are impossible, because others are missing.
	LeftOut func(*event.Block) []event.ID
	// Lost is called with each damage, in order, before the next block. It may return a block that
	// takes the place of lost ones, at the index Last.
	Lost func(*Loss) *event.Block
	// Progress is called with the bytes read and the total.
	Progress func(done, total int64)
}

// Salvage copies every whole block of a log to an empty directory, whatever is damaged: a block is
// whole if the checksums of all its headers hold. It has its index, its time and its events' ids
// there; an event that is left out leaves a record without a header. Up to the first damage the
// copy's segments are the same, from there on the chain is another. It returns the copy's end.
func Salvage(ctx context.Context, opts Options, target Options, how SalvageOptions) (
	end SegmentInfo, err error) {
	defer wrap(&err, "salvage event log %s", opts.Dir)
	from, err := newLog(opts, true)
	if err != nil {
		return end, err
	}
	defer from.files.close()
	v := &salvager{ctx: ctx, how: &how, from: from, target: target}
	err = v.segments()
	if err == nil && opts.Durable > v.seen && !v.ended {
		v.lose(&Loss{Segment: v.name, Offset: v.size, First: v.seen + 1,
			Reason: "the log ends here, but a checkpoint goes on"})
	}
	v.close(max(opts.Durable, v.seen+1))
	err = cmp.Or(err, v.err)
	if v.to != nil {
		if v.to.Head() < v.upTo && err == nil {
			err = v.to.append(&rawBlock{Index: v.upTo, Time: v.clock})
		}
		v.to.mu.RLock()
		end = *v.to.end()
		v.to.mu.RUnlock()
		err = errors.Join(err, v.to.Close())
	}
	return end, err
}

// salvager is the state of one Salvage.
type salvager struct {
	ctx      context.Context
	how      *SalvageOptions
	from, to *Log // to is opened when the log's beginning is known
	target   Options

	seen    uint64   // the highest index that is accounted for: of a whole block, or a lost one
	last    uint64   // of the newest whole block
	chain   [32]byte // there
	chained bool     // the next block must continue it
	pending *Loss    // whose last index is not known yet
	ended   bool
	err     error  // of writing a block in place of lost ones
	upTo    uint64 // of Begin
	clock   int64

	name        string // of the segment that is read, and its size
	size        int64
	done, total int64
	events      event.Block
}

// lose begins a loss.
func (v *salvager) lose(l *Loss) {
	v.chained = false
	if v.pending == nil {
		v.pending = l
	}
}

// close ends the loss whose end was not known.
func (v *salvager) close(last uint64) {
	l := v.pending
	if l == nil {
		return
	}
	if v.pending = nil; last < l.First {
		l.Kept, l.Last = true, l.First // no block is lost: what is damaged lies between two
	} else {
		l.Last, v.seen = last, max(v.seen, last)
	}
	if b := v.how.Lost(l); b != nil && v.err == nil {
		v.err = v.to.Append(b)
	}
}

func (v *salvager) segments() error {
	names, err := v.from.fs.List(v.from.dir)
	if err != nil {
		return err
	}
	segments := segmentsOf(names)
	if len(segments) == 0 {
		return fmt.Errorf("there is no segment: %w", fs.ErrNotExist)
	}
	for _, seg := range segments {
		if seg.Size, err = v.from.size(seg.Name); err != nil {
			return err
		}
		v.total += seg.Size
	}
	for _, seg := range segments {
		if err := v.segment(seg, seg.Size); err != nil || v.ended {
			return err
		}
		v.done += v.size
	}
	return nil
}

// begin opens the copy, which begins where the first segment does.
func (v *salvager) begin(seg *segment) (err error) {
	v.seen, v.last = seg.PrevIndex, seg.PrevIndex
	v.chain, v.chained = seg.PrevChain, true
	v.target.SegmentSize = seg.SegmentSize
	v.upTo, v.clock = v.how.Begin(seg.PrevIndex)
	v.to, err = Open(v.target)
	if err == nil {
		v.to.before = SegmentInfo{Last: seg.PrevIndex, Chain: seg.PrevChain, Clock: seg.PrevClock}
	}
	return err
}

// segment copies the whole blocks of a segment.
func (v *salvager) segment(seg *segment, size int64) error {
	v.name, v.size = seg.Name, size
	f := readable{v.from.file(seg)}
	err := loadHeader(f, size, seg)
	wrong, damaged := errors.AsType[*CorruptionError](err)
	if err != nil && !damaged {
		return err
	}
	salts := []uint32{seg.salt}
	if damaged {
		if salts, err = v.guess(f, seg, size); err != nil {
			return err
		}
	}
	if v.to == nil {
		if err := v.begin(seg); err != nil {
			return err
		}
	}
	switch {
	case damaged:
		v.lose(&Loss{Segment: seg.Name, First: v.seen + 1, Reason: wrong.Reason})
	case seg.PrevIndex > v.seen:
		v.lose(&Loss{Segment: seg.Name, First: v.seen + 1,
			Reason: "the segment before it is missing, or ends too early"})
		v.close(seg.PrevIndex)
	default:
		v.close(seg.PrevIndex)
	}
	if v.last != seg.PrevIndex {
		v.chain, v.chained = seg.PrevChain, !damaged && v.pending == nil
		v.last = max(v.last, seg.PrevIndex)
	}
	j := &judge{win: window{r: f, limit: size, chunk: 1 << 20}, salts: salts}
	return v.blocks(j, seg)
}

// guess returns the salts that the blocks of a segment may have whose header is damaged, and
// gives it the header that it must have had if nothing is missing before it.
func (v *salvager) guess(f io.ReaderAt, seg *segment, size int64) ([]uint32, error) {
	b := make([]byte, min(size, headerSize))
	if err := readFull(f, b, 0); err != nil {
		return nil, err
	}
	first := v.to == nil
	seg.SegmentSize = v.from.segSize
	if !first {
		end := v.to.end()
		seg.continues(&SegmentInfo{Last: v.last, Chain: v.chain, Clock: end.Clock,
			SegmentSize: end.SegmentSize})
	}
	seg.putHeader(make([]byte, headerSize))
	salts := []uint32{seg.salt}
	if len(b) == headerSize {
		salts = append(salts, le.Uint32(b[84:]), crc(b[16:84]))
		if first && !slices.Contains(salts[1:], seg.salt) {
			// As in its header, if one of its sums is right: else retention's place is lost.
			if seg.SegmentSize = int64(le.Uint64(b[16:])); seg.SegmentSize <= 0 ||
				seg.SegmentSize > maxSegment {
				seg.SegmentSize = v.from.segSize
			}
			seg.PrevIndex = min(le.Uint64(b[32:]), seg.First-1)
		}
	}
	return salts, nil
}

// blocks copies the whole blocks of a segment.
func (v *salvager) blocks(j *judge, seg *segment) error {
	for off := int64(headerSize); off < j.win.limit && !v.ended; {
		if err := cmp.Or(v.ctx.Err(), v.err); err != nil {
			return err
		}
		v.how.Progress(v.done+off, v.total)
		j.after = v.seen
		size, salt := j.header(off)
		reason, from := "no whole block begins here", off
		if size > 0 {
			raw, h, err := readBlock(&j.win, off, salt)
			if v.ends(&h) {
				return nil
			}
			if j.failed(err) {
				reason = err.Error()
			} else if d, err := v.block(seg, off, raw, h, salt); err != nil {
				return err
			} else if d == nil {
				off += size
				continue
			} else {
				reason, from = d.reason, d.from
			}
			v.close(h.index - 1)
			v.lose(&Loss{Segment: seg.Name, Offset: from, First: h.index, Reason: reason})
			v.close(h.index)
		} else {
			v.lose(&Loss{Segment: seg.Name, Offset: off, First: v.seen + 1, Reason: reason})
		}
		if j.err != nil {
			return fmt.Errorf("read segment %s: %w", seg.Name, j.err)
		}
		next, found := j.find(off+max(size, 1), j.begins)
		if !found {
			next = j.win.limit
		}
		off = next
	}
	return nil
}

// block copies a block if all its headers are whole; else it returns what is not.
func (v *salvager) block(seg *segment, off int64, raw []byte, h blockHeader, salt uint32) (
	*damage, error) {
	s := &scan{l: v.from, seg: seg, off: off, salt: salt,
		block: rawBlock{Index: h.index, Time: h.time}}
	if s.chain = v.chain; v.chained {
		s.sha = sha256.New()
	}
	var lost, kept *damage
	chain, _ := s.walk(raw, h, func(d *damage) bool {
		if !d.spares {
			lost = d
		} else if kept == nil {
			kept = d
		}
		return d.spares
	})
	if lost != nil {
		return lost, nil
	}
	records := s.block.Records
	for i := range records {
		r := &records[i]
		if r.Content != nil && !r.Erased && sha256.Sum256(r.Content) != r.Digest {
			r.Damaged = true
			if kept == nil {
				kept = &damage{from: off + int64(s.offs[i]),
					reason: "the content does not match its digest"}
			}
		}
		r.Erased = r.Erased || r.Damaged
	}
	v.close(h.index - 1)
	if err := v.keep(&s.block, seg, kept); err != nil {
		return nil, err
	}
	v.seen, v.last, v.chain = h.index, h.index, chain
	_, v.chained = parseTrailer(raw[len(raw)-trailerSize:], salt)
	return nil, nil
}

// ends reports whether the copy ends before a block.
func (v *salvager) ends(h *blockHeader) bool {
	if v.ended = v.how.Ends(h.index, h.time); v.ended {
		if v.pending != nil && v.how.Ends(v.pending.First, 0) {
			v.pending = nil
		}
		v.close(h.index - 1)
	}
	return v.ended
}

// keep copies a block, without the events that are impossible.
func (v *salvager) keep(b *rawBlock, seg *segment, wrong *damage) error {
	if err := fromRaw(b, &v.events, nil); err != nil {
		return err
	}
	if wrong != nil {
		l := &Loss{Segment: seg.Name, Offset: wrong.from, Reason: wrong.reason,
			First: b.Index, Last: b.Index, Kept: true}
		for i := range v.events.Events {
			if e := &v.events.Events[i]; e.Content.Damaged {
				l.Damaged = append(l.Damaged, e.ID)
			}
		}
		v.how.Lost(l)
	}
	for _, id := range v.how.LeftOut(&v.events) {
		i := slices.IndexFunc(b.Records, func(r record) bool { return r.ID == id })
		b.Records[i] = record{ID: id}
	}
	return v.to.append(b)
}

// readable reads zeros in place of what the disk cannot read, which makes that damage like any
// other.
type readable struct{ segmentFile }

// ReadAt implements io.ReaderAt.
func (f readable) ReadAt(b []byte, off int64) (n int, err error) {
	if n, err = f.segmentFile.ReadAt(b, off); !IsDamage(err) {
		return n, err
	}
	const page = 4 << 10
	for n = 0; n < len(b); {
		end := min(n+int(page-(off+int64(n))%page), len(b))
		_, err := f.segmentFile.ReadAt(b[n:end], off+int64(n))
		if IsDamage(err) {
			clear(b[n:end])
		} else if err != nil {
			return n, err
		}
		n = end
	}
	return n, nil
}

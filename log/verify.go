package log

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// Report is the result of Verify.
type Report struct {
	Last     uint64      // of the last block
	Chain    event.Chain // there
	First    uint64      // of the first block
	Segments int
	Blocks   int64
	Records  int64
	Erased   int64 // contents that were erased
	Damaged  int64 // contents that a salvage found damaged
	Bytes    int64
	// Tail is what follows the last whole block: a block that is being written,
	// or that a crash has torn. Not corruption.
	Tail *Tail
}

// Verify reads every byte of a log and checks all checksums, the contents' digests, the chain,
// and that the side files are what their segments say. The first thing that is wrong is
// returned as a *CorruptionError, together with the report up to there. It never writes; the
// log may be in use. progress, if not nil, is called with the bytes done and the total.
func Verify(ctx context.Context, opts Options, progress func(done, total int64)) (Report, error) {
	var v *verifier
	var err error
	for range 5 { // retention may delete a segment meanwhile
		v = &verifier{ctx: ctx, progress: progress}
		if err = v.log(opts); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("verify event log %s: %w", opts.Dir, err)
	}
	return v.report, err
}

// verifier checks what opening a log assumes.
type verifier struct {
	ctx      context.Context
	progress func(done, total int64) // may be nil
	total    int64
	report   Report
}

func (v *verifier) log(opts Options) error {
	l, err := OpenReadOnly(opts)
	if err != nil {
		return err
	}
	defer l.Close()
	if _, err := readErasures(l.fs, l.dir); err != nil {
		return err
	}
	for _, seg := range l.segments {
		v.total += seg.Size
	}
	for i, seg := range l.segments {
		mem, err := v.segment(l, seg)
		if err == nil && i < len(l.segments)-1 {
			err = v.side(l, seg, mem)
		}
		if err != nil {
			return err
		}
		v.report.Segments++
	}
	v.report.Tail = l.tail
	return nil
}

// segment checks a segment, sets its end to what was found, and indexes it.
func (v *verifier) segment(l *Log, seg *segment) (*memIndex, error) {
	// The log may have been opened although the header is damaged.
	onDisk := newSegment(seg.First)
	err := loadHeader(l.file(seg), seg.Size, onDisk)
	if c, ok := errors.AsType[*CorruptionError](err); ok {
		c.LastGood = seg.PrevIndex
	} else if err == nil && onDisk.salt != seg.salt {
		err = &CorruptionError{Segment: seg.Name, LastGood: seg.PrevIndex,
			Reason: "the file is another segment's"}
	}
	if err != nil {
		return nil, err
	}
	s := l.scan(seg, seg.Size)
	s.check = v.block
	mem, err := s.index()
	s.end(seg)
	return mem, err
}

// Check reads one segment and, once it is sealed, its side file, and checks them as Verify does.
// The first thing that is wrong is returned as a *CorruptionError, and reported to Options.Damaged.
// A wrong side file is also written again. progress may block: it sets the pace.
func (l *Log) Check(ctx context.Context, first uint64, progress func(done, total int64)) (
	err error) {
	defer wrap(&err, "check segment %s", SegmentName(first))
	l.mu.RLock()
	segments := l.segments
	i, ok := slices.BinarySearchFunc(segments, first,
		func(s *segment, first uint64) int { return cmp.Compare(s.First, first) })
	if !ok {
		l.mu.RUnlock()
		return ErrGone
	}
	seg := *segments[i]
	l.mu.RUnlock()
	known := seg.SegmentInfo
	v := &verifier{ctx: ctx, progress: progress, total: seg.Size}
	mem, err := v.segment(l, &seg)
	if err == nil && seg.SegmentInfo != known {
		err = &CorruptionError{Segment: seg.Name, Reason: "the file is another segment's"}
	}
	if err == nil && i < len(segments)-1 {
		if err = v.side(l, &seg, mem); IsDamage(err) && l.w != nil {
			l.mu.Lock()
			segments[i].index = mem
			l.mu.Unlock()
			err = cmp.Or(l.writeSides(), err)
		}
	}
	l.report(err)
	return err
}

// block checks the contents of a block that is being scanned, and reports it.
func (v *verifier) block(s *scan) error {
	if err := v.ctx.Err(); err != nil {
		return err
	}
	r := &v.report
	for i := range s.block.Records {
		rec := &s.block.Records[i]
		switch {
		case rec.Damaged:
			r.Damaged++
		case rec.Erased:
			r.Erased++
		case rec.Content != nil:
			if sha256.Sum256(rec.Content) != rec.Digest {
				return &CorruptionError{
					Segment: s.seg.Name, Offset: s.off + int64(s.offs[i]), LastGood: r.Last,
					Reason: fmt.Sprintf("the content of record %d/%d does not match its digest",
						s.block.Index, i),
				}
			}
		}
	}
	if r.First == 0 {
		r.First = s.block.Index
	}
	r.Last, r.Chain = s.block.Index, s.block.Chain
	r.Blocks++
	r.Records += int64(len(s.block.Records))
	r.Bytes += s.size
	if v.progress != nil {
		v.progress(r.Bytes, v.total)
	}
	return nil
}

// side compares a segment's side file with it. A missing one is not an error.
func (v *verifier) side(l *Log, seg *segment, mem *memIndex) error {
	got, err := vfs.ReadFile(l.fs, l.path(seg.SideFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	want := encodeSide(seg, mem)
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		return &CorruptionError{
			Segment: seg.SideFile, Offset: int64(at), LastGood: seg.Last,
			Reason: "the side file does not match its segment (remove it, it is rebuilt)",
		}
	}
	return nil
}

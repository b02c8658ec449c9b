package log

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/qlogd/qlogd/log/vfs"
)

// Report is the result of Verify.
type Report struct {
	First, Last uint64   // indexes of the first and last block
	Chain       [32]byte // at the last block
	Segments    int
	SideFiles   int // compared with their segments
	Blocks      int64
	Records     int64
	Contents    int64 // present, and matching their digests
	Erased      int64 // contents that were erased
	Bytes       int64
	// Tail is what follows the last whole block: a block that is being written,
	// or that a crash has torn. Not corruption.
	Tail *Tail
}

// Verify reads every byte of a log, from the segment on in which index from
// lies, and checks all checksums, the contents' digests, the chain, and that
// the side files are what their segments say. The first thing that is wrong is
// returned as a *CorruptionError, together with the report up to there. It
// never writes; the log may be in use. progress, if not nil, is called with the
// bytes done and the total.
func Verify(ctx context.Context, opts Options, from uint64,
	progress func(done, total int64)) (Report, error) {
	l, err := newLog(opts, true)
	if err != nil {
		return Report{}, fmt.Errorf("verify event log: %w", err)
	}
	defer l.files.close()
	v := &verifier{recovery: recovery{Log: l, opts: opts}, ctx: ctx, progress: progress}
	if progress == nil {
		v.progress = func(int64, int64) {}
	}
	if err := v.run(from); err != nil {
		return v.report, fmt.Errorf("verify event log %s: %w", opts.Dir, err)
	}
	return v.report, nil
}

type verifier struct {
	recovery
	ctx      context.Context
	progress func(done, total int64)
	total    int64
	report   Report
}

func (v *verifier) run(from uint64) error {
	if _, err := readErasures(v.fs, v.dir); err != nil {
		return err
	}
	names, err := v.fs.List(v.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		first, ok := firstIndex(name, ".seg")
		if !ok {
			continue
		}
		size, err := v.fs.Stat(path.Join(v.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // retention
		} else if err != nil {
			return err
		}
		if first <= from {
			// Earlier segments are not verified.
			v.segments, v.total = v.segments[:0], 0
		}
		v.segments = append(v.segments, newSegment(first))
		v.total += size
	}
	all := v.segments
	for i := range all {
		// load, headless and drop look at the segments up to this one.
		v.segments = all[:i+1]
		if err := v.segment(i, i == len(all)-1); err != nil {
			return err
		}
	}
	if v.report.Last < v.opts.Durable {
		e := &CorruptionError{Segment: v.dir, LastGood: v.report.Last,
			Reason: fmt.Sprintf("the log was durable up to index %d", v.opts.Durable)}
		if n := len(all); n > 0 {
			e.Segment, e.Offset = all[n-1].Name, all[n-1].Size
		}
		return e
	}
	return nil
}

func (v *verifier) segment(i int, newest bool) error {
	seg := v.segments[i]
	size, err := v.load(i)
	if c, ok := errors.AsType[*CorruptionError](err); ok && newest && seg.salt == 0 {
		err = v.headless(seg, size, c)
		v.report.Tail = v.tail
	}
	if err != nil || seg.salt == 0 {
		return err
	}
	s := v.scan(seg, size)
	mem, d, err := s.index(func() error { return v.block(s) })
	if err == nil && d != nil {
		if !newest {
			return s.corrupt(d)
		}
		err = v.torn(s, d)
		v.report.Tail = v.tail
	}
	if err != nil {
		return err
	}
	s.end(seg)
	v.report.Segments++
	if newest {
		return nil
	}
	return v.side(seg, mem)
}

// block checks the contents of the block that a scan has just read, and reports it.
func (v *verifier) block(s *scan) error {
	if err := v.ctx.Err(); err != nil {
		return err
	}
	r := &v.report
	for i := range s.block.Records {
		rec := &s.block.Records[i]
		switch {
		case rec.Erased:
			r.Erased++
		case rec.Content != nil:
			if sha256.Sum256(rec.Content) != rec.Digest {
				return &CorruptionError{
					Segment: s.file, Offset: s.off - s.size + int64(s.offs[i]), LastGood: r.Last,
					Reason: fmt.Sprintf("the content of record %d/%d does not match its digest",
						s.block.Index, i),
				}
			}
			r.Contents++
		}
	}
	if r.First == 0 {
		r.First = s.block.Index
	}
	r.Last, r.Chain = s.block.Index, s.block.Chain
	r.Blocks++
	r.Records += int64(len(s.block.Records))
	r.Bytes += s.size
	v.progress(r.Bytes, v.total)
	return nil
}

// side compares a sealed segment's side file with its segment. A missing one is not an
// error.
func (v *verifier) side(seg *segment, mem *memIndex) error {
	name := SideFileName(seg.First)
	got, err := vfs.ReadFile(v.fs, path.Join(v.dir, name))
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
			Segment: name, Offset: int64(at), LastGood: seg.Last,
			Reason: "the side file does not match its segment (remove it, it is rebuilt)",
		}
	}
	v.report.SideFiles++
	return nil
}

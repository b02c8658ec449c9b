package log

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"

	"github.com/qlogd/qlogd/log/vfs"
)

// Open opens a log for writing, or creates an empty one. Sealed segments are checked by
// their headers and side files, the last one is read whole. A damaged header is reported to
// Options.Damaged, and read as it must have been. Bytes after the last whole block are cut or
// refused, see judge.go; Tail describes what was cut. A refused log is left unchanged.
//
// The caller ensures that only one process has a log open for writing.
func Open(opts Options) (l *Log, err error) {
	defer wrap(&err, "open event log %s", opts.Dir)
	return open(opts, false)
}

// OpenReadOnly opens an existing log for reading: a copy, that of a stopped node, or one
// that is being appended to, as of this moment. It never writes. Bytes after the last
// whole block are ignored, and described by Tail.
func OpenReadOnly(opts Options) (l *Log, err error) {
	defer wrap(&err, "open event log %s", opts.Dir)
	// Retention and rotation may change the files meanwhile: try again.
	for range 5 {
		if l, err = open(opts, true); !errors.Is(err, errMoved) {
			break
		}
	}
	return l, err
}

// errMoved is returned if a file was deleted between listing and opening.
var errMoved = errors.New("a segment went away")

func newLog(opts Options, readOnly bool) (*Log, error) {
	l := &Log{
		fs: cmp.Or[vfs.FS](opts.FS, vfs.OS{}), dir: opts.Dir,
		logger:  cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		segSize: cmp.Or(opts.SegmentSize, DefaultSegmentSize), damaged: opts.Damaged,
		only:  opts.Only,
		cache: cache{limit: opts.CacheBytes},
	}
	if !readOnly {
		l.w = &writer{
			inline: opts.inline, wanted: make(chan struct{}, 1), stop: make(chan struct{}),
		}
	}
	if l.segSize < 0 || l.segSize > maxSegment {
		return nil, fmt.Errorf("segment size %d is not in 1..%d", l.segSize, maxSegment)
	}
	var err error
	l.files, err = newFileCache(l.fs, l.dir)
	return l, err
}

func open(opts Options, readOnly bool) (_ *Log, err error) {
	l, err := newLog(opts, readOnly)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.files.close()
			if l.w != nil {
				_ = l.w.setFile(nil) // the first error is what counts
			}
		}
	}()
	r := &recovery{Log: l, opts: opts}
	if readOnly {
		return l, r.read()
	}
	err = l.fs.MkdirAll(l.dir)
	for _, step := range []func() error{l.finishErasure, r.read, r.apply, l.begin} {
		if err == nil {
			err = step()
		}
	}
	return l, err
}

// recovery is the state of one Open: it first reads and checks everything, then, if
// nothing is wrong, changes the disk.
type recovery struct {
	*Log
	opts    Options
	names   []string // of everything in the directory
	dropped *segment // the newest file, without a whole block in it
}

// firstIndex returns the index in a segment's or side file's name.
func firstIndex(name, suffix string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSuffix(name, suffix), 10, 64)
	return n, err == nil && name == fmt.Sprintf("%020d%s", n, suffix)
}

// segmentsOf returns the segments among a log's files.
func segmentsOf(names []string) (out []*segment) {
	for _, name := range names {
		if first, ok := ParseSegmentName(name); ok {
			out = append(out, newSegment(first))
		}
	}
	return out
}

func (r *recovery) read() (err error) {
	if r.names, err = r.fs.List(r.dir); err != nil {
		return err
	}
	r.segments = segmentsOf(r.names)
	for i := range r.segments {
		if err := r.segment(i); err != nil {
			if !r.endsBefore(i, err) {
				return err
			}
			break
		}
	}
	end := r.end()
	r.segSize = cmp.Or(end.SegmentSize, r.segSize)
	if end.Last < r.opts.Durable && r.ended == nil {
		e := &CorruptionError{Segment: end.Name, Offset: end.Size, LastGood: end.Last,
			Reason: fmt.Sprintf("the log ends at index %d, but was durable up to %d", end.Last,
				r.opts.Durable)}
		if r.tail != nil {
			e.Segment, e.Offset, e.Reason = r.tail.Segment, r.tail.Offset,
				r.tail.Reason+"; "+e.Reason
		}
		if !r.endsBefore(len(r.segments), e) {
			return e
		}
	}
	return nil
}

// endsBefore lets the log end before damage in segment i, or reports that it must not.
func (r *recovery) endsBefore(i int, err error) bool {
	if !r.opts.ToDamage || !IsDamage(err) {
		return false
	}
	if i < len(r.segments) && r.segments[i].index != nil {
		i++ // it has whole blocks before the damage
	}
	if i = min(i, len(r.segments)); i == 0 {
		return false
	}
	r.segments, r.ended = r.segments[:i], err
	return true
}

// load reads and checks the header of segment i, and that it continues the segment
// before.
func (r *recovery) load(i int) (size int64, err error) {
	seg := r.segments[i]
	size, err = r.size(seg.Name)
	if err == nil {
		err = loadHeader(r.file(seg), size, seg)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errMoved
	}
	if err == nil && i > 0 {
		err = seg.checkContinues(&r.segments[i-1].SegmentInfo)
	}
	if c, ok := errors.AsType[*CorruptionError](err); ok && i > 0 {
		c.LastGood = r.segments[i-1].Last
	}
	return size, err
}

// loadHeader reads a segment's header.
func loadHeader(f io.ReaderAt, size int64, seg *segment) error {
	b := make([]byte, min(size, headerSize))
	if err := readFull(f, b, 0); err != nil {
		return err
	}
	if len(b) >= preambleSize {
		// Before anything else: a newer version may look different after this.
		if err := checkPreamble(b, segmentMagic, seg.Name); err != nil {
			return err
		}
	}
	reason := "the file ends in the segment header"
	if len(b) == headerSize {
		reason = seg.parseHeader(b)
	}
	if reason != "" {
		return &CorruptionError{Segment: seg.Name, Reason: reason}
	}
	return nil
}

// continues makes a segment begin where another one ends.
func (s *segment) continues(prev *SegmentInfo) {
	s.PrevIndex, s.PrevChain, s.PrevClock = prev.Last, prev.Chain, prev.Clock
	s.SegmentSize = prev.SegmentSize
}

// checkContinues checks that a segment begins where another one ends.
func (s *segment) checkContinues(prev *SegmentInfo) error {
	wrong := func(reason string) error {
		return &CorruptionError{Segment: s.Name, LastGood: prev.Last, Reason: reason}
	}
	switch {
	case s.PrevIndex != prev.Last:
		return wrong(fmt.Sprintf("the segment continues index %d, but the one before it ends at %d",
			s.PrevIndex, prev.Last))
	case s.PrevChain != prev.Chain || s.PrevClock != prev.Clock ||
		s.SegmentSize != prev.SegmentSize:
		return wrong("the segment does not continue the one before it")
	}
	return nil
}

// segment reads and checks segment i: its header and, unless its side file says how it ends,
// all of it.
func (r *recovery) segment(i int) error {
	seg, newest := r.segments[i], i == len(r.segments)-1
	size, err := r.load(i)
	if c, ok := errors.AsType[*CorruptionError](err); ok && seg.salt == 0 {
		if r.restore(i, size) {
			r.report(c)
			err = nil
		} else if newest {
			return r.headless(seg, size, c)
		}
	}
	if err == nil && !newest {
		err = r.loadSide(seg, size)
	}
	if err != nil || seg.index != nil {
		return err
	}
	return r.whole(seg, size, newest)
}

// restore gives a segment the header that it had before that was damaged, and reports whether it is
// known: the side file and each block depend on the header's checksum, so a wrong guess shows.
func (r *recovery) restore(i int, size int64) bool {
	seg := r.expected(i)
	known := r.matches(seg, size) || i == 0 && r.correct(seg, size)
	if known {
		*r.segments[i] = *seg
	}
	return known
}

// expected returns a segment as it continues the one before it, the first one as the log's first.
func (r *recovery) expected(i int) *segment {
	prev := &SegmentInfo{SegmentSize: r.segSize}
	if i > 0 {
		prev = &r.segments[i-1].SegmentInfo
	}
	seg := newSegment(r.segments[i].First)
	seg.continues(prev)
	seg.putHeader(make([]byte, headerSize)) // sets the salt
	return seg
}

// correct restores the first segment's header if only one of its bytes is wrong: retention may have
// deleted the segment before it.
func (r *recovery) correct(seg *segment, size int64) bool {
	b := make([]byte, headerSize)
	if err := readFull(r.file(seg), b, 0); err != nil {
		return false
	}
	for at := 16; at < 84; at++ {
		for range 256 { // the last time it is as it was
			b[at]++
			if crc(b[16:84]) == le.Uint32(b[84:]) {
				return seg.parseHeader(b) == "" && r.matches(seg, size)
			}
		}
	}
	// Then the checksum is wrong, or more than a byte.
	le.PutUint32(b[84:], crc(b[16:84]))
	return seg.parseHeader(b) == "" && r.matches(seg, size)
}

// matches reports whether the segment's side file, or its first block, was written with this
// header.
func (r *recovery) matches(seg *segment, size int64) bool {
	if _, err := r.openSide(seg, size); err == nil {
		return true
	}
	b := make([]byte, blockSize)
	err := readFull(r.file(seg), b, headerSize)
	h, reason := parseBlockHeader(b, seg.salt)
	return err == nil && reason == "" && h.index == seg.First
}

// whole reads a whole segment, checks it and indexes it.
func (r *recovery) whole(seg *segment, size int64, newest bool) error {
	s := r.scan(seg, size)
	mem, err := s.index()
	if c, ok := errors.AsType[*CorruptionError](err); ok && newest && c.damage != nil {
		err = r.torn(s, c)
	}
	if err == nil || IsDamage(err) && s.blocks > 0 {
		s.end(seg)
		seg.index = mem
	}
	if err == nil && s.blocks == 0 {
		err = r.drop()
	}
	return err
}

package log

import (
	"context"
	"errors"
	"fmt"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// SegmentName returns the file name of the segment whose first block has this
// index.
func SegmentName(first uint64) string { return fmt.Sprintf("%020d.seg", first) }

// SideFileName returns the file name of that segment's side file.
func SideFileName(first uint64) string { return fmt.Sprintf("%020d.idx", first) }

// ParseSegmentName is the inverse of SegmentName. ok is false for any other name.
func ParseSegmentName(name string) (first uint64, ok bool) { return firstIndex(name, ".seg") }

// ParseSideFileName is the inverse of SideFileName.
func ParseSideFileName(name string) (first uint64, ok bool) { return firstIndex(name, ".idx") }

// ScannedSegment is what ScanSegment has found.
type ScannedSegment struct {
	SegmentInfo // Size is where the whole blocks end; Sealed is not set
	// Side is the segment's side file, as it is once the segment is sealed and
	// ends here; nil if it is wrong.
	Side []byte
}

// openSegment opens the first limit bytes (limit < 0: all) of a segment that is in no log, and
// reads its header. The caller closes l.files.
func openSegment(fsys vfs.FS, dir string, first uint64, limit int64) (
	l *Log, seg *segment, size int64, err error) {
	if l, err = newLog(Options{FS: fsys, Dir: dir}, true); err != nil {
		return nil, nil, 0, err
	}
	seg = newSegment(first)
	l.segments = []*segment{seg}
	size, err = l.size(seg.Name)
	if limit >= 0 {
		size = min(size, limit)
	}
	if err == nil {
		err = loadHeader(l.file(seg), size, seg)
	}
	if err != nil {
		l.files.close()
	}
	return l, seg, size, err
}

// SealedSegment describes a sealed segment by its header and its side file. If that is missing or
// wrong, it reads the whole segment.
func SealedSegment(fsys vfs.FS, dir string, first uint64) (_ SegmentInfo, err error) {
	defer wrap(&err, "segment %s", SegmentName(first))
	l, seg, size, err := openSegment(fsys, dir, first, -1)
	if err != nil {
		return SegmentInfo{}, err
	}
	defer l.files.close()
	err = l.loadSide(seg, size)
	if err == nil && seg.index == nil {
		err = (&recovery{Log: l}).whole(seg, size, false)
	}
	seg.Sealed = true
	return seg.SegmentInfo, err
}

// EraseSegment returns the bytes of a sealed segment that is in no log, without the contents of
// these records, and whether one of them was still there. It checks the whole segment, and writes
// nothing.
func EraseSegment(fsys vfs.FS, dir string, sealed SegmentInfo, refs []event.Ref) (
	b []byte, found bool, err error) {
	defer wrap(&err, "erase in segment %s", sealed.Name)
	l, seg, size, err := openSegment(fsys, dir, sealed.First, -1)
	if err != nil {
		return nil, false, err
	}
	defer l.files.close()
	if err := (&recovery{Log: l}).whole(seg, size, false); err != nil {
		return nil, false, err
	}
	if seg.Chain != sealed.Chain {
		return nil, false, errors.New("the segment does not match its side file")
	}
	if b, err = vfs.ReadFile(fsys, l.path(seg.Name)); err != nil {
		return nil, false, err
	}
	for _, ref := range refs {
		e, ok, err := l.erasureOf(ref)
		if err != nil {
			return nil, false, fmt.Errorf("record %s: %w", ref, err)
		}
		if ok {
			copy(b[e.off:], erased(e.n))
			found = true
		}
	}
	return b, found, nil
}

// Header returns the bytes with which the segment's file begins, or began before they were damaged.
func (s *SegmentInfo) Header() []byte {
	b := make([]byte, headerSize)
	(&segment{SegmentInfo: *s}).putHeader(b)
	return b
}

// SegmentHeaderSize is how long the header of a segment is.
const SegmentHeaderSize = headerSize

// ScanSegment reads the first limit bytes of a segment's file that is in no log
// (limit < 0: all of it) and checks every byte of them: checksums, the contents'
// digests, the chain, and that the segment continues after, if that is not nil.
// The first thing that is wrong is returned as a *CorruptionError, together with
// how far the file is right: what precedes Size can be kept. It never writes.
func ScanSegment(
	ctx context.Context, fsys vfs.FS, dir, name string, limit int64, after *SegmentInfo,
) (out ScannedSegment, err error) {
	defer wrap(&err, "scan segment %s", name)
	first, ok := ParseSegmentName(name)
	if !ok {
		return out, fmt.Errorf("%q is no segment's name", name)
	}
	l, seg, size, err := openSegment(fsys, dir, first, limit)
	if err != nil {
		return out, err
	}
	defer l.files.close()
	if after != nil {
		if err := seg.checkContinues(after); err != nil {
			return out, err
		}
	}
	s := l.scan(seg, size)
	s.check = (&verifier{ctx: ctx}).block
	mem, err := s.index()
	s.end(seg)
	out.SegmentInfo = seg.SegmentInfo
	if err == nil {
		out.Side = encodeSide(seg, mem)
	}
	return out, err
}

package log

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// An erasure overwrites in place, so a crash can leave a content half erased, which is damage like
// any other. Therefore the contents to erase are first listed in a file
// (docs/reference/formats.md draws its bytes), which Open completes before it reads anything else.

const (
	eraseList  = "erasing.list"
	eraseMagic = "qlogdera"
	eraseSize  = 16
)

// erasure is one content to be erased.
type erasure struct {
	first uint64 // names the segment
	off   int64  // of the content's checksum
	n     int64  // of the content
}

// Erase overwrites the contents of these records, durably, by a fixed mark. The chain
// still verifies, and readers see that the content was erased. Records without content,
// erased before, deleted by retention or lost before a salvage are skipped, so it can be repeated.
// Open completes an erasure that a crash interrupted.
//
// Readers may still hold a content that they have read before.
func (l *Log) Erase(refs []event.Ref) (err error) {
	defer wrap(&err, "erase contents")
	if err := l.usable(); err != nil {
		return err
	}
	// The contents must be durable first: Open relies on finding them.
	if err := l.Sync(); err != nil {
		return err
	}
	var list []erasure
	for _, ref := range refs {
		e, ok, err := l.erasureOf(ref)
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("record %s: %w", ref, err)
		}
		if ok {
			list = append(list, e)
		}
	}
	// Not before: finding a record may read others, and wait for what erases them (beingErased).
	l.w.adminMu.Lock()
	defer l.w.adminMu.Unlock()
	if len(list) == 0 {
		return l.usable() // what another call has erased is durable, or has broken the log
	}
	err = vfs.WriteFile(l.fs, l.path(eraseList), encodeErasures(list))
	if err == nil {
		err = l.overwrite(list)
	}
	if err != nil {
		l.fail(err)
		return err
	}
	l.mu.Lock()
	l.cache.dropUpTo(slices.MaxFunc(refs, event.Ref.Compare).Index)
	l.mu.Unlock()
	return nil
}

// erasureOf returns the bytes to overwrite for a record, if anything.
func (l *Log) erasureOf(ref event.Ref) (e erasure, ok bool, err error) {
	c, err := l.at(ref.Index)
	if err != nil {
		return e, false, err
	}
	off, lay := c.record(ref)
	if c.err != nil || lay.flags&flagContent == 0 {
		return e, false, c.err
	}
	body := c.at(off+lay.headerEnd, lay.size-lay.headerEnd)
	if c.err != nil {
		return e, false, c.err
	}
	e = erasure{first: c.seg.First, off: off + lay.headerEnd, n: int64(len(body)) - 4}
	// A damaged content may be erased too: it is lost anyway.
	return e, !isErased(body), nil
}

// overwrite carries a list out and removes it.
func (l *Log) overwrite(list []erasure) error {
	slices.SortFunc(list, func(a, b erasure) int { return cmp.Compare(a.first, b.first) })
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].first == list[0].first {
			n++
		}
		if err := l.overwriteIn(SegmentName(list[0].first), list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return l.remove(eraseList)
}

// overwriteIn overwrites contents in one segment, durably.
func (l *Log) overwriteIn(name string, list []erasure) error {
	f, err := l.fs.OpenReadWrite(l.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // retention was faster, before the crash
	} else if err != nil {
		return err
	}
	for i := 0; i < len(list) && err == nil; i++ {
		_, err = f.WriteAt(erased(list[i].n), list[i].off)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// finishErasure completes an erasure that a crash interrupted.
func (l *Log) finishErasure() error {
	list, err := readErasures(l.fs, l.dir)
	if err != nil || list == nil {
		return err
	}
	l.logger.Info("completing interrupted erasure", "contents", len(list))
	for _, e := range list {
		if err := l.checkErasure(e); err != nil {
			return err
		}
	}
	return l.overwrite(list)
}

// checkErasure checks that the segment is the one the list was written for.
func (l *Log) checkErasure(e erasure) error {
	seg := newSegment(e.first)
	size, err := l.size(seg.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = loadHeader(l.file(seg), size, seg)
	}
	if IsDamage(err) {
		err = nil // of the header, which reading the log judges
	}
	if err == nil && (e.off < headerSize || e.off+4+e.n > size) {
		err = &CorruptionError{Segment: seg.Name, Offset: size,
			Reason: "a content to be erased is not there"}
	}
	return err
}

func encodeErasures(list []erasure) []byte {
	b := make([]byte, preambleSize, preambleSize+len(list)*eraseSize+4)
	putPreamble(b, eraseMagic)
	for _, e := range list {
		b = le.AppendUint64(b, e.first)
		b = le.AppendUint32(b, uint32(e.off))
		b = le.AppendUint32(b, uint32(e.n))
	}
	return le.AppendUint32(b, crc(b[preambleSize:]))
}

// readErasures returns the list of an unfinished erasure; nil = none.
func readErasures(fsys vfs.FS, dir string) ([]erasure, error) {
	b, err := vfs.ReadFile(fsys, path.Join(dir, eraseList))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if len(b) < preambleSize+4 || (len(b)-preambleSize-4)%eraseSize != 0 {
		return nil, &CorruptionError{Segment: eraseList, Reason: "wrong length"}
	}
	if err := checkPreamble(b, eraseMagic, eraseList); err != nil {
		return nil, err
	}
	if crc(b[preambleSize:len(b)-4]) != le.Uint32(b[len(b)-4:]) {
		return nil, &CorruptionError{Segment: eraseList, Reason: "wrong checksum"}
	}
	list := []erasure{}
	for b = b[preambleSize : len(b)-4]; len(b) > 0; b = b[eraseSize:] {
		list = append(list, erasure{le.Uint64(b), int64(le.Uint32(b[8:])),
			int64(le.Uint32(b[12:]))})
	}
	return list, nil
}

// beingErased reports whether a content (its checksum at off) that failed its checksum is
// being, or was meanwhile, overwritten by an erasure.
func (l *Log) beingErased(seg *segment, off, n int64) bool {
	if l.w == nil {
		list, err := readErasures(l.fs, l.dir)
		if err == nil && slices.Contains(list, erasure{seg.First, off, n}) {
			return true
		}
	} else {
		// Wait for a running erasure. During Open there is none: it has completed an
		// interrupted one before it reads.
		l.w.adminMu.Lock()
		defer l.w.adminMu.Unlock()
	}
	b := make([]byte, 4+n)
	err := readFull(l.file(seg), b, off)
	return err == nil && isErased(b)
}

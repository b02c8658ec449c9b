package log

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"sort"
)

// segmentFor returns the position of the segment in which index lies. Called
// with l.mu held.
func (l *Log) segmentFor(index uint64) (int, error) {
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].header.first > index }) - 1
	if i < 0 {
		if len(l.segments) > 0 && index <= l.segments[0].header.prevIndex && index > 0 {
			return 0, ErrDeleted
		}
		return 0, ErrNotFound
	}
	if index > l.segments[i].last {
		return 0, ErrNotFound
	}
	return i, nil
}

// Record reads one record. It returns ErrNotFound, ErrDeleted, or a
// *CorruptionError if its bytes are wrong.
func (l *Log) Record(ref Ref) (Record, error) {
	r, err := l.record(ref)
	if err != nil {
		return Record{}, fmt.Errorf("read record %s: %w", ref, err)
	}
	return r, nil
}

// Content reads one record's content: nil if it has none. Of an erased content
// only the length is true. The bytes must not be changed.
func (l *Log) Content(ref Ref) (content []byte, erased bool, err error) {
	l.mu.RLock()
	raw := l.cache.record(ref)
	l.mu.RUnlock()
	if raw != nil {
		return contentOf(raw), false, nil
	}
	r, err := l.record(ref)
	if err != nil {
		return nil, false, fmt.Errorf("read content of record %s: %w", ref, err)
	}
	return r.Content, r.Erased, nil
}

// contentOf returns a cached record's content. Its bytes were made by Append and
// never left memory.
func contentOf(raw []byte) []byte {
	lay := parseLayout(raw)
	if lay.flags&flagContent == 0 {
		return nil
	}
	return raw[lay.headerEnd+4:]
}

// Contents is Content of several records: fn gets each one's place in refs, its
// content and whether that was erased, in the order of refs. Records that follow
// one another in a segment cost less than one by one. An error ends it.
func (l *Log) Contents(refs []Ref, fn func(i int, content []byte, erased bool) error) error {
	var w walk
	defer w.end()
	var few [128][]byte
	raws := l.cached(few[:0], refs)
	for i, ref := range refs {
		if raw := raws[i]; raw != nil {
			if err := fn(i, contentOf(raw), false); err != nil {
				return err
			}
			continue
		}
		content, erased, ok, err := w.content(l, ref)
		if err == nil && !ok {
			content, erased, err = l.Content(ref)
		} else if err != nil {
			err = fmt.Errorf("read content of record %s: %w", ref, err)
		}
		if err == nil {
			err = fn(i, content, erased)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// cached appends the records that are in memory to raws, nil for another: all in
// one go, since who leases wants the newest, and Append waits for the lock.
func (l *Log) cached(raws [][]byte, refs []Ref) [][]byte {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var b cached
	for i, ref := range refs {
		if i == 0 || ref.Index != refs[i-1].Index {
			b = l.cache.blocks[ref.Index]
		}
		raws = append(raws, b.record(ref.Number))
	}
	return raws
}

// walk reads records of sealed segments in a row: the cursor stays where the
// record before has ended.
type walk struct {
	c    *cursor
	done func()
	last Ref   // Invariant: next is where the record behind it begins, or the block's trailer
	next int64 // 0 = nowhere
}

func (w *walk) end() {
	if w.c != nil {
		w.done()
		w.c, w.next = nil, 0
	}
}

// near is how many records are rather skipped than looked up.
const near = 16

// content reads a record's content; not ok for one that is not in a sealed
// segment.
func (w *walk) content(l *Log, ref Ref) (content []byte, erased, ok bool, err error) {
	l.mu.RLock()
	i, err := l.segmentFor(ref.Index)
	if err != nil || l.segments[i].mem != nil || l.cache.record(ref) != nil {
		l.mu.RUnlock()
		return nil, false, false, nil // Content says why
	}
	seg, size := l.segments[i], l.segments[i].size
	l.mu.RUnlock()
	if w.c == nil || w.c.seg != seg {
		w.end()
		if w.c, w.done, err = l.cursor(seg, size); err != nil {
			w.c = nil
			return nil, false, true, err
		}
	}
	off, n, beside := w.beside(ref)
	w.next = 0
	if !beside {
		if off, n, err = w.c.record(ref); err != nil {
			return nil, false, true, err
		}
	}
	raw, err := w.c.win.at(off, n)
	if err != nil {
		return nil, false, true, w.c.failed(off, err)
	}
	r, err := l.parseRecord(seg, ref, bytes.Clone(raw), off)
	if err == nil {
		w.last, w.next = ref, off+n
	}
	return r.Content, r.Erased, true, err
}

// beside returns the extent of a record that stands a little behind the one
// before. Where anything is odd it is not ok: the long way tells what.
func (w *walk) beside(ref Ref) (off, size int64, ok bool) {
	gap := int64(ref.Number) - int64(w.last.Number) - 1
	if w.next == 0 || ref.Index != w.last.Index || gap < 0 || gap > near {
		return 0, 0, false
	}
	off, err := w.c.skip(w.next, uint32(gap))
	if err != nil {
		return 0, 0, false
	}
	var r Record
	lay, err := w.c.recordHeader(off, &r)
	return off, lay.size, err == nil
}

func (l *Log) record(ref Ref) (Record, error) {
	l.mu.RLock()
	if raw := l.cache.record(ref); raw != nil {
		l.mu.RUnlock()
		return l.parseRecord(nil, ref, raw, 0)
	}
	i, err := l.segmentFor(ref.Index)
	if err != nil {
		l.mu.RUnlock()
		return Record{}, err
	}
	seg, size := l.segments[i], l.segments[i].size
	if seg.mem != nil {
		off, n, ok := seg.mem.record(ref)
		l.mu.RUnlock()
		if !ok {
			return Record{}, ErrNotFound
		}
		return l.readRecord(seg, ref, off, n)
	}
	l.mu.RUnlock()
	c, done, err := l.cursor(seg, size)
	if err != nil {
		return Record{}, err
	}
	defer done()
	off, n, err := c.record(ref)
	if err != nil {
		return Record{}, err
	}
	// Most often the window has it already.
	raw, err := c.win.at(off, n)
	if err != nil {
		return Record{}, c.failed(off, err)
	}
	return l.parseRecord(seg, ref, bytes.Clone(raw), off)
}

// readRecord reads a record whose extent is known.
func (l *Log) readRecord(seg *segment, ref Ref, off, n int64) (Record, error) {
	f, done, err := l.borrow(seg)
	if err != nil {
		return Record{}, err
	}
	defer done()
	raw := make([]byte, n)
	if _, err := readFull(f, raw, off); err != nil {
		return Record{}, fmt.Errorf("segment %s, offset %d: %w", seg.name, off, err)
	}
	return l.parseRecord(seg, ref, raw, off)
}

// parseRecord checks and parses a whole record.
func (l *Log) parseRecord(seg *segment, ref Ref, raw []byte, off int64) (r Record, err error) {
	wrong := func(off int64, reason string) (Record, error) {
		return Record{}, &CorruptionError{Segment: seg.name, Offset: off, LastGood: ref.Index - 1, Reason: reason}
	}
	lay := layout{}
	if len(raw) >= recordMinimum {
		lay = parseLayout(raw)
	}
	if !lay.ok || lay.size != int64(len(raw)) {
		return wrong(off, "wrong record header")
	}
	if reason := parseRecordHeader(raw, lay, &r); reason != "" {
		return wrong(off, reason)
	}
	if lay.flags&flagContent == 0 {
		return r, nil
	}
	body := raw[lay.headerEnd:]
	r.Content = body[4:len(body):len(body)]
	switch checkContent(body) {
	case contentErased:
		r.Erased = true
	case contentWrong:
		if !l.beingErased(seg, off+lay.headerEnd, int64(len(r.Content))) {
			return wrong(off+lay.headerEnd, "wrong checksum of the content")
		}
		r.Erased = true
	}
	return r, nil
}

// borrow returns a segment's file. A segment that retention has deleted
// meanwhile is ErrDeleted.
func (l *Log) borrow(seg *segment) (*handle, func(), error) {
	f, done, err := l.files.borrow(seg.name)
	if errors.Is(err, fs.ErrNotExist) && l.First() > seg.header.first {
		return nil, nil, ErrDeleted
	}
	return f, done, err
}

// ChainAt returns the chain after the last block with an index up to index. It
// costs a few reads. Past the head it returns ErrNotFound.
func (l *Log) ChainAt(index uint64) ([32]byte, error) {
	chain, err := l.chainAt(index)
	if err != nil {
		return chain, fmt.Errorf("chain at %d: %w", index, err)
	}
	return chain, nil
}

func (l *Log) chainAt(index uint64) ([32]byte, error) {
	l.mu.RLock()
	if index >= l.head.Index {
		defer l.mu.RUnlock()
		if index > l.head.Index {
			return [32]byte{}, ErrNotFound
		}
		return l.head.Chain, nil
	}
	// The last segment that begins at or before index, or the chain before the first.
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].header.first > index }) - 1
	if i < 0 {
		defer l.mu.RUnlock()
		h := l.segments[0].header
		if index < h.prevIndex {
			return [32]byte{}, ErrDeleted
		}
		return h.prevChain, nil
	}
	seg, last, size := l.segments[i], l.segments[i].last, l.segments[i].size
	if index >= last {
		defer l.mu.RUnlock()
		return seg.chain, nil
	}
	l.mu.RUnlock()
	c, done, err := l.cursor(seg, size)
	if err != nil {
		return [32]byte{}, err
	}
	defer done()
	off, err := c.block(index + 1)
	if err != nil {
		return [32]byte{}, err
	}
	return c.chainBefore(off)
}

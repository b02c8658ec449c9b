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
		// These bytes were made by Append and never left memory.
		lay := parseLayout(raw)
		if lay.flags&flagContent == 0 {
			return nil, false, nil
		}
		return raw[lay.headerEnd+4:], false, nil
	}
	r, err := l.record(ref)
	if err != nil {
		return nil, false, fmt.Errorf("read content of record %s: %w", ref, err)
	}
	return r.Content, r.Erased, nil
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

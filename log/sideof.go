package log

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// indexOf returns a segment's index in memory, or else its side file.
func (l *Log) indexOf(seg *segment) (*memIndex, *sideIndex, error) {
	l.mu.RLock()
	mem, side := seg.mem, seg.side
	l.mu.RUnlock()
	if side != nil {
		return nil, side, nil
	}
	if mem != nil {
		return mem, nil, nil
	}
	// Only a reader gets here: a writer has them all from Open on.
	seg.sideMu.Lock()
	defer seg.sideMu.Unlock()
	l.mu.RLock()
	side = seg.side
	l.mu.RUnlock()
	if side != nil {
		return nil, side, nil
	}
	side, err := l.findSide(seg, seg.size)
	if err == nil && side == nil {
		side, err = l.sideInMemory(seg)
	}
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	seg.side = side
	l.mu.Unlock()
	return nil, side, nil
}

// findSide loads a segment's side file. It returns nil for one that is missing
// or wrong, and an error for one that a newer program has written.
func (l *Log) findSide(seg *segment, size int64) (*sideIndex, error) {
	name := sideName(seg.header.first)
	side, err := l.openSide(name)
	if err == nil {
		err = side.fits(seg, size)
	}
	if err == nil {
		return side, nil
	}
	if _, ok := errors.AsType[*VersionError](err); ok {
		return nil, err
	}
	l.logger.Warn("side file is missing or wrong, it is made anew", "file", name, "error", err)
	_ = l.files.drop(name) // it was only read
	return nil, nil
}

// sideInMemory makes the side file that a reader may not write.
func (l *Log) sideInMemory(seg *segment) (*sideIndex, error) {
	mem, s, err := l.scanSealed(seg)
	if err != nil {
		return nil, err
	}
	if s.last != seg.last || s.chain != seg.chain {
		return nil, &CorruptionError{Segment: seg.name, Offset: s.off, LastGood: s.last, Reason: "the next segment continues another block"}
	}
	b := encodeSide(seg, mem)
	side, err := loadSide(bytes.NewReader(b), int64(len(b)), sideName(seg.header.first))
	if err != nil {
		return nil, err
	}
	side.file = func() (io.ReaderAt, func(), error) { return bytes.NewReader(b), func() {}, nil }
	return side, nil
}

// scanSealed reads a sealed segment whole and checks it.
func (l *Log) scanSealed(seg *segment) (*memIndex, *scan, error) {
	f, done, err := l.borrow(seg)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	size, err := f.Size()
	if err != nil {
		return nil, nil, err
	}
	s := newScan(f, size, seg.name, seg.header, seg.salt)
	s.erasing = func(off, n int64) bool { return l.beingErased(seg, off, n) }
	mem, d, err := s.index()
	if err == nil && d == nil && s.blocks == 0 {
		d = &damage{from: headerSize, reason: "a sealed segment without a block"}
	}
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("read segment %s: %w", seg.name, err)
	case d != nil:
		return nil, nil, s.corrupt(d)
	}
	return mem, s, nil
}

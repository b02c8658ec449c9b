package log

// The filters of a side file say of most keys that the segment does not have
// them, so that a look-up reads only the segments that do: one wrong yes in 256.
// They are binary fuse filters (Graf and Lemire 2022) of github.com/FastFilter/xorfilter,
// of 8 bits, over the hashes of the key tables: 10 bits a key, where there are
// many. In memory are those that were asked, and they stay there.
//
//	filters, behind the last page
//	┌─────────────┬──────────────────────────────────┐
//	│ heads, 52 B │ fingerprints of subjects, aliases │
//	└─────────────┴──────────────────────────────────┘
//
//	heads: for subjects and aliases 24 bytes each, then a checksum of both
//	 0  8  seed
//	 8  4  segment length, a power of 2
//	12  4  segments
//	16  4  fingerprints, a byte each: (segments + 2) * segment length; 0 = no filter
//	20  4  checksum of the fingerprints
//
// Which seed and lengths a filter has is up to who has made it (the library
// computes them with floats); every filter without a wrong no is right.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/FastFilter/xorfilter"
)

const (
	filterHeadSize  = 24
	filterHeadsSize = 2*filterHeadSize + 4
)

type fuse = xorfilter.BinaryFuse[uint8]

// sideFilter is one of a side file's filters. Without fingerprints it says
// nothing.
type sideFilter struct {
	head   fuse
	crc    uint32
	off    int64 // of the fingerprints
	length uint32
	loaded atomic.Pointer[fuse]
}

// appendFilters appends the filters of these hashes to a side file.
func appendFilters(b []byte, hashes [3][]uint64) []byte {
	start := len(b)
	b = append(b, make([]byte, filterHeadsSize)...)
	var builder xorfilter.BinaryFuseBuilder
	for i, t := range []int{tableSubjects, tableAliases} {
		if len(hashes[t]) == 0 {
			continue
		}
		f, err := xorfilter.BuildBinaryFuse[uint8](&builder, hashes[t])
		if err != nil {
			continue // none that says yes to all of them was found: then every page is read
		}
		at := b[start+i*filterHeadSize:]
		le.PutUint64(at, f.Seed)
		le.PutUint32(at[8:], f.SegmentLength)
		le.PutUint32(at[12:], f.SegmentCount)
		le.PutUint32(at[16:], uint32(len(f.Fingerprints)))
		le.PutUint32(at[20:], crc(f.Fingerprints))
		b = append(b, f.Fingerprints...)
	}
	heads := b[start : start+filterHeadsSize]
	le.PutUint32(heads[2*filterHeadSize:], crc(heads[:2*filterHeadSize]))
	return b
}

// loadFilters reads the heads at off and returns where the filters end.
func (s *sideIndex) loadFilters(r io.ReaderAt, off, fileSize int64) (int64, error) {
	if off+filterHeadsSize > fileSize {
		return 0, fmt.Errorf("side file of %d bytes, want at least %d", fileSize, off+filterHeadsSize)
	}
	var heads [filterHeadsSize]byte
	if _, err := readFull(r, heads[:], off); err != nil {
		return 0, err
	}
	if crc(heads[:2*filterHeadSize]) != le.Uint32(heads[2*filterHeadSize:]) {
		return 0, fmt.Errorf("wrong checksum of the side file's filters")
	}
	off += filterHeadsSize
	for i, t := range []int{tableSubjects, tableAliases} {
		h, f := heads[i*filterHeadSize:], &s.filters[t]
		f.off, f.length, f.crc = off, le.Uint32(h[16:]), le.Uint32(h[20:])
		segment, count := le.Uint32(h[8:]), le.Uint32(h[12:])
		f.head = fuse{
			Seed: le.Uint64(h), SegmentLength: segment, SegmentLengthMask: segment - 1,
			SegmentCount: count, SegmentCountLength: count * segment,
		}
		// What does not fit would be asked beyond its end.
		if f.length > 0 && (segment == 0 || segment&(segment-1) != 0 || count == 0 || (uint64(count)+2)*uint64(segment) != uint64(f.length)) {
			return 0, fmt.Errorf("a filter of %d fingerprints in %d segments of %d", f.length, count, segment)
		}
		off += int64(f.length)
	}
	return off, nil
}

// may reports whether the segment can have a key with this hash: false is sure.
func (s *sideIndex) may(table int, hash uint64) (bool, error) {
	f := &s.filters[table]
	if f.length == 0 {
		return true, nil
	}
	loaded := f.loaded.Load()
	if loaded == nil {
		r, done, err := s.file()
		if err != nil {
			return false, err
		}
		defer done()
		if loaded, err = f.read(r); err != nil {
			return false, s.badFilter(f, err)
		}
		f.loaded.Store(loaded)
	}
	return loaded.Contains(hash), nil
}

var errFilter = errors.New("wrong checksum of a side file's filter (remove the file, it is made anew)")

func (f *sideFilter) read(r io.ReaderAt) (*fuse, error) {
	b := make([]byte, f.length)
	if _, err := readFull(r, b, f.off); err != nil {
		return nil, err
	}
	if crc(b) != f.crc {
		return nil, errFilter
	}
	out := f.head
	out.Fingerprints = b
	return &out, nil
}

func (s *sideIndex) badFilter(f *sideFilter, err error) error {
	if err == errFilter {
		return &CorruptionError{Segment: s.name, Offset: f.off, LastGood: s.last, Reason: err.Error()}
	}
	return fmt.Errorf("read side file %s: %w", s.name, err)
}

// checkSide returns where and how a side file's bytes are not what its segment
// says; "" where they are. Tables are compared byte for byte; a filter must
// know every key.
func checkSide(got []byte, seg *segment, mem *memIndex) (off int64, reason string) {
	const differs = "the side file does not agree with its segment"
	version := uint32(sideVersion)
	if len(got) >= preambleSize && le.Uint32(got[8:]) == 1 {
		version = 1
	}
	want, hashes := encodeTables(seg, mem, version)
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	if at < len(want) || version == 1 && len(got) != len(want) {
		return int64(at), differs
	}
	if version == 1 {
		return 0, ""
	}
	r := bytes.NewReader(got)
	s, err := loadSide(r, int64(len(got)), sideName(seg.header.first))
	if err != nil {
		return int64(at), err.Error()
	}
	for t := range s.filters {
		f := &s.filters[t]
		if f.length == 0 {
			continue
		}
		loaded, err := f.read(r)
		if err != nil {
			return f.off, err.Error()
		}
		for _, h := range hashes[t] {
			if !loaded.Contains(h) {
				return f.off, differs + ": its filter does not know a key"
			}
		}
	}
	return 0, ""
}

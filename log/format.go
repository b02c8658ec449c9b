package log

// The bytes of a segment, format version 1, as docs/reference/formats.md draws them; testdata/v1.seg
// holds an example. Numbers are little-endian, all checksums are CRC-32C. A segment is its header
// and blocks; a block is its header, records and a trailer.
//
// The checksums of a block begin with the segment's salt, which makes the block recognisable as one
// of this very segment: a copy of a log inside a message's content is never taken for a part of the
// log.
//
// The trailer has the chain: SHA-256 of the chain before, the block's header and, of each record,
// all up to the end of its header. That covers a content by its digest only, so a content can be
// erased: its bytes become "[erased]" repeated, cut to its length, and its checksum that of
// "erased" and these bytes. (The checksum of the same bytes as a user's content always differs: a
// CRC that begins in another state ends in another.)

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// formatVersion is the version of all files of the log.
const formatVersion = 1

const (
	segmentMagic  = "qlogdseg"
	blockMagic    = "qblk"
	preambleSize  = 16
	headerSize    = 88 // segment header
	blockSize     = 32 // block header
	trailerSize   = 36
	recordMinimum = 28

	// maxSegment and maxBlock keep every offset below 4 GiB.
	maxSegment = 1 << 30
	maxBlock   = 1 << 30
	maxHeader  = 1<<24 - 1
)

const (
	flagSubject = 1 << iota
	flagAlias
	flagPrev
	flagContent
	flagDamaged // the content's bytes were lost to damage, and are marked as erased ones are
	flagsKnown  = 1<<iota - 1
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

func crc(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// saltedCRC is the checksum of the salt and b.
func saltedCRC(salt uint32, b []byte) uint32 {
	var s [4]byte
	le.PutUint32(s[:], salt)
	return crc32.Update(crc(s[:]), castagnoli, b)
}

// putPreamble writes the 16 bytes that begin every file of the log.
func putPreamble(b []byte, magic string) {
	copy(b, magic)
	le.PutUint32(b[8:], formatVersion)
	le.PutUint32(b[12:], crc(b[:12]))
}

// checkPreamble checks a file's first 16 bytes. It returns a *VersionError for a newer
// version, and a *CorruptionError for what is wrong.
func checkPreamble(b []byte, magic, file string) error {
	reason := ""
	switch v := le.Uint32(b[8:]); {
	case string(b[:8]) != magic:
		reason = "wrong magic"
	case crc(b[:12]) != le.Uint32(b[12:]):
		reason = "wrong checksum of the version"
	case v > formatVersion:
		return &VersionError{File: file, Version: v, Known: formatVersion}
	case v == 0:
		reason = "format version 0"
	default:
		return nil
	}
	return &CorruptionError{Segment: file, Reason: reason}
}

// putHeader writes the segment's header and sets its salt.
func (s *segment) putHeader(b []byte) {
	putPreamble(b, segmentMagic)
	le.PutUint64(b[16:], uint64(s.SegmentSize))
	le.PutUint64(b[24:], s.First)
	le.PutUint64(b[32:], s.PrevIndex)
	le.PutUint64(b[40:], uint64(s.PrevClock))
	copy(b[48:80], s.PrevChain[:])
	le.PutUint32(b[80:], 0)
	s.salt = crc(b[16:84])
	le.PutUint32(b[84:], s.salt)
}

// parseHeader reads headerSize bytes, whose preamble was checked, of the segment whose
// first index is known from its name; reason is "" when they are right. Invariant: a
// segment without a right header has no salt.
func (s *segment) parseHeader(b []byte) (reason string) {
	salt := le.Uint32(b[84:])
	if crc(b[16:84]) != salt {
		return "wrong checksum of the segment header"
	}
	size, prev := int64(le.Uint64(b[16:])), le.Uint64(b[32:])
	switch first := le.Uint64(b[24:]); {
	case size <= 0 || size > maxSegment:
		return fmt.Sprintf("segment size %d", size)
	case first <= prev:
		return fmt.Sprintf("first index %d is not past the one before it, %d", first, prev)
	case first != s.First:
		return fmt.Sprintf("the segment begins at index %d, its name says otherwise", first)
	}
	s.SegmentSize, s.PrevIndex, s.salt = size, prev, salt
	s.PrevClock = int64(le.Uint64(b[40:]))
	copy(s.PrevChain[:], b[48:80])
	return ""
}

type blockHeader struct {
	length uint32 // of all records
	count  uint32
	index  uint64
	time   int64
}

// size is that of the whole block.
func (h *blockHeader) size() int64 { return blockSize + int64(h.length) + trailerSize }

func (h *blockHeader) put(b []byte, salt uint32) {
	copy(b, blockMagic)
	le.PutUint32(b[4:], h.length)
	le.PutUint32(b[8:], h.count)
	le.PutUint64(b[12:], h.index)
	le.PutUint64(b[20:], uint64(h.time))
	le.PutUint32(b[28:], saltedCRC(salt, b[:28]))
}

// parseBlockHeader reads blockSize bytes; reason is "" when they are right.
func parseBlockHeader(b []byte, salt uint32) (h blockHeader, reason string) {
	switch {
	case string(b[:4]) != blockMagic:
		return h, "no block begins here"
	case saltedCRC(salt, b[:28]) != le.Uint32(b[28:]):
		return h, "wrong checksum of the block header"
	}
	h.length = le.Uint32(b[4:])
	h.count = le.Uint32(b[8:])
	h.index = le.Uint64(b[12:])
	h.time = int64(le.Uint64(b[20:]))
	if int64(h.length) > maxBlock || int64(h.count)*recordMinimum > int64(h.length) ||
		h.count == 0 && h.length != 0 {
		return h, "impossible block header"
	}
	return h, ""
}

func putTrailer(b []byte, chain [32]byte, salt uint32) {
	copy(b, chain[:])
	le.PutUint32(b[32:], saltedCRC(salt, chain[:]))
}

func parseTrailer(b []byte, salt uint32) (chain [32]byte, ok bool) {
	copy(chain[:], b)
	return chain, le.Uint32(b[32:]) == saltedCRC(salt, b[:32])
}

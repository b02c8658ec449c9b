package log

// The bytes of a side file, format version 2: what is looked up in a sealed
// segment, computed from the segment alone and made anew when missing or
// wrong. testdata/v2.idx holds an example.
//
//	side file  %020d.idx, named as its segment
//	┌──────────────┬─────────────┬──────────────────────────────────┬─────────┐
//	│ header 144 B │ directories │ pages: sparse, subjects, aliases │ filters │
//	└──────────────┴─────────────┴──────────────────────────────────┴─────────┘
//
//	header
//	  0  8  magic "qlogdidx"
//	  8  4  format version
//	 12  4  checksum of the 12 bytes before
//	 16  8  size of the segment file
//	 24  8  first index
//	 32  8  last index
//	 40  8  the log's clock at the last block
//	 48 32  chain at the last block
//	 80 16  first id, zeros = no record
//	 96 16  last id
//	112  4  number of blocks
//	116  4  number of records
//	120  4  sparse entries
//	124  4  subjects
//	128  4  aliases
//	132  4  the segment's salt
//	136  4  checksum of the directories
//	140  4  checksum of bytes 16..140
//
//	Each table is a row of pages of 4096 bytes (the last one as long as needed):
//	whole entries, then a checksum. The directory of a table has its pages'
//	first keys: index 8, number 4, clock 8 (sparse), hash 8 (subjects, aliases).
//
//	sparse entry, 28 bytes: index 8, clock 8, number 4, count 4, offset 4; one
//	  about each 16 KiB. Number 0 is a block's header, clock the one before it;
//	  number n is a record (clock that of its block).
//	key entry, 24 bytes: hash 8, index 8, number 4, offset 4; sorted; the newest
//	  record of the segment with a subject or an alias that has this hash.
//
//	filters: sidefilter.go. Version 1 ends before them, and is the same otherwise;
//	so who has read a file of version 1 can go on when it is remade under him.

import (
	"fmt"
	"io"
)

const (
	sideMagic      = "qlogdidx"
	sideHeaderSize = 144
	pageSize       = 4096
	sparseSize     = 28
	keyedSize      = 24
	sparseDirSize  = 20
	keyedDirSize   = 8
)

// sideHeader is what is told of a sealed segment as a whole.
type sideHeader struct {
	version      uint32
	size         int64
	first, last  uint64
	clock        int64
	chain        [32]byte
	firstID      [16]byte
	lastID       [16]byte
	blocks       uint32
	records      uint32
	counts       [3]uint32 // entries of each table
	salt, dirCRC uint32
}

// The tables.
const (
	tableSparse = iota
	tableSubjects
	tableAliases
)

var (
	entrySizes = [3]int{sparseSize, keyedSize, keyedSize}
	dirSizes   = [3]int{sparseDirSize, keyedDirSize, keyedDirSize}
)

func perPage(table int) int { return (pageSize - 4) / entrySizes[table] }

func pageCount(table int, entries uint32) int {
	return (int(entries) + perPage(table) - 1) / perPage(table)
}

// tableSize is the length of a table's pages together.
func tableSize(table int, entries uint32) int64 {
	return int64(entries)*int64(entrySizes[table]) + gaps(table, entries)
}

// gaps is what a table's pages hold besides entries.
func gaps(table int, entries uint32) int64 {
	pages := int64(pageCount(table, entries))
	if pages == 0 {
		return 0
	}
	return (pages-1)*int64(pageSize-perPage(table)*entrySizes[table]) + 4
}

func (h *sideHeader) dirsSize() int {
	n := 0
	for t, count := range h.counts {
		n += pageCount(t, count) * dirSizes[t]
	}
	return n
}

func (h *sideHeader) put(b []byte) {
	putPreamble(b, sideMagic, h.version)
	le.PutUint64(b[16:], uint64(h.size))
	le.PutUint64(b[24:], h.first)
	le.PutUint64(b[32:], h.last)
	le.PutUint64(b[40:], uint64(h.clock))
	copy(b[48:], h.chain[:])
	copy(b[80:], h.firstID[:])
	copy(b[96:], h.lastID[:])
	le.PutUint32(b[112:], h.blocks)
	le.PutUint32(b[116:], h.records)
	for t, count := range h.counts {
		le.PutUint32(b[120+4*t:], count)
	}
	le.PutUint32(b[132:], h.salt)
	le.PutUint32(b[136:], h.dirCRC)
	le.PutUint32(b[140:], crc(b[16:140]))
}

func parseSideHeader(b []byte, file string) (h sideHeader, err error) {
	if err := checkPreamble(b, sideMagic, file, sideVersion); err != nil {
		return h, err
	}
	h.version = le.Uint32(b[8:])
	if crc(b[16:140]) != le.Uint32(b[140:]) {
		return h, fmt.Errorf("wrong checksum of the side file's header")
	}
	h.size = int64(le.Uint64(b[16:]))
	h.first = le.Uint64(b[24:])
	h.last = le.Uint64(b[32:])
	h.clock = int64(le.Uint64(b[40:]))
	copy(h.chain[:], b[48:])
	copy(h.firstID[:], b[80:])
	copy(h.lastID[:], b[96:])
	h.blocks = le.Uint32(b[112:])
	h.records = le.Uint32(b[116:])
	for t := range h.counts {
		h.counts[t] = le.Uint32(b[120+4*t:])
	}
	h.salt = le.Uint32(b[132:])
	h.dirCRC = le.Uint32(b[136:])
	return h, nil
}

// encodeSide returns the side file of a segment.
func encodeSide(s *segment, m *memIndex) []byte {
	b, hashes := encodeTables(s, m, sideVersion)
	return appendFilters(b, hashes)
}

// encodeTables returns all of a side file of a version but the filters, and the
// hashes of each table's keys.
func encodeTables(s *segment, m *memIndex, version uint32) ([]byte, [3][]uint64) {
	sp := m.sparseEntries(s.header.clock)
	keys := [3][]keyed{tableSubjects: m.keyedEntries(tableSubjects), tableAliases: m.keyedEntries(tableAliases)}
	var hashes [3][]uint64
	h := sideHeader{
		version: version, size: s.size, first: s.header.first, last: s.last, clock: s.clock, chain: s.chain,
		firstID: m.firstID, lastID: m.lastID,
		blocks: uint32(len(m.blocks)), records: uint32(len(m.records)),
		counts: [3]uint32{uint32(len(sp)), uint32(len(keys[tableSubjects])), uint32(len(keys[tableAliases]))},
		salt:   s.salt,
	}
	total := int64(sideHeaderSize + h.dirsSize())
	for t, count := range h.counts {
		total += tableSize(t, count)
	}
	dirs := make([]byte, 0, h.dirsSize())
	b := make([]byte, sideHeaderSize+h.dirsSize(), total)
	b = appendPages(b, tableSparse, len(sp), func(b []byte, i int) []byte {
		e := sp[i]
		if i%perPage(tableSparse) == 0 {
			dirs = le.AppendUint64(dirs, e.index)
			dirs = le.AppendUint32(dirs, e.number)
			dirs = le.AppendUint64(dirs, uint64(e.clock))
		}
		b = le.AppendUint64(b, e.index)
		b = le.AppendUint64(b, uint64(e.clock))
		b = le.AppendUint32(b, e.number)
		b = le.AppendUint32(b, e.count)
		return le.AppendUint32(b, e.off)
	})
	for _, t := range []int{tableSubjects, tableAliases} {
		hashes[t] = make([]uint64, 0, len(keys[t]))
		b = appendPages(b, t, len(keys[t]), func(b []byte, i int) []byte {
			e := keys[t][i]
			hashes[t] = append(hashes[t], e.hash)
			if i%perPage(t) == 0 {
				dirs = le.AppendUint64(dirs, e.hash)
			}
			b = le.AppendUint64(b, e.hash)
			b = le.AppendUint64(b, e.index)
			b = le.AppendUint32(b, e.number)
			return le.AppendUint32(b, e.off)
		})
	}
	h.dirCRC = crc(dirs)
	h.put(b)
	copy(b[sideHeaderSize:], dirs)
	return b, hashes
}

func appendPages(b []byte, table, entries int, put func(b []byte, i int) []byte) []byte {
	for i := 0; i < entries; i += perPage(table) {
		start := len(b)
		end := min(i+perPage(table), entries)
		for j := i; j < end; j++ {
			b = put(b, j)
		}
		if end < entries {
			// All pages but the last have the full size.
			b = append(b, make([]byte, pageSize-4-(len(b)-start))...)
		}
		b = le.AppendUint32(b, crc(b[start:]))
	}
	return b
}

// sideIndex answers from a side file. Header and directories are in memory,
// pages are read as needed, and a filter with the first question to it.
type sideIndex struct {
	sideHeader
	file    func() (io.ReaderAt, func(), error) // borrows the file
	name    string
	dirs    [3][]byte
	base    [3]int64 // offset of each table
	filters [3]sideFilter
	stays   bool // of an older version, and can't be made anew; guarded by Log.buildMu
}

// loadSide reads a side file's header and directories, of a file of this size.
func loadSide(r io.ReaderAt, fileSize int64, name string) (*sideIndex, error) {
	// One read does for most: a full segment's directories are about 3 KiB.
	b := make([]byte, min(fileSize, pageSize))
	if len(b) < sideHeaderSize {
		return nil, fmt.Errorf("side file of %d bytes", fileSize)
	}
	if _, err := readFull(r, b, 0); err != nil {
		return nil, err
	}
	h, err := parseSideHeader(b, name)
	if err != nil {
		return nil, err
	}
	s := &sideIndex{sideHeader: h, name: name}
	off := int64(sideHeaderSize + h.dirsSize())
	for t, count := range h.counts {
		s.base[t] = off
		off += tableSize(t, count)
	}
	if h.version >= 2 {
		if off, err = s.loadFilters(r, off, fileSize); err != nil {
			return nil, err
		}
	}
	if off != fileSize {
		return nil, fmt.Errorf("side file of %d bytes, want %d", fileSize, off)
	}
	// After that check: no header can ask for more memory than there is file.
	dirs := make([]byte, h.dirsSize())
	if _, err := readFull(r, dirs, sideHeaderSize); err != nil {
		return nil, err
	}
	if crc(dirs) != h.dirCRC {
		return nil, fmt.Errorf("wrong checksum of the side file's directories")
	}
	for t, count := range h.counts {
		n := pageCount(t, count) * dirSizes[t]
		s.dirs[t], dirs = dirs[:n:n], dirs[n:]
	}
	return s, nil
}

// readFull is ReadAt for bytes that must be there.
func readFull(r io.ReaderAt, b []byte, off int64) (int, error) {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

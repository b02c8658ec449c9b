package log

import (
	"fmt"
	"sort"
	"sync"
)

// pages are buffers for one page each.
var pages = sync.Pool{New: func() any { return new([pageSize]byte) }}

// page returns the entries of a table's page, in buf.
func (s *sideIndex) page(table, i int, buf *[pageSize]byte) ([]byte, error) {
	r, done, err := s.file()
	if err != nil {
		return nil, err
	}
	defer done()
	entries := min(perPage(table), int(s.counts[table])-i*perPage(table))
	n := entries * entrySizes[table]
	length := n + 4
	if i < pageCount(table, s.counts[table])-1 {
		length = pageSize
	}
	off := s.base[table] + int64(i)*pageSize
	b := buf[:length]
	if _, err := readFull(r, b, off); err != nil {
		return nil, fmt.Errorf("read side file %s: %w", s.name, err)
	}
	if crc(b[:length-4]) != le.Uint32(b[length-4:]) {
		return nil, &CorruptionError{
			Segment: s.name, Offset: off, LastGood: s.last,
			Reason: "wrong checksum of a side file's page (remove the file, it is made anew)",
		}
	}
	return b[:n], nil
}

func parseSparse(b []byte) sparse {
	return sparse{
		index: le.Uint64(b), clock: int64(le.Uint64(b[8:])),
		number: le.Uint32(b[16:]), count: le.Uint32(b[20:]), off: le.Uint32(b[24:]),
	}
}

// lastSparse returns the last sparse entry for which before is true; before
// must be true for a beginning of the entries only. The directory answers for
// the first entry of each page (without count and offset).
func (s *sideIndex) lastSparse(before func(sparse) bool) (e sparse, ok bool, err error) {
	dir := s.dirs[tableSparse]
	p := sort.Search(len(dir)/sparseDirSize, func(i int) bool {
		d := dir[i*sparseDirSize:]
		return !before(sparse{index: le.Uint64(d), number: le.Uint32(d[8:]), clock: int64(le.Uint64(d[12:]))})
	}) - 1
	if p < 0 {
		return e, false, nil
	}
	buf := pages.Get().(*[pageSize]byte)
	defer pages.Put(buf)
	b, err := s.page(tableSparse, p, buf)
	if err != nil {
		return e, false, err
	}
	n := sort.Search(len(b)/sparseSize, func(i int) bool { return !before(parseSparse(b[i*sparseSize:])) }) - 1
	if n < 0 {
		return e, false, nil
	}
	return parseSparse(b[n*sparseSize:]), true, nil
}

// hashes returns those of each key table, whose pages it checks, and those of the
// sparse table.
func (s *sideIndex) hashes() (out [3][]uint64, err error) {
	buf := pages.Get().(*[pageSize]byte)
	defer pages.Put(buf)
	for t, count := range s.counts {
		for i := range pageCount(t, count) {
			b, err := s.page(t, i, buf)
			if err != nil {
				return out, err
			}
			for ; t != tableSparse && len(b) > 0; b = b[keyedSize:] {
				out[t] = append(out[t], le.Uint64(b))
			}
		}
	}
	return out, nil
}

// find returns the entries of a key table with this key's hash.
func (s *sideIndex) find(table int, key [16]byte) ([]keyed, error) {
	want := keyHash(key)
	dir := s.dirs[table]
	n := len(dir) / keyedDirSize
	buf := pages.Get().(*[pageSize]byte)
	defer pages.Put(buf)
	// Equal hashes may span pages: begin where the first can be.
	p := max(0, sort.Search(n, func(i int) bool { return le.Uint64(dir[i*keyedDirSize:]) >= want })-1)
	var found []keyed
	for ; p < n && le.Uint64(dir[p*keyedDirSize:]) <= want; p++ {
		b, err := s.page(table, p, buf)
		if err != nil {
			return nil, err
		}
		entries := len(b) / keyedSize
		i := sort.Search(entries, func(i int) bool { return le.Uint64(b[i*keyedSize:]) >= want })
		for ; i < entries && le.Uint64(b[i*keyedSize:]) == want; i++ {
			e := b[i*keyedSize:]
			found = append(found, keyed{want, le.Uint64(e[8:]), le.Uint32(e[16:]), le.Uint32(e[20:])})
		}
	}
	return found, nil
}

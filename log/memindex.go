package log

import (
	"bytes"
	"cmp"
	"math/bits"
	"slices"
	"sort"
	"sync"
)

// memIndex is the exact index of one segment in memory: of the active one, of
// a sealed one until its side file is written, and of one being scanned.
type memIndex struct {
	blocks  []blockPos
	records []uint32 // each record's offset, of all blocks in a row
	keys    [3]keyRows
	firstID [16]byte // zero = no record
	lastID  [16]byte
}

// keyRows are the records with a key of one table, in the order of the log. Most
// are never asked for while the segment is active: so Append only notes them,
// and who asks puts them in order.
type keyRows struct {
	rows []keyRow // guarded as the memIndex is; elements are never changed

	mu     sync.Mutex
	newest map[[16]byte]place // guarded by mu: of rows[:known]
	known  int                // guarded by mu
}

type keyRow struct {
	key [16]byte
	at  place
}

// find returns the newest of rows, which are a beginning of k.rows, with a key;
// or a newer one, where somebody else has asked later.
func (k *keyRows) find(rows []keyRow, key [16]byte) (place, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.newest == nil {
		k.newest = make(map[[16]byte]place, len(rows))
	}
	for ; k.known < len(rows); k.known++ {
		k.newest[rows[k.known].key] = rows[k.known].at
	}
	p, ok := k.newest[key]
	return p, ok
}

// blockPos is where a block lies.
type blockPos struct {
	index uint64
	clock int64  // the log's clock at this block
	off   uint32 // of its header
	first uint32 // its first record's position in memIndex.records
	count uint32
	end   uint32 // offset behind its trailer
}

// place is a record's position: of its block in blocks, and in the block.
type place struct{ block, number uint32 }

func newMemIndex() *memIndex { return &memIndex{} }

// like returns an empty index with room for what m holds, and some more: segments
// mostly hold as much as the one before, and growing copies and drops all of it
// several times over.
func (m *memIndex) like() *memIndex {
	out := newMemIndex()
	out.blocks = roomFor(m.blocks)
	out.records = roomFor(m.records)
	for t := range m.keys {
		out.keys[t].rows = roomFor(m.keys[t].rows)
	}
	return out
}

func roomFor[T any](s []T) []T { return make([]T, 0, len(s)+len(s)/8) }

// add takes in a block at off whose records begin at offs (from the start of
// the block).
func (m *memIndex) add(b *Block, clock int64, off, size int64, offs []uint32) {
	m.blocks = append(m.blocks, blockPos{
		index: b.Index, clock: clock, off: uint32(off), end: uint32(off + size),
		first: uint32(len(m.records)), count: uint32(len(b.Records)),
	})
	at := uint32(len(m.blocks) - 1)
	for i := range b.Records {
		r := &b.Records[i]
		m.records = append(m.records, uint32(off)+offs[i])
		if r.Subject != [16]byte{} {
			k := &m.keys[tableSubjects]
			k.rows = append(k.rows, keyRow{r.Subject, place{at, uint32(i)}})
		}
		if r.Alias != [16]byte{} {
			k := &m.keys[tableAliases]
			k.rows = append(k.rows, keyRow{r.Alias, place{at, uint32(i)}})
		}
		if m.firstID == [16]byte{} {
			m.firstID = r.ID
		}
		m.lastID = r.ID
	}
}

// find returns the position of the first block with an index >= index.
func (m *memIndex) find(index uint64) int {
	return sort.Search(len(m.blocks), func(i int) bool { return m.blocks[i].index >= index })
}

// record returns the extent of a record.
func (m *memIndex) record(ref Ref) (off, size int64, ok bool) {
	i := m.find(ref.Index)
	if i == len(m.blocks) || m.blocks[i].index != ref.Index || ref.Number >= m.blocks[i].count {
		return 0, 0, false
	}
	b := m.blocks[i]
	off = int64(m.records[b.first+ref.Number])
	end := int64(b.end) - trailerSize
	if ref.Number+1 < b.count {
		end = int64(m.records[b.first+ref.Number+1])
	}
	return off, end - off, true
}

func (m *memIndex) ref(p place) Ref { return Ref{m.blocks[p.block].index, p.number} }

// sparse is an entry of the side file's first table: where a block begins
// (number 0) or a later record of a block lies.
type sparse struct {
	index uint64
	// clock is the log's clock before the block for number 0, and at the block
	// otherwise. Invariant: rises with the entries.
	clock  int64
	number uint32
	count  uint32 // records in the block
	off    uint32
}

// sparseGap is the distance between two sparse entries, but for records that
// are longer.
const sparseGap = 16 << 10

// sparseEntries thins the index out. clock is the log's before the segment.
func (m *memIndex) sparseEntries(clock int64) []sparse {
	var out []sparse
	next := uint32(0)
	for _, b := range m.blocks {
		if b.off >= next {
			out = append(out, sparse{index: b.index, clock: clock, count: b.count, off: b.off})
			next = b.off + sparseGap
		}
		clock = b.clock
		for n := uint32(1); n < b.count; n++ {
			if off := m.records[b.first+n]; off >= next {
				out = append(out, sparse{index: b.index, clock: clock, number: n, count: b.count, off: off})
				next = off + sparseGap
			}
		}
	}
	return out
}

// keyed is an entry of the side file's other tables: the newest record of the
// segment with a key.
type keyed struct {
	hash   uint64
	index  uint64
	number uint32
	off    uint32
}

// keyedEntries returns a table's entries, sorted by hash and place: of each key
// its newest record.
func (m *memIndex) keyedEntries(table int) []keyed {
	rows := m.keys[table].rows
	sorted := sortByHash(rows)
	out := make([]keyed, 0, len(rows))
	for i, s := range sorted {
		row := &rows[s.row]
		newest := true
		for _, o := range sorted[i+1:] {
			if o.hash != s.hash {
				break
			}
			if rows[o.row].key == row.key {
				newest = false
				break
			}
		}
		if newest {
			b := m.blocks[row.at.block]
			out = append(out, keyed{s.hash, b.index, row.at.number, m.records[b.first+row.at.number]})
		}
	}
	return out
}

type hashed struct {
	hash uint64
	row  uint32
}

// sortByHash sorts rows by their keys' hashes, and equal ones as they stand.
// Hashes are even, so they are dealt into as many heaps as there are rows, and
// what is left to sort in each is little.
func sortByHash(rows []keyRow) []hashed {
	if len(rows) == 0 {
		return nil
	}
	wide := bits.Len(uint(len(rows)))
	shift := 64 - wide
	ends := make([]uint32, 1<<wide+1)
	for i := range rows {
		ends[keyHash(rows[i].key)>>shift+1]++
	}
	for i := 1; i < len(ends); i++ {
		ends[i] += ends[i-1]
	}
	out := make([]hashed, len(rows))
	for i := range rows {
		h := keyHash(rows[i].key)
		at := &ends[h>>shift]
		out[*at] = hashed{h, uint32(i)}
		*at++
	}
	// Now each heap's end is where it began plus its length: the next one's start.
	from := uint32(0)
	for _, end := range ends[:len(ends)-1] {
		if heap := out[from:end]; len(heap) > 1 {
			slices.SortFunc(heap, func(a, b hashed) int {
				return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.row, b.row))
			})
		}
		from = end
	}
	return out
}

// keyHash spreads a key evenly over 64 bits. It is a part of the side file's
// format. Keys that collide are told apart by reading their records.
func keyHash(key [16]byte) uint64 {
	return mix(mix(le.Uint64(key[:])+0x9e3779b97f4a7c15) ^ le.Uint64(key[8:]))
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// risesTo tells whether id may follow last.
func risesTo(last, id [16]byte) bool { return bytes.Compare(last[:], id[:]) < 0 }

package log

import (
	"slices"
	"sort"
)

// cache holds the newest blocks' bytes, first in, first out, up to a bound:
// what is leased is most often what came last. Guarded by Log.mu.
type cache struct {
	limit, used int64
	blocks      map[uint64]cached // by index
	order       []uint64          // oldest first, from start on
	start       int
}

// cached is a whole block, where it lies, and where its records begin in it.
type cached struct {
	seg  *segment
	off  int64
	raw  []byte
	offs []uint32
}

func (c *cached) size() int64 { return int64(len(c.raw) + 4*len(c.offs)) }

// wants tells whether a block of this size would be kept.
func (c *cache) wants(size int64) bool { return size <= c.limit }

// add keeps a block, whose bytes nobody may change from now on; offs is copied.
func (c *cache) add(index uint64, seg *segment, off int64, raw []byte, offs []uint32) {
	if c.blocks == nil {
		c.blocks = map[uint64]cached{}
	}
	b := cached{seg, off, raw, slices.Clone(offs)}
	c.blocks[index] = b
	c.order = append(c.order, index)
	c.used += b.size()
	for c.used > c.limit {
		c.drop(c.order[c.start])
		c.start++
	}
	if c.start > len(c.order)/2 {
		c.order = append(c.order[:0], c.order[c.start:]...)
		c.start = 0
	}
}

// drop forgets a block; its place in the order stays.
func (c *cache) drop(index uint64) {
	if b, ok := c.blocks[index]; ok {
		c.used -= b.size()
		delete(c.blocks, index)
	}
}

// next returns the first block with an index >= index, if it is kept and lies
// at off of seg.
func (c *cache) next(index uint64, seg *segment, off int64) (cached, bool) {
	order := c.order[c.start:]
	i := sort.Search(len(order), func(i int) bool { return order[i] >= index })
	if i == len(order) {
		return cached{}, false
	}
	b, ok := c.blocks[order[i]]
	return b, ok && b.seg == seg && b.off == off
}

// record returns a record's bytes, or nil.
func (c *cache) record(ref Ref) []byte {
	b := c.blocks[ref.Index]
	return b.record(ref.Number)
}

func (b *cached) record(number uint32) []byte {
	if number >= uint32(len(b.offs)) {
		return nil
	}
	at := b.raw[b.offs[number]:]
	n := le.Uint32(at)
	return at[:n:n]
}

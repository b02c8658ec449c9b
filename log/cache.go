package log

// cache holds the newest blocks' bytes, first in, first out, up to a bound:
// what is leased is most often what came last. Guarded by Log.mu.
type cache struct {
	limit, used int64
	blocks      map[uint64][]byte // whole blocks by index
	order       []uint64          // oldest first, from start on
	start       int
}

// wants tells whether a block of this size would be kept.
func (c *cache) wants(size int64) bool { return size <= c.limit }

// add keeps a block, which nobody may change from now on.
func (c *cache) add(index uint64, raw []byte) {
	if c.blocks == nil {
		c.blocks = map[uint64][]byte{}
	}
	c.blocks[index] = raw
	c.order = append(c.order, index)
	c.used += int64(len(raw))
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
	if raw, ok := c.blocks[index]; ok {
		c.used -= int64(len(raw))
		delete(c.blocks, index)
	}
}

// record returns a record's bytes, or nil.
func (c *cache) record(ref Ref) []byte {
	raw, ok := c.blocks[ref.Index]
	if !ok || ref.Number >= le.Uint32(raw[8:]) {
		return nil
	}
	at := raw[blockSize:]
	for range ref.Number {
		at = at[le.Uint32(at):]
	}
	n := le.Uint32(at)
	return at[:n:n]
}

package raft

import (
	"sync"

	hraft "github.com/hashicorp/raft"
)

// logCache keeps the newest entries of the Raft log in memory: hashicorp/raft
// asks the store again for what it has just stored, a leader for each follower
// and a follower when it applies it. Its zero value is ready.
type logCache struct {
	mu sync.RWMutex
	// list is a ring. Invariant: what is in it has indexes in a row that end at
	// last, and is what the store holds there.
	list  [cachedEntries]hraft.Log
	last  uint64
	n     uint64
	bytes int
}

const (
	cachedEntries = 256
	// cachedBytes is what followers may be behind without a read of the disk:
	// what is in flight, and once more.
	cachedBytes = 16 << 20
)

func (c *logCache) slot(index uint64) *hraft.Log { return &c.list[index%cachedEntries] }

// get copies an entry to l. Its data is shared.
func (c *logCache) get(index uint64, l *hraft.Log) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if index > c.last || index+c.n <= c.last {
		return false
	}
	*l = *c.slot(index)
	return true
}

// put takes what was stored, behind all that is in it or as a new beginning.
func (c *logCache) put(logs []*hraft.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if l.Index != c.last+1 {
			c.clear()
		}
		if c.n == cachedEntries {
			c.drop()
		}
		*c.slot(l.Index) = *l
		c.last = l.Index
		c.n++
		c.bytes += len(l.Data)
	}
	for c.n > 1 && c.bytes > cachedBytes {
		c.drop()
	}
}

// drop forgets the oldest.
func (c *logCache) drop() {
	old := c.slot(c.last + 1 - c.n)
	c.bytes -= len(old.Data)
	*old = hraft.Log{}
	c.n--
}

func (c *logCache) clear() {
	for c.n > 0 {
		c.drop()
	}
}

// forget drops what is about to be deleted.
func (c *logCache) forget(from, to uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.last + 1 - c.n; from > first && from <= c.last || to >= c.last {
		c.clear()
	}
	for c.n > 0 && c.last+1-c.n <= to {
		c.drop()
	}
}

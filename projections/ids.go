package projections

import (
	"encoding/binary"

	"github.com/qlogd/qlogd/internal/event"
)

// idTable finds elements of a slab by their ids: open addressing over handles
// alone, the ids being in the elements, so that it takes 5 to 11 bytes each where
// a map takes 24 to 47. It is cut into shards that grow one by one: no entry
// waits for a million ids to move.
type idTable[K identified] struct {
	shards [1 << idShardBits]idShard[K]
	n      int
}

// identified finds the id of an element.
type identified interface {
	id(s *State, h handle) event.ID
}

type (
	messageID struct{}
	leaseID   struct{}
)

func (messageID) id(s *State, h handle) event.ID { return s.messages.get(h).id }
func (leaseID) id(s *State, h handle) event.ID   { return s.leases.get(h).id }

const (
	idShardBits = 10
	idShardMin  = 8
)

// idShard is a table of handles; 0 is free.
//
// Invariant: len(slots) is a power of two or 0, at most three quarters are
// taken, and from a handle's home to its slot none is free.
type idShard[K identified] struct {
	slots []handle
	n     int
	kind  K
}

func hashID(id event.ID) uint64 {
	return mix(binary.LittleEndian.Uint64(id[:8])^k0, binary.LittleEndian.Uint64(id[8:])^k1)
}

func (t *idTable[K]) shard(hash uint64) *idShard[K] { return &t.shards[hash>>(64-idShardBits)] }

// find returns the element with an id.
func (t *idTable[K]) find(s *State, id event.ID) (handle, bool) {
	hash := hashID(id)
	sh := t.shard(hash)
	i, ok := sh.slot(s, id, hash)
	if !ok {
		return 0, false
	}
	return sh.slots[i], true
}

// slot finds an id's slot.
func (sh *idShard[K]) slot(s *State, id event.ID, hash uint64) (i int, ok bool) {
	if len(sh.slots) == 0 {
		return 0, false
	}
	mask := len(sh.slots) - 1
	for i = int(hash) & mask; sh.slots[i] != 0; i = (i + 1) & mask {
		if sh.kind.id(s, sh.slots[i]) == id {
			return i, true
		}
	}
	return i, false
}

// add puts an element in, whose id must be set and not be there yet. It looks at
// no other: they lie anywhere in memory.
func (t *idTable[K]) add(s *State, h handle) {
	var k K
	hash := hashID(k.id(s, h))
	sh := t.shard(hash)
	if 4*(sh.n+1) > 3*len(sh.slots) {
		sh.resize(s, max(2*len(sh.slots), idShardMin))
	}
	mask := len(sh.slots) - 1
	i := int(hash) & mask
	for sh.slots[i] != 0 {
		i = (i + 1) & mask
	}
	sh.slots[i] = h
	sh.n++
	t.n++
}

// remove takes an element out, which must be there with its id still set.
func (t *idTable[K]) remove(s *State, id event.ID) {
	hash := hashID(id)
	sh := t.shard(hash)
	i, ok := sh.slot(s, id, hash)
	if !ok {
		panic("id table: " + id.String() + " is not there")
	}
	mask := len(sh.slots) - 1
	sh.slots[i] = 0
	// Those behind move up, unless that would put them before their home
	// (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm R).
	for j := (i + 1) & mask; sh.slots[j] != 0; j = (j + 1) & mask {
		home := int(hashID(sh.kind.id(s, sh.slots[j]))) & mask
		if (j-home)&mask >= (j-i)&mask {
			sh.slots[i], sh.slots[j] = sh.slots[j], 0
			i = j
		}
	}
	sh.n--
	t.n--
	if len(sh.slots) > idShardMin && 8*sh.n < len(sh.slots) {
		sh.resize(s, len(sh.slots)/2)
	}
}

// resize moves a shard to so many slots.
func (sh *idShard[K]) resize(s *State, slots int) {
	old := sh.slots
	sh.slots = make([]handle, slots)
	mask := slots - 1
	for _, h := range old {
		if h == 0 {
			continue
		}
		i := int(hashID(sh.kind.id(s, h))) & mask
		for sh.slots[i] != 0 {
			i = (i + 1) & mask
		}
		sh.slots[i] = h
	}
}

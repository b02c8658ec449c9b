package projections

import (
	"encoding/binary"

	"github.com/qlogd/qlogd/event"
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
	idShardBits = 8
	idShardMin  = 32
	idRun       = 16 // slots in a group, ids in a run; a power of two, at most 256
)

// idShard is a table of handles; 0 is free. Its slots lie in groups of idRun, and
// each has a lane in its group. Ids whose numbers differ in their lowest bits alone
// are a run: they have one group as their home, and a lane each. So what comes in a
// row, as most does, lies in a row. From a slot one goes on to that of the same lane
// in the next group, and from the last group to the next lane in the first: a run
// whose group is taken moves on as one, and does not push on through the lanes.
//
// Invariant: len(slots) is a power of two and at least idShardMin, or 0, at most
// three quarters are taken, and from a handle's home to its slot none is free.
type idShard[K identified] struct {
	kind  K
	slots []handle
	n     int
}

// hashID tells an id's shard by the highest bits, and its home by the lowest.
func hashID(id event.ID) uint64 {
	hi, lo := binary.LittleEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])
	run := mix(hi^k0, lo&^(idRun-1)^k1)
	// The lane is the number's lowest bits, turned by what the run is: where each
	// entry has one id, its number is always the same.
	return run&^(idRun-1) | (run+lo)&(idRun-1)
}

func (sh *idShard[K]) home(hash uint64) int { return int(hash) & (len(sh.slots) - 1) }

// next is where to look after slot i.
func (sh *idShard[K]) next(i int) int {
	if i += idRun; i >= len(sh.slots) {
		return (i + 1) & (idRun - 1)
	}
	return i
}

// steps is how often next leads from slot i to slot j.
func (sh *idShard[K]) steps(i, j int) int {
	groups := len(sh.slots) / idRun
	return ((j%idRun-i%idRun)*groups + j/idRun - i/idRun) & (len(sh.slots) - 1)
}

func (t *idTable[K]) shard(hash uint64) *idShard[K] { return &t.shards[hash>>(64-idShardBits)] }

// find returns the element with an id.
func (t *idTable[K]) find(s *State, id event.ID) (handle, bool) {
	hash := hashID(id)
	sh := t.shard(hash)
	if len(sh.slots) == 0 {
		return 0, false
	}
	for i := sh.home(hash); sh.slots[i] != 0; i = sh.next(i) {
		if h := sh.slots[i]; sh.kind.id(s, h) == id {
			return h, true
		}
	}
	return 0, false
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
	sh.put(h, hash)
	sh.n++
	t.n++
}

// remove takes an element out, which must be there with its id still set.
func (t *idTable[K]) remove(s *State, h handle) {
	var k K
	id := k.id(s, h)
	hash := hashID(id)
	sh := t.shard(hash)
	i := sh.home(hash)
	for ; sh.slots[i] != h; i = sh.next(i) {
		if sh.slots[i] == 0 {
			panic("id table: " + id.String() + " is not there")
		}
	}
	sh.slots[i] = 0
	// Those behind move up, unless that would put them before their home
	// (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithm R).
	for j := sh.next(i); sh.slots[j] != 0; j = sh.next(j) {
		home := sh.home(hashID(sh.kind.id(s, sh.slots[j])))
		if sh.steps(home, j) >= sh.steps(i, j) {
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

// put puts an element into the first free slot from its home on.
func (sh *idShard[K]) put(h handle, hash uint64) {
	i := sh.home(hash)
	for sh.slots[i] != 0 {
		i = sh.next(i)
	}
	sh.slots[i] = h
}

// resize moves a shard to so many slots.
func (sh *idShard[K]) resize(s *State, slots int) {
	old := sh.slots
	sh.slots = make([]handle, slots)
	for _, h := range old {
		if h != 0 {
			sh.put(h, hashID(sh.kind.id(s, h)))
		}
	}
}

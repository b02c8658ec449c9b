package projections

import (
	"math"

	"github.com/qlogd/qlogd/event"
)

// rememberMost bounds what a table keeps in memory: about 110 MB, with byNow up to 180 MB.
const rememberMost = 1 << 20

// evictPerEntry bounds how many old entries a new one evicts.
const evictPerEntry = 4

// remembered is an entry of a deduplication window: a message by its deduplication hash,
// or an answer by its request, until its time is over.
type remembered struct {
	key   event.Hash
	id    event.ID   // of the event
	body  event.Hash // of an answer's request; of a message that moved, its id now
	until int64      // Unix ms, or event.UntilLeft; 0: released
	next  handle
	page  handle // of its message's id, 0 none
}

// now returns the id that a message has now, or had when it left.
func (r *remembered) now() event.ID {
	if r.body.IsZero() {
		return r.id
	}
	return event.ID(r.body)
}

// table holds the newest entries of a deduplication window, in log order. Those that it
// evicted before their time are in the log below floor: before a command, the proposing
// node must have searched the log up to floor at least.
type table struct {
	slab  slab[remembered]
	byKey map[event.Hash]handle
	byNow ids // of messages that may still be deleted
	ends
	most int
	sum  digest
}

type ends struct {
	head, tail handle // the oldest and the newest
	floor      uint64 // Invariant: all entries of events from index floor on are here
}

func newTable() table {
	return table{byKey: map[event.Hash]handle{}, byNow: newIDs(), most: rememberMost}
}

// find returns the newest entry of a key, if its time is not over.
func (t *table) find(key event.Hash, clock int64) (*remembered, bool) {
	h, ok := t.byKey[key]
	if !ok {
		return nil, false
	}
	r := t.slab.get(h)
	return r, r.until > clock
}

func (t *table) add(r remembered, clock int64) handle {
	for n := 0; n < evictPerEntry && t.head != 0; n++ {
		old := t.slab.get(t.head)
		if old.until > clock {
			if t.slab.live < t.most {
				break
			}
			t.floor = max(t.floor, event.RefOf(old.id).Index+1)
		}
		t.pop()
	}
	h, p := t.slab.alloc()
	*p = r
	t.sum.add(r.hash())
	if t.tail != 0 {
		t.slab.mut(t.tail).next = h
	} else {
		t.head = h
	}
	t.tail = h
	t.byKey[r.key] = h
	return h
}

func (t *table) pop() {
	h := t.head
	r := t.slab.get(h)
	t.sum.sub(r.hash())
	t.unindex(r)
	if t.byKey[r.key] == h { // a newer one of the same key may have come
		delete(t.byKey, r.key)
	}
	if t.head = r.next; t.head == 0 {
		t.tail = 0
	}
	t.slab.release(h)
}

// follow finds an entry by its message's id.
func (t *table) follow(h handle) {
	r := t.slab.mut(h)
	r.page = t.byNow.add(r.now(), h)
}

func (t *table) unindex(r *remembered) {
	if r.page != 0 {
		t.byNow.remove(r.now(), r.page)
	}
}

// moved gives the entry of a message its new id.
func (t *table) moved(from, to event.ID) {
	if h := t.byNow.find(from); h != 0 {
		r := t.slab.mut(h)
		t.unindex(r)
		r.body = event.Hash(to)
		t.follow(h)
	}
}

// release ends the time of a message's entry: its key is free.
func (t *table) release(id event.ID) {
	if h := t.byNow.find(id); h != 0 {
		r := t.slab.mut(h)
		t.sum.sub(r.hash())
		t.unindex(r)
		r.page, r.until = 0, 0
		t.sum.add(r.hash())
	}
}

// left ends the time of the entry of a message that has left its queue, if that is its time.
func (t *table) left(id event.ID) {
	if h := t.byNow.find(id); h != 0 && t.slab.get(h).until == event.UntilLeft {
		t.release(id)
	}
}

func (r *remembered) hash() digest { return hashWords(r.id, uint64(r.until), 3) }

// reindex builds a loaded table's map and digest, in log order, so that the newer of two
// entries of a key is found.
func (t *table) reindex(followed bool) {
	t.slab.index(func(r *remembered) bool { return !r.id.IsZero() }, nil)
	n := 0
	for h := t.head; h != 0; h = t.slab.get(h).next {
		if n++; n > t.slab.live {
			panic("a list of what is remembered goes in a circle") // Load makes it an error
		}
		r := t.slab.get(h)
		t.byKey[r.key] = h
		t.sum.add(r.hash())
		if followed && r.until != 0 {
			t.follow(h)
		}
	}
}

// remember keeps the deduplication hash of a message that has just come.
func (s *State) remember(e *event.Event) {
	if !e.Alias.IsZero() && e.Until > 0 {
		s.dedup.follow(s.dedup.add(remembered{key: e.Alias, id: e.ID, until: e.Until}, s.clock))
	}
}

// Duplicate returns the message that was accepted with this hash (of one
// incarnation of a queue: event.Hash.Of), whose window has not ended, and which
// was not deleted.
func (s *State) Duplicate(hash event.Hash) (event.ID, bool) {
	if r, ok := s.dedup.find(hash, s.clock); ok && !s.Released(r.now(), r.until) {
		return r.id, true
	}
	return event.ID{}, false
}

// Released reports whether a message is deleted and its own event, which releases its
// deduplication hash, is pending; until is the end of the hash's time. One that follows a dead
// message keeps its hash, but for event.UntilLeft.
func (s *State) Released(id event.ID, until int64) bool {
	if len(s.tombstones) == 0 {
		return false
	}
	h, ok := s.find(id)
	if !ok {
		return false
	}
	m := s.messages.get(h)
	if m.partition != 0 && s.partitions.get(m.partition).deleted {
		return until == event.UntilLeft
	}
	return s.backlogs[m.backlog].deleted
}

// KeepHashes keeps all deduplication hashes in memory until their windows end.
func (s *State) KeepHashes() { s.dedup.most = math.MaxInt }

// DedupFloor is the index from which on every deduplication hash within its
// window is in the state; below it, the log must be searched.
func (s *State) DedupFloor() uint64 { return s.dedup.floor }

// Answer returns the event that keeps the answer to a request, and the hash of
// the body that the request came with.
func (s *State) Answer(key event.Hash) (id event.ID, body event.Hash, ok bool) {
	if r, ok := s.answers.find(key, s.clock); ok {
		return r.id, r.body, true
	}
	return event.ID{}, event.Hash{}, false
}

// AnswerFloor is to requests what DedupFloor is to hashes.
func (s *State) AnswerFloor() uint64 { return s.answers.floor }

func (s *State) answerKept(e *event.Event) {
	s.answers.add(remembered{key: e.Alias, id: e.ID, body: e.Body, until: e.Until}, s.clock)
}

package projections

import "github.com/qlogd/qlogd/internal/event"

// fifo is a list of entries of a table's slab, in the order in which they came.
type fifo struct{ head, tail handle }

type dedupKey struct {
	queue uint32 // the queue's number
	hash  event.Hash
}

// dedupEntry remembers a message that was accepted.
type dedupEntry struct {
	key   dedupKey
	id    event.ID
	until int64 // end of its window
	next  handle
	used  bool
}

// dedupTable finds the first message with a key within its window.
type dedupTable struct {
	slab  slab[dedupEntry]
	byKey map[dedupKey]handle
	sum   digest
}

// evictPerEntry bounds how many old entries one new one lets go of.
const evictPerEntry = 4

// Duplicate returns the message that was accepted first with this hash in the
// queue, if its window has not ended.
func (s *State) Duplicate(queue string, hash event.Hash) (event.ID, bool) {
	q, ok := s.queues[queue]
	if !ok || hash.IsZero() {
		return event.ID{}, false
	}
	h, ok := s.dedup.byKey[dedupKey{q.number, hash}]
	if !ok {
		return event.ID{}, false
	}
	d := s.dedup.slab.get(h)
	return d.id, d.until > s.clock
}

func (t *dedupTable) add(s *State, q *queue, e *event.Event) {
	for n := 0; n < evictPerEntry && q.dedup.head != 0 && t.slab.get(q.dedup.head).until <= s.clock; n++ {
		t.pop(q)
	}
	h, d := t.slab.alloc()
	*d = dedupEntry{key: dedupKey{q.number, e.Alias}, id: e.ID, until: e.Until, used: true}
	t.sum.add(hashWords(d.id, uint64(d.until), uint64(d.key.queue)))
	if q.dedup.tail != 0 {
		t.slab.mut(q.dedup.tail).next = h
	} else {
		q.dedup.head = h
	}
	q.dedup.tail = h
	t.byKey[d.key] = h
}

func (t *dedupTable) pop(q *queue) {
	h := q.dedup.head
	d := t.slab.get(h)
	t.sum.sub(hashWords(d.id, uint64(d.until), uint64(d.key.queue)))
	if t.byKey[d.key] == h { // an older entry of the same key may stand behind a newer
		delete(t.byKey, d.key)
	}
	if q.dedup.head = d.next; q.dedup.head == 0 {
		q.dedup.tail = 0
	}
	t.slab.release(h)
}

// forget lets go of a deleted queue's entries, a bounded number at a time, and
// reports whether there are more.
func (t *dedupTable) forget(q *queue) bool {
	for n := 0; n < dueReadyPerEntry && q.dedup.head != 0; n++ {
		t.pop(q)
	}
	return q.dedup.head != 0
}

// answer remembers a request with an Idempotency-Key that was executed.
type answer struct {
	key   event.Hash
	body  event.Hash
	at    event.Ref // the answer_kept event, which holds the result
	until int64
	next  handle
	used  bool
}

type answerTable struct {
	slab  slab[answer]
	byKey map[event.Hash]handle
	order fifo
	sum   digest
}

// Answer returns where the answer to a request is kept, and the hash of the
// body it came with.
func (s *State) Answer(key event.Hash) (at event.Ref, body event.Hash, ok bool) {
	h, ok := s.answers.byKey[key]
	if !ok {
		return event.Ref{}, event.Hash{}, false
	}
	a := s.answers.slab.get(h)
	return a.at, a.body, a.until > s.clock
}

func (t *answerTable) keep(s *State, e *event.Event) {
	for n := 0; n < evictPerEntry && t.order.head != 0 && t.slab.get(t.order.head).until <= s.clock; n++ {
		t.pop()
	}
	h, a := t.slab.alloc()
	*a = answer{key: e.Alias, body: e.Body, at: event.RefOf(e.ID), until: e.Until, used: true}
	t.sum.add(hashWords(a.key, a.at.Index, uint64(a.until)))
	if t.order.tail != 0 {
		t.slab.mut(t.order.tail).next = h
	} else {
		t.order.head = h
	}
	t.order.tail = h
	t.byKey[a.key] = h
}

func (t *answerTable) pop() {
	h := t.order.head
	a := t.slab.get(h)
	t.sum.sub(hashWords(a.key, a.at.Index, uint64(a.until)))
	if t.byKey[a.key] == h {
		delete(t.byKey, a.key)
	}
	if t.order.head = a.next; t.order.head == 0 {
		t.order.tail = 0
	}
	t.slab.release(h)
}

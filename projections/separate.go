package projections

import (
	"cmp"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// separatedPerEntry bounds how many messages of ready lists one entry examines to separate those of
// paused keys.
const separatedPerEntry = 4096

// keyPaused reports whether nothing of a key is leased.
func (q *queue) keyPaused(key string) bool {
	_, paused := slices.BinarySearch(q.PausedKeys, key)
	return paused
}

// pauseKey pauses or resumes a key.
func (s *State) pauseKey(q *queue, key string, pause bool) {
	b := q.backlog
	// a reader of the state may have the list
	keys := slices.Clone(q.PausedKeys)
	switch i, paused := slices.BinarySearch(keys, key); {
	case pause && !paused:
		keys = slices.Insert(keys, i, key)
	case !pause && paused:
		keys = slices.Delete(keys, i, i+1)
	}
	q.PausedKeys = keys
	lh, ok := b.partitions[key]
	switch {
	case !ok:
	case b.ordering != event.Unordered:
		s.refresh(b, lh)
	default:
		s.refreshKey(b, lh)
		if pause && q.policy.MaxInFlightPerKey == 0 { // else all keys are apart
			s.startSeparation(b)
		}
	}
}

// startSeparation starts moving the messages of paused keys out of a backlog's ready lists. A
// separation examines all lists from the front, some messages per entry, as there may be millions.
func (s *State) startSeparation(b *backlog) {
	b.separateFrom(0, 0)
	at, there := slices.BinarySearchFunc(s.separations, b, func(o, b *backlog) int {
		return cmp.Compare(o.number, b.number)
	})
	if !there {
		s.separations = slices.Insert(s.separations, at, b)
	}
	s.separate()
}

// separateFrom sets the next message to examine: at, or where that is 0 the first of the next
// priority.
func (b *backlog) separateFrom(prio uint8, at handle) {
	for ; at == 0 && prio < event.MaxPriority; prio++ {
		at = b.ready1(prio + 1).head
	}
	b.separate = at
}

// separate continues separations, within the limit per entry.
func (s *State) separate() {
	for len(s.separations) > 0 {
		b := s.separations[0]
		for ; b.separate != 0; s.separated++ {
			if s.separated == separatedPerEntry {
				return
			}
			h := b.separate
			m := s.messages.get(h)
			b.separateFrom(m.priority, m.order.next)
			if m.partition != 0 && b.queue.keyPaused(s.partitions.get(m.partition).key) {
				s.moveApart(b, h)
			}
		}
		s.separations = s.separations[1:]
		s.touch(b.queue)
	}
}

// moveApart moves a message from the ready lists to its key's own. Messages come in their order.
func (s *State) moveApart(b *backlog, h handle) {
	m := s.messages.mut(h)
	to := behind
	if m.returned {
		to = inFront
	}
	s.outOfReady(b, h)
	m.place = placeApart
	s.insertReady(b, h, to)
}

// Separating reports whether a queue has messages of paused keys in front of others that could be
// leased: firstReady may not have reached those yet.
func (s *State) Separating(name string) bool {
	q, ok := s.queues[name]
	return ok && q.backlog.separate != 0 && s.mayLease(q) > 0
}

// firstReady returns the first message of a ready list of an unordered queue. During a separation
// it skips messages of paused keys, but only a bounded number: the others follow in the next entry.
func (s *State) firstReady(b *backlog, l *list, of func(*message) link) handle {
	h := l.head
	if b.separate == 0 {
		return h
	}
	for range nearFront {
		if h == 0 || !b.queue.keyPaused(s.keyOf(s.messages.get(h))) {
			return h
		}
		h = of(s.messages.get(h)).next
	}
	return 0
}

package projections

import (
	"container/heap"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// keyLists has ready messages of an unordered backlog in separate lists per key, outside its ready
// lists, so that a key that may not be leased costs a lease call nothing, however many messages it
// has. Messages of paused keys are kept apart and, if MaxInFlightPerKey limits the leases of each
// key, all messages with a key. A message knows that it is kept apart (placeApart); the rest is an
// index, which a written state leaves out.
type keyLists struct {
	lists slab[keyList]
	byID  map[keyListID]handle
	// by kind, 0 for all kinds, and priority: the lists of the keys that can be leased
	offers  map[handle]*[event.MaxPriority + 1]offers
	offered int64 // messages that can be leased
}

type keyListID struct {
	partition handle
	kind      handle // 0: of all kinds
	priority  uint8
}

// keyList is the ready messages of one key, priority and, in a second list, kind.
type keyList struct {
	keyListID
	messages list
	next     handle // of the same partition
	at       int    // its place in the offers, from 1; 0 where its key is not offered
}

// placeApart is message.place of a ready message that is kept apart.
const placeApart = event.PlaceTail + 1

// keptApart reports whether a message that becomes ready goes to its key's own lists. During a
// separation, a message that is added at the end stays in the ready list until the separation
// reaches it.
func (s *State) keptApart(b *backlog, m *message, to where) bool {
	if m.partition == 0 {
		return false
	}
	if b.queue.policy.MaxInFlightPerKey > 0 {
		return true
	}
	if len(b.queue.PausedKeys) == 0 || !b.queue.keyPaused(s.partitions.get(m.partition).key) {
		return false
	}
	return to != behind || b.separate == 0 || m.priority < s.messages.get(b.separate).priority
}

// readyList returns the list that a ready message of an unordered queue is in, or will be: that of
// its priority, or with a kind that of both.
func (s *State) readyList(b *backlog, m *message, kind handle) *list {
	switch {
	case m.place == placeApart:
		id := keyListID{m.partition, kind, m.priority}
		return &b.apart.lists.mut(s.keyList(b, id)).messages
	case kind != 0:
		return &b.kindLists(kind)[m.priority]
	}
	return b.ready1(m.priority)
}

// keyList returns a key's list, which it creates on first use.
func (s *State) keyList(b *backlog, id keyListID) handle {
	if b.apart == nil {
		b.apart = &keyLists{byID: map[keyListID]handle{},
			offers: map[handle]*[event.MaxPriority + 1]offers{}}
	}
	h, ok := b.apart.byID[id]
	if !ok {
		var k *keyList
		h, k = b.apart.lists.alloc()
		p := s.partitions.mut(id.partition)
		k.keyListID, k.next, p.lists = id, p.lists, h
		b.apart.byID[id] = h
	}
	return h
}

// dropKeyList deletes an empty list: kinds are unlimited.
func (s *State) dropKeyList(b *backlog, h handle) {
	a := b.apart
	k := *a.lists.get(h)
	if p := s.partitions.mut(k.partition); p.lists == h {
		p.lists = k.next
	} else {
		at := p.lists
		for a.lists.get(at).next != h {
			at = a.lists.get(at).next
		}
		a.lists.mut(at).next = k.next
	}
	delete(a.byID, k.keyListID)
	a.lists.release(h)
}

// apartChanged updates what depends on a key's lists after n messages like m were added to them, or
// removed (n < 0).
func (s *State) apartChanged(b *backlog, m *message, n int) {
	p := s.partitions.mut(m.partition)
	p.ready = uint32(int(p.ready) + n)
	s.refreshKey(b, m.partition)
	for _, kind := range [...]handle{0, m.kind} {
		if h, ok := b.apart.byID[keyListID{m.partition, kind, m.priority}]; ok {
			s.offer(b, h)
		}
	}
}

// refreshKey offers the lists of a key if and only if messages of the key can be leased. Call it
// after any change that may affect that.
func (s *State) refreshKey(b *backlog, lh handle) {
	p := s.partitions.mut(lh)
	if b.deleted || p.lists == 0 {
		return
	}
	was, may := p.offered, b.queue.mayLeaseOf(p)
	p.offered = may
	b.apart.offered += int64(may) - int64(was)
	if (was > 0) != (may > 0) {
		for h := p.lists; h != 0; {
			next := b.apart.lists.get(h).next // the list may be dropped
			s.offer(b, h)
			h = next
		}
	}
	if may > was {
		s.touch(b.queue)
	}
}

// offers are lists of keys as a heap: the one whose first message is leased first comes first.
type offers []handle

// offerHeap implements heap.Interface.
type offerHeap struct {
	s *State
	a *keyLists
	*offers
}

func (h offerHeap) Len() int { return len(*h.offers) }

func (h offerHeap) Less(i, j int) bool {
	first := func(i int) *message {
		return h.s.messages.get(h.a.lists.get((*h.offers)[i]).messages.head)
	}
	return h.s.behindIt(first(j), first(i))
}

func (h offerHeap) Swap(i, j int) {
	o := *h.offers
	o[i], o[j] = o[j], o[i]
	h.a.lists.mut(o[i]).at, h.a.lists.mut(o[j]).at = i+1, j+1
}

func (h offerHeap) Push(x any) {
	*h.offers = append(*h.offers, x.(handle))
	h.a.lists.mut(x.(handle)).at = len(*h.offers)
}

func (h offerHeap) Pop() any {
	o := *h.offers
	last := o[len(o)-1]
	*h.offers = o[:len(o)-1]
	h.a.lists.mut(last).at = 0
	return last
}

// offer puts a list among the offers, at the place of its first message, or takes it out if
// it is empty or its key is not offered. An empty one is deleted.
func (s *State) offer(b *backlog, lh handle) {
	k := *b.apart.lists.get(lh)
	byPrio, ok := b.apart.offers[k.kind]
	if !ok {
		byPrio = new([event.MaxPriority + 1]offers)
		b.apart.offers[k.kind] = byPrio
	}
	h := offerHeap{s, b.apart, &byPrio[k.priority]}
	empty := k.messages.n == 0
	switch offered := !empty && s.partitions.get(k.partition).offered > 0; {
	case offered && k.at == 0:
		heap.Push(h, lh)
	case offered:
		heap.Fix(h, k.at-1)
	case k.at > 0:
		heap.Remove(h, k.at-1)
	}
	if !empty {
		return
	}
	s.dropKeyList(b, lh)
	if !slices.ContainsFunc(byPrio[:], func(o offers) bool { return len(o) > 0 }) {
		delete(b.apart.offers, k.kind)
	}
}

// firstApart returns the message kept apart that is leased first, of one priority and a kind, 0 for
// all.
func (b *backlog) firstApart(prio uint8, kind handle) handle {
	if b.apart == nil || b.apart.offers[kind] == nil {
		return 0
	}
	o := b.apart.offers[kind][prio]
	if len(o) == 0 {
		return 0
	}
	return b.apart.lists.get(o[0]).messages.head
}

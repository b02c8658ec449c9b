package projections

import (
	"container/heap"

	"github.com/qlogd/qlogd/event"
)

// timer is something that comes due: a message by its id, or a backlog whose
// oldest message grows too old.
type timer struct {
	at   int64 // Unix ms
	h    handle
	kind timerKind
}

type timerKind uint8

const (
	timerWait   timerKind = iota // scheduled: becomes ready; leased: the lease runs out
	timerExpiry                  // the message's own end (ttl, or an age reached while leased)
	timerAge                     // a backlog's oldest unexamined message
)

// timers is a heap of timers by (at, id): due events happen in that order (I10). Each
// element knows its position, so any can be removed.
type timers struct {
	s     *State
	items []timer
}

// Len implements heap.Interface.
func (h *timers) Len() int { return len(h.items) }

// Less implements heap.Interface.
func (h *timers) Less(i, j int) bool { return h.s.before(h.items[i], h.items[j]) }

// Swap implements heap.Interface.
func (h *timers) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.place(i)
	h.place(j)
}

// Push implements heap.Interface.
func (h *timers) Push(t any) {
	h.items = append(h.items, t.(timer))
	h.place(len(h.items) - 1)
}

// Pop implements heap.Interface.
func (h *timers) Pop() any {
	last := len(h.items) - 1
	t := h.items[last]
	h.items = h.items[:last]
	*h.s.position(t) = 0
	return t
}

func (h *timers) place(i int) { *h.s.position(h.items[i]) = uint32(i + 1) }

func (h *timers) push(t timer) { heap.Push(h, t) }

func (h *timers) removeAt(i int) { heap.Remove(h, i) }

// rebuild orders the items of a loaded state.
func (h *timers) rebuild() {
	for i := range h.items {
		h.place(i)
	}
	heap.Init(h)
}

// timerID returns the id that breaks ties.
func (s *State) timerID(t timer) event.ID {
	if t.kind == timerAge {
		b := s.backlogs[uint32(t.h)]
		if b.cursor != 0 {
			return s.messages.get(b.cursor).id
		}
		return event.ID{}
	}
	return s.messages.get(t.h).id
}

func (s *State) before(a, b timer) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if x, y := s.timerID(a), s.timerID(b); x != y {
		return x.Compare(y) < 0
	}
	return a.kind < b.kind
}

// position returns where an element keeps its position plus one; 0 for none.
func (s *State) position(t timer) *uint32 {
	switch t.kind {
	case timerWait:
		return &s.messages.mut(t.h).timer
	case timerExpiry:
		return &s.extras.mut(s.messages.get(t.h).extra).timer
	default:
		return &s.backlogs[uint32(t.h)].timer
	}
}

// armLease sets the timer of a lease's end.
func (s *State) armLease(h handle) {
	s.deadlines.push(timer{at: s.leases.get(s.messages.get(h).lease).expires, h: h,
		kind: timerWait})
}

// disarmLease removes the timer of a leased message, if it has one.
func (s *State) disarmLease(h handle) {
	if m := s.messages.get(h); m.timer != 0 {
		s.deadlines.removeAt(int(m.timer) - 1)
	}
}

package projections

import (
	"math"

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

// heap orders timers by (at, id): what is due happens in that order (I10).
// Each element knows its position, so any can be removed.
type heap struct{ items []timer }

// id is what ties are broken by.
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

// position returns where an element keeps its place (one more than its
// position, 0 for none).
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

// inTurn is the position of a lease's timer that is in no heap.
const inTurn = math.MaxUint32

// leaseTimer is the timer of a lease's end.
func (s *State) leaseTimer(x handle) timer {
	l := s.leases.get(x)
	return timer{at: l.expires, h: l.message, kind: timerWait}
}

// armLease sets the timer of a lease's end. Nearly all run out in the order in
// which they were taken: a list of these costs less than a heap.
func (s *State) armLease(x handle) {
	t := s.leaseTimer(x)
	if last := s.turns.tail; last != 0 && s.before(t, s.leaseTimer(last)) {
		s.deadlines.push(s, t)
		return
	}
	insert[leaseTurn](s, &s.turns, x, 0)
	*s.position(t) = inTurn
}

// disarmLease takes back the timer of a leased message, if it has one.
func (s *State) disarmLease(h handle) {
	m := s.messages.mut(h)
	switch m.timer {
	case 0:
	case inTurn:
		remove[leaseTurn](s, &s.turns, m.lease)
		m.timer = 0
	default:
		s.deadlines.removeAt(s, int(m.timer)-1)
	}
}

// deadline returns the first of deadlines and turns.
func (s *State) deadline() (t timer, ok bool) {
	if len(s.deadlines.items) > 0 {
		t, ok = s.deadlines.items[0], true
	}
	if x := s.turns.head; x != 0 {
		if l := s.leaseTimer(x); !ok || s.before(l, t) {
			t, ok = l, true
		}
	}
	return t, ok
}

func (h *heap) push(s *State, t timer) {
	h.items = append(h.items, t)
	h.up(s, len(h.items)-1)
}

func (h *heap) removeAt(s *State, i int) {
	last := len(h.items) - 1
	*s.position(h.items[i]) = 0
	moved := h.items[last]
	h.items = h.items[:last]
	if i == last {
		return
	}
	h.items[i] = moved
	if i > 0 && s.before(moved, h.items[(i-1)/4]) {
		h.up(s, i)
	} else {
		h.down(s, i)
	}
}

func (h *heap) up(s *State, i int) {
	t := h.items[i]
	for i > 0 {
		p := (i - 1) / 4
		if !s.before(t, h.items[p]) {
			break
		}
		h.items[i] = h.items[p]
		*s.position(h.items[i]) = uint32(i + 1)
		i = p
	}
	h.items[i] = t
	*s.position(t) = uint32(i + 1)
}

func (h *heap) down(s *State, i int) {
	t := h.items[i]
	for {
		best := -1
		for c := 4*i + 1; c <= 4*i+4 && c < len(h.items); c++ {
			if best < 0 || s.before(h.items[c], h.items[best]) {
				best = c
			}
		}
		if best < 0 || !s.before(h.items[best], t) {
			break
		}
		h.items[i] = h.items[best]
		*s.position(h.items[i]) = uint32(i + 1)
		i = best
	}
	h.items[i] = t
	*s.position(t) = uint32(i + 1)
}

// rebuild orders items that were put in without order (a loaded state).
func (h *heap) rebuild(s *State) {
	for i := len(h.items) - 1; i >= 0; i-- {
		h.down(s, i)
	}
}

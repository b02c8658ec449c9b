package projections

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// timer is something that comes due: of a message, of a backlog, whose oldest message grows
// too old, or of a queue, whose bucket has a token again. It is not removed when it becomes void,
// but when it would be the first: see State.valid.
type timer struct {
	at   int64    // Unix ms
	id   event.ID // of the message; of a backlog's cursor; none of a queue
	h    handle   // of the message; a backlog's or queue's number
	kind timerKind
}

type timerKind uint8

const (
	timerReady  timerKind = iota // a scheduled message becomes ready
	timerLease                   // a lease runs out
	timerExpiry                  // the message's own end (ttl, or an age reached while leased)
	timerAge                     // a backlog's oldest unexamined message
	timerRefill                  // an empty bucket has a token again
)

// before orders timers by (at, id): due events happen in that order (I10).
func (t timer) before(o timer) bool {
	if t.at != o.at {
		return t.at < o.at
	}
	return cmp.Or(t.id.Compare(o.id), cmp.Compare(t.kind, o.kind)) < 0
}

// timers yields timers in their order. Nearly all are set in that order: a list of these
// costs less than a heap, which has the others.
type timers struct {
	row   []timer // rising
	past  int     // of row, those that were removed
	heap  timerHeap
	limit int // length at which the void ones are removed
}

// timerHeap implements heap.Interface.
type timerHeap []timer

func (h *timerHeap) Len() int           { return len(*h) }
func (h *timerHeap) Less(i, j int) bool { return (*h)[i].before((*h)[j]) }
func (h *timerHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }
func (h *timerHeap) Push(t any)         { *h = append(*h, t.(timer)) }

func (h *timerHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// minTimers is the lowest limit.
const minTimers = 1024

func (q *timers) push(s *State, t timer) {
	if len(q.row)-q.past+len(q.heap) >= max(q.limit, minTimers) {
		q.compact(s)
	}
	if len(q.row) == q.past || !t.before(q.row[len(q.row)-1]) {
		q.row = append(q.row, t)
		return
	}
	heap.Push(&q.heap, t)
}

// inRow reports whether the first timer is in the row.
func (q *timers) inRow() bool {
	return len(q.row) > q.past && (len(q.heap) == 0 || q.row[q.past].before(q.heap[0]))
}

// first returns the first timer, which may be void.
func (q *timers) first() (t timer, ok bool) {
	switch {
	case q.inRow():
		return q.row[q.past], true
	case len(q.heap) > 0:
		return q.heap[0], true
	}
	return t, false
}

// pop removes the first timer.
func (q *timers) pop() {
	if !q.inRow() {
		heap.Pop(&q.heap)
		return
	}
	if q.past++; 2*q.past >= len(q.row) { // each is moved once on average
		q.row = q.row[:copy(q.row, q.row[q.past:])]
		q.past = 0
	}
}

// compact removes the void timers, and sets limit so that it costs little per timer.
func (q *timers) compact(s *State) {
	void := func(t timer) bool { return !s.valid(t) }
	q.row = slices.DeleteFunc(q.row[q.past:], void)
	q.heap = slices.DeleteFunc(q.heap, void)
	q.past = 0
	heap.Init(&q.heap)
	q.limit = 2 * (len(q.row) + len(q.heap))
}

// valid reports whether a timer is still needed.
func (s *State) valid(t timer) bool {
	switch t.kind {
	case timerAge:
		b := s.backlogs[uint32(t.h)]
		return b != nil && b.cursor != 0 && b.ageEnd == t.at && s.messages.get(b.cursor).id == t.id
	case timerRefill:
		q := s.numbers[uint32(t.h)]
		return q != nil && q.refillsAt() == t.at
	}
	m := s.messages.get(t.h)
	switch {
	case m.id != t.id: // it left, and its handle may have been reused
		return false
	case t.kind == timerReady:
		return m.state == event.StateScheduled && m.due == t.at
	case t.kind == timerLease:
		return m.lease != 0 && s.leases.get(m.lease).expires == t.at
	}
	return m.extra != 0 && s.extras.get(m.extra).timer == t.at
}

// firstValid returns the first timer that is valid, and removes those before it.
func (s *State) firstValid(q *timers) (t timer, ok bool) {
	for t, ok = q.first(); ok && !s.valid(t); t, ok = q.first() {
		q.pop()
	}
	return t, ok
}

// prune removes void timers until the first one is valid: see NextDue.
func (s *State) prune() {
	s.firstValid(&s.waiting)
	s.firstValid(&s.deadlines)
	s.firstValid(&s.refills)
}

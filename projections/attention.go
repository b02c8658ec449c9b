package projections

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// tried counts messages that wait for another attempt.
type tried struct {
	n     int64
	since int64 // when there were none before
}

// countTried adds n to the waiting messages that had as many attempts as m. Those that a tombstone
// has deleted count until their events.
func (s *State) countTried(b *backlog, m *message, n int64) {
	if m.attempt == 0 {
		return
	}
	t := b.tried[m.attempt]
	if t.n == 0 {
		t.since = s.clock
	}
	if t.n += n; t.n == 0 {
		delete(b.tried, m.attempt)
		return
	}
	b.tried[m.attempt] = t
}

// heldKey is an element of queue.heldOrder.
type heldKey struct {
	key   string
	since event.ID
}

// hold blocks a key by one more dead message, of which e is the event.
func (q *queue) hold(key string, e *event.Event) {
	h, ok := q.held[key]
	if !ok {
		h.since = e.ID
		q.heldOrder = append(q.heldOrder, heldKey{key, e.ID})
	}
	h.dead++
	q.held[key] = h
}

// unhold unblocks a key.
func (q *queue) unhold(key string) {
	delete(q.held, key)
	released := func(k heldKey) bool { return q.held[k.key].since != k.since }
	if len(q.heldOrder) > 2*len(q.held)+16 {
		q.heldOrder = slices.DeleteFunc(q.heldOrder, released)
	}
	for len(q.heldOrder) > 0 && released(q.heldOrder[0]) {
		q.heldOrder = q.heldOrder[1:]
	}
}

// orderHeld builds heldOrder from the keys held.
func (q *queue) orderHeld() {
	q.heldOrder = nil
	for key, h := range q.held { // order does not matter: sorted
		q.heldOrder = append(q.heldOrder, heldKey{key, h.since})
	}
	slices.SortFunc(q.heldOrder, func(a, b heldKey) int { return a.since.Compare(b.since) })
}

// Attention returns the facts of a queue that may need an operator's attention. Its cost does not
// depend on the number of messages.
func (s *State) Attention(name string) (v event.AttentionView, ok bool) {
	if v.QueueView, ok = s.Look(name); !ok {
		return v, false
	}
	q := s.queues[name]
	b := q.backlog
	if b.all.tail != 0 {
		v.NewestAt = s.messages.get(b.all.tail).created()
	}
	if v.HeldKeys = int64(len(q.held)); v.HeldKeys > 0 {
		v.HeldKey, v.HeldBy = q.heldOrder[0].key, q.heldOrder[0].since
	}
	if p := q.policy.MaxAttempts; p > 1 {
		t := b.tried[p-1]
		v.LastAttempt, v.LastAttemptSince = t.n, t.since
	}
	if v.Leasable = int64(s.Leasable(name, nil)); v.Leasable > 0 {
		v.LeasableSince = s.clock
		for prio := uint8(event.MinPriority); prio <= event.MaxPriority; prio++ {
			if h := s.first(b, prio, nil); h != 0 {
				v.LeasableSince = min(v.LeasableSince, s.messages.get(h).due)
			}
		}
		v.LeasableSince = max(v.LeasableSince, q.LeasedAt, q.UpdatedAt, q.refillsAt())
	}
	return v, true
}

package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

// TestNews: what is discarded for want of a dead-letter queue is noted, each time once, and what
// somebody asked to be deleted is not.
func TestNews(t *testing.T) {
	var n news
	of := func(queue string, r event.Reason, index uint64) event.Event {
		return event.Event{Type: event.Discarded, Queue: queue, Reason: r, Subject: event.NewID(1, index, 0)}
	}
	n.note(7, []event.Event{
		of("a", event.ReasonMaxAttempts, 1), of("a", event.ReasonMaxAttempts, 2), of("b", event.ReasonExpired, 3),
		of("c", event.ReasonPurged, 4), of("c", event.ReasonDeleted, 5), {Type: event.Acked, Queue: "c"},
	})
	n.note(8, []event.Event{{Type: event.Erased}})
	n.note(9, []event.Event{{Type: event.Erased}})
	m := &Machine{news: n, state: setup(t).m.state}
	mustEqual(t, m.TakeDiscarded(), map[Discard]Discarded{
		{"a", event.ReasonMaxAttempts}: {2, event.NewID(1, 2, 0)},
		{"b", event.ReasonExpired}:     {1, event.NewID(1, 3, 0)},
	})
	mustEqual(t, len(m.TakeDiscarded()), 0)
	for _, want := range []uint64{8, 0} {
		first, _ := m.TakeErased()
		mustEqual(t, first, want)
	}
	mustEqual(t, m.Counts()[event.Discarded], uint64(5))
}

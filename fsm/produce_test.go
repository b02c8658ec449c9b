package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

// TestDuplicateInTheLog: a message that the log was found to hold is a duplicate for its window.
func TestDuplicateInTheLog(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	seen := event.NewID(epoch, 1, 9)
	m := msg("a", dedup("k"))
	m.Seen, m.SeenUntil = seen, epoch+1000
	for _, want := range []bool{true, false} {
		c := &event.Produce{Queue: "q", Messages: []event.NewMessage{m}, Revision: b.q("q").Revision}
		got := b.ok(b.one(&event.Command{Produce: c})).Produced[0]
		mustEqual(t, got.Duplicate, want)
		mustEqual(t, got.ID == seen, want)
		b.now += 1000
	}
}

// TestDuplicateInTheLogIsDeleted: a node may have asked the log before the message was deleted.
func TestDuplicateInTheLogIsDeleted(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	first := b.put("q", msg("a"))[0]
	again := func(key string) *event.Command {
		m := msg("a", dedup(key))
		m.Seen, m.SeenUntil, m.SeenAs = first, epoch+1000, first
		return &event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{m}, Revision: b.q("q").Revision}}
	}
	mustEqual(t, b.ok(b.one(again("k"))).Produced[0].Duplicate, true)
	// Its own event comes with the next entry, and then the log must be asked again.
	r := b.do(&event.Command{PurgeQueue: &event.PurgeQueue{Name: "q"}}, again("k"))
	mustEqual(t, b.ok(r[1]).Produced[0].Duplicate, false)
	mustEqual(t, b.one(again("other")).Problem.Code, event.CodeStaleRevision)
}

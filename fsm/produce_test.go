package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

// TestDuplicateInTheLog: a message that the log was found to hold is a duplicate for its window,
// unless it has been deleted since a node asked the log.
func TestDuplicateInTheLog(t *testing.T) {
	b := setup(t)
	b.queue("q", nil)
	b.fill("q", "a")
	first := b.newest("a")
	again := func(key string, seen, as event.ID) *event.Command {
		m := msg("a", dedup(key))
		m.Seen, m.SeenUntil, m.SeenAs = seen, epoch+1000, as
		return &event.Command{Produce: &event.Produce{Queue: "q",
			Messages: []event.NewMessage{m}, Revision: b.q("q").Revision}}
	}
	dup := b.ok(b.one(again("k", first, first))).Produced[0]
	mustEqual(t, dup.Duplicate && dup.ID == first, true)
	// Its own event comes with the next entry, and then the log must be asked again.
	r := b.do(&event.Command{PurgeQueue: &event.PurgeQueue{Name: "q"}}, again("k", first, first))
	mustEqual(t, b.ok(r[1]).Produced[0].Duplicate, false)
	mustEqual(t, b.one(again("other", first, first)).Problem.Code, event.CodeStaleRevision)

	acked := event.NewID(epoch, 1, 9)
	for _, want := range []bool{true, false} {
		got := b.ok(b.one(again("third", acked, event.ID{}))).Produced[0]
		mustEqual(t, got.Duplicate && got.ID == acked, want)
		b.now += 1000
	}
}

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

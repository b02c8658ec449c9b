package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func (b *bench) resurrect(text string, set func(r *event.Resurrect)) event.Result {
	b.t.Helper()
	id := b.newest(text)
	r := &event.Resurrect{ID: id, Last: event.Ref{Index: 7}, Queue: "q", Key: "k", Kind: "red", Priority: 3, Size: 2, First: id}
	if set != nil {
		set(r)
	}
	r.Content = event.EncodeContent(&event.Content{Payload: []byte(text)})
	return b.one(&event.Command{Actor: "ops", Resurrect: r})
}

// TestEraseAfterResurrect: an erasure that was prepared before a message was
// resurrected would leave the chain of its events in a fork; it looks again.
func TestEraseAfterResurrect(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	b.wantTake("q", 1, "a")
	b.want(event.OpAck, "a", event.StatusAcked)
	old, acked := b.newest("a"), event.RefOf(b.last().Events[0].ID)
	task := b.task(event.TaskErase)
	now := b.ok(b.resurrect("a", func(r *event.Resurrect) { r.Last = acked })).ID
	erase := func(last event.Ref) int64 {
		return b.ok(b.one(&event.Command{Erase: &event.Erase{Task: task, Items: []event.EraseItem{{ID: old, Last: last}}}})).Count
	}
	mustEqual(t, erase(acked), 0)
	b.wantTells("")
	mustEqual(t, erase(event.RefOf(now)), 1)
	mustEqual(t, b.last().Events[0].Prev, event.RefOf(now))
	b.refold()
}

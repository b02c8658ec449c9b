package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestRetention(t *testing.T) {
	b := setup(t)
	b.queue("q", nil)
	b.fill("q", "a")
	b.index = 20_000
	b.fill("q", "b")
	retain := func(before uint64) event.Result {
		return b.one(&event.Command{Retain: &event.Retain{Before: before}})
	}
	b.wantProblem(retain(10_000), event.CodeConflict, "")
	m, _ := b.m.Message(b.ids["a"][0])
	content := event.EncodeContent(&event.Content{Payload: []byte("a")})
	carry := func(it event.CarryItem) int64 {
		it.ID, it.From, it.Content = m.ID, m.Content, content
		return b.ok(b.one(&event.Command{Carry: &event.Carry{Items: []event.CarryItem{it}}})).Count
	}
	mustEqual(t, carry(event.CarryItem{}), 1)
	b.wantTells("content_carried a")
	got := b.last().Events[0]
	mustEqual(t, got.HasLabels(), false) // an old entry is decided as it was
	mustEqual(t, got.Priority, 0)
	mustEqual(t, carry(event.CarryItem{}), 0) // it lies elsewhere by now
	b.wantTake("q", 1, "a")
	m, _ = b.m.Message(m.ID)
	labelled := event.CarryItem{
		First: m.ID, Replays: 2, CorrelationID: "c", DedupKey: event.Hash{1}, Worker: "w",
	}
	mustEqual(t, carry(labelled), 0) // it was not leased when it was read
	labelled.Lease = m.Lease
	mustEqual(t, carry(labelled), 1)
	got = b.last().Events[0]
	mustEqual(t, got, event.Event{
		ID: got.ID, Type: event.ContentCarried, Subject: m.ID, Prev: m.Last, Queue: "q", Priority: m.Priority,
		Size: m.Size, First: m.ID, Count: 2, CorrelationID: "c", DedupKey: event.Hash{1}, Worker: "w", Content: content,
	})
	b.settle(event.OpRelease, b.leases["a"])
	b.restart()
	b.ok(retain(10_000))
	b.wantTells("history_deleted")
	mustEqual(t, b.m.History(), 10_000)
	b.ok(retain(5000))
	b.wantTells("")
	b.wantTake("q", 5, "a b")
	b.refold()
}

package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestTheClockDoesNotGoBack(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.put("q", msg("a", delay(100)))
	b.tick(100)
	b.tick(-5000)
	mustEqual(t, b.m.Clock(), epoch+100)
	b.wantTake("q", 1, "a")
	mustEqual(t, event.ClockOf(b.leases["a"]), epoch+100)
}

func TestRetention(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	b.index = 20_000
	b.fill("q", "b")
	retain := func(before uint64) event.Result {
		return b.one(&event.Command{Retain: &event.Retain{Before: before}})
	}
	b.wantProblem(retain(10_000), event.CodeConflict, "")
	m, _ := b.m.Message(b.ids["a"][0])
	carry := func() int64 {
		return b.ok(b.one(&event.Command{Carry: &event.Carry{Items: []event.CarryItem{{ID: m.ID, From: m.Content, Content: event.EncodeContent(&event.Content{Payload: []byte("a")})}}}})).Count
	}
	mustEqual(t, carry(), 1)
	b.wantTells("content_carried a")
	mustEqual(t, carry(), 0) // it lies elsewhere by now
	b.restart()
	b.ok(retain(10_000))
	b.wantTells("history_deleted")
	mustEqual(t, b.m.History(), 10_000)
	b.ok(retain(5000))
	b.wantTells("")
	b.wantTake("q", 5, "a b")
	b.refold()
}

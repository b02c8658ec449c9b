package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestDeduplication(t *testing.T) {
	dup := func(b *bench, ms ...event.NewMessage) bool {
		b.t.Helper()
		c := &event.Produce{Queue: "q", Messages: ms, Revision: b.q("q").Revision}
		return b.ok(b.one(&event.Command{Produce: c})).Produced[0].Duplicate
	}
	t.Run("what the log was found to hold", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		seen := event.NewID(epoch, 1, 9)
		m := msg("a", dedup("k"))
		m.Seen, m.SeenUntil = seen, epoch+1000
		r := b.ok(b.produce("q", m))
		mustEqual(t, r.Produced, []event.Produced{{ID: seen, Duplicate: true}})
		b.now += 1000
		mustEqual(t, dup(b, m), false)
	})
}

func TestIdempotencyKey(t *testing.T) {
	request := func(k, body string) *event.Request {
		q := &event.Request{}
		copy(q.Key[:], k)
		copy(q.Body[:], body)
		return q
	}
	produce := func(b *bench, q *event.Request) event.Result {
		b.t.Helper()
		return b.one(&event.Command{Request: q, Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{msg("a")}}})
	}
	t.Run("is executed once, and answered from the first", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		first := b.ok(produce(b, request("k", "x")))
		b.wantTells("enqueued a, answer_kept")
		kept := event.RefOf(b.last().Events[1].ID)
		c, _ := event.DecodeContent(b.last().Events[1].Content.Bytes)
		was, err := event.DecodeResult(c.Answer)
		must(t, err)
		mustEqual(t, was, &first)
		b.restart()
		b.tick(1000)
		again := produce(b, request("k", "x"))
		mustEqual(t, again.Kept, kept)
		b.wantTells("")
	})
}

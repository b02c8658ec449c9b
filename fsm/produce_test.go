package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestProduceToNoQueue(t *testing.T) {
	b := setup(t)
	b.wantProblem(b.produce("q", msg("a")), event.CodeQueueNotFound, `queue "q" does not exist`)
	b.ok(b.one(&event.Command{Produce: &event.Produce{Queue: "q", AutoCreate: true, Messages: []event.NewMessage{msg("a")}}}))
	b.wantTells("queue_created, enqueued a")
	mustEqual(t, b.q("q").Policy, event.DefaultPolicy())
}

func TestAnswersInOrder(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.put("q", msg("a", dedup("1")))
	r := b.produce("q", msg("b"), msg("a", dedup("1")), msg("c", dedup("2")), msg("d", dedup("2")))
	a, c := b.ids["a"][0], b.ids["c"][0]
	mustEqual(t, r.Produced, []event.Produced{{ID: b.ids["b"][0]}, {ID: a, Duplicate: true}, {ID: c}, {ID: c, Duplicate: true}})
	b.wantTells("enqueued b, enqueued c")
}

func TestDelays(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.put("q", msg("late", delay(100)), msg("at", func(m *event.NewMessage) { m.DeliverAt = epoch + 50 }),
		msg("past", func(m *event.NewMessage) { m.DeliverAt = epoch - 1 }))
	b.wantHolds("q", "late:scheduled at:scheduled past:ready")
	due, _ := b.m.NextDue()
	mustEqual(t, due, epoch+50)
	b.tick(49)
	b.wantTake("q", 5, "past")
	b.tick(1)
	b.wantTells("") // coming due is no event
	b.wantTake("q", 5, "at")
	b.tick(50)
	b.wantTake("q", 5, "late")
}

func TestLimits(t *testing.T) {
	t.Run("max_depth counts ready, scheduled and leased; produce is refused whole", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.MaxDepth = 4 })
		b.fill("q", "a", "b")
		b.put("q", msg("c", delay(1000)))
		b.wantTake("q", 1, "a")
		r := b.produce("q", msg("d"), msg("e"))
		b.wantProblem(r, event.CodeQueueFull, `queue "q" holds 3 of at most 4, 2 more do not fit`)
		if r.Problem.RetryAfterMS <= 0 {
			t.Fatal("no Retry-After")
		}
		b.wantTells("")
		b.fill("q", "d")
		b.wantProblem(b.produce("q", msg("e")), event.CodeQueueFull, "")
		b.want(event.OpAck, "a", event.StatusAcked)
		b.fill("q", "e")
	})
	t.Run("max_bytes", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.MaxBytes = 5 })
		b.fill("q", "abc")
		b.wantProblem(b.produce("q", msg("def")), event.CodeQueueFull, `queue "q" holds 3 of at most 5, 3 more do not fit`)
		b.fill("q", "de")
	})
	t.Run("duplicates take no room", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.MaxDepth = 1 })
		b.put("q", msg("a", dedup("1")))
		if r := b.ok(b.produce("q", msg("a", dedup("1")))); !r.Produced[0].Duplicate {
			t.Fatal("no duplicate")
		}
	})
	t.Run("what a purge took takes no room", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.MaxDepth = 1; p.MaxBytes = 1 })
		b.fill("q", "a")
		rs := b.do(&event.Command{PurgeQueue: &event.PurgeQueue{Name: "q"}},
			&event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{msg("b")}}})
		b.ok(rs[1])
	})
	t.Run("dead letters always come in", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("dead", func(p *event.Policy) { p.MaxDepth = 1 })
		b.mustQueue("q", dlq("dead"))
		b.fill("q", "a", "b")
		b.take("q", 2)
		b.want(event.OpDeadLetter, "a", event.StatusDeadLettered)
		b.want(event.OpDeadLetter, "b", event.StatusDeadLettered)
		mustEqual(t, b.stats("dead").Ready, 2)
	})
	t.Run("a priority out of range stops nobody", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		r := b.produce("q", msg("a"), msg("b", prio(0)))
		b.wantProblem(r, event.CodeInvalidArgument, "priority must be from 1 to 10")
		mustEqual(t, r.Problem.Index, 1)
		b.wantProblem(b.produce("q", msg("b", prio(11))), event.CodeInvalidArgument, "")
	})
}

func TestDeduplication(t *testing.T) {
	dup := func(b *bench, ms ...event.NewMessage) bool {
		b.t.Helper()
		c := &event.Produce{Queue: "q", Messages: ms, Revision: b.q("q").Revision}
		return b.ok(b.one(&event.Command{Produce: c})).Produced[0].Duplicate
	}
	t.Run("within the window, which counts from the first accept", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.DedupWindowSeconds = 2 })
		mustEqual(t, dup(b, msg("a", dedup("k"))), false)
		b.tick(1500)
		mustEqual(t, dup(b, msg("a", dedup("k"))), true)
		b.tick(499)
		mustEqual(t, dup(b, msg("a", dedup("k"))), true)
		b.tick(1)
		mustEqual(t, dup(b, msg("a", dedup("k"))), false)
	})
	t.Run("also when the first is gone", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		dup(b, msg("a", dedup("k")))
		b.wantTake("q", 1, "a")
		b.want(event.OpAck, "a", event.StatusAcked)
		b.restart()
		mustEqual(t, dup(b, msg("a", dedup("k"))), true)
	})
	t.Run("no key, no duplicate", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		dup(b, msg("a"))
		mustEqual(t, dup(b, msg("a")), false)
	})
	t.Run("of one queue only", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.mustQueue("p", nil)
		b.put("p", msg("a", dedup("k")))
		mustEqual(t, dup(b, msg("a", dedup("k"))), false)
	})
	t.Run("by content", func(t *testing.T) {
		hashed := func(s string) event.NewMessage {
			return msg(s, func(m *event.NewMessage) { copy(m.PayloadHash[:], s) })
		}
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.DedupBy = event.DedupByContent })
		mustEqual(t, dup(b, hashed("a")), false)
		mustEqual(t, dup(b, hashed("b")), false)
		mustEqual(t, dup(b, hashed("a")), true)
		r := b.one(&event.Command{Produce: &event.Produce{Queue: "q", Revision: 77, Messages: []event.NewMessage{hashed("a")}}})
		b.wantProblem(r, event.CodeStaleRevision, "") // hashed against another policy
	})
	t.Run("a window of 0 is none", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", func(p *event.Policy) { p.DedupWindowSeconds = 0 })
		dup(b, msg("a", dedup("k")))
		mustEqual(t, dup(b, msg("a", dedup("k"))), false)
	})
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

func TestCheckedAgainstAnOlderSchema(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.MessageSchema = []byte(`{}`) })
	b.wantProblem(b.produce("q", msg("a")), event.CodeStaleRevision, "")
	b.ok(b.one(&event.Command{Produce: &event.Produce{Queue: "q", Revision: b.q("q").Revision, Messages: []event.NewMessage{msg("a")}}}))
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
		if err != nil {
			t.Fatal(err)
		}
		mustEqual(t, was, &first)
		b.restart()
		b.tick(1000)
		again := produce(b, request("k", "x"))
		mustEqual(t, again.Kept, kept)
		b.wantTells("")
	})
	t.Run("with another body: idempotency_key_reused", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		produce(b, request("k", "x"))
		b.wantProblem(produce(b, request("k", "y")), event.CodeKeyReused, "")
		b.wantTells("")
	})
	t.Run("is kept 24 h", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		produce(b, request("k", "x"))
		b.tick(24*3600*1000 - 1)
		if produce(b, request("k", "x")).Kept.IsZero() {
			t.Fatal("forgotten too early")
		}
		b.now++
		if !produce(b, request("k", "y")).Kept.IsZero() {
			t.Fatal("kept too long")
		}
	})
	t.Run("an error is not kept", func(t *testing.T) {
		b := setup(t)
		b.wantProblem(produce(b, request("k", "x")), event.CodeQueueNotFound, "")
		b.wantTells("")
		b.mustQueue("q", nil)
		b.ok(produce(b, request("k", "x")))
	})
	t.Run("twice in one entry", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		c := &event.Command{Request: request("k", "x"), Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{msg("a")}}}
		rs := b.do(c, c)
		if rs[1].Kept.IsZero() || b.stats("q").Enqueued != 1 {
			t.Fatalf("%+v", rs)
		}
	})
}

package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func onDead(o event.OnDead) func(*event.Policy) {
	return func(p *event.Policy) { p.OnDead = o }
}

func tries(n uint32) func(*event.Policy) {
	return func(p *event.Policy) { p.MaxAttempts = n }
}

func TestLastAttempt(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", with(dlq("dead"), tries(2), func(p *event.Policy) { p.InitialBackoffMS = 0; p.LeaseMS = 1000 }))
	b.fill("q", "a", "b")
	b.wantTake("q", 2, "a b")
	b.want(event.OpRetry, "a", event.StatusRetried)
	b.want(event.OpRetry, "b", event.StatusRetried)
	b.wantTake("q", 2, "a b")
	b.want(event.OpRetry, "a", event.StatusDeadLettered)
	b.wantTells("dead_lettered a max_attempts") // the move is one event
	b.tick(1000)
	b.wantTells("lease_expired b, dead_lettered b max_attempts")
	b.wantHolds("dead", "a:ready b:ready")
	b.wantHolds("q", "")
	mustEqual(t, b.stats("q").DeadLettered, 2)
	mustEqual(t, b.stats("dead").DeadIn, 2)
	t.Run("0 is no limit", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", with(tries(0), func(p *event.Policy) { p.InitialBackoffMS = 0 }))
		b.fill("q", "a")
		for range 50 {
			b.wantTake("q", 1, "a")
			b.want(event.OpRetry, "a", event.StatusRetried)
		}
	})
	t.Run("1 is one delivery", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", tries(1))
		b.fill("q", "a")
		b.wantTake("q", 1, "a")
		b.want(event.OpRetry, "a", event.StatusDiscarded)
	})
}

func TestDiscardWithoutADeadLetterQueue(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", tries(1))
	b.fill("q", "a", "b", "c")
	b.put("q", msg("d", ttl(100)))
	b.wantTake("q", 3, "a b c")
	b.want(event.OpRetry, "a", event.StatusDiscarded)
	b.wantTells("discarded a max_attempts")
	b.want(event.OpDeadLetter, "b", event.StatusDiscarded)
	b.wantTells("discarded b rejected")
	b.tick(100)
	b.wantTells("discarded d expired")
	b.tick(30_000)
	b.wantTells("lease_expired c, discarded c max_attempts")
	mustEqual(t, b.stats("q").Discarded, 4)
}

func TestADeadMessageTellsWhereItCameFrom(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", with(dlq("dead"), func(p *event.Policy) { p.InitialBackoffMS = 0 }))
	b.put("q", msg("a", key("k"), kindOf("red"), prio(2)))
	was := b.ids["a"][0]
	b.wantTake("q", 1, "a")
	b.want(event.OpRetry, "a", event.StatusRetried)
	b.tick(50)
	b.wantTake("q", 1, "a")
	lease := b.leases["a"]
	text := event.EncodeContent(&event.Content{Error: "no such card"})
	r := b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpDeadLetter, Lease: lease, Content: text}}}})
	mustEqual(t, r.Settled[0].Status, event.StatusDeadLettered)
	e := b.last().Events[0]
	mustEqual(t, e.Subject, was)
	mustEqual(t, e.Lease, lease)
	mustEqual(t, string(e.Content.Bytes), string(text.Bytes)) // the error is the event's content
	b.restart()
	l := b.lease("dead", 1)[0]
	mustEqual(t, l.ID, e.ID) // its id is new
	mustEqual(t, l.Attempt, 1)
	mustEqual(t, []any{l.Key, l.Kind, l.Priority}, []any{"k", "red", 2})
	mustEqual(t, *l.Dead, event.DeadView{Queue: "q", MessageID: was, Reason: event.ReasonRejected, Attempts: 2, FailedAt: epoch + 50, FirstEnqueuedAt: epoch, First: was})
	mustEqual(t, l.Content, event.RefOf(was)) // the payload stays where it was written
}

func TestSkipGoesOn(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", perKey(dlq("dead"), tries(1)))
	b.fillKeys("q", "a1", "a2")
	b.wantTake("q", 1, "a1")
	b.want(event.OpRetry, "a1", event.StatusDeadLettered)
	b.wantTake("q", 1, "a2")
}

func TestHoldKey(t *testing.T) {
	start := func(t *testing.T) *bench {
		b := setup(t)
		b.mustQueue("dead", nil)
		b.mustQueue("q", perKey(dlq("dead"), tries(1), onDead(event.DeadHoldKey)))
		b.fillKeys("q", "a1", "a2", "b1")
		b.wantTake("q", 1, "a1")
		b.want(event.OpRetry, "a1", event.StatusDeadLettered)
		return b
	}
	t.Run("stops the partition, not the others", func(t *testing.T) {
		b := start(t)
		b.restart()
		b.wantHolds("q", "a2:held b1:ready")
		mustEqual(t, b.stats("q").Held, 1)
		b.wantTake("q", 10, "b1")
		b.purge("q")
		b.fillKeys("q", "a3")
		b.wantTake("q", 10, "")
	})
	t.Run("until the dead message is deleted", func(t *testing.T) {
		b := start(t)
		b.ok(b.remove("a1"))
		b.wantTake("q", 10, "b1 a2")
	})
	t.Run("or acked in its dead-letter queue", func(t *testing.T) {
		b := start(t)
		b.wantTake("dead", 1, "a1")
		b.want(event.OpAck, "a1", event.StatusAcked)
		b.wantTake("q", 10, "b1 a2")
	})
	t.Run("or purged there", func(t *testing.T) {
		b := start(t)
		b.purge("dead")
		b.tick(0)
		b.wantTake("q", 10, "b1 a2")
	})
	t.Run("or the policy no longer holds", func(t *testing.T) {
		b := start(t)
		b.mustQueue("q", perKey(dlq("dead"), tries(1)))
		b.wantTake("q", 10, "b1 a2")
		b.mustQueue("q", perKey(dlq("dead"), tries(1), onDead(event.DeadHoldKey)))
		b.want(event.OpRetry, "a2", event.StatusDeadLettered)
		b.fillKeys("q", "a3")
		b.ok(b.remove("a1")) // it held the key once, and no longer
		b.wantTake("q", 10, "")
		b.ok(b.remove("a2"))
		b.wantTake("q", 10, "a3")
	})
	t.Run("or the dead-letter queue goes by force", func(t *testing.T) {
		b := start(t)
		b.ok(b.drop("dead", true))
		b.wantTake("q", 10, "b1 a2")
	})
	t.Run("until all its dead messages are", func(t *testing.T) {
		for _, order := range [][]string{{"a1", "a9"}, {"a9", "a1"}} {
			b := start(t)
			b.put("q", msg("a9", key("a"), ttl(10)))
			b.tick(10) // too old while held: it dies, too
			b.wantHolds("dead", "a1:ready a9:ready")
			b.restart()
			b.ok(b.remove(order[0]))
			b.wantTake("q", 10, "b1")
			b.ok(b.remove(order[1]))
			b.wantTake("q", 10, "a2")
		}
	})
}

func TestDeadLetterKey(t *testing.T) {
	for _, to := range []string{"dead", ""} {
		t.Run("all that waits follows, dead-letter queue "+to, func(t *testing.T) {
			b := setup(t)
			b.mustQueue("dead", nil)
			b.mustQueue("q", perKey(dlq(to), tries(1), onDead(event.DeadLetterKey)))
			b.fillKeys("q", "a1", "a2", "b1", "a3")
			b.put("q", msg("a9", key("a"), delay(1000))) // does not wait in the partition yet
			b.wantTake("q", 1, "a1")
			b.on(event.OpDeadLetter, "a1")
			b.wantHolds("q", "b1:ready a9:scheduled") // at once
			b.fillKeys("q", "a4")                     // comes after
			if to != "" {
				b.wantTells("dead_lettered a2 key_dead, dead_lettered a3 key_dead, enqueued a4")
				b.wantHolds("dead", "a1:ready a2:ready a3:ready")
				mustEqual(t, b.stats("q").DeadLettered, 3)
			} else {
				b.wantTells("discarded a2 key_dead, discarded a3 key_dead, enqueued a4")
				mustEqual(t, b.stats("q").Discarded, 3)
			}
			b.tick(1000)
			b.wantTake("q", 10, "b1 a4")
			b.want(event.OpAck, "a4", event.StatusAcked)
			b.wantTake("q", 10, "a9")
		})
	}
	t.Run("in bounded entries", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("dead", nil)
		b.mustQueue("q", perKey(dlq("dead"), tries(1), onDead(event.DeadLetterKey)))
		b.fillKeys("q", "a1")
		for range 3 {
			b.many("q", 1000, key("a"))
		}
		b.wantTake("q", 1, "a1")
		b.want(event.OpRetry, "a1", event.StatusDeadLettered)
		b.wantTells("dead_lettered a1 max_attempts")
		mustEqual(t, b.stats("q").Ready, 0)
		mustEqual(t, b.stats("q").DeadLettered, 3001)
		for range 3 {
			if due, ok := b.m.NextDue(); !ok || due > b.now {
				t.Fatal("the leader is not told to go on")
			}
			b.restart()
			b.tick(0)
			if n := len(b.last().Events); n > duePerEntry {
				t.Fatalf("%d events in an entry", n)
			}
		}
		mustEqual(t, b.stats("dead").Ready, 3001)
		b.quiet()
		b.refold()
	})
	t.Run("one that failed before its partition died takes the new one along", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", perKey(tries(2), onRetry(event.RetryTail), onDead(event.DeadLetterKey)))
		b.fillKeys("q", "a1", "a2", "a3")
		b.wantTake("q", 1, "a1")
		b.want(event.OpRetry, "a1", event.StatusRetried) // waits outside
		b.wantTake("q", 1, "a2")
		b.want(event.OpDeadLetter, "a2", event.StatusDiscarded)
		b.tick(0)
		b.wantTells("discarded a3 key_dead")
		b.fillKeys("q", "a4")
		b.ok(b.remove("a1"))
		b.wantTake("q", 1, "a4")
	})
	t.Run("a dead-letter queue that goes meanwhile", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("dead", nil)
		b.mustQueue("q", perKey(dlq("dead"), tries(1), onDead(event.DeadLetterKey)))
		b.fillKeys("q", "a1", "a2")
		b.wantTake("q", 1, "a1")
		rs := b.do(
			&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpDeadLetter, Lease: b.leases["a1"]}}}},
			&event.Command{DeleteQueue: &event.DeleteQueue{Name: "dead", Force: true}})
		b.ok(rs[1])
		b.tick(0)
		b.wantTells("discarded a2 key_dead, discarded a1 queue_deleted")
	})
}

func TestDeleteMessage(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "ready", "leased")
	b.put("q", msg("scheduled", delay(100)))
	b.wantTake("q", 1, "ready")
	b.want(event.OpRelease, "ready", event.StatusReleased)
	b.take("q", 2)
	b.want(event.OpRelease, "ready", event.StatusReleased)
	for _, m := range []string{"ready", "leased", "scheduled"} { // whatever its state
		b.ok(b.remove(m))
		b.wantTells("discarded " + m + " deleted")
		b.wantProblem(b.remove(m), event.CodeMessageNotFound, "")
	}
	b.want(event.OpAck, "leased", event.StatusRejected)
	mustEqual(t, b.stats("q").Discarded, 3)
}

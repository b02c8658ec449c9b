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

func TestDeadLetterKey(t *testing.T) {
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

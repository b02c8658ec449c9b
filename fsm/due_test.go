package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestManyAtOnce: what is due is bounded per entry, and nobody leases, acks or
// deletes what is over and has not had its turn.
func TestManyAtOnce(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", with(dlq("dead"), func(p *event.Policy) { p.LeaseMS = 1000 }))
	for range 5 {
		b.many("q", 1000, ttl(1000))
	}
	b.fill("q", "fresh")
	b.put("q", msg("over", ttl(1000)))
	b.put("q", msg("held", prio(1)))
	b.wantTake("q", 1, "held")
	b.now += 1000
	b.want(event.OpAck, "held", event.StatusRejected)
	if n := len(b.last().Events); n != duePerEntry+1 { // and the lease, which was touched
		t.Fatalf("%d events in an entry", n)
	}
	b.wantProblem(b.remove("over"), event.CodeMessageNotFound, "")
	mustEqual(t, b.last().Events[duePerEntry].Reason, event.ReasonExpired)
	b.restart()
	b.wantTake("q", 10, "") // all that it looks at, at most 1024, is over
	for range 5 {
		b.tick(0)
		if n := len(b.last().Events); n > duePerEntry {
			t.Fatalf("%d events in an entry", n)
		}
	}
	b.wantTake("q", 10, "fresh")
	b.wantHolds("q", "fresh:leased held:scheduled")
	mustEqual(t, b.stats("dead").Ready, 5001)
	due, _ := b.m.NextDue()
	require.True(t, due > b.now, "nothing is left, and the leader is told to go on")
	b.refold()
}

// TestManyLeasesAtOnce: leases that run out are bounded, too; those that wait
// for it are over all the same.
func TestManyLeasesAtOnce(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.LeaseMS = 1000 })
	var last event.ID
	for range 3 {
		b.many("q", 1000)
		for _, l := range b.lease("q", 1000) {
			last = l.Lease
		}
	}
	b.now += 1000
	r := b.one(&event.Command{Transaction: &event.Transaction{Settle: []event.SettleItem{{Op: event.OpAck, Lease: last}}}})
	b.wantProblem(r, event.CodeLeaseLost, "")
	mustEqual(t, len(b.last().Events), duePerEntry+1)
	for range 2 {
		b.tick(0)
	}
	mustEqual(t, b.stats("q").InFlight, 0)
	mustEqual(t, b.stats("q").Scheduled, 3000)
}

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

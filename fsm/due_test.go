package fsm

import (
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

func age(seconds int64) func(*event.Policy) {
	return func(p *event.Policy) { p.MaxAgeSeconds = seconds }
}

func TestALeaseThatRunsOutIsARetry(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.LeaseMS = 1000 })
	b.fill("q", "a")
	b.wantTake("q", 1, "a")
	b.tick(999)
	b.wantTells("")
	b.now++
	b.want(event.OpAck, "a", event.StatusRejected) // over at its very instant
	b.wantTells("lease_expired a")
	b.wantHolds("q", "a:scheduled")
	b.tick(1000)
	m := b.lease("q", 1)[0]
	mustEqual(t, m.Attempt, 2)
}

func TestMaxAge(t *testing.T) {
	t.Run("to the dead-letter queue, or discarded", func(t *testing.T) {
		for _, to := range []string{"dead", ""} {
			b := setup(t)
			b.mustQueue("dead", nil)
			b.mustQueue("q", with(dlq(to), age(5)))
			b.fill("q", "a")
			b.put("q", msg("b", delay(60_000)))
			b.tick(4999)
			b.wantTells("")
			b.now++
			b.wantTake("q", 5, "")
			if to == "" {
				b.wantTells("discarded a expired, discarded b expired")
			} else {
				b.wantTells("dead_lettered a expired, dead_lettered b expired")
			}
		}
	})
	t.Run("never while leased", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", with(age(5), func(p *event.Policy) { p.LeaseMS = 20_000 }))
		b.fill("q", "a", "b", "c")
		b.wantTake("q", 2, "a b")
		b.tick(10_000)
		b.wantTells("discarded c expired")
		b.want(event.OpAck, "a", event.StatusAcked)
		b.want(event.OpRelease, "b", event.StatusReleased)
		b.restart()
		b.wantTake("q", 1, "") // over as soon as it is not
		b.wantHolds("q", "")
	})
	t.Run("its lease's end in the same entry", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", with(age(5), func(p *event.Policy) { p.LeaseMS = 20_000 }))
		b.fill("q", "a")
		b.wantTake("q", 1, "a")
		b.tick(30_000)
		b.wantTells("lease_expired a, discarded a expired")
	})
	t.Run("counts in a dead-letter queue from the death", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("dead", age(5))
		b.mustQueue("q", dlq("dead"))
		b.put("q", msg("a", ttl(10_000)))
		b.tick(9000)
		b.wantTake("q", 1, "a")
		b.want(event.OpDeadLetter, "a", event.StatusDeadLettered)
		b.tick(4999)
		b.wantTells("") // the ttl does not count there
		b.tick(1)
		b.wantTells("discarded a expired")
	})
	t.Run("set anew", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.fill("q", "a")
		b.tick(10_000)
		b.mustQueue("q", age(60))
		b.fill("q", "b")
		b.mustQueue("q", age(9))
		b.tick(0)
		b.wantTells("discarded a expired")
		b.mustQueue("q", nil)
		b.tick(100_000)
		b.wantHolds("q", "b:ready")
	})
}

func TestTTL(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", age(5))
	b.put("q", msg("a", ttl(100)), msg("b", ttl(60_000)), msg("c", ttl(200), delay(150)))
	b.tick(100)
	b.wantTells("discarded a expired")
	b.tick(50)
	b.wantHolds("q", "b:ready c:ready")
	b.tick(50)
	b.wantTells("discarded c expired")
	b.tick(4800)
	b.wantTells("discarded b expired") // whichever is first
}

func TestDueInOrderOfTimeAndID(t *testing.T) {
	b := setup(t)
	b.mustQueue("p", nil)
	b.mustQueue("q", age(1))
	b.put("p", msg("a", ttl(1000)), msg("b", ttl(500)), msg("c", ttl(1000)))
	b.fill("q", "d")
	b.put("p", msg("l", prio(1)), msg("e", ttl(1000)))
	b.one(&event.Command{Lease: &event.Lease{Queues: []string{"p"}, Max: 1, LeaseMS: 1000}})
	b.restart()
	b.tick(5000)
	b.wantTells("discarded b expired, discarded a expired, discarded c expired, discarded d expired, lease_expired l, discarded e expired")
}

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
	if due <= b.now {
		t.Fatal("nothing is left, and the leader is told to go on")
	}
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

// TestManyWakeAtOnce: more than one entry wakes at most.
func TestManyWakeAtOnce(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	for range 5 {
		b.many("q", 1000, delay(1000))
	}
	b.tick(1000)
	if n := b.stats("q").Ready; n != 4096 {
		t.Fatalf("%d woke", n)
	}
	if due, ok := b.m.NextDue(); !ok || due > b.now {
		t.Fatal("the leader is not told to go on")
	}
	b.restart()
	b.tick(0)
	mustEqual(t, b.stats("q").Ready, 5000)
	b.refold()
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

// TestManyComeBackAtOnce: what failed together comes due together, in one lane;
// each finds its place without a walk past those that came before it.
func TestManyComeBackAtOnce(t *testing.T) {
	const n = 20_000
	m := New(projections.New(), nowhere{}, Options{Known: known})
	p := event.DefaultPolicy()
	p.Ordering, p.OnRetry, p.DedupWindowSeconds, p.LeaseMS = event.FIFO, event.RetryHead, 0, event.MaxLeaseMS
	index := uint64(1)
	apply(t, m, index, &event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: p}})
	var first []event.ID
	for k := range n {
		index++
		apply(t, m, index, &event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{{Priority: 5}}}})
		index++
		r := apply(t, m, index, &event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 1}})
		index++
		apply(t, m, index, &event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpRetry, Lease: r.Leased[0].Lease, DelayMS: 1_000_000}}}})
		if k < 3 {
			first = append(first, r.Leased[0].ID)
		}
	}
	began := time.Now()
	for index += 1_100_000; ; index++ {
		apply(t, m, index, &event.Command{Settle: &event.Settle{}})
		if q, _ := m.Queue("q"); q.Stats.Ready == n {
			break
		}
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("%d messages took %v to come back", n, took)
	}
	m.View(func(s *projections.State) {
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
	})
	for _, want := range first {
		index++
		r := apply(t, m, index, &event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 1}})
		mustEqual(t, r.Leased[0].ID, want)
		index++
		apply(t, m, index, &event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpAck, Lease: r.Leased[0].Lease}}}})
	}
}

package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestSettleTwice(t *testing.T) {
	for _, op := range []event.SettleOp{event.OpAck, event.OpRetry, event.OpDeadLetter, event.OpRelease} {
		b := setup(t)
		b.mustQueue("q", nil)
		b.fill("q", "a")
		b.wantTake("q", 1, "a")
		b.on(op, "a")
		before := b.holds("q")
		s := b.want(op, "a", event.StatusRejected)
		mustEqual(t, s.Code, event.CodeLeaseLost)
		b.wantTells("") // it changes nothing
		b.wantHolds("q", before)
	}
}

func TestSettleEachOnItsOwnInOrder(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.mustQueue("p", nil)
	b.fill("q", "a", "b")
	b.fill("p", "c")
	b.take("q", 2)
	b.take("p", 1)
	r := b.one(&event.Command{Settle: &event.Settle{Queue: "q", Items: []event.SettleItem{
		{Op: event.OpAck, Lease: b.leases["b"]},
		{Op: event.OpAck, Lease: event.NewID(1, 1, 1)},
		{Op: event.OpAck, Lease: b.leases["c"]}, // of another queue
		{Op: event.OpAck, Lease: b.leases["a"]},
		{Op: event.OpAck, Lease: b.leases["a"]},
	}}})
	var got []string
	for _, s := range r.Settled {
		got = append(got, s.Status)
	}
	mustEqual(t, got, []string{"acked", "rejected", "rejected", "acked", "rejected"})
	b.wantHolds("p", "c:leased")
	b.wantProblem(b.one(&event.Command{Settle: &event.Settle{Queue: "none"}}), event.CodeQueueNotFound, "")
}

func TestALeaseThatIsNotTheCurrentOne(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.InitialBackoffMS = 0 })
	b.fill("q", "a")
	b.wantTake("q", 1, "a")
	old := b.leases["a"]
	b.want(event.OpRetry, "a", event.StatusRetried)
	b.wantTake("q", 1, "a")
	for op := event.OpAck; op <= event.OpRelease; op++ {
		mustEqual(t, b.settle(op, old).Code, event.CodeLeaseLost)
		b.wantTells("")
	}
	b.want(event.OpAck, "a", event.StatusAcked)
}

func TestExtend(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.LeaseMS = 1000 })
	b.fill("q", "a")
	b.wantTake("q", 1, "a")
	b.tick(600)
	s := b.want(event.OpExtend, "a", event.StatusExtended)
	mustEqual(t, s.ExpiresAt, b.now+1000) // from now, the policy's
	b.tick(600)
	b.wantHolds("q", "a:leased")
	r := b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpExtend, Lease: b.leases["a"], LeaseMS: 100}}}})
	mustEqual(t, r.Settled[0].ExpiresAt, b.now+100)
	b.tick(100)
	b.wantTells("lease_expired a")
	b.want(event.OpExtend, "a", event.StatusRejected)
}

func TestRetryWaits(t *testing.T) {
	for _, c := range []struct {
		about string
		set   func(*event.Policy)
		want  []int64
	}{
		{"the default", nil, []int64{1000, 2000, 4000, 8000}},
		{"at most max_backoff_ms", func(p *event.Policy) { p.MaxBackoffMS = 2500; p.MaxAttempts = 9 }, []int64{1000, 2000, 2500, 2500, 2500}},
		{"a multiplier of 1.5", func(p *event.Policy) { p.BackoffMultiplier = 1_500_000 }, []int64{1000, 1500, 2250, 3375}},
		{"a multiplier of 1", func(p *event.Policy) { p.BackoffMultiplier = event.Million }, []int64{1000, 1000, 1000, 1000}},
		{"the schedule takes its place, its last value repeats", func(p *event.Policy) { p.BackoffScheduleMS = []int64{5, 0, 700_000}; p.MaxAttempts = 0 }, []int64{5, 0, 700_000, 700_000, 700_000}},
		{"none", func(p *event.Policy) { p.InitialBackoffMS = 0 }, []int64{0, 0, 0}},
		{"the greatest", func(p *event.Policy) {
			p.InitialBackoffMS, p.MaxBackoffMS, p.BackoffMultiplier = event.MaxDelayMS-1, event.MaxDelayMS, 1000*event.Million
		}, []int64{event.MaxDelayMS - 1, event.MaxDelayMS, event.MaxDelayMS}},
	} {
		t.Run(c.about, func(t *testing.T) {
			for _, expiring := range []bool{false, true} { // a lease that runs out waits the same
				b := setup(t)
				b.mustQueue("q", c.set)
				b.fill("q", "a")
				for i, wait := range c.want {
					b.wantTake("q", 1, "a")
					if expiring {
						b.tick(30_000)
						e := b.last().Events[0]
						mustEqual(t, e.Type, event.LeaseExpired)
						mustEqual(t, e.Due-b.now, wait)
					} else {
						s := b.want(event.OpRetry, "a", event.StatusRetried)
						mustEqual(t, s.NextAt-b.now, wait)
						mustEqual(t, b.last().Events[0].Due, s.NextAt) // the computed instant is in the event
					}
					mustEqual(t, b.last().Events[0].Attempt, i+1)
					b.tick(wait)
				}
			}
		})
	}
}

func TestJitterSpreads(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.BackoffJitter = event.Million / 4; p.InitialBackoffMS = 10_000 })
	b.many("q", 500)
	low, high := int64(1<<62), int64(0)
	for _, l := range b.lease("q", 500) {
		s := b.settle(event.OpRetry, l.Lease)
		mustEqual(t, b.last().Events[0].Due, s.NextAt)
		low, high = min(low, s.NextAt-b.now), max(high, s.NextAt-b.now)
	}
	if low < 7500 || high > 12_500 {
		t.Fatalf("from %d to %d", low, high)
	}
	if low > 7700 || high < 12_300 {
		t.Fatalf("500 waits from %d to %d only", low, high)
	}
}

func TestRetryWithADelay(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	b.wantTake("q", 1, "a")
	r := b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpRetry, Lease: b.leases["a"], DelayMS: 7}}}})
	mustEqual(t, r.Settled[0].NextAt, b.now+7)
	b.tick(7)
	b.wantTake("q", 1, "a")
	b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpRetry, Lease: b.leases["a"]}}}})
	b.wantTake("q", 1, "a") // at once
}

func TestTransaction(t *testing.T) {
	start := func(t *testing.T) *bench {
		b := setup(t)
		b.mustQueue("dead", nil)
		b.mustQueue("q", dlq("dead"))
		b.mustQueue("p", func(p *event.Policy) { p.MaxDepth = 2 })
		b.fill("q", "a", "b", "c", "d")
		b.take("q", 4)
		return b
	}
	item := func(b *bench, op event.SettleOp, m string) event.SettleItem {
		return event.SettleItem{Op: op, Lease: b.leases[m], DelayMS: -1}
	}
	t.Run("is one entry over any queues", func(t *testing.T) {
		b := start(t)
		r := b.ok(b.one(&event.Command{Transaction: &event.Transaction{
			Settle:  []event.SettleItem{item(b, event.OpAck, "a"), item(b, event.OpRetry, "b"), item(b, event.OpDeadLetter, "c"), item(b, event.OpExtend, "d")},
			Produce: []event.Produce{{Queue: "p", Messages: []event.NewMessage{msg("x")}}, {Queue: "q", Messages: []event.NewMessage{msg("y")}}},
		}}))
		mustEqual(t, []string{r.Settled[0].Status, r.Settled[1].Status, r.Settled[2].Status, r.Settled[3].Status}, "[acked retried dead_lettered extended]")
		mustEqual(t, len(r.Produced), 2)
		b.wantTells("acked a, retried b, dead_lettered c rejected, lease_extended d, enqueued x, enqueued y")
	})
	t.Run("nothing happens if one lease is lost", func(t *testing.T) {
		b := start(t)
		b.want(event.OpAck, "c", event.StatusAcked)
		r := b.one(&event.Command{Transaction: &event.Transaction{
			Settle:  []event.SettleItem{item(b, event.OpAck, "a"), item(b, event.OpRetry, "b"), item(b, event.OpRetry, "c")},
			Produce: []event.Produce{{Queue: "p", Messages: []event.NewMessage{msg("x")}}},
		}})
		b.wantProblem(r, event.CodeLeaseLost, "")
		mustEqual(t, r.Problem.Field, "retry")
		mustEqual(t, r.Problem.Index, 1)
		b.wantTells("")
	})
	t.Run("nothing happens if a queue is full or missing", func(t *testing.T) {
		b := start(t)
		two := []event.NewMessage{msg("x"), msg("y")}
		for code, produce := range map[string][]event.Produce{
			event.CodeQueueFull:     {{Queue: "p", Messages: two}, {Queue: "p", Messages: two[:1]}},
			event.CodeQueueNotFound: {{Queue: "p", Messages: two}, {Queue: "none", Messages: two}},
		} {
			r := b.one(&event.Command{Transaction: &event.Transaction{Settle: []event.SettleItem{item(b, event.OpAck, "a")}, Produce: produce}})
			b.wantProblem(r, code, "")
			mustEqual(t, r.Problem.Field, "produce")
			mustEqual(t, r.Problem.Index, 1)
			b.wantTells("")
		}
	})
	t.Run("settles a lease once", func(t *testing.T) {
		b := start(t)
		r := b.one(&event.Command{Transaction: &event.Transaction{Settle: []event.SettleItem{item(b, event.OpExtend, "a"), item(b, event.OpAck, "a")}}})
		b.wantProblem(r, event.CodeInvalidArgument, "")
		b.wantTells("")
	})
	t.Run("sees duplicates between its parts", func(t *testing.T) {
		b := start(t)
		one := []event.NewMessage{msg("x", dedup("k"))}
		r := b.ok(b.one(&event.Command{Transaction: &event.Transaction{Produce: []event.Produce{{Queue: "p", Messages: one}, {Queue: "p", Messages: one}}}}))
		mustEqual(t, r.Produced[1], event.Produced{ID: r.Produced[0].ID, Duplicate: true})
	})
}

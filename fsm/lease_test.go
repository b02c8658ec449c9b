package fsm

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
)

func perKey(set ...func(*event.Policy)) func(*event.Policy) {
	return with(append(set, ordering(event.PerKey))...)
}

func onRetry(o event.OnRetry) func(*event.Policy) {
	return func(p *event.Policy) { p.OnRetry = o }
}

func TestUnorderedIsByPriorityThenAvailability(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.put("q", msg("low", prio(10)), msg("n1"), msg("late", delay(10)), msg("critical", prio(1)), msg("later", delay(20), prio(1)))
	b.tick(5)
	b.put("q", msg("n2"))
	b.tick(10)
	b.put("q", msg("n3"))
	b.tick(10)
	b.wantTake("q", 10, "critical later n1 n2 late n3 low") // any number in flight
}

func TestReleasedIsBackAtOnceInItsPlace(t *testing.T) {
	t.Run("unordered", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.fill("q", "a", "b", "c", "d")
		b.wantTake("q", 3, "a b c")
		for _, m := range []string{"b", "c", "a"} {
			b.want(event.OpRelease, m, event.StatusReleased)
		}
		b.wantTake("q", 10, "a b c d")
		m, _ := b.m.Message(b.ids["a"][0])
		mustEqual(t, m.Attempt, 1) // the released one was not counted
	})
	t.Run("those that came due at once, by their due time", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.put("q", msg("second", delay(20)), msg("first", delay(10)))
		b.tick(100)
		b.wantTake("q", 1, "first")
		b.want(event.OpRelease, "first", event.StatusReleased)
		b.wantTake("q", 2, "first second")
	})
	t.Run("a whole batch", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.many("q", 1000)
		first := b.lease("q", 1000)
		var items []event.SettleItem
		for _, l := range first {
			items = append(items, event.SettleItem{Op: event.OpRelease, Lease: l.Lease})
		}
		b.one(&event.Command{Settle: &event.Settle{Items: items}})
		mustEqual(t, ids(b.lease("q", 1000)), ids(first))
	})
	t.Run("fifo and per_key", func(t *testing.T) {
		for _, o := range []event.Ordering{event.FIFO, event.PerKey} {
			b := setup(t)
			b.mustQueue("q", ordering(o))
			b.fillKeys("q", "a1", "a2")
			b.wantTake("q", 10, "a1")
			b.want(event.OpRelease, "a1", event.StatusReleased)
			b.wantTake("q", 10, "a1")
		}
	})
}

func TestFIFOIsOneLane(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", ordering(event.FIFO))
	b.put("q", msg("1", prio(10), key("x")), msg("2", prio(1), key("y")), msg("3"))
	for _, want := range []string{"1", "2", "3"} { // key and priority do not matter for order
		b.wantTake("q", 10, want)
		b.wantTake("q", 10, "") // the next not before it is settled
		b.want(event.OpAck, want, event.StatusAcked)
	}
	mustEqual(t, b.lease("q", 1), []event.LeasedMessage(nil))
}

func TestFIFOKeepsKeys(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", ordering(event.FIFO))
	b.put("q", msg("1", key("x")))
	b.restart()
	mustEqual(t, b.lease("q", 1)[0].Key, "x")
}

func TestPerKeyOneInFlightALane(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", perKey())
	b.fillKeys("q", "a1", "a2", "b1", "a3", "b2")
	b.wantTake("q", 10, "a1 b1")
	b.wantTake("q", 10, "")
	b.want(event.OpAck, "b1", event.StatusAcked)
	b.wantTake("q", 10, "b2")
	b.want(event.OpAck, "a1", event.StatusAcked)
	b.wantTake("q", 10, "a2")
}

func TestRoundRobinAmongEquals(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", perKey())
	b.fillKeys("q", "a1", "a2", "a3", "b1", "b2", "c1")
	var got []string
	for range 6 { // a busy key does not starve the others
		m := b.take("q", 1)
		b.want(event.OpAck, m, event.StatusAcked)
		got = append(got, m)
	}
	mustEqual(t, strings.Join(got, " "), "a1 b1 c1 a2 b2 a3")
}

func TestPriorityRanksHeadsAndNeverOvertakesInAKey(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", perKey())
	b.put("q", msg("a1", key("a"), prio(10)), msg("a2", key("a"), prio(1)), msg("b1", key("b"), prio(5)))
	b.wantTake("q", 1, "b1")
	b.wantTake("q", 1, "a1") // a2 is critical, and behind a1 all the same
	b.put("q", msg("b2", key("b"), prio(5)))
	b.want(event.OpAck, "b1", event.StatusAcked)
	b.want(event.OpAck, "a1", event.StatusAcked)
	b.wantTake("q", 1, "a2")
}

func TestKinds(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.put("q", msg("r1", kindOf("red")), msg("b1", kindOf("blue")), msg("n1"), msg("r2", kindOf("red")), msg("g1", kindOf("green"), prio(1)))
	mustEqual(t, b.take("q", 10, "red"), "r1 r2")
	mustEqual(t, b.take("q", 10, "black"), "")
	mustEqual(t, b.take("q", 10, "blue", "green"), "g1 b1")
	b.wantTake("q", 10, "n1")
	t.Run("only a partition's head counts", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", perKey())
		b.put("q", msg("a1", key("a"), kindOf("red")), msg("a2", key("a"), kindOf("blue")))
		mustEqual(t, b.take("q", 10, "blue"), "")
		mustEqual(t, b.take("q", 10, "red"), "a1")
		b.want(event.OpAck, "a1", event.StatusAcked)
		mustEqual(t, b.take("q", 10, "blue"), "a2")
	})
}

func TestSeveralQueuesInOneCall(t *testing.T) {
	b := setup(t)
	b.mustQueue("p", nil)
	b.mustQueue("q", func(p *event.Policy) { p.LeaseMS = 500; p.MaxAttempts = 9 })
	b.fill("p", "p1")
	b.fill("q", "q1", "q2")
	r := b.ok(b.one(&event.Command{Lease: &event.Lease{Queues: []string{"q", "p"}, Max: 2}}))
	mustEqual(t, len(r.Leased), 2) // tried in their order
	mustEqual(t, b.names[r.Leased[0].ID]+b.names[r.Leased[1].ID], "q1q2")
	mustEqual(t, r.Leased[0].LeaseExpiresAt, epoch+500)
	mustEqual(t, r.Leased[0].MaxAttempts, 9)
	r = b.one(&event.Command{Lease: &event.Lease{Queues: []string{"p", "none"}, Max: 2}})
	b.wantProblem(r, event.CodeQueueNotFound, `queue "none" does not exist`)
	mustEqual(t, r.Problem.Index, 1)
	b.wantHolds("p", "p1:ready")
}

func TestLeaseIDsGrow(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.InitialBackoffMS = 0; p.MaxAttempts = 0 })
	b.fill("q", "a", "b")
	last := event.ID{}
	for range 5 {
		for _, l := range b.lease("q", 10) {
			if l.Lease.Compare(last) <= 0 {
				t.Fatalf("%s after %s", l.Lease, last)
			}
			last = l.Lease
			b.settle(event.OpRetry, l.Lease)
		}
	}
}

func TestDelayInAPartition(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", perKey())
	b.put("q", msg("a1", key("a"), delay(100)))
	b.fillKeys("q", "a2", "a3")
	b.wantTake("q", 10, "a2") // a1 blocks nothing before its time
	b.tick(100)               // and comes behind those that wait then
	b.fillKeys("q", "a4")
	for _, want := range []string{"a2", "a3", "a1", "a4"} {
		if want != "a2" {
			b.wantTake("q", 10, want)
		}
		b.want(event.OpAck, want, event.StatusAcked)
	}
}

func TestOnRetry(t *testing.T) {
	wait := func(p *event.Policy) { p.InitialBackoffMS = 100; p.LeaseMS = 10_000 }
	for _, o := range []event.Ordering{event.FIFO, event.PerKey} {
		t.Run("block waits until its head is due and settled, "+o.String(), func(t *testing.T) {
			b := setup(t)
			b.mustQueue("q", with(ordering(o), wait, onRetry(event.RetryBlock)))
			b.fillKeys("q", "a1", "a2", "a3")
			b.wantTake("q", 10, "a1")
			s := b.want(event.OpRetry, "a1", event.StatusRetried)
			mustEqual(t, s.NextAt, b.now+100)
			b.wantHolds("q", "a1:scheduled a2:held a3:held")
			b.wantTake("q", 10, "")
			b.tick(99)
			b.wantTake("q", 10, "")
			b.tick(1)
			b.wantTake("q", 10, "a1")
			b.want(event.OpAck, "a1", event.StatusAcked)
			b.wantTake("q", 10, "a2")
		})
		t.Run("head goes before those that still wait, "+o.String(), func(t *testing.T) {
			b := setup(t)
			b.mustQueue("q", with(ordering(o), wait, onRetry(event.RetryHead)))
			b.fillKeys("q", "a1", "a2", "a3")
			b.wantTake("q", 10, "a1")
			b.want(event.OpRetry, "a1", event.StatusRetried)
			b.wantTake("q", 10, "a2") // the others go on
			b.tick(100)
			b.wantTake("q", 10, "")
			b.want(event.OpAck, "a2", event.StatusAcked)
			b.wantTake("q", 10, "a1")
			b.want(event.OpAck, "a1", event.StatusAcked)
			b.wantTake("q", 10, "a3")
		})
		t.Run("tail goes behind them, "+o.String(), func(t *testing.T) {
			b := setup(t)
			b.mustQueue("q", with(ordering(o), wait, onRetry(event.RetryTail)))
			b.fillKeys("q", "a1", "a2", "a3")
			b.wantTake("q", 10, "a1")
			b.want(event.OpRetry, "a1", event.StatusRetried)
			b.tick(100)
			b.fillKeys("q", "a4")
			for _, want := range []string{"a2", "a3", "a1", "a4"} {
				b.wantTake("q", 10, want)
				b.want(event.OpAck, want, event.StatusAcked)
			}
		})
	}
	t.Run("two retried heads keep their order, whichever is due first", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", perKey(wait, onRetry(event.RetryHead)))
		b.fillKeys("q", "a1", "a2", "a3")
		for i, m := range []string{"a1", "a2"} {
			b.wantTake("q", 1, m)
			b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpRetry, Lease: b.leases[m], DelayMS: int64(200 - 100*i)}}}})
		}
		b.tick(100)
		b.tick(100)
		for _, want := range []string{"a1", "a2", "a3"} {
			b.wantTake("q", 1, want)
			b.want(event.OpAck, want, event.StatusAcked)
		}
	})
	t.Run("two retried heads keep their order", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", perKey(wait, onRetry(event.RetryHead)))
		b.fillKeys("q", "a1", "a2", "a3")
		b.wantTake("q", 1, "a1")
		b.want(event.OpRetry, "a1", event.StatusRetried)
		b.wantTake("q", 1, "a2")
		b.want(event.OpRetry, "a2", event.StatusRetried)
		b.tick(100)
		b.wantTake("q", 1, "a1")
	})
}

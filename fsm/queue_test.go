package fsm

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
)

// The tests of this folder say the contract's sentences (contract.md sections
// 4, 5, 6, 8) one by one.

func dlq(name string) func(*event.Policy) {
	return func(p *event.Policy) { p.DeadLetterQueue = name }
}

func ordering(o event.Ordering) func(*event.Policy) {
	return func(p *event.Policy) { p.Ordering = o }
}

// with applies several settings.
func with(fs ...func(*event.Policy)) func(*event.Policy) {
	return func(p *event.Policy) {
		for _, f := range fs {
			f(p)
		}
	}
}

func TestQueueIsMadeThenReplaced(t *testing.T) {
	b := setup(t)
	if r := b.queue("q", nil); !r.Created || r.Index != 1 {
		t.Fatalf("%+v", r)
	}
	b.tick(10)
	if r := b.queue("q", func(p *event.Policy) { p.LeaseMS = 500 }); r.Created || r.Problem != nil {
		t.Fatalf("%+v", r)
	}
	q := b.q("q")
	mustEqual(t, q.Policy.LeaseMS, 500)
	mustEqual(t, q.Revision, 3)
	mustEqual(t, q.UpdatedAt-q.CreatedAt, 10)
	b.mustQueue("q", func(p *event.Policy) { p.LeaseMS = 500 })
	b.wantTells("") // the same policy again is no event
	mustEqual(t, b.q("q").Revision, 3)
}

func TestPolicyRefusals(t *testing.T) {
	const bad = event.CodeInvalidArgument
	for _, c := range []struct {
		about  string
		name   string
		set    func(*event.Policy)
		detail string
	}{
		{"a dead-letter queue that is not there", "q", dlq("x"), "dead_letter_queue 'x' does not exist; create it first"},
		{"itself", "q", dlq("q"), "dead_letter_queue cannot reference itself"},
		{"one that has one", "q", dlq("work"), "dead_letter_queue 'work' cannot have its own dead_letter_queue"},
		{"one for a queue that serves as one", "dead", dlq("other"), "queue 'dead' is a dead_letter_queue and cannot have its own dead_letter_queue"},
		{"hold_key without one", "q", with(ordering(event.PerKey), func(p *event.Policy) { p.OnDead = event.DeadHoldKey }), "delivery.on_dead hold_key needs a dead_letter_queue"},
		{"a lease too short", "q", func(p *event.Policy) { p.LeaseMS = 99 }, "delivery.lease_ms must be from 100 to 43200000"},
		{"a lease too long", "q", func(p *event.Policy) { p.LeaseMS = event.MaxLeaseMS + 1 }, "delivery.lease_ms must be from 100 to 43200000"},
		{"a negative depth", "q", func(p *event.Policy) { p.MaxDepth = -1 }, "retention.max_depth must be from 0 to 9007199254740992"},
		{"a negative size", "q", func(p *event.Policy) { p.MaxBytes = -1 }, "retention.max_bytes must be from 0 to 9007199254740992"},
		{"a negative age", "q", func(p *event.Policy) { p.MaxAgeSeconds = -1 }, "retention.max_age_seconds must be from 0 to 315360000"},
		{"a negative window", "q", func(p *event.Policy) { p.DedupWindowSeconds = -1 }, "deduplication.window_seconds must be from 0 to 315360000"},
		{"a negative backoff", "q", func(p *event.Policy) { p.InitialBackoffMS = -1 }, "delivery.initial_backoff_ms must be from 0 to 315360000000"},
		{"a negative top", "q", func(p *event.Policy) { p.MaxBackoffMS = -1 }, "delivery.max_backoff_ms must be from 0 to 315360000000"},
		{"a shrinking backoff", "q", func(p *event.Policy) { p.BackoffMultiplier = event.Million - 1 }, "delivery.backoff_multiplier must be from 1 to 1000"},
		{"a jitter over 1", "q", func(p *event.Policy) { p.BackoffJitter = event.Million + 1 }, "delivery.backoff_jitter must be from 0 to 1"},
		{"a negative step", "q", func(p *event.Policy) { p.BackoffScheduleMS = []int64{1, -1} }, "delivery.backoff_schedule_ms[1] must be from 0 to 315360000000"},
		{"too many steps", "q", func(p *event.Policy) { p.BackoffScheduleMS = make([]int64, 101) }, "delivery.backoff_schedule_ms must have at most 100 values"},
		{"a name that can't be", "q", dlq("a/b"), "delivery.dead_letter_queue must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
	} {
		t.Run(c.about, func(t *testing.T) {
			b := setup(t)
			b.mustQueue("dead", nil)
			b.mustQueue("other", nil)
			b.mustQueue("work", dlq("dead"))
			r := b.queue(c.name, c.set)
			b.wantProblem(r, bad, c.detail)
			b.wantTells("")
		})
	}
}

func TestAutoDeadLetterQueue(t *testing.T) {
	auto := func(b *bench, name string) event.Result {
		p := event.DefaultPolicy()
		p.Namespace = "team"
		return b.one(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p, DeadLetterAuto: true}})
	}
	t.Run("makes <name>.dlq", func(t *testing.T) {
		b := setup(t)
		b.ok(auto(b, "q"))
		b.wantTells("queue_created, queue_created")
		mustEqual(t, b.q("q").Policy.DeadLetterQueue, "q.dlq")
		mustEqual(t, b.q("q.dlq").Policy.Namespace, "team")
	})
	t.Run("uses one that is there", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q.dlq", nil)
		b.ok(auto(b, "q"))
		b.wantTells("queue_created")
	})
	t.Run("refuses one that has its own", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("d", nil)
		b.mustQueue("q.dlq", dlq("d"))
		b.wantProblem(auto(b, "q"), event.CodeInvalidArgument, "dead_letter_queue 'q.dlq' cannot have its own dead_letter_queue")
	})
	t.Run("refuses a name that gets too long", func(t *testing.T) {
		b := setup(t)
		b.wantProblem(auto(b, strings.Repeat("q", 126)), event.CodeInvalidArgument, "")
	})
}

func TestOrderingCantChangeWhileItHoldsMessages(t *testing.T) {
	for _, state := range []string{"ready", "scheduled", "leased"} {
		t.Run(state, func(t *testing.T) {
			b := setup(t)
			b.mustQueue("q", nil)
			switch state {
			case "scheduled":
				b.put("q", msg("a", delay(1000)))
			case "leased":
				b.fill("q", "a")
				b.wantTake("q", 1, "a")
			default:
				b.fill("q", "a")
			}
			b.wantProblem(b.queue("q", ordering(event.FIFO)), event.CodeConflict, "ordering can't change while the queue holds messages")
			b.ok(b.remove("a"))
			b.mustQueue("q", ordering(event.FIFO))
			b.fill("q", "b", "c")
			b.wantTake("q", 5, "b")
		})
	}
	t.Run("what is purged is not held", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.fill("q", "a")
		rs := b.do(
			&event.Command{PurgeQueue: &event.PurgeQueue{Name: "q"}},
			&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: event.Policy{Ordering: event.PerKey, LeaseMS: 100, BackoffMultiplier: event.Million}}},
		)
		b.ok(rs[1])
	})
}

func TestMergeAgainstAnOlderRevision(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	r := b.one(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: event.DefaultPolicy(), IfRevision: 7}})
	b.wantProblem(r, event.CodeStaleRevision, "")
	r = b.one(&event.Command{PutQueue: &event.PutQueue{Name: "none", Policy: event.DefaultPolicy(), IfRevision: 1}})
	b.wantProblem(r, event.CodeStaleRevision, "")
}

func TestDeleteQueue(t *testing.T) {
	t.Run("an empty one", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.ok(b.drop("q", false))
		if _, ok := b.m.Queue("q"); ok {
			t.Fatal("it is still there")
		}
		b.wantProblem(b.drop("q", false), event.CodeQueueNotFound, `queue "q" does not exist`)
	})
	t.Run("one that holds messages needs force", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.fill("q", "a")
		b.wantProblem(b.drop("q", false), event.CodeQueueInUse, `queue "q" holds 1 messages; force=true deletes it with them`)
		b.ok(b.drop("q", true))
		b.tick(0)
		b.wantTells("discarded a queue_deleted")
	})
	t.Run("one that another names needs force, which unnames it", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("dead", nil)
		b.mustQueue("q", with(dlq("dead"), ordering(event.PerKey), func(p *event.Policy) { p.OnDead = event.DeadHoldKey }))
		b.wantProblem(b.drop("dead", false), event.CodeQueueInUse, `queue "dead" is the dead_letter_queue of 1 others; force=true deletes it all the same`)
		b.ok(b.drop("dead", true))
		b.wantTells("queue_updated, queue_deleted")
		mustEqual(t, b.q("q").Policy.DeadLetterQueue, "")
		mustEqual(t, b.q("q").Policy.OnDead, event.DeadSkip)
	})
	t.Run("a new one of the name starts afresh", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.put("q", msg("a", dedup("d")))
		b.ok(b.drop("q", true))
		b.mustQueue("q", nil)
		mustEqual(t, b.stats("q"), event.Stats{})
		if r := b.produce("q", msg("a", dedup("d"))); r.Produced[0].Duplicate {
			t.Fatal("the deleted queue's messages are remembered")
		}
	})
	t.Run("is at once, for leases too, and carried out in bounded entries", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		for range 3 {
			b.many("q", 1000)
		}
		b.put("q", msg("mine", prio(1)))
		b.wantTake("q", 1, "mine")
		b.ok(b.drop("q", true))
		if n := len(b.last().Events); n != 1 {
			t.Fatalf("%d events", n)
		}
		b.want(event.OpAck, "mine", event.StatusRejected) // its entry carries out the first 1024
		mustEqual(t, len(b.last().Events), duePerEntry)
		b.mustQueue("q", nil)
		mustEqual(t, b.stats("q").Ready, 0)
		b.quiet()
		n := 0
		for _, e := range b.log.events() {
			if e.Reason == event.ReasonQueueDeleted {
				n++
			}
		}
		mustEqual(t, n, 3001)
		b.refold()
	})
}

func TestPause(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a", "b")
	b.wantTake("q", 1, "a")
	b.pause("q", true)
	b.wantTells("queue_paused")
	b.wantTake("q", 1, "") // leases stop
	b.fill("q", "c")       // produce goes on
	b.want(event.OpAck, "a", event.StatusAcked)
	b.pause("q", true)
	b.wantTells("") // it was
	mustEqual(t, b.m.Leasable("q", nil), 0)
	b.pause("q", false)
	b.wantTells("queue_resumed")
	b.wantTake("q", 5, "b c")
	b.wantProblem(b.one(&event.Command{PauseQueue: &event.PauseQueue{Name: "x"}}), event.CodeQueueNotFound, "")
}

func TestPurge(t *testing.T) {
	t.Run("all but leased messages", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", ordering(event.PerKey))
		b.fillKeys("q", "a1", "a2", "b1")
		b.put("q", msg("later", delay(1000)))
		b.wantTake("q", 1, "a1")
		mustEqual(t, b.purge("q"), 3)
		b.wantTells("queue_purged")
		b.wantHolds("q", "a1:leased") // at once
		b.fillKeys("q", "a3")
		b.wantHolds("q", "a1:leased a3:held") // the survivor keeps its partition
		b.want(event.OpRetry, "a1", event.StatusRetried)
		b.tick(1000)
		b.wantTake("q", 5, "a1")
		b.want(event.OpAck, "a1", event.StatusAcked)
		b.wantTake("q", 5, "a3")
		mustEqual(t, b.stats("q").Discarded, 3)
	})
	t.Run("in bounded entries", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.many("q", 1000)
		b.many("q", 1000)
		b.put("q", msg("mine", prio(1)))
		b.wantTake("q", 1, "mine")
		mustEqual(t, b.purge("q"), 2000)
		mustEqual(t, len(b.last().Events), 1)
		b.wantTake("q", 10, "")
		b.fill("q", "new")
		b.wantHolds("q", "mine:leased new:ready")
		b.restart()
		mustEqual(t, b.purge("q"), 1) // "new"; the rest is purged already
		b.quiet()
		b.want(event.OpAck, "mine", event.StatusRejected) // the lease ran out meanwhile
		mustEqual(t, b.stats("q").Discarded, 2001)
		b.refold()
	})
	t.Run("of nothing", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		mustEqual(t, b.purge("q"), 0)
		b.wantTells("")
	})
}

func TestStats(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", ordering(event.PerKey))
	b.fillKeys("q", "a1", "a2", "b1", "b2")
	b.put("q", msg("c1", key("c"), delay(500)))
	b.tick(100)
	b.wantTake("q", 1, "a1")
	// depth is all that is ready, held ones included: a2 and b2 wait behind others.
	mustEqual(t, b.stats("q"), event.Stats{Ready: 3, Held: 2, Scheduled: 1, InFlight: 1, Bytes: 10, Oldest: epoch, Partitions: 3, Enqueued: 5})
	b.want(event.OpAck, "a1", event.StatusAcked)
	mustEqual(t, b.stats("q"), event.Stats{Ready: 3, Held: 1, Scheduled: 1, Bytes: 8, Oldest: epoch, Partitions: 3, Enqueued: 5, Acked: 1})
}

// many enqueues n equal messages.
func (b *bench) many(queue string, n int, set ...func(*event.NewMessage)) {
	b.t.Helper()
	ms := make([]event.NewMessage, n)
	for i := range ms {
		ms[i] = msg("x", set...)
	}
	b.put(queue, ms...)
}

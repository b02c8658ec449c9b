package fsm

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
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
	t.Run("refuses a name that gets too long", func(t *testing.T) {
		b := setup(t)
		b.wantProblem(auto(b, strings.Repeat("q", 126)), event.CodeInvalidArgument, "")
	})
}

func TestDeleteQueue(t *testing.T) {
	t.Run("is at once, for leases too, and carried out in bounded entries", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		for range 3 {
			b.many("q", 1000)
		}
		b.put("q", msg("mine", prio(1)))
		b.wantTake("q", 1, "mine")
		b.ok(b.drop("q", true))
		require.Equal(t, len(b.last().Events), 1, "events")
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

func TestPurge(t *testing.T) {
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

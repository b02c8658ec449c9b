package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func def(name string, set ...func(*event.Policy)) event.PutQueue {
	p := event.DefaultPolicy()
	with(set...)(&p)
	return event.PutQueue{Name: name, Policy: p}
}

func auto(q event.PutQueue) event.PutQueue { q.DeadLetterAuto = true; return q }

func (b *bench) define(queues []event.PutQueue, hooks ...*event.PutWebhook) event.Result {
	b.t.Helper()
	c := &event.Define{Queues: queues}
	for _, h := range hooks {
		c.Webhooks = append(c.Webhooks, *h)
	}
	return b.one(&event.Command{Define: c})
}

// TestDefineAllOrNone: one that is refused says which, and nothing is done.
func TestDefineAllOrNone(t *testing.T) {
	good := def("good")
	for _, c := range []struct {
		about         string
		queues        []event.PutQueue
		hooks         []*event.PutWebhook
		field, detail string
	}{
		{"a policy", []event.PutQueue{good, def("x", func(p *event.Policy) { p.LeaseMS = 1 })}, nil, "queues[1].delivery.lease_ms", "delivery.lease_ms must be from 100 to 43200000"},
		{"a name", []event.PutQueue{good, def("a/b")}, nil, "queues[1].name", "name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
		{"twice", []event.PutQueue{good, good}, nil, "queues[1].name", "name 'good' is given twice"},
		{"no dead-letter queue", []event.PutQueue{good, def("x", dlq("none"))}, nil, "queues[1].delivery.dead_letter_queue", "dead_letter_queue 'none' does not exist; create it first"},
		{"a chain", []event.PutQueue{def("x", dlq("y")), def("y", dlq("good")), good}, nil, "queues[0].delivery.dead_letter_queue", "dead_letter_queue 'y' cannot have its own dead_letter_queue"},
		{"a chain that begins outside", []event.PutQueue{good, def("dead", dlq("good"))}, nil, "queues[1].delivery.dead_letter_queue", "queue 'dead' is a dead_letter_queue and cannot have its own dead_letter_queue"},
		{"a chain that ends outside", []event.PutQueue{good, def("x", dlq("held"))}, nil, "queues[1].delivery.dead_letter_queue", "dead_letter_queue 'held' cannot have its own dead_letter_queue"},
		{"an automatic one that has its own", []event.PutQueue{good, auto(def("x")), def("x.dlq", dlq("good"))}, nil, "queues[1].delivery.dead_letter_queue", "dead_letter_queue 'x.dlq' cannot have its own dead_letter_queue"},
		{"an ordering", []event.PutQueue{good, def("held", ordering(event.FIFO), dlq("dead"))}, nil, "queues[1].ordering", "ordering can't change while the queue holds messages"},
		{"a webhook's name", []event.PutQueue{good}, []*event.PutWebhook{hook("a", "good", "{}"), hook("", "good", "{}")}, "webhooks[1].name", "name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
		{"a webhook twice", []event.PutQueue{good}, []*event.PutWebhook{hook("a", "good", "{}"), hook("a", "", "{}")}, "webhooks[1].name", "name 'a' is given twice"},
		{"a webhook's queue", []event.PutQueue{good}, []*event.PutWebhook{hook("a", "good", "{}"), hook("b", "x", "{}")}, "webhooks[1].queue", "queue 'x' does not exist; create it first"},
	} {
		t.Run(c.about, func(t *testing.T) {
			b := setup(t)
			b.ok(b.define([]event.PutQueue{def("held", dlq("dead")), def("dead")}))
			b.fill("held", "m")
			r := b.define(c.queues, c.hooks...)
			code := event.CodeInvalidArgument
			if c.about == "an ordering" {
				code = event.CodeConflict
			}
			b.wantProblem(r, code, c.detail)
			mustEqual(t, r.Problem.Field, c.field)
			b.wantTells("")
		})
	}
	t.Run("a revision", func(t *testing.T) {
		b := setup(t)
		b.mustQueue("q", nil)
		b.ok(b.upgrade(3))
		q := def("q")
		q.IfRevision = 7
		b.wantProblem(b.define([]event.PutQueue{good, q}), event.CodeStaleRevision, "merged with revision 7 of the policy, now it is 1")
		b.wantTells("")
	})
}

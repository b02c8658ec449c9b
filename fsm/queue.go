package fsm

import (
	"bytes"

	"github.com/qlogd/qlogd/internal/event"
)

// putQueue makes a queue or replaces its policy.
func (d *decision) putQueue(c *event.PutQueue) event.Result {
	policy := c.Policy.Clone()
	was, exists := d.s.Look(c.Name)
	if c.IfRevision != 0 && (!exists || was.Revision != c.IfRevision) {
		return problem(stale("merged with revision %d of the policy, now it is %d", c.IfRevision, was.Revision))
	}
	if c.DeadLetterAuto {
		policy.DeadLetterQueue = c.Name + ".dlq"
	}
	if p := policy.Validate(c.Name); p != nil {
		return problem(p)
	}
	makeDLQ, p := d.checkDeadLetterQueue(c, policy.DeadLetterQueue)
	if p != nil {
		return problem(p)
	}
	if exists && was.Policy.Ordering != policy.Ordering && was.Stats.Ready+was.Stats.Scheduled+was.Stats.InFlight > 0 {
		return problem(event.Problemf(event.CodeConflict, "ordering", "ordering can't change while the queue holds messages"))
	}
	if makeDLQ {
		dlq := event.DefaultPolicy()
		dlq.Namespace = policy.Namespace
		dlq.MaxAttempts = 0 // whoever looks into it five times must not empty it
		d.createQueue(policy.DeadLetterQueue, &dlq)
	}
	switch {
	case !exists:
		d.createQueue(c.Name, &policy)
	case !samePolicy(&was.Policy, &policy):
		d.emit(event.Event{Type: event.QueueUpdated, Queue: c.Name, Policy: &policy})
	}
	return event.Result{Created: !exists}
}

func samePolicy(a, b *event.Policy) bool {
	return bytes.Equal(event.EncodePolicy(a), event.EncodePolicy(b))
}

func (d *decision) createQueue(name string, p *event.Policy) {
	d.emit(event.Event{Type: event.QueueCreated, Queue: name, Policy: p, Number: d.s.NextNumber()})
}

// checkDeadLetterQueue checks what can only be said looking at other queues.
func (d *decision) checkDeadLetterQueue(c *event.PutQueue, dlq string) (create bool, p *event.Problem) {
	const field = "delivery.dead_letter_queue"
	if dlq == "" {
		return false, nil
	}
	if d.s.UsedBy(c.Name) > 0 {
		return false, event.Problemf(event.CodeInvalidArgument, field, "queue '%s' is a dead_letter_queue and cannot have its own dead_letter_queue", c.Name)
	}
	target, ok := d.s.Look(dlq)
	switch {
	case !ok && c.DeadLetterAuto:
		return true, nil
	case !ok:
		return false, event.Problemf(event.CodeInvalidArgument, field, "dead_letter_queue '%s' does not exist; create it first", dlq)
	case target.Policy.DeadLetterQueue != "":
		return false, event.Problemf(event.CodeInvalidArgument, field, "dead_letter_queue '%s' cannot have its own dead_letter_queue", dlq)
	}
	return false, nil
}

// deleteQueue deletes a queue: only an empty one that nobody needs, or by
// force.
func (d *decision) deleteQueue(c *event.DeleteQueue) event.Result {
	q, ok := d.s.Look(c.Name)
	if !ok {
		return problem(queueNotFound(c.Name, "queue"))
	}
	held := q.Stats.Ready + q.Stats.Scheduled + q.Stats.InFlight
	if !c.Force {
		if n := d.s.UsedBy(c.Name); n > 0 {
			return problem(event.Problemf(event.CodeQueueInUse, "queue", "queue %q is the dead_letter_queue of %d others; force=true deletes it all the same", c.Name, n))
		}
		if held > 0 {
			return problem(event.Problemf(event.CodeQueueInUse, "queue", "queue %q holds %d messages; force=true deletes it with them", c.Name, held))
		}
	}
	if d.s.UsedBy(c.Name) > 0 {
		d.unname(c.Name)
	}
	d.emit(event.Event{Type: event.QueueDeleted, Queue: c.Name, Count: held})
	return event.Result{Count: held}
}

// unname takes a dead-letter queue that goes by force out of the policies that
// name it, so that none names a queue that is not there.
func (d *decision) unname(dlq string) {
	for _, q := range d.s.Queues() {
		if q.Policy.DeadLetterQueue != dlq {
			continue
		}
		p := q.Policy.Clone()
		p.DeadLetterQueue = ""
		if p.OnDead == event.DeadHoldKey { // needs one
			p.OnDead = event.DeadSkip
		}
		d.emit(event.Event{Type: event.QueueUpdated, Queue: q.Name, Policy: &p})
	}
}

func (d *decision) pauseQueue(c *event.PauseQueue) event.Result {
	q, ok := d.s.Look(c.Name)
	if !ok {
		return problem(queueNotFound(c.Name, "queue"))
	}
	if q.Paused != c.Paused {
		e := event.Event{Type: event.QueueResumed, Queue: c.Name}
		if c.Paused {
			e.Type = event.QueuePaused
		}
		d.emit(e)
	}
	return event.Result{}
}

// purgeQueue discards all but leased messages.
func (d *decision) purgeQueue(c *event.PurgeQueue) event.Result {
	q, ok := d.s.Look(c.Name)
	if !ok {
		return problem(queueNotFound(c.Name, "queue"))
	}
	n := q.Stats.Ready + q.Stats.Scheduled
	if n > 0 {
		d.emit(event.Event{Type: event.QueuePurged, Queue: c.Name, Count: n})
	}
	return event.Result{Count: n}
}

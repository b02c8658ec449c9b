package fsm

import (
	"bytes"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// putQueue creates a queue or replaces its policy.
func (d *decision) putQueue(c *event.PutQueue) event.Result {
	exists := d.hasQueue(c.Name)
	plan, _, p := d.planQueues([]event.PutQueue{*c})
	if p != nil {
		return problem(p)
	}
	d.setQueues(plan)
	return event.Result{Created: !exists}
}

// checkQueue completes the policy that a queue would have, and returns what is wrong with it,
// without regard to other queues.
func (d *decision) checkQueue(c *event.PutQueue) *event.Problem {
	c.Policy = c.Policy.Clone()
	was, exists := d.s.Look(c.Name)
	if c.IfRevision != 0 && (!exists || was.Revision != c.IfRevision) {
		return stale("merged with revision %d of the policy, now it is %d", c.IfRevision,
			was.Revision)
	}
	if c.DeadLetterAuto {
		c.Policy.DeadLetterQueue = event.AutoDeadLetterQueue(c.Name)
	}
	return c.Policy.Validate(c.Name)
}

// checkFixed rejects changes of policy fields that determine how a queue's messages are stored.
func (d *decision) checkFixed(name string, p *event.Policy) *event.Problem {
	q, ok := d.s.Look(name)
	if !ok || q.Stats.Messages() == 0 {
		return nil
	}
	if field := q.Policy.Fixed(p); field != "" {
		return conflict(field, "%s can't change while the queue holds messages", field)
	}
	return nil
}

// autoDLQ is the policy of the dead-letter queue that is created with a queue.
func autoDLQ(of *event.Policy) event.Policy {
	dlq := event.DefaultPolicy()
	dlq.Namespace = of.Namespace
	dlq.MaxAttempts = 0 // leasing from it five times must not empty it
	return dlq
}

// setQueue creates a queue or replaces its policy, and reports whether that changed
// anything.
func (d *decision) setQueue(name string, policy *event.Policy) bool {
	was := d.s.Policy(name)
	switch {
	case was == nil:
		d.createQueue(name, policy)
	case !samePolicy(was, policy):
		d.emit(event.Event{Type: event.QueueUpdated, Queue: name, Policy: policy})
	default:
		return false
	}
	return true
}

func samePolicy(a, b *event.Policy) bool {
	return bytes.Equal(event.EncodePolicy(a), event.EncodePolicy(b))
}

func (d *decision) createQueue(name string, p *event.Policy) {
	d.emit(event.Event{Type: event.QueueCreated, Queue: name, Policy: p, Number: d.s.NextNumber()})
}

// checkDeadLetters checks a queue's dead-letter queue: users is how many queues name the
// queue itself as theirs, target the policy of the one that it names, nil if there is
// none.
func checkDeadLetters(name, dlq string, users int, target *event.Policy) *event.Problem {
	const field = "delivery.dead_letter_queue"
	switch {
	case users > 0:
		return invalid(field,
			"queue '%s' is a dead_letter_queue and cannot have its own dead_letter_queue", name)
	case target == nil:
		return invalid(field, "dead_letter_queue '%s' does not exist; create it first", dlq)
	case target.DeadLetterQueue != "":
		return invalid(field, "dead_letter_queue '%s' cannot have its own dead_letter_queue", dlq)
	}
	return nil
}

// deleteQueue deletes a queue: an empty one that nothing refers to, or any by force.
// Webhooks that name it stay, and work again once a queue of this name exists.
func (d *decision) deleteQueue(c *event.DeleteQueue) event.Result {
	q, ok := d.s.Look(c.Name)
	if !ok {
		return problem(queueNotFound(c.Name, "queue"))
	}
	held := q.Stats.Messages()
	users := d.s.Users(c.Name)[c.Name]
	hook, fed := d.fedBy(c.Name)
	inUse := func(format string, args ...any) event.Result {
		return problem(event.Problemf(event.CodeQueueInUse, "queue", format, args...))
	}
	switch {
	case c.Force:
	case users > 0:
		return inUse("queue %q is the dead_letter_queue of %s; force=true deletes it all the same",
			c.Name, event.Plural(int64(users), "other queue", "other queues"))
	case fed:
		return inUse("queue %q gets the messages of webhook %q; force=true deletes it all the same",
			c.Name, hook)
	case held > 0:
		return inUse("queue %q holds %s; force=true deletes it with them",
			c.Name, event.Plural(held, "message", "messages"))
	}
	if users > 0 {
		d.unname(c.Name)
	}
	d.emit(event.Event{Type: event.QueueDeleted, Queue: c.Name, Count: held, Content: d.why})
	return event.Result{Count: held}
}

// unname removes a dead-letter queue that is deleted by force from the policies that refer
// to it.
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

// pauseQueue pauses or resumes a queue or a key, unless it is paused or resumed already.
func (d *decision) pauseQueue(c *event.PauseQueue) event.Result {
	q, ok := d.s.Look(c.Name)
	if !ok {
		return problem(queueNotFound(c.Name, "queue"))
	}
	paused := q.Paused
	if c.Key != "" {
		_, paused = slices.BinarySearch(q.PausedKeys, c.Key)
	}
	switch {
	case c.Key != "" && q.Policy.Ordering == event.FIFO:
		return problem(invalid("key", "key must be omitted: the keys of a fifo queue can't be paused"))
	case paused == c.Paused:
		return event.Result{}
	case c.Key != "" && c.Paused && len(q.PausedKeys) >= event.MaxPausedKeys:
		return problem(conflict("key", "queue %q has %d paused keys already", c.Name,
			event.MaxPausedKeys))
	}
	e := event.Event{Type: event.QueueResumed, Queue: c.Name, Key: c.Key, Content: d.why}
	if c.Paused {
		e.Type = event.QueuePaused
	}
	d.emit(e)
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
		d.emit(event.Event{Type: event.QueuePurged, Queue: c.Name, Count: n, Content: d.why})
	}
	return event.Result{Count: n}
}

package fsm

import (
	"cmp"

	"github.com/qlogd/qlogd/event"
)

// resurrect enqueues a message that has left its queue again. The proposing node reads
// from the log that it has left and what it was; here it is checked that it is not back
// already.
func (d *decision) resurrect(c *event.Resurrect) event.Result {
	q, ok := d.s.Look(c.Queue)
	if !ok {
		return problem(queueNotFound(c.Queue, "queue"))
	}
	if p := cmp.Or(schemaChanged(&q, c.Revision), checkPriority(c.Priority)); p != nil {
		return problem(p)
	}
	d.endOverdue(c.ID)
	if m, ok := d.s.Message(c.ID); ok {
		p := conflict("id", "message %s is %s in queue %q: "+
			"only one that has left its queue can be resurrected", c.ID, m.State, m.Queue)
		// its event is pending
		if m.State == event.StateDiscarded || m.State == event.StateDeadLettered {
			p.RetryAfterMS = retryFullMS
		}
		return problem(p)
	}
	if now, ok := d.s.Raised(c.ID); ok {
		return problem(conflict("id", "message %s was resurrected and is in a queue as %s", c.ID,
			now))
	}
	q, _ = d.s.Look(c.Queue)
	if p := room(&q, &q.Policy, load{1, int64(c.Size)}); p != nil {
		return problem(p)
	}
	return event.Result{ID: d.emit(event.Event{
		Type: event.Resurrected, Subject: c.ID, Prev: c.Last, Queue: c.Queue, ToQueue: c.Queue,
		Key: c.Key, Kind: c.Kind, Priority: c.Priority,
		Size: c.Size, First: cmp.Or(c.First, c.ID), Count: int64(c.Replays), Edited: c.Edited, Content: c.Content,
	})}
}

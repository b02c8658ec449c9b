package fsm

import "github.com/qlogd/qlogd/event"

// resurrect enqueues a message again that has left its queue. That it has, and
// what it was, is read from the log by who proposes it; that it is not back
// already is looked at here.
func (d *decision) resurrect(c *event.Resurrect) event.Result {
	q, ok := d.s.Look(c.Queue)
	switch {
	case !ok:
		return problem(queueNotFound(c.Queue, "queue"))
	case c.Revision != q.Revision && len(q.Policy.MessageSchema) > 0:
		return problem(stale("checked against revision %d of the policy, now it is %d", c.Revision, q.Revision))
	case c.Priority < event.MinPriority || c.Priority > event.MaxPriority:
		return problem(event.Problemf(event.CodeInvalidArgument, "priority", "priority must be from %d to %d", event.MinPriority, event.MaxPriority))
	}
	d.endOverdue(c.ID)
	if m, ok := d.s.Message(c.ID); ok {
		p := event.Problemf(event.CodeConflict, "id", "message %s is %s in queue %q: only one that has left its queue can be resurrected", c.ID, m.State, m.Queue)
		if m.State == event.StateDiscarded || m.State == event.StateDeadLettered { // decided, and carried out in a moment
			p.RetryAfterMS = retryFullMS
		}
		return problem(p)
	}
	if now, ok := d.s.Raised(c.ID); ok {
		return problem(event.Problemf(event.CodeConflict, "id", "message %s was resurrected and is in a queue as %s", c.ID, now))
	}
	q, _ = d.s.Look(c.Queue)
	if p := room(&q, &q.Policy, load{1, int64(c.Size)}); p != nil {
		return problem(p)
	}
	first := c.First
	if first == (event.ID{}) {
		first = c.ID
	}
	return event.Result{ID: d.emit(event.Event{
		Type: event.Resurrected, Subject: c.ID, Prev: c.Last, Queue: c.Queue, ToQueue: c.Queue, Key: c.Key, Kind: c.Kind, Priority: c.Priority,
		Size: c.Size, First: first, Count: int64(c.Replays), Edited: c.Edited, Content: c.Content,
	})}
}

package fsm

import "github.com/qlogd/qlogd/internal/event"

// deleteMessage takes a message out, whatever its state.
func (d *decision) deleteMessage(c *event.DeleteMessage) event.Result {
	m, ok := d.s.Message(c.ID)
	if !ok || (m.State != event.StateReady && m.State != event.StateScheduled && m.State != event.StateLeased) {
		return problem(event.Problemf(event.CodeMessageNotFound, "id", "message %s is not in a queue", c.ID))
	}
	d.emit(event.Event{
		Type: event.Discarded, Subject: m.ID, Prev: m.Last, Queue: m.Queue, Lease: m.Lease, Attempt: m.Attempt,
		Reason: event.ReasonDeleted,
	})
	return event.Result{}
}

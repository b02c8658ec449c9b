package fsm

import "github.com/qlogd/qlogd/event"

// deleteMessage takes a message out, whatever its state.
func (d *decision) deleteMessage(c *event.DeleteMessage) event.Result {
	gone := problem(event.Problemf(event.CodeMessageNotFound, "id", "message %s is not in a queue", c.ID))
	m, ok := d.s.Message(c.ID)
	if !ok || (m.State != event.StateReady && m.State != event.StateScheduled && m.State != event.StateLeased) {
		return gone
	}
	// What is over by its time ends as it must, before anyone takes it out.
	switch {
	case d.s.Expired(&m):
		d.die(&m, event.ReasonExpired, event.ID{}, event.Blob{})
		return gone
	case m.State == event.StateLeased && m.LeaseExpiresAt <= d.s.Clock():
		d.expireLease(&m)
		if m, ok = d.s.Message(c.ID); !ok {
			return gone
		}
	}
	d.emit(event.Event{
		Type: event.Discarded, Subject: m.ID, Prev: m.Last, Queue: m.Queue, Lease: m.Lease, Attempt: m.Attempt,
		Reason: event.ReasonDeleted,
	})
	return event.Result{}
}

package fsm

import "github.com/qlogd/qlogd/event"

// deleteMessage discards a message, whatever its state.
func (d *decision) deleteMessage(c *event.DeleteMessage) event.Result {
	gone := problem(event.Problemf(event.CodeMessageNotFound, "id", "message %s is not in a queue",
		c.ID))
	d.endOverdue(c.ID)
	m, ok := d.s.Message(c.ID)
	if !ok || !m.State.Live() {
		return gone
	}
	e := about(event.Discarded, &m)
	e.Lease, e.Reason, e.Content = m.Lease, event.ReasonDeleted, d.why
	d.emit(e)
	return event.Result{}
}

package fsm

import (
	"cmp"

	"github.com/qlogd/qlogd/event"
)

// deleteMessage discards a message, whatever its state.
func (d *decision) deleteMessage(c *event.DeleteMessage) event.Result {
	m, ok := d.live(c.ID)
	if !ok {
		return messageGone(c.ID)
	}
	e := about(event.Discarded, &m)
	e.Lease, e.Reason, e.Content = m.Lease, event.ReasonDeleted, d.why
	d.emit(e)
	return event.Result{}
}

// reschedule changes the time or the priority of a waiting message, or both.
func (d *decision) reschedule(c *event.Reschedule) event.Result {
	m, ok := d.live(c.ID)
	switch {
	case !ok:
		return messageGone(c.ID)
	case m.State == event.StateLeased:
		return problem(event.Problemf(event.CodeConflict, "id", "message %s is leased", c.ID))
	}
	e := about(event.Rescheduled, &m)
	e.Priority = cmp.Or(c.Priority, m.Priority)
	switch {
	case c.At != 0:
		e.Due = max(c.At, d.s.Clock())
	case c.DelayMS >= 0:
		e.Due = d.s.Clock() + c.DelayMS
	case e.Priority == m.Priority:
		return event.Result{} // as it is
	}
	d.emit(e)
	return event.Result{}
}

// live returns a message that is in a queue, after applying what is overdue for it.
func (d *decision) live(id event.ID) (event.MessageView, bool) {
	d.endOverdue(id)
	m, ok := d.s.Message(id)
	return m, ok && m.State.Live()
}

func messageGone(id event.ID) event.Result {
	return problem(event.Problemf(event.CodeMessageNotFound, "id", "message %s is not in a queue", id))
}

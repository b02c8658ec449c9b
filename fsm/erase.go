package fsm

import "github.com/qlogd/qlogd/event"

// erase records that the contents of messages must be overwritten on every node, and
// discards the live ones. It skips messages that left their queue or came back since the
// command was prepared, and deleted ones whose event is pending: they have events that
// the command does not name, and the task searches again.
func (d *decision) erase(c *event.Erase) event.Result {
	if len(c.Items) > event.MaxBatch {
		return problem(invalid("items", "items must be at most %d", event.MaxBatch))
	}
	// All its erasures must be in events before it is sealed: nodes then carry those out.
	if t, ok := d.s.Task(c.Task); !ok || t.Kind != event.TaskErase ||
		t.Status != event.TaskRunning || t.Sealed {
		return problem(conflict("task", "task %s is no erasure that runs and is not sealed",
			c.Task))
	}
	for i := range c.Items {
		d.endOverdue(c.Items[i].ID)
	}
	n := int64(0)
	seen := map[event.ID]bool{}
	d.expect(2 * len(c.Items))
	for i := range c.Items {
		it := &c.Items[i]
		m, there := d.s.Message(it.ID)
		live := there && m.State.Live()
		if seen[it.ID] || there && !live || !there && (it.Last.IsZero() || d.goneOn(it)) {
			continue
		}
		seen[it.ID] = true
		e := event.Event{Type: event.Erased, Subject: it.ID, Prev: it.Last, Task: c.Task,
			Refs: it.Refs, Content: c.Why}
		if live {
			gone := about(event.Discarded, &m)
			gone.Lease, gone.Reason, gone.Task = m.Lease, event.ReasonDeleted, c.Task
			e.Queue, e.Prev = m.Queue, event.RefOf(d.emit(gone))
		}
		d.emit(e)
		n++
	}
	return event.Result{Count: n}
}

// goneOn reports whether a message that had left came back since the command was
// prepared: it has an event after the newest one in the command.
func (d *decision) goneOn(it *event.EraseItem) bool {
	now, ok := d.s.Raised(it.ID)
	return ok && event.RefOf(now).Compare(it.Last) > 0
}

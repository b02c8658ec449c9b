package fsm

import "github.com/qlogd/qlogd/event"

// erase emits, of messages, that what users wrote in them must be overwritten, on
// every node, and discards those that are live. One that left its queue since it
// was looked at is passed over, and so is one that was brought back since, or was
// decided to be gone and is still to be carried out: they have events that the
// command does not know, and the task looks again.
func (d *decision) erase(c *event.Erase) event.Result {
	if len(c.Items) > event.MaxBatch {
		return problem(invalid("items", "items must be at most %d", event.MaxBatch))
	}
	// All that it erases must be in events before it is sealed: nodes carry out what
	// events said by then.
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

// goneOn reports whether a message that had left was brought back since it was
// looked at: behind its newest event there is another one.
func (d *decision) goneOn(it *event.EraseItem) bool {
	now, ok := d.s.Raised(it.ID)
	return ok && event.RefOf(now).Compare(it.Last) > 0
}

package fsm

import "github.com/qlogd/qlogd/event"

// carry rewrites the contents of live messages, so that the segments that hold them can
// be deleted. Messages that moved or left meanwhile are skipped.
func (d *decision) carry(c *event.Carry) event.Result {
	var n int64
	for i := range c.Items {
		it := &c.Items[i]
		m, ok := d.s.Message(it.ID)
		if !ok || m.Content != it.From {
			continue
		}
		d.emit(event.Event{Type: event.ContentCarried, Subject: m.ID, Prev: m.Last, Queue: m.Queue,
			Content: it.Content})
		n++
	}
	return event.Result{Count: n}
}

// retain deletes history below an index, never history that a live message needs.
func (d *decision) retain(c *event.Retain) event.Result {
	if needed := d.s.Needed(); c.Before > needed {
		return problem(conflict("before", "a live message needs history from index %d on, not %d",
			needed, c.Before))
	}
	if c.Before > d.s.History() {
		d.emit(event.Event{Type: event.HistoryDeleted, Before: c.Before})
	}
	return event.Result{}
}

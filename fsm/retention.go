package fsm

import "github.com/qlogd/qlogd/event"

// carry rewrites the contents and labels of live messages, so that the segments that hold them can
// be deleted. Messages that moved, left or changed hands meanwhile are skipped.
func (d *decision) carry(c *event.Carry) event.Result {
	var n int64
	for i := range c.Items {
		it := &c.Items[i]
		m, ok := d.s.Message(it.ID)
		labels := !it.First.IsZero()
		if !ok || m.Content != it.From || labels && m.Lease != it.Lease {
			continue
		}
		e := event.Event{Type: event.ContentCarried, Subject: m.ID, Prev: m.Last, Queue: m.Queue,
			Content: it.Content}
		if labels {
			e.Key, e.Kind, e.Priority, e.Size, e.SourceID = m.Key, m.Kind, m.Priority, m.Size, m.SourceID
			e.CorrelationID, e.DedupKey = it.CorrelationID, it.DedupKey
			e.First, e.Count, e.Worker = it.First, int64(it.Replays), it.Worker
		}
		d.emit(e)
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

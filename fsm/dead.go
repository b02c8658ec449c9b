package fsm

import "github.com/qlogd/qlogd/event"

// purgeDead discards dead messages.
func (d *decision) purgeDead(c *event.PurgeDead) event.Result {
	if !d.runs(c.Task) {
		return event.Result{Moved: skipped(c.IDs, func(id *event.ID) event.ID { return *id },
			event.SkipTask)}
	}
	for _, id := range c.IDs {
		d.endOverdue(id)
	}
	out := make([]event.Moved, len(c.IDs))
	var take []event.MessageView
	found := deadFinder{d: d, queue: c.Queue, strict: c.Strict}
	for i, id := range c.IDs {
		m, code, p := found.find(id, i)
		if p != nil {
			return problem(p)
		}
		out[i] = event.Moved{ID: id, Code: code}
		if code == "" {
			take = append(take, m)
		}
	}
	d.expect(len(take))
	for i := range take {
		e := about(event.Discarded, &take[i])
		e.Reason, e.DiedIn, e.Task = event.ReasonPurged, c.Queue, c.Task
		d.emit(e)
	}
	return event.Result{Moved: out, Count: int64(len(take))}
}

// endOverdue expires a message whose time is over, or its lease, before a command handles
// it. Others may follow it (dead_letter_key), so a command does it for all its messages
// first.
func (d *decision) endOverdue(id event.ID) {
	m, ok := d.s.Message(id)
	switch {
	case !ok || !m.State.Live():
	case d.s.Expired(&m):
		d.die(&m, event.ReasonExpired, event.ID{}, event.Blob{})
	case m.State == event.StateLeased && m.LeaseExpiresAt <= d.s.Clock():
		d.expireLease(&m)
	}
}

// deadFinder finds the dead messages that a command names.
type deadFinder struct {
	d      *decision
	queue  string // in which they must have died
	strict bool   // a missing one is a problem
	seen   map[event.ID]bool
}

// find returns a dead message, or why it is passed over.
func (c *deadFinder) find(id event.ID, i int) (m event.MessageView, code string, p *event.Problem) {
	if c.seen[id] {
		if c.strict {
			return m, "", invalid("message_ids", "message %s is named twice", id).At(i)
		}
		return m, event.SkipGone, nil
	}
	if c.seen == nil {
		c.seen = map[event.ID]bool{}
	}
	c.seen[id] = true
	m, ok := c.d.s.Message(id)
	ok = ok && m.Dead != nil && m.Dead.Queue == c.queue && m.State.Live()
	switch {
	case !ok && c.strict:
		return m, "", event.Problemf(event.CodeMessageNotFound, "message_ids",
			"message %s is not dead in queue %q", id, c.queue).At(i)
	case !ok:
		return m, event.SkipGone, nil
	case m.State == event.StateLeased:
		return m, event.SkipLeased, nil
	}
	return m, "", nil
}

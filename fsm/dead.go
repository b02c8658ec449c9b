package fsm

import "github.com/qlogd/qlogd/event"

// purgeDead discards dead messages.
func (d *decision) purgeDead(c *event.PurgeDead) event.Result {
	take, out, p := d.deadLetters(c.IDs, c.Queue, c.Strict, 0, c.Task)
	if p != nil {
		return problem(p)
	}
	d.expect(len(take))
	for i := range take {
		e := about(event.Discarded, &take[i].MessageView)
		e.Reason, e.DiedIn, e.Task, e.Content = event.ReasonPurged, c.Queue, c.Task, d.why
		d.emit(e)
	}
	return event.Result{Moved: out, Count: int64(len(take))}
}

// endOverdue expires a message or its lease, if overdue, before a command handles it. Other
// messages may die with it (dead_letter_key), so a command calls it for all its messages
// first.
func (d *decision) endOverdue(id event.ID) {
	m, ok := d.s.Message(id)
	switch {
	case !ok || !m.State.Live():
	case d.s.Expired(&m):
		d.die(&m, event.ReasonExpired, event.ID{}, event.Blob{})
	case m.State == event.StateLeased:
		d.holder(m.Lease)
	}
}

// deadLetter is a dead message that a command moves, and its position in the command.
type deadLetter struct {
	event.MessageView
	at int
}

// deadLetters finds the messages that a command names among those that died in a queue. A message
// that is not to be moved gets the reason why in its answer: it is not dead there (with strict,
// that refuses the command), is leased, or was replayed at least most times (0: no limit). All are
// skipped if the command's task does not run any more.
func (d *decision) deadLetters(
	ids []event.ID, queue string, strict bool, most uint32, task event.ID,
) (take []deadLetter, out []event.Moved, p *event.Problem) {
	runs := d.runs(task)
	for _, id := range ids {
		if runs {
			d.endOverdue(id)
		}
	}
	out = make([]event.Moved, len(ids))
	seen := make(map[event.ID]bool, len(ids))
	for i, id := range ids {
		m, ok := d.s.Message(id)
		gone := !ok || !m.DiedIn(queue) || seen[id]
		switch {
		case !runs:
			out[i].Code = event.SkipTask
		case strict && seen[id]:
			p = invalid("message_ids", "message %s is named twice", id)
			return nil, nil, p.At(i)
		case strict && gone:
			p = event.Problemf(event.CodeMessageNotFound, "message_ids",
				"message %s is not dead in queue %q", id, queue)
			return nil, nil, p.At(i)
		case gone:
			out[i].Code = event.SkipGone
		case m.State == event.StateLeased:
			out[i].Code = event.SkipLeased
		case most > 0 && m.Dead.ReplayCount >= most:
			out[i].Code = event.SkipMaxReplays
		default:
			take = append(take, deadLetter{m, i})
		}
		out[i].ID, seen[id] = id, true
	}
	return take, out, nil
}

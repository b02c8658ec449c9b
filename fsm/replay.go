package fsm

import (
	"cmp"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// replay moves dead messages into a queue, each in one event. If the queue has no room
// for all of them, none moves; single ones that cannot be moved are skipped.
func (d *decision) replay(c *event.Replay) event.Result {
	if c.Order > event.OrderHead {
		return problem(invalid("order", "order must be original, append or head"))
	}
	to, field := c.To, "to"
	if to == "" {
		to, field = c.Queue, "queue"
	}
	q, ok := d.s.Look(to)
	if !ok {
		return problem(queueNotFound(to, field))
	}
	if p := schemaChanged(&q, c.Revision); p != nil {
		return problem(p)
	}
	ids := make([]event.ID, len(c.Items))
	for i := range c.Items {
		ids[i] = c.Items[i].ID
	}
	take, out, p := d.deadLetters(ids, c.Queue, c.Strict, c.MaxReplays, c.Task)
	if p != nil {
		return problem(p)
	}
	var add load
	for i := range take {
		m, it := &take[i], &c.Items[take[i].at]
		add.bytes += int64(m.Size)
		if it.Edited {
			add.bytes += int64(it.Size) - int64(m.Size)
		}
		if m.Queue == to {
			add.bytes -= int64(m.Size)
		} else {
			add.count++
		}
	}
	q, _ = d.s.Look(to) // expired messages may have been moved there
	if p := room(&q, &q.Policy, add); p != nil {
		return problem(p)
	}
	order := c.Order.In(q.Policy.Ordering)
	if order != event.OrderAppend {
		// The result is the same in any order; in this one each place is found at once.
		slices.SortFunc(take, func(a, b deadLetter) int {
			return cmp.Or(a.Dead.First.Compare(b.Dead.First), a.ID.Compare(b.ID))
		})
	}
	d.expect(len(take))
	for i := range take {
		m := &take[i]
		e := event.Event{
			Type: event.Replayed, Subject: m.ID, Prev: m.Last, Queue: m.Queue, ToQueue: to,
			DiedIn: c.Queue, Order: order, Task: c.Task, Content: d.why,
		}
		if it := &c.Items[m.at]; it.Edited {
			e.Edited, e.Size, e.Content = true, it.Size, it.Content
		}
		out[m.at].To = d.emit(e)
	}
	return event.Result{Moved: out, Count: int64(len(take))}
}

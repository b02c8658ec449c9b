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
	if !d.runs(c.Task) {
		return event.Result{Moved: skipped(c.Items,
			func(it *event.ReplayItem) event.ID { return it.ID }, event.SkipTask)}
	}

	for i := range c.Items {
		d.endOverdue(c.Items[i].ID)
	}
	type deadLetter struct {
		event.MessageView
		item int
	}
	out := make([]event.Moved, len(c.Items))
	var take []deadLetter
	var add load
	seen := deadFinder{d: d, queue: c.Queue, strict: c.Strict}
	for i := range c.Items {
		it := &c.Items[i]
		out[i].ID = it.ID
		m, code, p := seen.find(it.ID, i)
		if p != nil {
			return problem(p)
		}
		if code == "" && c.MaxReplays > 0 && m.Dead.ReplayCount >= c.MaxReplays {
			code = event.SkipMaxReplays
		}
		if out[i].Code = code; code != "" {
			continue
		}
		size := m.Size
		if it.Edited {
			size = it.Size
		}
		add.bytes += int64(size)
		if m.Queue != to {
			add.count++
		} else {
			add.bytes -= int64(m.Size)
		}
		take = append(take, deadLetter{m, i})
	}
	q, _ = d.s.Look(to) // expired messages may have been moved there
	if p := room(&q, &q.Policy, add); p != nil {
		return problem(p)
	}
	order := c.Order
	switch {
	case order != event.OrderDefault:
	case q.Policy.Ordering == event.Unordered:
		order = event.OrderAppend
	default:
		order = event.OrderOriginal
	}
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
			DiedIn: c.Queue, Order: order, Task: c.Task,
		}
		if it := &c.Items[m.item]; it.Edited {
			e.Edited, e.Size, e.Content = true, it.Size, it.Content
		}
		out[m.item].To = d.emit(e)
	}
	return event.Result{Moved: out, Count: int64(len(take))}
}

// skipped answers items that are all skipped.
func skipped[T any](items []T, id func(*T) event.ID, code string) []event.Moved {
	out := make([]event.Moved, len(items))
	for i := range items {
		out[i] = event.Moved{ID: id(&items[i]), Code: code}
	}
	return out
}

package fsm

import (
	"cmp"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// replay moves dead messages back to work, each in one event. Where the target
// has no room for them nothing moves; what can't be moved for its own sake is
// passed over.
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
	q, _ = d.s.Look(to) // what was over by its time may have gone there
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
		// The places are the same in any order; in this one each is found at once.
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

// skipped answers items of which none is looked at.
func skipped[T any](items []T, id func(*T) event.ID, code string) []event.Moved {
	out := make([]event.Moved, len(items))
	for i := range items {
		out[i] = event.Moved{ID: id(&items[i]), Code: code}
	}
	return out
}

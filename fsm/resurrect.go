package fsm

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// resurrect enqueues messages again that have left their queues. The proposing node reads
// their contents from the log, and checks that they have left and were not resurrected or
// erased up to Looked; here it is checked that neither has happened since.
func (d *decision) resurrect(c *event.Resurrect) event.Result {
	if c.Order > event.OrderAppend {
		return problem(invalid("order", "order must be original or append"))
	}
	q, ok := d.s.Look(c.To)
	if !ok {
		return problem(queueNotFound(c.To, "queue"))
	}
	if p := schemaChanged(&q, c.Revision); p != nil {
		return problem(p)
	}
	if floor := max(d.s.RaisedFloor(), d.s.DedupFloor()); c.Looked < floor {
		return problem(stale("the log was read up to index %d, it must be to %d", c.Looked, floor))
	}
	runs := d.runs(c.Task)
	for i := range c.Items {
		if runs {
			d.endOverdue(c.Items[i].ID)
		}
	}
	out := make([]event.Moved, len(c.Items))
	var add load
	seen, taken := map[event.ID]bool{}, map[event.Hash]bool{}
	for i := range c.Items {
		it := &c.Items[i]
		out[i] = event.Moved{ID: it.ID, Code: it.Skip}
		switch {
		case !runs:
			out[i].Code = event.SkipTask
		case seen[it.ID]:
			out[i].Code = event.SkipResurrected
		}
		seen[it.ID] = true
		if out[i].Code != "" {
			continue
		}
		if p := d.canRise(it); p != nil {
			return problem(p)
		}
		if now, ok := d.s.Duplicate(it.Alias); ok && now != it.Holder || taken[it.Alias] {
			if c.Strict {
				return problem(conflict("id",
					"another message has taken the idempotency_key or source_id of message %s", it.ID))
			}
			out[i].Code = event.SkipKeyTaken
			continue
		}
		taken[it.Alias] = !it.Alias.IsZero()
		add.count++
		add.bytes += int64(it.Size)
	}
	q, _ = d.s.Look(c.To) // expired messages may have been moved there
	if p := room(&q, &q.Policy, add); p != nil {
		return problem(p)
	}
	order := c.Order.In(q.Policy.Ordering)
	turns := make([]int, 0, add.count)
	for i := range out {
		if out[i].Code == "" {
			turns = append(turns, i)
		}
	}
	if order == event.OrderOriginal { // as in a replay
		slices.SortStableFunc(turns, func(a, b int) int {
			return c.Items[a].First.Compare(c.Items[b].First)
		})
	}
	d.expect(len(turns))
	for _, i := range turns {
		it := &c.Items[i]
		e := event.Event{
			Type: event.Resurrected, Subject: it.ID, Prev: it.Last, Queue: c.To, ToQueue: c.To,
			Key: it.Key, Kind: it.Kind, SourceID: it.SourceID, Priority: it.Priority, Order: order,
			CorrelationID: it.CorrelationID, Size: it.Size, First: it.First,
			Count: int64(it.Replays), Edited: it.Edited,
			Task: c.Task, Content: it.Content,
		}
		until := q.Policy.DedupEnd(it.SourceID != "", d.s.Clock())
		if !it.Alias.IsZero() && until > 0 {
			e.Alias, e.Until = it.Alias, until
		}
		out[i].To = d.emit(e)
	}
	return event.Result{Moved: out, Count: int64(len(turns))}
}

// canRise rejects a message that is still in a queue, or was resurrected since the log was read.
func (d *decision) canRise(it *event.ResurrectItem) *event.Problem {
	if p := checkPriority(it.Priority); p != nil {
		return p
	}
	if m, ok := d.s.Message(it.ID); ok {
		p := conflict("id", "message %s is %s in queue %q: "+
			"only one that has left its queue can be resurrected", it.ID, m.State, m.Queue)
		// its event is pending
		if m.State == event.StateDiscarded || m.State == event.StateDeadLettered {
			p.RetryAfterMS = retryFullMS
		}
		return p
	}
	if now, ok := d.s.Raised(it.ID); ok {
		return stale("message %s was resurrected as %s since the log was read", it.ID, now)
	}
	return nil
}

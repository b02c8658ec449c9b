package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/background/undo"
	"github.com/qlogd/qlogd/event"
)

// undoAll is the request that selects all acked messages, for error texts.
const undoAll = `{"filter": {"state": "acked", "from": "start"}}`

// undoer returns a finder of the messages that left a queue.
func (s *Server) undoer() undo.Finder {
	return undo.Finder{Log: s.deps.Log, State: s.deps.State, Item: s.undoItem}
}

// undoItem returns a message's item of an undo: see undo.Finder.
func (s *Server) undoItem(
	ctx context.Context, id event.ID, last event.Ref, target *event.QueueView,
) (item event.ResurrectItem, content event.Ref, err error) {
	l, err := s.born(ctx, id)
	if err == nil && target != nil {
		err = s.setPriority(ctx, l, last)
	}
	if err != nil {
		return item, content, err
	}
	if l.payload != nil {
		content = event.RefOf(l.payload.ID)
	}
	item, err = s.departed(ctx, l, nil, target)
	if p, ok := err.(*event.Problem); ok {
		skip := cmp.Or(item.Skip, p.Code)
		item, err = event.ResurrectItem{ID: id, First: item.First, Skip: skip}, nil
	}
	if err == nil && item.Skip == "" && !item.Alias.IsZero() && s.deps.State.DedupFloor() > 0 {
		err = s.lookForHolder(ctx, &item, target)
	}
	return item, content, err
}

// lookForHolder searches the log for another message that has taken the deduplication hash.
func (s *Server) lookForHolder(
	ctx context.Context, item *event.ResurrectItem, target *event.QueueView,
) error {
	from, err := s.since(target.Policy.DedupEnd(item.SourceID != "", 0))
	if err != nil {
		return err
	}
	took, _, err := s.holder(ctx, item.Alias, from)
	if err != nil || took == nil || took.Until <= s.clock(s.deps.State) {
		return err
	}
	if err = s.ownHolder(ctx, item, took.ID); took.ID != item.Holder {
		item.Skip = event.SkipKeyTaken
	}
	return err
}

// born returns a life from only the event that brought a message into its queue if that suffices,
// or else from its whole history. The priority may have changed since: see setPriority.
func (s *Server) born(ctx context.Context, id event.ID) (*life, error) {
	e, err := s.deps.Log.Event(event.RefOf(id))
	switch {
	case err == nil && e.ID == id && (e.Type == event.Enqueued || e.Type == event.Resurrected):
		return lifeOf([]event.Event{*e}, id), nil
	case err != nil && !gone(err) && !notFound(err):
		return nil, err
	}
	history, err := s.deps.Log.History(ctx, id)
	return cmp.Or(lifeOf(history, id), &life{id: id, first: id}), err
}

// setPriority sets a message's final priority, if it was rescheduled. It walks back from the event
// with which the message left: a history would search the indexes.
func (s *Server) setPriority(ctx context.Context, l *life, last event.Ref) error {
	for ref := last; !ref.IsZero() && ref != event.RefOf(l.id); {
		e, err := s.deps.Log.Event(ref)
		switch {
		case gone(err) || notFound(err) || err == nil && e.Subject != l.id:
			return nil
		case err != nil:
			return err
		case e.Type == event.Rescheduled:
			l.priority = e.Priority
			return nil
		}
		ref = e.Prev
	}
	return ctx.Err()
}

// undo answers POST /v1/queues/{queue}/resurrect: it brings back messages that left a queue, at
// once or by a task.
func (s *Server) undo(q *request) error {
	var body wire.UndoRequest
	queue := q.read("reason").queue()
	q.body(&body)
	q.because(body.Reason)
	q.barrier()
	spec := q.undoSpec(&body)
	spec.To = cmp.Or(body.To, queue)
	field := "queue"
	if body.To != "" {
		field = "to"
		q.do(func() error { return validName("to", body.To) })
	}
	f := s.undoer()
	search := func() (found *undo.Search, target event.QueueView, err error) {
		target, ok := s.deps.State.Queue(spec.To)
		if !ok {
			p := queueNotFound(spec.To)
			p.Field = field
			return nil, target, p
		}
		q.clearReadDeadline()
		if err := s.deleted(q.Context(), queue); err != nil {
			return nil, target, err
		}
		found, err = f.Search(q.Context(), queue, spec, event.ID{})
		return found, target, err
	}
	if body.DryRun {
		out := get(q, func() (*wire.Undone, error) {
			found, target, err := search()
			if err != nil {
				return nil, err
			}
			return found.Count(q.Context(), &target)
		})
		if out != nil {
			out.DryRun = true
		}
		return q.answer(http.StatusOK, out)
	}
	lost := false
	res := q.commitFresh(field, "the queue's policy", func() (*event.Command, error) {
		found, target, err := search()
		if err != nil {
			return nil, err
		}
		if lost = found.Lost(); found.Matched() == 0 && !q.keyed() {
			return nil, nil
		}
		c, err := found.Command(q.Context(), &target)
		if err != nil {
			return nil, err
		}
		if c == nil || spec.Rate > 0 && found.Matched() > spec.Rate {
			return task.Create(event.TaskUndo, queue, found.Matched(), spec)
		}
		return &event.Command{Resurrect: c}, nil
	})
	if q.err == nil && !res.ID.IsZero() {
		return q.accepted(res.ID)
	}
	out := f.Undone(spec, lost)
	for _, m := range res.Moved {
		undo.Add(out, m.Code)
	}
	return q.answer(http.StatusOK, out)
}

// deleted waits for the events of the messages that a purge has deleted, which follow in the next
// entries.
func (s *Server) deleted(ctx context.Context, queue string) error {
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		head := s.deps.Log.Head() // before the state is read
		if !s.deps.State.Deleting(queue) {
			return nil
		}
		if s.deps.Log.Wait(waiting, head) != nil {
			p := event.Problemf(event.CodeConflict, "queue",
				"messages of queue %s are still being deleted", queue)
			p.RetryAfterMS = 1000
			return cmp.Or(ctx.Err(), error(p))
		}
	}
}

// undoSpec validates an undo request.
func (q *request) undoSpec(body *wire.UndoRequest) *undo.Spec {
	spec := &undo.Spec{Rate: body.RatePerSecond}
	in := cmp.Or(body.Filter, &wire.UndoFilter{})
	if *in == (wire.UndoFilter{}) {
		q.refuse("filter", "filter is needed, with state and from; all that was ever acked is %s",
			undoAll)
		return spec
	}
	f := &spec.Filter
	f.Worker, f.Key, f.Kind = in.Worker, in.Key, in.Kind
	f.Discarded = in.State == event.StateDiscarded.String()
	var known bool
	f.Reason, known = event.Parse[event.Reason](in.Reason)
	switch {
	case !f.Discarded && in.State != event.StateAcked.String():
		q.refuse("filter.state", "filter.state must be acked or discarded, not %s", echo(in.State))
	case in.From == "":
		q.refuse("filter.from", "filter.from is needed: since when; all that was ever acked is %s",
			undoAll)
	case in.Worker != nil && f.Discarded:
		q.refuse("filter.worker", "filter.worker goes with state acked")
	case in.Reason != "" && !f.Discarded:
		q.refuse("filter.reason", "filter.reason goes with state discarded")
	case !known:
		q.refuse("filter.reason", "filter.reason must be purged, deleted, expired, queue_deleted, "+
			"max_attempts, rejected or key_dead, not %s", echo(in.Reason))
	}
	q.do(func() error {
		return cmp.Or(within("filter.worker", deref(in.Worker), event.MaxKeyBytes),
			within("filter.key", deref(in.Key), event.MaxKeyBytes),
			within("filter.kind", deref(in.Kind), maxKind))
	})
	from := q.optionalInstant("filter.from", in.From)
	to := q.optionalInstant("filter.to", in.To)
	f.From = get(q, func() (uint64, error) {
		index, err := q.s.deps.Log.From(from)
		if from.Kind == event.InstantStart || err != nil && gone(err) {
			return 0, nil // from the beginning of history
		}
		return index, err
	})
	if in.To != "" {
		f.To = get(q, func() (uint64, error) {
			index, err := q.s.deps.Log.To(to)
			if err != nil && gone(err) {
				err = nil // all of it has been deleted
			}
			times := from.Kind == event.InstantTime && to.Kind == event.InstantTime
			if index+1 < f.From || times && to.Time < from.Time {
				err = bad("filter.to", "filter.to is before filter.from")
			}
			return max(index, 1), err // 0 is no bound, and entry 1 has no message
		})
	}
	var ok bool
	if spec.Order, ok = event.Parse[event.Order](body.Order); !ok || spec.Order > event.OrderAppend {
		q.refuse("order", "order must be original or append, not %s", echo(body.Order))
	}
	if r := body.RatePerSecond; r < 0 || r > maxRate {
		q.refuse("rate_per_second", "rate_per_second must be from 0 (no limit) to %d, not %d",
			maxRate, r)
	}
	return spec
}

package api

import (
	"cmp"
	"context"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// messageHistory answers GET /v1/messages/{id}/history, through dead-letter queues and replays.
func (s *Server) messageHistory(q *request) error {
	history, l := q.pathHistory()
	out := wire.History{Events: eventsOf(q.visible(history))}
	if q.err == nil {
		out.HistoryBeginsAt = s.historyBegins(event.RefOf(l.first).Index)
	}
	return q.answer(http.StatusOK, &out)
}

// pathHistory returns the history of the message in the path, and its life, if the token may read
// it.
func (q *request) pathHistory() (history []event.Event, l *life) {
	q.read("at", "consistency")
	id, st := q.pathID("id"), q.state()
	q.do(func() (err error) {
		history, err = q.s.deps.Log.History(q.Context(), id)
		history = upTo(st, history)
		if l = lifeOf(history, id); err == nil && l == nil {
			err = q.noMessage(id)
		} else if err == nil {
			err = q.mayRead(id, l.queue())
		}
		return err
	})
	if q.err != nil {
		return nil, nil
	}
	return history, l
}

// life is the history of one message id.
type life struct {
	id       event.ID
	born     *event.Event // how it came into its queue
	last     *event.Event // the newest that set its state
	payload  *event.Event // where its payload is
	set      *event.Event // where its key and kind were set
	priority uint8
	attempts uint32
	moved    *event.Event   // the newest move to a successor id
	again    []*event.Event // its resurrections, oldest first
	newest   event.ID       // its newest event
	first    event.ID       // the id under which it was first enqueued
	replays  int64          // up to this id
}

// lifeOf extracts one message id from a history that follows moves back and forth; nil if it is not
// there. It includes events of the message's earlier ids, but not of their other successors.
func lifeOf(history []event.Event, id event.ID) *life {
	l := &life{id: id, first: id}
	at := map[event.ID]*event.Event{}
	for i := range history {
		at[history[i].ID] = &history[i]
	}
	line := map[event.ID]bool{id: true} // the ids that it had
	for e := at[id]; e != nil && e.IsMove(); e = at[e.Subject] {
		if e.Type == event.Resurrected {
			// The event has everything, even if the history before it has been deleted.
			l.first = e.First
			break
		}
		line[e.Subject] = true
		l.first = e.Subject
	}
	for i := range history {
		e := &history[i]
		// The events that brought the message into a queue, under this id or an earlier one, set these.
		if line[e.ID] && (e.Type == event.Enqueued || e.IsMove()) {
			switch {
			case e.Type == event.Enqueued, e.Type == event.Resurrected:
				l.payload, l.set, l.priority, l.replays = e, e, e.Priority, e.Count
			case e.Type == event.Replayed:
				if l.replays++; e.Edited {
					l.payload = e
				}
			}
			if e.ID == id {
				l.born = e
			}
		}
		switch {
		case !line[e.Subject]:
		case e.Type == event.ContentCarried:
			if l.payload = e; e.HasLabels() {
				l.first, l.priority, l.replays = e.First, e.Priority, e.Count
			}
			if l.set == nil && e.HasLabels() { // what it was made by is gone
				l.set = e
			}
		case e.Type == event.Rescheduled:
			l.priority = e.Priority
		}
		if e.Subject != id {
			continue
		}
		l.newest = e.ID
		switch e.Type {
		case event.Leased:
			l.attempts = e.Attempt
		case event.Resurrected:
			l.again = append(l.again, e)
		}
		if e.IsMove() {
			l.moved = e
		}
		// These follow after the message has left, or only move its content: its state is unchanged.
		keeps := e.Type == event.Resurrected || e.Type == event.Erased ||
			e.Type == event.ContentCarried || e.Type == event.Rescheduled && e.Due == 0
		if l.last == nil || !keeps {
			l.last = e
		}
	}
	if l.born == nil && l.last == nil {
		return nil
	}
	if l.last == nil {
		l.last = l.born
	}
	return l
}

// queue returns the queue that the message with this id is or was in.
func (l *life) queue() string {
	if l.born == nil {
		return l.last.Queue
	}
	return cmp.Or(l.born.ToQueue, l.born.Queue)
}

// stateAfter maps event types to the state that they leave a message in.
var stateAfter = map[event.Type]event.State{
	event.Acked: event.StateAcked, event.DeadLettered: event.StateDeadLettered,
	event.Discarded: event.StateDiscarded, event.Replayed: event.StateReplayed,
	event.Leased: event.StateLeased, event.LeaseExtended: event.StateLeased,
}

// state returns the state that an id's newest event leaves it in.
func (l *life) state() event.State {
	switch e := l.last; {
	case e.ID == l.id: // enqueued, and nothing since: it would be live
		return event.StateReady
	case stateAfter[e.Type] != event.StateNone:
		return stateAfter[e.Type]
	case e.Due > event.ClockOf(e.ID):
		return event.StateScheduled
	}
	return event.StateReady
}

// view returns the message as it was when it left its queue.
func (l *life) view() event.MessageView {
	v := event.MessageView{
		ID: l.id, Queue: l.queue(), State: l.state(), Attempt: l.attempts,
		EnqueuedAt: event.ClockOf(l.id), // even if that event has been deleted
	}
	if b := l.born; b != nil {
		v.Expires = b.Expires
		switch b.Type {
		case event.Enqueued:
		case event.DeadLettered:
			v.Dead = &event.DeadView{
				Queue: b.Queue, MessageID: b.Subject, Reason: b.Reason, Attempts: b.Attempt,
				FailedAt: event.ClockOf(b.ID), FirstEnqueuedAt: event.ClockOf(l.first),
				ReplayCount: uint32(l.replays),
			}
		default:
			v.Origin = &event.OriginView{
				First: l.first, From: b.Subject, Replays: uint32(l.replays),
			}
		}
	}
	if e := l.set; e != nil {
		v.Key, v.Kind, v.Priority = e.Key, e.Kind, l.priority
		v.SourceID, v.Size = e.SourceID, e.Size
	}
	v.Content = event.RefOf(l.first) // deleted with the history, unless there is a payload
	if e := l.payload; e != nil {
		v.Content = event.RefOf(e.ID)
		if e.Type != event.ContentCarried {
			v.Size = e.Size
		}
	}
	return v
}

// pastMessage returns a message that has left its queue, and its view.
func (s *Server) pastMessage(l *life) (m wire.Message, v event.MessageView, err error) {
	v = l.view()
	if m, err = s.message(&v); err != nil {
		return m, v, err
	}
	if l.set != nil {
		m.CorrelationID = l.set.CorrelationID // even if the content was erased
	}
	m.Reason, m.LeftAt = l.last.Reason.String(), wire.Time(event.ClockOf(l.last.ID))
	if l.moved != nil && l.moved.Type != event.Resurrected {
		m.MovedTo = &wire.Moved{Queue: l.moved.ToQueue, MessageID: l.moved.ID.String()}
	}
	for _, e := range l.again {
		to := wire.Moved{Queue: e.ToQueue, MessageID: e.ID.String()}
		m.ResurrectedAs = append(m.ResurrectedAs, to)
	}
	m.Result, err = result(l.last)
	return m, v, err
}

// result returns the result in an acked event, nil if there is none or the event has another type.
func result(e *event.Event) (jsontext.Value, error) {
	if e.Type != event.Acked {
		return nil, nil
	}
	c, err := eventContent(e)
	if err != nil || c == nil || len(c.Result) == 0 {
		return nil, err
	}
	return c.Result, nil
}

// eventContent returns the user content of an event; nil if it was erased or e is nil.
func eventContent(e *event.Event) (*event.Content, error) {
	if e == nil || e.Erased() {
		return nil, nil
	}
	return event.DecodeContent(e.Content.Bytes)
}

// attemptsOf returns each lease in a history and how it ended, oldest first.
func attemptsOf(history []event.Event) []wire.Attempt {
	var out []wire.Attempt
	place := map[event.ID]int{} // in out, by lease
	for i := range history {
		e := &history[i]
		at := event.ClockOf(e.ID)
		if e.Type == event.Leased {
			place[e.ID] = len(out)
			out = append(out, wire.Attempt{
				Attempt: int64(e.Attempt), MessageID: e.Subject.String(), Queue: e.Queue,
				LeaseID: e.ID.String(), Worker: e.Worker, LeasedAt: wire.Time(at),
				Outcome: event.StateLeased.String(),
			})
			continue
		}
		n, ok := place[e.Lease]
		if !ok || e.Lease.IsZero() || e.Type == event.LeaseExtended {
			continue
		}
		a := &out[n]
		a.EndedAt, a.Outcome, a.Reason = wire.Time(at), e.Type.String(), e.Reason.String()
		took := at - int64(a.LeasedAt)
		a.DurationMS = &took
		view := EventOf(e)
		a.Error, a.Erased, a.Damaged = view.Error, view.Erased, view.Damaged
	}
	return out
}

// trail is the path of a message from one of its ids through its moves.
type trail struct {
	id      event.ID           // the newest
	live    *event.MessageView // nil: it has left its queue
	life    *life              // of id, if it is not live; nil: history does not have it
	history []event.Event      // none if the first id is live
	moves   []*event.Event     // oldest first
}

// follow follows a message from any of its ids through its moves (the newest if there are several)
// to its current id.
func (s *Server) follow(ctx context.Context, st State, id event.ID) (t trail, err error) {
	for t.id = id; ; t.id = t.life.moved.ID {
		if v, ok := st.Message(t.id); ok {
			t.live = &v
			return t, nil
		}
		if t.history == nil {
			if t.history, err = s.deps.Log.History(ctx, id); err != nil {
				return t, err
			}
			t.history = upTo(st, t.history)
		}
		if t.life = lifeOf(t.history, t.id); t.life == nil || t.life.moved == nil {
			return t, nil
		}
		t.moves = append(t.moves, t.life.moved)
	}
}

// fate returns the final state of a message, and its result: dead_lettered if it is in a
// dead-letter queue, acked if it was replayed and then acked. StateNone if its history was deleted.
func (s *Server) fate(ctx context.Context, st State, id event.ID) (
	event.State, jsontext.Value, error) {
	t, err := s.follow(ctx, st, id)
	switch {
	case err != nil:
		return event.StateNone, nil, err
	case t.live != nil && t.live.Dead != nil:
		return event.StateDeadLettered, nil, nil
	case t.live != nil:
		return t.live.State, nil, nil
	case t.life == nil:
		return event.StateNone, nil, nil
	}
	result, err := result(t.life.last)
	return t.life.state(), result, err
}

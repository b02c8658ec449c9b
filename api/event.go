package api

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// EventOf returns an event's view: without payloads, but with an error text where the type
// has one.
func EventOf(e *event.Event) wire.Event {
	out := wire.Event{
		EventID: e.ID.String(), Type: e.Type.String(), Time: wire.Time(event.ClockOf(e.ID)), Index: event.RefOf(e.ID).Index,
		Queue: e.Queue, Actor: e.Actor, Key: e.Key, Kind: e.Kind, Priority: int64(e.Priority), Size: int64(e.Size),
		ExpiresAt: wire.Time(e.Expires), SourceID: e.SourceID, LeaseExpiresAt: wire.Time(e.LeaseExpires),
		Attempt: int64(e.Attempt), Worker: e.Worker, Reason: reasonOf(e), ToQueue: e.ToQueue,
		HoldsKey: e.HoldsKey, TakesKey: e.TakesKey, Count: e.Count, BeforeIndex: e.Before, Rules: int64(e.Rules),
		Webhook: e.Webhook, Definition: jsontext.Value(e.Definition),
		DiedIn: e.DiedIn, Order: e.Order.String(), Edited: e.Edited, TaskKind: e.TaskKind.String(), Failed: e.Failed, Node: e.Node,
	}
	if !e.Subject.IsZero() {
		out.MessageID = e.Subject.String()
	}
	if !e.Lease.IsZero() {
		out.LeaseID = e.Lease.String()
	}
	if !e.Task.IsZero() {
		out.TaskID = e.Task.String()
	}
	switch e.Type {
	case event.Enqueued:
		out.MessageID = e.ID.String() // it is its own subject
		out.DeliverAt = wire.Time(e.Due)
	case event.Leased:
		out.LeaseID = e.ID.String()
	case event.Retried:
		out.NextAt = wire.Time(max(e.Due, event.ClockOf(e.ID)))
	case event.LeaseExpired:
		out.NextAt = wire.Time(e.Due)
	case event.TaskCreated:
		out.TaskID = e.ID.String()
	case event.Erased:
		out.Count = int64(len(e.Refs))
	case event.Resurrected:
		out.Count = 0 // the number of replays, which is in GET /v1/messages/{id}
	}
	if e.IsMove() {
		out.NewMessageID = e.ID.String()
	}
	switch e.Type {
	case event.Retried, event.DeadLettered, event.Discarded, event.Acked, event.Released, event.TaskEnded, event.Erased:
		if len(e.Content.Bytes) > 0 {
			if c, err := event.DecodeContent(e.Content.Bytes); err == nil {
				out.Error, out.HasResult, out.Why = c.Error, len(c.Result) > 0, c.Why
			}
		}
	}
	out.Erased = e.Erased()
	if e.Policy != nil {
		p := policyOf(e.Policy)
		out.Policy = &p
	}
	return out
}

func reasonOf(e *event.Event) string {
	if e.Reason == event.ReasonNone {
		return ""
	}
	return e.Reason.String()
}

func eventsOf(events []event.Event) []wire.Event {
	out := make([]wire.Event, len(events))
	for i := range events {
		out[i] = EventOf(&events[i])
	}
	return out
}

// eventQuery is what GET /v1/events asks for.
type eventQuery struct {
	from    uint64   // first index to read
	after   event.ID // only events above it
	to      uint64   // last index, if bounded
	bounded bool
	follow  bool
	limit   int

	queue   string
	typ     event.Type
	message event.ID
	sees    func(*event.Event) bool // whether the token may read it
}

func (f *eventQuery) matches(e *event.Event) bool {
	return (f.queue == "" || e.Queue == f.queue || e.ToQueue == f.queue) &&
		(f.typ == event.TypeNone || e.Type == f.typ) &&
		(f.message.IsZero() || e.Subject == f.message || e.ID == f.message) &&
		f.sees(e)
}

// events answers GET /v1/events: a list with a cursor, or a stream.
func (s *Server) events(q *request) error {
	f, err := q.eventQuery()
	if err != nil {
		return err
	}
	switch {
	case q.accepts(func(m string) bool { return m == typeNDJSON }):
		return s.stream(q, f, typeNDJSON)
	case q.accepts(func(m string) bool { return m == typeSSE }):
		return s.stream(q, f, typeSSE)
	case f.follow:
		return bad("follow", "follow goes with Accept: %s or %s", typeNDJSON, typeSSE)
	}
	out := wire.EventList{Events: []wire.Event{}}
	last := f.after
	err = s.scan(q.Context(), f, &last, func(e *event.Event) (bool, error) {
		if f.matches(e) {
			out.Events = append(out.Events, EventOf(e))
		}
		return len(out.Events) < f.limit, nil
	})
	if err != nil {
		return err
	}
	if last.IsZero() && f.from > 1 {
		// There was no event to name: the place before from is the cursor.
		last = event.NewID(max(s.deps.State.Clock(), 0), f.from-1, event.MaxNumber)
	}
	out.NextCursor = last.String()
	return q.answer(http.StatusOK, &out)
}

// scan calls fn with the events of a query's range, filtered or not, until fn
// returns false or the log's head is reached. last is the newest event that fn
// was called with: a scan from there misses nothing and sees nothing twice.
func (s *Server) scan(ctx context.Context, f *eventQuery, last *event.ID, fn func(*event.Event) (bool, error)) error {
	if f.bounded && f.from > f.to {
		return nil
	}
	next := s.deps.Log.Blocks(f.from)
	for {
		b, err := next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if f.bounded && b.Index > f.to {
			return nil
		}
		for i := range b.Events {
			e := &b.Events[i]
			if e.ID.Compare(f.after) <= 0 {
				continue
			}
			more, err := fn(e)
			if err != nil {
				return err
			}
			*last = e.ID
			if !more {
				return nil
			}
		}
		f.from = b.Index + 1
	}
}

// eventQuery reads the parameters.
func (q *request) eventQuery() (*eventQuery, error) {
	in := q.read("after", "from", "to", "queue", "type", "message_id", "limit", "follow", "consistency")
	f := &eventQuery{sees: q.seesEvent, follow: in.flag("follow"), limit: in.limit(100, 1000), message: in.queryID("message_id"), queue: q.query.Get("queue")}
	if f.follow && !q.query.Has("limit") {
		f.limit = 0
	}
	if q.query.Has("queue") && !event.ValidName(f.queue) {
		in.refuse("queue", "queue must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
	}
	if f.queue != "" {
		in.do(func() error { return q.may(roleRead, f.queue) })
	}
	if q.query.Has("type") {
		var ok bool
		if f.typ, ok = event.Parse[event.Type](q.query.Get("type")); !ok || f.typ == event.TypeNone {
			in.refuse("type", "type must be an event type such as enqueued or acked, not %s", echo(q.query.Get("type")))
		}
	}
	in.fresh()
	in.do(func() error { return q.eventRange(f) })
	return f, in.err
}

// eventRange reads where to begin and end. after goes before from.
func (q *request) eventRange(f *eventQuery) (err error) {
	log := q.s.deps.Log
	after := q.query.Get("after")
	if v := q.Header.Get("Last-Event-ID"); v != "" && (q.accepts(func(m string) bool { return m == typeSSE }) || f.follow) {
		after = v // an EventSource that reconnects sends its first query again
	}
	switch {
	case after != "" || q.query.Has("after"):
		if f.after, err = ulid("after", after); err != nil {
			return err
		}
		f.from = event.RefOf(f.after).Index
		if head := log.Head(); f.from > head {
			return bad("after", "after is beyond the end of the log, index:%d", head)
		}
		if before, deleted := log.DeletedBefore(); deleted && !f.after.IsZero() &&
			f.after.Compare(event.NewID(event.ClockOf(f.after), before, event.MaxNumber)) < 0 {
			return event.Problemf(event.CodeHistoryExpired, "after", "events after that one have been deleted by retention")
		}
	case q.query.Has("from"):
		if f.from, err = q.indexOf("from", log.From); err != nil {
			return err
		}
	case f.follow:
		f.from = log.Head() + 1
	default:
		f.from = 1 // or the first that is kept
	}
	if !f.message.IsZero() { // a message has no events before the one that created it
		f.from = max(f.from, min(event.RefOf(f.message).Index, log.Head()+1))
	}
	if f.bounded = q.query.Has("to"); f.bounded {
		f.to, err = q.indexOf("to", log.To)
	}
	return err
}

// indexOf resolves a parameter that is an instant to an index of the log.
func (q *request) indexOf(name string, resolve func(event.Instant) (uint64, error)) (uint64, error) {
	at, err := q.parseInstant(name, q.query.Get(name))
	if err != nil {
		return 0, err
	}
	index, err := resolve(at)
	if err != nil {
		return 0, q.rangeProblem(name, err)
	}
	return index, nil
}

package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/event"
)

// peekMessages answers GET /v1/queues/{queue}/messages?state=&key=&at=&limit=&cursor=
// without any effect.
func (s *Server) peekMessages(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow("state", "key", "at", "limit", "cursor", "consistency"); err != nil {
		return err
	}
	limit, err := q.number("limit", 100, 1, 1000)
	if err != nil {
		return err
	}
	f := event.MessageFilter{Limit: int(limit) + 1}
	if q.query.Has("state") {
		st, ok := event.ParseState(q.query.Get("state"))
		if !ok || st > event.StateLeased {
			return bad("state", "state must be scheduled, ready or leased")
		}
		f.State = st
	}
	if q.query.Has("key") {
		key := q.query.Get("key")
		if err := within("key", key, event.MaxKeyBytes); err != nil {
			return err
		}
		f.Key = &key
	}
	if q.query.Has("cursor") {
		if f.After, err = ulid("cursor", q.query.Get("cursor")); err != nil {
			return err
		}
	}
	st, release, err := q.state()
	if err != nil {
		return err
	}
	defer release()
	views, ok := st.Messages(name, f)
	if !ok {
		return queueNotFound(name)
	}
	var out wire.MessageList
	if len(views) > int(limit) {
		views = views[:limit]
		out.NextCursor = views[limit-1].ID.String()
	}
	refs := make([]event.Ref, len(views))
	for i := range views {
		refs[i] = views[i].Content
	}
	contents, err := s.contents(refs)
	if err != nil {
		return err
	}
	out.Messages = make([]wire.Message, len(views))
	for i := range views {
		out.Messages[i] = messageOf(&views[i], contents[i])
		if out.Messages[i].Dead, err = s.deadOf(&views[i]); err != nil {
			return err
		}
	}
	return q.answer(http.StatusOK, &out)
}

// contents reads contents; one that was erased, or taken by retention, is nil.
func (s *Server) contents(refs []event.Ref) ([]*event.Content, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	out, err := s.deps.Log.Contents(refs)
	if err == nil {
		return out, nil
	}
	if !s.erased(err) && !s.gone(err) {
		return nil, err
	}
	out = make([]*event.Content, len(refs))
	for i, ref := range refs {
		if out[i], err = s.content(ref); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// content reads one content, nil where it was erased or taken by retention.
func (s *Server) content(ref event.Ref) (*event.Content, error) {
	if ref.IsZero() {
		return &event.Content{}, nil
	}
	c, err := s.deps.Log.Content(ref)
	if err != nil && (s.erased(err) || s.gone(err)) {
		return nil, nil
	}
	return c, err
}

// messageOf returns a live message as it is told.
func messageOf(v *event.MessageView, c *event.Content) wire.Message {
	m := wire.Message{
		ID: v.ID.String(), Queue: v.Queue, State: v.State.String(), Held: v.Held, Key: v.Key, Kind: v.Kind,
		Attempt: int64(v.Attempt), Priority: int64(v.Priority), Size: int64(v.Size),
		EnqueuedAt: wire.Time(v.EnqueuedAt), ExpiresAt: wire.Time(v.Expires),
	}
	switch v.State {
	case event.StateScheduled:
		m.AvailableAt = wire.Time(v.Due)
	case event.StateLeased:
		m.LeaseID, m.LeaseExpiresAt = v.Lease.String(), wire.Time(v.LeaseExpiresAt)
	}
	setContent(&m, c)
	return m
}

// setContent puts what the user wrote into a message.
func setContent(m *wire.Message, c *event.Content) {
	m.Headers = map[string]string{}
	switch {
	case c == nil:
		m.Erased = true
		m.Payload = jsontext.Value("null")
		return
	case c.Binary:
		if m.PayloadBytes = c.Payload; m.PayloadBytes == nil {
			m.PayloadBytes = wire.Bytes{} // an empty payload, not none
		}
		m.ContentType = c.ContentType
	default:
		m.Payload = jsontext.Value(c.Payload)
		if len(c.Payload) == 0 {
			m.Payload = jsontext.Value("null")
		}
	}
	m.CorrelationID = c.CorrelationID
	for _, h := range c.Headers {
		m.Headers[h.Name] = h.Value
	}
}

// deadOf tells where a dead message came from. The error text is the content
// of the event that moved it, whose id is the message's own.
func (s *Server) deadOf(v *event.MessageView) (*wire.Dead, error) {
	if v.Dead == nil {
		return nil, nil
	}
	// The error lies in the event that moved the message, or was carried
	// forward with its content where that is gone.
	c, err := s.content(event.RefOf(v.ID))
	if err == nil && c == nil {
		c, err = s.content(v.Content)
	}
	if err != nil {
		return nil, err
	}
	d := deadView(v.Dead)
	if c != nil {
		d.Error = c.Error
	}
	return d, nil
}

func deadView(v *event.DeadView) *wire.Dead {
	return &wire.Dead{
		Queue: v.Queue, MessageID: v.MessageID.String(), Reason: v.Reason.String(), Attempts: int64(v.Attempts),
		FailedAt: wire.Time(v.FailedAt), FirstEnqueuedAt: wire.Time(v.FirstEnqueuedAt), ReplayCount: int64(v.ReplayCount),
	}
}

func messageNotFound(id event.ID) *event.Problem {
	return event.Problemf(event.CodeMessageNotFound, "id", "message %s does not exist", id)
}

// messageID reads the path's id.
func (q *request) messageID() (event.ID, error) { return ulid("id", q.PathValue("id")) }

// getMessage answers GET /v1/messages/{id}: a live message, or one that has
// left its queue as its history tells it.
func (s *Server) getMessage(q *request) error {
	id, err := q.messageID()
	if err != nil {
		return err
	}
	if err := q.allow("consistency"); err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	v, live := s.deps.State.Message(id)
	history, err := s.deps.Log.History(q.Context(), id)
	if err != nil {
		return err
	}
	var m wire.Message
	if live {
		c, err := s.content(v.Content)
		if err != nil {
			return err
		}
		m = messageOf(&v, c)
		if m.Dead, err = s.deadOf(&v); err != nil {
			return err
		}
	} else {
		l := lifeOf(history, id)
		if l == nil {
			return q.noMessage(id)
		}
		if m, err = s.pastMessage(l); err != nil {
			return err
		}
	}
	if err := q.mayRead(id, m.Queue); err != nil {
		return err
	}
	m.History = eventsOf(q.visible(history))
	return q.answer(http.StatusOK, &m)
}

// messageHistory answers GET /v1/messages/{id}/history, following the message
// through dead-letter queues and replays.
func (s *Server) messageHistory(q *request) error {
	id, err := q.messageID()
	if err != nil {
		return err
	}
	if err := q.allow("consistency"); err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	history, err := s.deps.Log.History(q.Context(), id)
	if err != nil {
		return err
	}
	if len(history) == 0 {
		return q.noMessage(id)
	}
	if l := lifeOf(history, id); l != nil {
		if err := q.mayRead(id, l.queue()); err != nil {
			return err
		}
	}
	return q.answer(http.StatusOK, &wire.History{Events: eventsOf(q.visible(history))})
}

// noMessage tells that a message does not exist: to a token that may not read
// all queues in the same words as that it is in another one.
func (q *request) noMessage(id event.ID) error {
	if err := q.mayRead(id, ""); err != nil {
		return err
	}
	return messageNotFound(id)
}

// mayRead refuses unless the token may read a message's queue; "" is none.
func (q *request) mayRead(id event.ID, queue string) error {
	if q.who == nil || q.who.mayAll(roleRead) || queue != "" && q.who.may(roleRead, queue) {
		return nil
	}
	return event.Problemf(codeForbidden, "id", "there is no message %s in a queue that the token of %s may read", id, echo(q.who.name))
}

// visible leaves out the part of a history that took place in queues that the
// token may not read.
func (q *request) visible(history []event.Event) []event.Event {
	if q.who == nil {
		return history
	}
	return slices.DeleteFunc(slices.Clone(history), func(e event.Event) bool { return !q.seesEvent(&e) })
}

// deleteMessage takes a message out, whatever its state.
func (s *Server) deleteMessage(q *request) error {
	id, err := q.messageID()
	if err != nil {
		return err
	}
	if err := q.allow(); err != nil {
		return err
	}
	if q.Header["Idempotency-Key"] == nil {
		if _, ok := s.deps.State.Message(id); !ok {
			if err := s.barrier(q.Context()); err != nil {
				return err
			}
			if _, ok := s.deps.State.Message(id); !ok {
				return messageNotFound(id)
			}
		}
	}
	if _, err := q.propose(&event.Command{Delete: &event.DeleteMessage{ID: id}}); err != nil {
		return err
	}
	return q.noContent()
}

// life is what history tells of one message id.
type life struct {
	id       event.ID
	born     *event.Event // how it came into its queue
	last     *event.Event // its newest event
	origin   *event.Event // where its payload is
	attempts uint32
	moved    *event.Event // the move that made its successor
	first    int64        // first enqueued, Unix ms
	replays  int64
}

// lifeOf picks one message out of a history that follows it through moves; nil
// where it is not in it.
func lifeOf(history []event.Event, id event.ID) *life {
	l := &life{id: id}
	for i := range history {
		e := &history[i]
		if e.ID.Compare(id) <= 0 {
			if e.Type == event.Enqueued {
				l.origin, l.first = e, event.ClockOf(e.ID)
			}
			if e.Type == event.Replayed {
				l.replays++
			}
		}
		if e.ID == id && (e.Type == event.Enqueued || e.IsMove()) {
			l.born = e
		}
		if e.Subject != id {
			continue
		}
		l.last = e
		if e.Type == event.Leased {
			l.attempts = e.Attempt
		}
		if e.IsMove() {
			l.moved = e
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

// queue is the one that the message with this id is or was in.
func (l *life) queue() string {
	switch {
	case l.born == nil:
		return l.last.Queue
	case l.born.IsMove():
		return l.born.ToQueue
	}
	return l.born.Queue
}

// state is what an id's newest event leaves it in.
func (l *life) state() event.State {
	switch e := l.last; {
	case e.ID == l.id: // born, and nothing since: it would be live
		return event.StateReady
	case e.Type == event.Acked:
		return event.StateAcked
	case e.Type == event.DeadLettered:
		return event.StateDeadLettered
	case e.Type == event.Discarded:
		return event.StateDiscarded
	case e.Type == event.Replayed:
		return event.StateReplayed
	case e.Type == event.Leased, e.Type == event.LeaseExtended:
		return event.StateLeased
	case e.Due > event.ClockOf(e.ID):
		return event.StateScheduled
	}
	return event.StateReady
}

// pastMessage returns a message that has left its queue.
func (s *Server) pastMessage(l *life) (wire.Message, error) {
	m := wire.Message{
		ID: l.id.String(), Queue: l.queue(), State: l.state().String(), Attempt: int64(l.attempts),
		Reason: reasonOf(l.last), LeftAt: wire.Time(event.ClockOf(l.last.ID)),
	}
	if b := l.born; b != nil {
		m.EnqueuedAt = wire.Time(event.ClockOf(b.ID))
		if b.Type == event.DeadLettered {
			m.Dead = &wire.Dead{
				Queue: b.Queue, MessageID: b.Subject.String(), Reason: b.Reason.String(), Attempts: int64(b.Attempt),
				FailedAt: wire.Time(event.ClockOf(b.ID)), FirstEnqueuedAt: wire.Time(l.first), ReplayCount: l.replays,
			}
			if c, err := s.eventContent(b); err == nil && c != nil {
				m.Dead.Error = c.Error
			}
		}
	}
	var content *event.Content
	if o := l.origin; o != nil {
		m.Key, m.Kind, m.Priority, m.Size, m.ExpiresAt = o.Key, o.Kind, int64(o.Priority), int64(o.Size), wire.Time(o.Expires)
		var err error
		if content, err = s.eventContent(o); err != nil {
			return m, err
		}
	}
	setContent(&m, content)
	if l.moved != nil {
		m.MovedTo = &wire.Moved{Queue: l.moved.ToQueue, MessageID: l.moved.ID.String()}
	}
	if l.last.Type == event.Acked {
		c, err := s.eventContent(l.last)
		if err != nil {
			return m, err
		}
		if c != nil && len(c.Result) > 0 {
			m.Result = c.Result
		}
	}
	return m, nil
}

// eventContent returns what users wrote in an event; nil where it was erased.
func (s *Server) eventContent(e *event.Event) (*event.Content, error) {
	if e.Erased() {
		return s.content(event.RefOf(e.ID))
	}
	return event.DecodeContent(e.Content.Bytes)
}

// fate tells what became of a message, following it through moves: in a
// dead-letter queue it is dead_lettered, replayed and acked it is acked. None
// where its history is gone.
func (s *Server) fate(ctx context.Context, id event.ID) (event.State, []byte, error) {
	if v, ok := s.deps.State.Message(id); ok {
		return v.State, nil, nil
	}
	history, err := s.deps.Log.History(ctx, id)
	if err != nil {
		return event.StateNone, nil, err
	}
	for {
		l := lifeOf(history, id)
		if l == nil {
			return event.StateNone, nil, nil
		}
		if l.moved != nil {
			id = l.moved.ID
			if v, ok := s.deps.State.Message(id); ok {
				if v.Dead != nil {
					return event.StateDeadLettered, nil, nil
				}
				return v.State, nil, nil
			}
			continue
		}
		if l.last.Type == event.Acked {
			c, err := s.eventContent(l.last)
			if err != nil || c == nil || len(c.Result) == 0 {
				return event.StateAcked, nil, err
			}
			return event.StateAcked, c.Result, nil
		}
		return l.state(), nil, nil
	}
}

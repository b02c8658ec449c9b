package api

import (
	"net/http"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
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
	contents, err := s.Contents(refs)
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

// Contents reads contents; one that was erased, or taken by retention, is nil.
func (s *Server) Contents(refs []event.Ref) ([]*event.Content, error) {
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
		Origin: originView(v.Origin), SourceID: v.SourceID,
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
	m.CorrelationID, m.Original = c.CorrelationID, c.Original
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
	if media := q.eventsAccepted(true); media != "" {
		if !live {
			v = event.MessageView{ID: id, Queue: m.Queue, Key: m.Key, Kind: m.Kind, Priority: uint8(m.Priority), EnqueuedAt: int64(m.EnqueuedAt)}
		}
		return q.answerEvent(media, &m, &v)
	}
	visible := q.visible(history)
	m.History, m.Attempts = eventsOf(visible), attemptsOf(visible)
	return q.answer(http.StatusOK, &m)
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

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
	in := q.read("state", "key", "at", "limit", "cursor", "consistency")
	name, limit := in.queue(), in.limit(100, 1000)
	f := event.MessageFilter{Limit: limit + 1, Key: in.text("key", event.MaxKeyBytes), After: in.queryID("cursor")}
	f.State, _ = event.ParseState(in.choice("state", "scheduled", "ready", "leased"))
	st := in.state()
	if in.err != nil {
		return in.err
	}
	if _, ok := st.Queue(name); !ok {
		return queueNotFound(name)
	}
	views, _ := st.Messages(name, f)
	var out wire.MessageList
	if len(views) > limit {
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

// Contents reads contents; one that was erased, or deleted by retention, is nil.
func (s *Server) Contents(refs []event.Ref) ([]*event.Content, error) {
	out, err := s.deps.Log.Contents(refs)
	if err == nil || !s.erased(err) && !s.gone(err) {
		return out, err
	}
	out = make([]*event.Content, len(refs))
	for i, ref := range refs {
		if out[i], err = s.content(ref); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// content reads one content, nil where it was erased or deleted by retention.
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

// messageOf returns a live message's view.
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

// deadOf returns where a dead message came from, nil for another one.
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

// getMessage answers GET /v1/messages/{id}: a live message, or from its history one that has
// left its queue.
func (s *Server) getMessage(q *request) error {
	in := q.read("consistency")
	id := in.pathID("id")
	in.fresh()
	if in.err != nil {
		return in.err
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

// noMessage is the error for a message that does not exist: for a token that may not read
// all queues the same as for one in a queue that it may not read.
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

// deleteMessage removes a message, whatever its state.
func (s *Server) deleteMessage(q *request) error {
	in := q.read()
	id := in.pathID("id")
	if in.err == nil && q.Header["Idempotency-Key"] == nil {
		_, in.err = currently(s, q, id, s.deps.State.Message, messageNotFound)
	}
	if in.err != nil {
		return in.err
	}
	if _, err := q.propose(&event.Command{Delete: &event.DeleteMessage{ID: id}}); err != nil {
		return err
	}
	return q.noContent()
}

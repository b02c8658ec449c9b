package api

import (
	"cmp"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// resurrect answers POST /v1/messages/{id}/resurrect: what was acked or
// discarded is enqueued again, from the log, while history keeps it.
func (s *Server) resurrect(q *request) error {
	var body wire.ResurrectRequest
	id := q.read().pathID("id")
	q.optionalBody(&body)
	if body.Queue != "" {
		q.do(func() error { return validName("queue", body.Queue) })
	}
	var edit *dead.Edit
	if body.Edit != nil {
		edit = get(q, func() (*dead.Edit, error) { return s.newEdit("edit", body.Edit) })
	}
	q.barrier()
	res := q.commitFresh("queue", "the queue's policy", func() (*event.Command, error) {
		c, content, err := s.departed(q, id, edit)
		if err != nil {
			return nil, err
		}
		c.Queue = cmp.Or(body.Queue, c.Queue)
		v, err := s.current(q, c.Queue)
		if err != nil {
			return nil, err
		}
		c.Revision = v.Revision
		return &event.Command{Resurrect: c}, s.Fits(&v, content)
	})
	e := get(q, func() (*event.Event, error) { return s.deps.Log.Event(event.RefOf(res.ID)) })
	if q.err != nil {
		return q.err
	}
	return q.answer(http.StatusCreated, &wire.Resurrected{
		MessageID: e.Subject.String(), NewMessageID: res.ID.String(), Queue: e.ToQueue,
	})
}

// departed reads from the log what a message was that has left its queue.
func (s *Server) departed(
	q *request, id event.ID, edit *dead.Edit,
) (*event.Resurrect, *event.Content, error) {
	l, err := s.lastLife(q, id)
	if err != nil {
		return nil, nil, err
	}
	c := &event.Resurrect{
		ID: l.id, Queue: l.queue(), First: l.first, Replays: uint32(l.replays), Edited: edit != nil,
		Last: event.RefOf(l.newest),
	}
	if l.born != nil && l.born.Type == event.DeadLettered {
		c.Queue = l.born.Queue // not the dead-letter queue
	}
	if l.set == nil || l.payload == nil {
		return nil, nil, historyExpired(l.id)
	}
	c.Key, c.Kind, c.Priority = l.set.Key, l.set.Kind, l.set.Priority
	content, err := eventContent(l.payload)
	if err != nil {
		return nil, nil, err
	}
	if content == nil {
		if edit == nil || !edit.HasPayload {
			return nil, nil, event.Problemf(event.CodeConflict, "id", "what was in message %s "+
				"has been erased: an edit with a payload could take its place", l.id)
		}
		content = &event.Content{}
	}
	content = cmp.Or(edit, &dead.Edit{}).Apply(content)
	c.Size, c.Content = uint32(len(content.Payload)), event.EncodeContent(content)
	return c, content, nil
}

// lastLife follows a message from any of its ids to the one under which it was acked or
// discarded. It is a problem if the message, or what it was resurrected as, is in a queue.
func (s *Server) lastLife(q *request, id event.ID) (*life, error) {
	conflict := func(format string, args ...any) (*life, error) {
		return nil, event.Problemf(event.CodeConflict, "id", format, args...)
	}
	if v, ok := s.deps.State.Message(id); ok && v.State.Live() {
		return conflict("message %s has not left queue %s: it is %s", id, v.Queue, v.State)
	}
	history, err := s.deps.Log.History(q.Context(), id)
	if err != nil {
		return nil, err
	}
	l := lifeOf(history, id)
	if l == nil {
		if before, _ := s.deps.Log.Begins(); before > 0 && event.RefOf(id).Index <= before {
			return nil, historyExpired(id)
		}
		return nil, messageNotFound(id)
	}
	// By an id that it had before it died, or was replayed, it is the same message.
	for l.moved != nil && (l.last.Type == event.DeadLettered || l.last.Type == event.Replayed) {
		id = l.moved.ID
		if v, ok := s.deps.State.Message(id); ok && v.State.Live() {
			return conflict("the message is in queue %s as %s, %s", v.Queue, id, v.State)
		}
		if l = lifeOf(history, id); l == nil {
			return nil, historyExpired(id)
		}
	}
	if st := l.state(); st != event.StateAcked && st != event.StateDiscarded {
		return conflict("message %s has not left its queue", id)
	}
	for _, e := range l.again {
		t, err := s.follow(q.Context(), e.ID)
		if err != nil {
			return nil, err
		}
		if v := t.live; v != nil && v.State.Live() {
			return conflict("message %s was resurrected and is in queue %s as %s, %s",
				id, v.Queue, v.ID, v.State)
		}
	}
	return l, nil
}

func historyExpired(id event.ID) *event.Problem {
	return event.Problemf(event.CodeHistoryExpired, "id",
		"the beginning of message %s has been deleted with the history", id)
}

// messageEdits answers GET /v1/messages/{id}/edits: what replays and resurrections changed.
func (s *Server) messageEdits(q *request) error {
	history := q.pathHistory()
	var out wire.Edits
	for i := range history {
		if e := &history[i]; e.Edited && q.seesEvent(e) {
			edit := get(q, func() (wire.MessageEdit, error) { return editOf(history[:i], e) })
			out.Edits = append(out.Edits, edit)
		}
	}
	return q.answer(http.StatusOK, &out)
}

// editOf returns one edit; before is the history before it.
func editOf(before []event.Event, e *event.Event) (wire.MessageEdit, error) {
	out := wire.MessageEdit{
		EventID: e.ID.String(), Type: e.Type.String(), Time: wire.Time(event.ClockOf(e.ID)),
		Actor: e.Actor, MessageID: e.Subject.String(), NewMessageID: e.ID.String(),
	}
	after, err := eventContent(e)
	if err != nil {
		return out, err
	}
	l := lifeOf(before, e.Subject)
	if l == nil {
		l = &life{}
	}
	old, err := eventContent(l.payload)
	if err != nil {
		return out, err
	}
	out.Before, out.After = writtenOf(old), writtenOf(after)
	switch {
	case l.payload == nil:
		out.Note = "what was there before has gone with the history"
	case old == nil || after == nil:
		out.Note = "what was there has been erased"
	default:
		out.Changes = changes(*out.Before, *out.After)
	}
	return out, nil
}

func writtenOf(c *event.Content) *wire.Written {
	if c == nil {
		return nil
	}
	var m wire.Message
	setContent(&m, c)
	return &wire.Written{
		Payload: m.Payload, PayloadBytes: m.PayloadBytes, ContentType: m.ContentType,
		Headers: m.Headers,
	}
}

// changes returns what turns before into after. Bytes are replaced as a whole.
func changes(before, after wire.Written) []wire.Change {
	for _, w := range []*wire.Written{&before, &after} {
		if w.PayloadBytes != nil {
			w.Payload = nil
		}
	}
	a, _ := wire.Marshal(&before) // an error: not UTF-8, which none is
	b, _ := wire.Marshal(&after)
	return jsonPatch(a, b)
}

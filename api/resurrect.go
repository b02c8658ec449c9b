package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// resurrect answers POST /v1/messages/{id}/resurrect: it enqueues an acked or discarded
// message again, from the log, as long as history has it.
func (s *Server) resurrect(q *request) error {
	var body wire.ResurrectRequest
	id := q.read("reason").pathID("id")
	q.optionalBody(&body)
	q.because(body.Reason)
	if body.Queue != "" {
		q.do(func() error { return validName("queue", body.Queue) })
	}
	var edit *dead.Edit
	if body.Edit != nil {
		edit = get(q, func() (*dead.Edit, error) { return s.newEdit("edit", body.Edit) })
	}
	q.barrier()
	res := q.commitFresh("queue", "the queue's policy", func() (*event.Command, error) {
		c := &event.Resurrect{Order: event.OrderAppend, Looked: s.deps.Log.Head(), Strict: true}
		l, err := s.lastLife(q, id)
		if err != nil {
			return nil, err
		}
		c.To = l.queue()
		if l.born != nil && l.born.Type == event.DeadLettered {
			c.To = l.born.Queue // not the dead-letter queue
		}
		c.To = cmp.Or(body.Queue, c.To)
		v, err := s.current(q, c.To)
		if err != nil {
			return nil, err
		}
		item, err := s.departed(q.Context(), l, edit, &v)
		c.Revision, c.Items = v.Revision, []event.ResurrectItem{item}
		return &event.Command{Resurrect: c}, err
	})
	e := get(q, func() (*event.Event, error) {
		return s.deps.Log.Event(event.RefOf(res.Moved[0].To))
	})
	if q.err != nil {
		return q.err
	}
	return q.answer(http.StatusCreated, &wire.Resurrected{
		MessageID: e.Subject.String(), NewMessageID: e.ID.String(), Queue: e.ToQueue,
	})
}

// departed returns the item that resurrects a message, which has left its queue, into target (nil:
// without content). If that is impossible, it returns a problem, whose code is that to skip the
// message by, unless the item has one.
func (s *Server) departed(
	ctx context.Context, l *life, edit *dead.Edit, target *event.QueueView,
) (item event.ResurrectItem, err error) {
	item = event.ResurrectItem{
		ID: l.id, First: l.first, Replays: uint32(l.replays), Edited: edit != nil,
		Last: event.RefOf(l.newest),
	}
	if l.set == nil || l.payload == nil {
		return item, historyExpired(l.id)
	}
	item.Key, item.Kind, item.Priority = l.set.Key, l.set.Kind, l.priority
	item.SourceID, item.CorrelationID = l.set.SourceID, l.set.CorrelationID
	if target == nil {
		return item, nil
	}
	replaced := edit != nil && edit.HasPayload
	if l.payload.Content.Damaged && !replaced {
		item.Skip = event.SkipDamaged
		return item, event.Problemf(event.CodeConflict, "id", "what was in message %s is damaged: "+
			"an edit with a payload could take its place", l.id)
	}
	content, err := eventContent(l.payload)
	if err != nil && !replaced {
		return item, err
	}
	if content == nil {
		if !replaced {
			item.Skip = event.SkipErased
			return item, event.Problemf(event.CodeConflict, "id", "what was in message %s "+
				"has been erased: an edit with a payload could take its place", l.id)
		}
		content = &event.Content{}
	}
	content = cmp.Or(edit, &dead.Edit{}).Apply(content)
	item.Size, item.Content = uint32(len(content.Payload)), event.EncodeContent(content)
	if err := s.Fits(target, content); err != nil {
		return item, err
	}
	item.Holder = l.set.ID
	item.Alias = s.aliasIn(target, l.set, content)
	if holder, ok := s.deps.State.Duplicate(item.Alias); ok {
		err = s.ownHolder(ctx, &item, holder)
	}
	return item, err
}

// ownHolder makes the one that holds a message's deduplication hash its Holder if that was the
// message itself, under this id or an earlier one: it may have been resurrected into other queues
// since.
func (s *Server) ownHolder(
	ctx context.Context, item *event.ResurrectItem, holder event.ID,
) error {
	if holder == item.Holder {
		return nil
	}
	history, err := s.deps.Log.History(ctx, item.ID)
	if holder == item.First ||
		slices.ContainsFunc(history, func(e event.Event) bool { return e.Subject == holder }) {
		item.Holder = holder
	}
	return err
}

// aliasIn returns the deduplication hash of a message in the target queue. In its own queue it
// keeps its hash. In another queue the hash is derived from the known one, which is scoped to the
// incarnation of the queue where the message took it.
func (s *Server) aliasIn(
	target *event.QueueView, set *event.Event, content *event.Content,
) event.Hash {
	from := cmp.Or(set.ToQueue, set.Queue)
	switch origin, ok := s.deps.State.Queue(from); {
	case target.Policy.DedupEnd(set.SourceID != "", 0) == 0:
		return event.Hash{}
	case target.Policy.DedupBy == event.DedupByContent && set.SourceID == "":
		return hash(content.Payload).Of(target.Number)
	case !set.DedupKey.IsZero():
		return set.DedupKey.Of(target.Number)
	case set.Alias.IsZero(), from == target.Name:
		return set.Alias
	case ok:
		return set.Alias.Of(origin.Number).Of(target.Number)
	}
	return event.Hash{}
}

// lastLife follows a message from any of its ids to the one under which it was acked or
// discarded. It returns a problem if the message is still in a queue or was resurrected.
func (s *Server) lastLife(q *request, id event.ID) (*life, error) {
	conflict := func(format string, args ...any) (*life, error) {
		return nil, event.Problemf(event.CodeConflict, "id", format, args...)
	}
	t, err := s.follow(q.Context(), s.deps.State, id)
	if err != nil {
		return nil, err
	}
	for _, e := range t.moves {
		if e.Type == event.Resurrected {
			return conflict("message %s was resurrected, as %s: once is all, but that can be resurrected "+
				"in its turn when it has left", e.Subject, e.ID)
		}
	}
	switch v := t.live; {
	case v != nil && t.id == id:
		return conflict("message %s has not left queue %s: it is %s", id, v.Queue, v.State)
	case v != nil:
		return conflict("the message is in queue %s as %s, %s", v.Queue, t.id, v.State)
	case t.life == nil:
		before, _ := s.deps.Log.Begins()
		if len(t.moves) > 0 || before > 0 && event.RefOf(id).Index <= before {
			return nil, historyExpired(t.id)
		}
		return nil, messageNotFound(id)
	}
	if st := t.life.state(); st != event.StateAcked && st != event.StateDiscarded {
		return conflict("message %s has not left its queue", t.id)
	}
	return t.life, nil
}

func historyExpired(id event.ID) *event.Problem {
	return event.Problemf(event.CodeHistoryExpired, "id",
		"the beginning of message %s has been deleted with the history", id)
}

// messageEdits answers GET /v1/messages/{id}/edits: what replays and resurrections changed.
func (s *Server) messageEdits(q *request) error {
	history, _ := q.pathHistory()
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
	return wire.Patch(a, b)
}

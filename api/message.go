package api

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/webhook"
)

// peekMessages answers
// GET /v1/queues/{queue}/messages?state=&key=&kind=&header.NAME=&at=&limit=&cursor=.
func (s *Server) peekMessages(q *request) error {
	q.read("state", "key", "kind", "header.", "at", "limit", "cursor", "max_payload", "consistency")
	name, limit, after := q.queue(), q.limit(100, 1000), q.queryID("cursor")
	f, most := q.messageFilter(), q.maxPayload()
	st := q.state()
	if found(q, name, st.Queue, queueNotFound); q.err != nil {
		return q.err
	}
	var out wire.MessageList
	views, next, err := s.peek(st, name, f, after, limit, &out)
	if err != nil {
		return err
	}
	if !next.IsZero() {
		out.NextCursor = next.String()
	}
	out.Messages = get(q, func() ([]wire.Message, error) { return s.messages(views, most) })
	return q.answer(http.StatusOK, &out)
}

// messageFilter selects messages of a queue.
type messageFilter struct {
	state     event.State // StateNone: all
	key, kind *string     // nil: all
	headers   map[string]string
}

// messageFilter reads a filter from the query, nil if there is none.
func (q *request) messageFilter() *messageFilter {
	f := &messageFilter{
		key: q.text("key", event.MaxKeyBytes), kind: q.text("kind", maxKind),
		headers: q.queryHeaders(),
	}
	f.state, _ = event.Parse[event.State](q.choice("state", "scheduled", "ready", "leased"))
	if f.state == event.StateNone && f.key == nil && f.kind == nil && len(f.headers) == 0 {
		return nil
	}
	return f
}

// queryHeaders returns the header.NAME parameters, by NAME.
func (q *request) queryHeaders() map[string]string {
	headers := map[string]string{}
	for name, v := range q.query {
		if h, ok := strings.CutPrefix(name, "header."); ok {
			headers[h] = v[0]
		}
	}
	return headers
}

// selects reports whether a filter selects a message.
func (s *Server) selects(f *messageFilter, v *event.MessageView) (bool, error) {
	if f.state != event.StateNone && v.State != f.state || f.key != nil && v.Key != *f.key ||
		f.kind != nil && v.Kind != *f.kind {
		return false, nil
	}
	if len(f.headers) == 0 {
		return true, nil
	}
	c, err := s.content(v.Content)
	if err != nil || c == nil { // lost to damage, or erased
		return false, err
	}
	for name, want := range f.headers {
		if !slices.ContainsFunc(c.Headers, func(h event.Header) bool {
			return strings.EqualFold(h.Name, name) && h.Value == want
		}) {
			return false, nil
		}
	}
	return true, nil
}

// A filtered page reads at most peekMost messages, for about peekFor.
const (
	peekMost     = 10_000
	peekContents = 400 // if it needs their contents
	peekFor      = time.Second
	peekStep     = 500
)

// peek returns at most limit messages of a queue after an id, and the id after which the next page
// begins, zero at the end. With a filter, it sets out.Scanned to the number of messages read.
func (s *Server) peek(
	st State, name string, f *messageFilter, after event.ID, limit int, out *wire.MessageList,
) (views []event.MessageView, next event.ID, err error) {
	if f == nil {
		views, more := st.Messages(name, event.MessageFilter{After: after, Limit: limit})
		if more {
			next = views[limit-1].ID
		}
		return views, next, nil
	}
	end, scanned, most := time.Now().Add(peekFor), 0, peekMost
	if len(f.headers) > 0 {
		most = peekContents
	}
	out.Scanned = &scanned
	for {
		page, more := st.Messages(name, event.MessageFilter{After: after, Limit: peekStep})
		for i := range page {
			if len(views) == limit || scanned == most || scanned > 0 && time.Now().After(end) {
				return views, after, nil
			}
			scanned++
			after = page[i].ID
			switch ok, err := s.selects(f, &page[i]); {
			case err != nil:
				return nil, next, err
			case ok:
				views = append(views, page[i])
			}
		}
		if !more {
			return views, next, nil
		}
	}
}

// messages returns the views of messages.
func (s *Server) messages(views []event.MessageView, most int64) ([]wire.Message, error) {
	out := make([]wire.Message, len(views))
	for i := range views {
		var err error
		if out[i], err = s.message(&views[i]); err != nil {
			return nil, err
		}
		withoutLarge(&out[i], most)
	}
	return out, nil
}

// maxPayload returns the size of the largest payload that a list includes.
func (q *request) maxPayload() int64 { return q.number("max_payload", math.MaxInt64, 0, 256<<20) }

// withoutLarge removes a payload of more than most bytes from a message.
func withoutLarge(m *wire.Message, most int64) {
	if m.Size > most {
		m.Payload, m.PayloadBytes, m.Original = nil, nil, nil
	}
}

// message returns a message's view.
func (s *Server) message(v *event.MessageView) (wire.Message, error) {
	c, err := s.content(v.Content)
	if err != nil {
		return wire.Message{}, err
	}
	m := messageOf(v, c)
	m.Erased, m.Damaged = s.absent(c, v.Content)
	m.HistoryTruncated = s.historyBegins(firstOf(v)) != nil
	return m, s.died(v, m.Dead)
}

// died sets the error of a dead message and, if it died of an expired lease, the worker.
func (s *Server) died(v *event.MessageView, to *wire.Dead) (err error) {
	if to == nil {
		return nil
	}
	to.Error, err = s.deadLetters(s.deps.State).Error(v)
	if err != nil || to.Error != event.LeaseExpiredError {
		return err
	}
	ref := event.RefOf(v.ID)
	for range 3 { // the death, the lease's end, the lease
		e, err := s.deps.Log.Event(ref)
		switch {
		case gone(err) || notFound(err):
			return nil
		case err != nil:
			return err
		case e.Type == event.Leased:
			to.Worker = e.Worker
			return nil
		case e.Type == event.LeaseExpired:
			ref = event.RefOf(e.Lease)
		default:
			ref = e.Prev
		}
	}
	return nil
}

// messageOf returns a message's view, without the error of a dead message.
func messageOf(v *event.MessageView, c *event.Content) wire.Message {
	m := wire.Message{
		ID: v.ID.String(), Queue: v.Queue, State: v.State.String(), Held: v.Held,
		Key: v.Key, Kind: v.Kind, Attempt: int64(v.Attempt), Priority: int64(v.Priority),
		Size: int64(v.Size), EnqueuedAt: wire.Time(v.EnqueuedAt), ExpiresAt: wire.Time(v.Expires),
		SourceID: v.SourceID,
	}
	switch {
	case v.State == event.StateScheduled:
		m.AvailableAt = wire.Time(v.Due)
	case v.State == event.StateLeased && !v.Lease.IsZero():
		m.LeaseID, m.LeaseExpiresAt = v.Lease.String(), wire.Time(v.LeaseExpiresAt)
	}
	if o := v.Origin; o != nil {
		m.Origin = &wire.Origin{
			FirstMessageID: o.First.String(), FromMessageID: o.From.String(),
			Replays: int64(o.Replays),
		}
	}
	if d := v.Dead; d != nil {
		m.Dead = &wire.Dead{
			Queue: d.Queue, MessageID: d.MessageID.String(), Reason: d.Reason.String(),
			Attempts: int64(d.Attempts), FailedAt: wire.Time(d.FailedAt),
			FirstEnqueuedAt: wire.Time(d.FirstEnqueuedAt), ReplayCount: int64(d.ReplayCount),
		}
	}
	setContent(&m, c)
	return m
}

// content reads the user content of an event, nil if it was erased or deleted by retention.
func (s *Server) content(ref event.Ref) (*event.Content, error) {
	if ref.IsZero() {
		return &event.Content{}, nil
	}
	c, err := s.deps.Log.Content(ref)
	if erased(err) || gone(err) {
		return nil, nil
	}
	return c, err
}

// absent reports why content returned nil for ref; c is what it returned.
func (s *Server) absent(c *event.Content, ref event.Ref) (erased, damaged bool) {
	if c != nil {
		return false, false
	}
	_, err := s.deps.Log.Content(ref)
	damaged = errors.Is(err, log.ErrDamaged)
	return errors.Is(err, log.ErrErased) && !damaged, damaged
}

// firstOf returns the index at which a message's history begins, as far as its view knows.
func firstOf(v *event.MessageView) uint64 {
	first := v.ID
	switch {
	case v.Origin != nil:
		first = v.Origin.First
	case v.Dead != nil:
		first = v.Dead.MessageID
	}
	return event.RefOf(first).Index
}

// historyBegins returns when history begins if retention has deleted the given index, else nil.
func (s *Server) historyBegins(index uint64) *wire.Time {
	before, clock := s.deps.Log.Begins()
	if before == 0 || index > before {
		return nil
	}
	return new(wire.Time(clock))
}

// setContent sets the user content of a message; c is nil if it was erased or deleted.
func setContent(m *wire.Message, c *event.Content) {
	if c == nil {
		m.Payload = jsontext.Value("null")
		return
	}
	switch {
	case c.Binary:
		m.PayloadBytes, m.ContentType = c.Payload, c.ContentType
		if m.PayloadBytes == nil {
			m.PayloadBytes = wire.Bytes{} // an empty payload, not none
		}
	case len(c.Payload) > 0:
		m.Payload = c.Payload
	default:
		m.Payload = jsontext.Value("null")
	}
	m.CorrelationID, m.Original = c.CorrelationID, c.Original
	if len(c.Headers) > 0 {
		m.Headers = make(map[string]string, len(c.Headers))
	}
	for _, h := range c.Headers {
		m.Headers[h.Name] = h.Value
	}
}

func messageNotFound(id event.ID) *event.Problem {
	return event.Problemf(event.CodeMessageNotFound, "id", "message %s does not exist", id)
}

// getMessage answers GET /v1/messages/{id}, from history if the message has left its queue.
func (s *Server) getMessage(q *request) error {
	q.read("at", "consistency")
	id, st := q.pathID("id"), q.state()
	if q.err != nil {
		return q.err
	}
	v, live := st.Message(id)
	history, err := s.deps.Log.History(q.Context(), id)
	if err != nil {
		return err
	}
	history = upTo(st, history)
	l := lifeOf(history, id)
	var m wire.Message
	switch {
	case live:
		m, err = s.message(&v)
	case l != nil:
		m, v, err = s.pastMessage(l)
	default:
		return q.noMessage(id)
	}
	if err == nil {
		err = q.mayRead(id, m.Queue)
	}
	if err != nil {
		return err
	}
	if media := q.accepts(webhook.CloudBatchType, webhook.CloudEventType); media != "" {
		return q.answerEvent(media, &v)
	}
	if l != nil && l.set != nil {
		m.Cause, m.CauseTruncated = textOf(l.set.Cause), l.set.CauseTruncated
	}
	visible := q.visible(history)
	m.History, m.Attempts = eventsOf(visible), attemptsOf(visible)
	return q.answer(http.StatusOK, &m)
}

// noMessage returns the error for a message that does not exist. A token that may not read all
// queues gets the same error as for a message in a queue that it may not read.
func (q *request) noMessage(id event.ID) error {
	if err := q.mayRead(id, ""); err != nil {
		return err
	}
	return messageNotFound(id)
}

// mayRead returns an error unless the token may read a message's queue; "" is no queue.
func (q *request) mayRead(id event.ID, queue string) error {
	if q.sees(queue) {
		return nil
	}
	return event.Problemf(codeForbidden, "id",
		"there is no message %s in a queue that the token of %s may read", id, echo(q.who.name))
}

// visible returns the part of a history that took place in queues that the token may read.
func (q *request) visible(history []event.Event) []event.Event {
	if q.who == nil {
		return history
	}
	return slices.DeleteFunc(slices.Clone(history), func(e event.Event) bool {
		return !q.seesEvent(&e)
	})
}

// deleteMessage removes a message, whatever its state.
func (s *Server) deleteMessage(q *request) error {
	id := q.read("reason").pathID("id")
	q.becauseBody()
	mustExist(q, id, s.deps.State.Message, messageNotFound)
	q.commit(&event.Command{Delete: &event.DeleteMessage{ID: id}})
	return q.answer(http.StatusNoContent, nil)
}

// rescheduleMessage answers PATCH /v1/messages/{id}: it changes the time or the priority of a
// waiting message, or both.
func (s *Server) rescheduleMessage(q *request) error {
	id := q.read().pathID("id")
	var in wire.Reschedule
	q.do(func() error { return q.decode(&in, false, "application/merge-patch+json") })
	c := &event.Reschedule{ID: id, DelayMS: -1}
	switch {
	case in.DeliverAt == nil && in.DelayMS == nil && in.Priority == nil:
		q.refuse("", "the body must have deliver_at, delay_ms or priority")
	case in.DeliverAt != nil && in.DelayMS != nil:
		q.refuse("deliver_at", "deliver_at and delay_ms exclude each other")
	}
	if in.DeliverAt != nil {
		c.At = max(int64(*in.DeliverAt), 1) // the past is now
		q.do(func() error { return s.checkDeliverAt(*in.DeliverAt) })
	}
	if in.DelayMS != nil {
		c.DelayMS = *in.DelayMS
		q.do(func() error { return checkDelay("delay_ms", c.DelayMS) })
	}
	if in.Priority != nil {
		c.Priority = uint8(*in.Priority)
		q.do(func() error { return checkPriority(*in.Priority) })
	}
	mustExist(q, id, s.deps.State.Message, messageNotFound)
	res := q.commit(&event.Command{Reschedule: c})
	if q.err != nil {
		return q.err
	}
	st := q.after(&res)
	m := get(q, func() (wire.Message, error) {
		if v, live := st.Message(id); live {
			return s.message(&v)
		}
		return s.leftMessage(q, id) // it left after the commit
	})
	return q.answer(http.StatusOK, &m)
}

// leftMessage returns a message that has left its queue.
func (s *Server) leftMessage(q *request, id event.ID) (m wire.Message, err error) {
	history, err := s.deps.Log.History(q.Context(), id)
	if l := lifeOf(history, id); err == nil && l != nil {
		m, _, err = s.pastMessage(l)
	}
	return m, err
}

package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// EventOf returns an event's view: without payloads, but with an error text where the type has one.
func EventOf(e *event.Event) wire.Event {
	text := func(id event.ID) string {
		if id.IsZero() {
			return ""
		}
		return id.String()
	}
	out := wire.Event{
		EventID: e.ID.String(), Type: e.Type.String(), Time: wire.Time(event.ClockOf(e.ID)),
		MessageID: text(e.Subject), LeaseID: text(e.Lease), TaskID: text(e.Task),
		Index: event.RefOf(e.ID).Index, Queue: e.Queue, Actor: e.Actor, Key: e.Key, Kind: e.Kind,
		Priority: int64(e.Priority), Size: int64(e.Size), ExpiresAt: wire.Time(e.Expires),
		SourceID: e.SourceID, CorrelationID: e.CorrelationID,
		LeaseExpiresAt: wire.Time(e.LeaseExpires), Attempt: int64(e.Attempt),
		Worker: e.Worker, Reason: e.Reason.String(), ToQueue: e.ToQueue, HoldsKey: e.HoldsKey,
		TakesKey: e.TakesKey, Count: e.Count, BeforeIndex: e.Before, Rules: int64(e.Rules),
		Webhook: e.Webhook, Definition: jsontext.Value(e.Definition), DiedIn: e.DiedIn,
		Order: e.Order.String(), Edited: e.Edited, TaskKind: e.TaskKind.String(), Failed: e.Failed,
		Node: e.Node, Erased: e.Erased() && !e.Content.Damaged, Damaged: e.Content.Damaged,
	}
	switch e.Type {
	case event.Enqueued, event.Rescheduled:
		out.DeliverAt = wire.Time(e.Due)
	case event.Retried:
		out.NextAt = wire.Time(max(e.Due, event.ClockOf(e.ID)))
	case event.LeaseExpired, event.Released:
		out.NextAt = wire.Time(e.Due)
	case event.TaskCreated:
		out.TaskID = e.ID.String()
	case event.Erased:
		out.Count = int64(len(e.Refs))
	case event.Resurrected, event.ContentCarried:
		out.Count = 0 // the number of replays, which is in GET /v1/messages/{id}
	}
	out.Cause, out.CauseTruncated = textOf(e.Cause), e.CauseTruncated
	if e.IsMove() {
		out.NewMessageID = e.ID.String()
	}
	switch e.Type {
	case event.Retried, event.DeadLettered, event.Discarded, event.Acked, event.Released,
		event.TaskCreated, event.TaskEnded, event.Erased, event.Replayed, event.Resurrected,
		event.QueuePaused, event.QueueResumed, event.QueuePurged, event.QueueDeleted:
		if len(e.Content.Bytes) > 0 {
			if c, err := event.DecodeContent(e.Content.Bytes); err == nil {
				out.Error, out.HasResult, out.Why = c.Error, len(c.Result) > 0, c.Why
			}
			if out.Reason == "" { // the event itself has no reason
				out.Reason, out.Why = out.Why, ""
			}
		}
	}
	if e.Policy != nil {
		out.Policy = new(policyOf(e.Policy))
	}
	return out
}

// textOf returns ids as text, nil for none.
func textOf(ids []event.ID) (out []string) {
	for _, id := range ids {
		out = append(out, id.String())
	}
	return out
}

func eventsOf(events []event.Event) []wire.Event {
	out := make([]wire.Event, len(events))
	for i := range events {
		out[i] = EventOf(&events[i])
	}
	return out
}

// eventQuery is a GET /v1/events request, and its progress.
type eventQuery struct {
	from   uint64   // first index to read
	after  event.ID // only events above it
	to     uint64   // last index
	follow bool
	limit  int

	until    time.Time // when to stop reading; zero: never
	timedOut bool      // until has passed

	log.Filter
	message event.ID
}

// maxEventsRead bounds the time spent on a list.
const maxEventsRead = time.Second

// matches reports whether the query selects an event that the token may read.
func (q *request) matches(f *eventQuery, e *event.Event) (bool, error) {
	if !f.message.IsZero() && e.Subject != f.message && e.ID != f.message || !q.seesEvent(e) {
		return false, nil
	}
	return f.Selects(q.Context(), q.s.deps.Log, e)
}

// events answers GET /v1/events: a list with a cursor, or a stream.
func (s *Server) events(q *request) error {
	f := q.eventQuery()
	if q.err != nil {
		return q.err
	}
	media := cmp.Or(q.accepts(typeNDJSON), q.accepts(typeSSE))
	switch {
	case f.follow && media != "":
		return s.stream(q, f, media)
	case f.follow:
		return bad("follow", "follow goes with Accept: %s or %s", typeNDJSON, typeSSE)
	}
	f.until = time.Now().Add(maxEventsRead)
	out := wire.EventList{Events: []wire.Event{}}
	if f.after.IsZero() {
		out.HistoryBeginsAt = s.historyBegins(f.from)
	}
	for e, err := range q.scan(q.Context(), f) {
		if err != nil {
			return err
		}
		if out.Events = append(out.Events, EventOf(e)); len(out.Events) == f.limit {
			break
		}
	}
	if f.after.IsZero() && f.from > 1 {
		// There was no event to name: the place before from is the cursor.
		f.after = event.NewID(max(s.deps.State.Clock(), 0), f.from-1, event.MaxNumber)
	}
	if f.Lost {
		out.HistoryBeginsAt = s.historyBegins(0)
	}
	out.NextCursor, out.Partial = f.after.String(), f.timedOut
	if media != "" {
		return q.answerLines(&out, media)
	}
	return q.answer(http.StatusOK, &out)
}

// answerLines answers with a list as NDJSON or server-sent events, and its cursor in a header.
// Server-sent events end with the cursor as an id, so that an EventSource reconnects there.
func (q *request) answerLines(out *wire.EventList, media string) error {
	var body []byte
	for i := range out.Events {
		var err error
		if body, err = appendEvent(body, &out.Events[i], media); err != nil {
			return err
		}
	}
	if media == typeSSE {
		body = fmt.Appendf(body, "id: %s\n\n", out.NextCursor)
	}
	q.header("X-Qlogd-Next-Cursor", out.NextCursor)
	if out.Partial {
		q.header("X-Qlogd-Partial", "true")
	}
	q.send(http.StatusOK, media, body)
	return nil
}

// appendEvent appends an event to an NDJSON or SSE text.
func appendEvent(b []byte, e *wire.Event, media string) ([]byte, error) {
	data, err := wire.Marshal(e)
	if media == typeSSE {
		return fmt.Appendf(b, "id: %s\nevent: %s\ndata: %s\n\n", e.EventID, e.Type, data), err
	}
	return append(append(b, data...), '\n'), err
}

// scan yields the events that a query selects, up to the log's head. It advances f, so the next
// scan continues without gaps or duplicates.
func (q *request) scan(ctx context.Context, f *eventQuery) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for b, err := range q.s.deps.Log.Blocks(ctx, f.from, f.to) {
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range b.Events {
				e := &b.Events[i]
				if e.ID.Compare(f.after) <= 0 {
					continue
				}
				ok, err := q.matches(f, e)
				if err != nil {
					yield(nil, err)
					return
				}
				if f.after = e.ID; ok && !yield(e, nil) {
					return
				}
				if i%64 == 0 && !f.until.IsZero() && time.Now().After(f.until) {
					f.timedOut = true
					return
				}
			}
			f.from = b.Index + 1
		}
	}
}

// eventQuery reads the parameters.
func (q *request) eventQuery() *eventQuery {
	q.read("after", "from", "to", "queue", "type+", "message_id", "key", "kind", "worker", "actor",
		"correlation_id", "limit", "follow", "consistency")
	f := &eventQuery{
		follow: q.flag("follow"), limit: q.limit(100, 1000), message: q.queryID("message_id"),
		to: math.MaxUint64, Filter: log.Filter{
			Queue: q.query.Get("queue"), Actor: q.label("actor", maxWorker),
			Worker: q.label("worker", maxWorker), Key: q.label("key", event.MaxKeyBytes),
			Kind: q.label("kind", maxKind), CorrelationID: q.label("correlation_id", maxCorrelationID),
		},
	}
	if f.follow && !q.query.Has("limit") {
		f.limit = math.MaxInt
	}
	if q.query.Has("queue") {
		q.do(func() error { return validName("queue", f.Queue) })
		q.do(func() error { return q.may(roleRead, f.Queue) })
	}
	for _, list := range q.query["type"] {
		for name := range strings.SplitSeq(list, ",") {
			t, ok := event.Parse[event.Type](name)
			if !ok || t == event.TypeNone {
				q.refuse("type", "type must be event types such as enqueued,acked, not %s", echo(name))
			}
			f.Types = append(f.Types, t)
		}
	}
	if q.fresh(); q.err == nil {
		q.eventRange(f)
	}
	return f
}

// eventRange reads where to start and end. after takes precedence over from.
func (q *request) eventRange(f *eventQuery) {
	events := q.s.deps.Log
	after := q.query.Get("after")
	sse := q.accepts(typeSSE) != ""
	if v := q.Header.Get("Last-Event-ID"); v != "" && (sse || f.follow) {
		after = v // an EventSource that reconnects sends its first query again
	}
	switch {
	case after != "" || q.query.Has("after"):
		f.after = get(q, func() (event.ID, error) { return ulid("after", after) })
		f.from = event.RefOf(f.after).Index
		if head := events.Head(); f.from > head {
			q.refuse("after", "after is beyond the end of the log, index:%d", head)
		}
		before, _ := events.Begins()
		first := event.NewID(event.ClockOf(f.after), before, event.MaxNumber)
		if q.err == nil && before > 0 && !f.after.IsZero() && f.after.Compare(first) < 0 {
			q.err = event.Problemf(event.CodeHistoryExpired, "after",
				"events after that one have been deleted by retention")
		}
	case q.query.Has("from"):
		f.from = q.indexOf("from", func(at event.Instant) (uint64, error) {
			if at.Kind == event.InstantStart {
				return 1, nil
			}
			index, err := events.From(at)
			if gone(err) && !f.follow && !sse && q.accepts(typeNDJSON) == "" {
				return 1, nil // the answer says where history begins, which a stream cannot
			}
			return index, err
		})
	case f.follow:
		f.from = events.Head() + 1
	default:
		f.from = 1 // or the first that is kept
	}
	if !f.message.IsZero() { // a message has no events before the one that created it
		f.from = max(f.from, min(event.RefOf(f.message).Index, events.Head()+1))
	}
	if q.query.Has("to") {
		f.to = q.indexOf("to", events.To)
	}
}

// indexOf resolves a parameter that is an instant, now if it is absent, to an index of the log.
func (q *request) indexOf(name string, resolve func(event.Instant) (uint64, error)) uint64 {
	at := q.instant(name)
	return get(q, func() (uint64, error) {
		index, err := resolve(at)
		return index, q.rangeProblem(name, err)
	})
}

// logHead answers GET /v1/log/head?at=: the newest block's index and chain.
func (s *Server) logHead(q *request) error {
	q.read("consistency", "at").fresh()
	index := q.indexOf("at", s.deps.Log.To)
	head := get(q, func() (wire.LogHead, error) { return s.deps.HeadAt(index) })
	return q.answer(http.StatusOK, &head)
}

// logSegments answers GET /v1/log/segments.
func (s *Server) logSegments(q *request) error {
	q.read("consistency").fresh()
	out := s.deps.LogSegments()
	return q.answer(http.StatusOK, &out)
}

const (
	typeNDJSON = "application/x-ndjson"
	typeSSE    = "text/event-stream"
)

// heartbeat is how long a stream is silent at most.
const heartbeat = 15 * time.Second

// streamWriteTimeout is how long a client may take to accept a write before the stream
// ends. A slow client costs no memory: the stream reads the log at the client's pace.
const streamWriteTimeout = 30 * time.Second

// stream sends events as NDJSON or server-sent events: those of the range, and those that are
// committed later, until the client disconnects or the server drains. A draining server starts no
// stream: it would end at once, and the client would reconnect without a pause.
func (s *Server) stream(q *request, f *eventQuery, media string) error {
	if s.draining() {
		return shuttingDown
	}
	q.patience = math.MaxInt64 // it ends when the client goes
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	w := &eventWriter{q: q, rc: http.NewResponseController(q.w), media: media}
	stop := context.AfterFunc(s.undrained, func() {
		cancel()
		w.deadline(time.Second) // a slow client must not delay the shutdown
	})
	defer stop()
	if w.flush() != nil {
		return nil
	}
	defer w.deadline(streamWriteTimeout) // for the end of the answer
	for {
		// A filter may skip much of the log; a heartbeat is due in the meantime.
		f.until, f.timedOut = time.Now().Add(heartbeat), false
		err := w.events(ctx, f)
		if err == nil && (f.from > f.to || f.limit <= 0) {
			return nil
		}
		if err == nil && !f.timedOut {
			err = s.awaitMore(ctx, f)
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, errWrite), q.refused(s.rules[q.route]) != nil:
			return nil
		case err != nil:
			s.log.Error("event stream failed", "request_id", q.id, "error", err)
			panic(http.ErrAbortHandler) // half a stream must not look whole
		case f.timedOut && w.heartbeat() != nil:
			return nil
		}
	}
}

// awaitMore waits until the log has more to read, or f.until has passed.
func (s *Server) awaitMore(ctx context.Context, f *eventQuery) error {
	ctx, cancel := context.WithDeadline(ctx, f.until)
	defer cancel()
	err := s.deps.Log.Wait(ctx, f.from-1)
	if f.timedOut = errors.Is(err, context.DeadlineExceeded); f.timedOut {
		return nil
	}
	return err
}

var errWrite = errors.New("the client does not read")

// eventWriter writes events to one client.
type eventWriter struct {
	q     *request
	rc    *http.ResponseController
	media string
}

// events sends what a query selects, up to the log's head.
func (w *eventWriter) events(ctx context.Context, f *eventQuery) error {
	for e, err := range w.q.scan(ctx, f) {
		if err != nil {
			return err
		}
		out := EventOf(e)
		text, err := appendEvent(nil, &out, w.media)
		if err == nil {
			err = w.write(string(text))
		}
		if err != nil {
			return err
		}
		if f.limit--; f.limit <= 0 {
			break
		}
	}
	return w.flush()
}

func (w *eventWriter) heartbeat() error {
	beat := "\n" // NDJSON: an empty line
	if w.media == typeSSE {
		beat = ":\n\n"
	}
	return cmp.Or(w.write(beat), w.flush())
}

func (w *eventWriter) deadline(in time.Duration) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(in))
}

// write writes text; "" writes only the answer's header.
func (w *eventWriter) write(text string) error {
	w.deadline(streamWriteTimeout)
	if w.q.status == 0 {
		w.q.status = http.StatusOK
		w.q.w.Header().Set("Content-Type", w.media)
		w.q.w.WriteHeader(http.StatusOK)
	}
	if text != "" {
		if _, err := w.q.w.Write([]byte(text)); err != nil {
			return errWrite
		}
	}
	return nil
}

func (w *eventWriter) flush() error {
	_ = w.write("")
	if err := w.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errWrite
	}
	// The next heartbeat may come later than this deadline, so it is removed.
	_ = w.rc.SetWriteDeadline(time.Time{})
	return nil
}

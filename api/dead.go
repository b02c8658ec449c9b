package api

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// A page of a listing looks at most at so many messages: then it answers with what it has found so
// far. Reading a history or an error from the log takes long.
const (
	listMost     = 100_000
	listMostRead = 500
)

// deadLetters finds dead letters in a state.
func (s *Server) deadLetters(st State) dead.Finder {
	return dead.Finder{State: st, Content: s.content, Fits: s.Fits}
}

// filterParams are the query parameters of a filter of dead letters.
var filterParams = []string{"reason", "error", "key", "kind", "from", "to", "fingerprint"}

// queryFilter reads a filter from the query.
func (q *request) queryFilter() *dead.Filter {
	for _, name := range filterParams {
		v := q.query.Get(name)
		if !utf8.ValidString(v) {
			q.refuse(name, "%s must be UTF-8", name)
		}
		empty := name == "key" || name == "kind" || name == "error"
		if v == "" && q.query.Has(name) && !empty {
			q.refuse(name, "%s must not be empty", name)
		}
	}
	return q.deadFilter(&wire.DeadFilter{
		Reason: q.query.Get("reason"), Error: q.query.Get("error"),
		Key: q.text("key", event.MaxKeyBytes), Kind: q.text("kind", maxKind),
		From: q.query.Get("from"), To: q.query.Get("to"), Fingerprint: q.query.Get("fingerprint"),
	}, "")
}

// deadFilter checks a filter; prefix goes before the names of its fields.
func (q *request) deadFilter(in *wire.DeadFilter, prefix string) *dead.Filter {
	f := &dead.Filter{
		Reason: in.Reason, Error: in.Error, Key: in.Key, Kind: in.Kind, Fingerprint: in.Fingerprint,
	}
	if _, ok := dead.ParseReason(in.Reason); !ok {
		q.refuse(prefix+"reason", "%sreason must be max_attempts, expired, rejected or key_dead, "+
			"not %s", prefix, echo(in.Reason))
	}
	q.do(func() error {
		return cmp.Or(within(prefix+"error", in.Error, 1024),
			within(prefix+"key", deref(in.Key), event.MaxKeyBytes),
			within(prefix+"kind", deref(in.Kind), maxKind))
	})
	if in.Fingerprint != "" && !fingerprint.MatchString(in.Fingerprint) {
		q.refuse(prefix+"fingerprint", "%sfingerprint must be 12 hex digits, as in dead/groups, "+
			"not %s", prefix, echo(in.Fingerprint))
	}
	from := q.optionalInstant(prefix+"from", in.From)
	to := q.optionalInstant(prefix+"to", in.To)
	f.From, f.FromIndex = from.Time, from.Index
	switch {
	case in.To == "":
	case to.Kind == event.InstantIndex, to.Kind == event.InstantID:
		f.ToIndex = max(to.Index, 1)
	default:
		f.To = max(to.Time, 1) // start: nothing had died yet
	}
	return f
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{12}$`)

// diedIn returns an error if a queue does not exist and no messages died in it before it was
// deleted.
func diedIn(st State, name string) error {
	if _, ok := st.Queue(name); !ok && st.DeadCount(name) == 0 {
		return queueNotFound(name)
	}
	return nil
}

// listDead answers GET /v1/queues/{queue}/dead.
func (s *Server) listDead(q *request) error {
	q.read(append([]string{"state", "limit", "cursor", "at", "max_payload", "consistency"},
		filterParams...)...)
	name, limit, after := q.queue(), q.limit(100, 1000), q.queryID("cursor")
	replayed := q.choice("state", "dead", "replayed") == "replayed"
	if replayed && q.query.Has("at") {
		q.refuse("at", "at goes with state=dead")
	}
	f, most, st := q.queryFilter(), q.maxPayload(), q.state()
	if q.err != nil {
		return q.err
	}
	var out wire.DeadList
	if replayed { // history has them even if the queue was deleted long ago
		out.Dead, out.NextCursor, q.err = s.replayedMessages(q.Context(), name, f, after, limit)
		for i := range out.Dead {
			withoutLarge(&out.Dead[i], most)
		}
	} else if q.err = diedIn(st, name); q.err == nil {
		search := &dead.Search{Queue: name, Filter: *f, After: after}
		out.Dead, out.NextCursor, q.err = s.deadMessages(q.Context(), st, search, limit, most)
	}
	return q.answer(http.StatusOK, &out)
}

// deadMessages returns a page of what a search finds, and its cursor.
func (s *Server) deadMessages(
	ctx context.Context, st State, search *dead.Search, limit int, most int64,
) (out []wire.Message, cursor string, err error) {
	if search.Most = listMost; search.Filter.ReadsErrors() {
		search.Most = listMostRead
	}
	var views []event.MessageView
	for v, err := range s.deadLetters(st).Select(ctx, search) {
		if err != nil {
			return nil, "", err
		}
		if search.More = len(views) == limit; search.More {
			break
		}
		views = append(views, *v)
	}
	if search.More {
		cursor = search.After.String()
	}
	out, err = s.messages(views, most)
	return out, cursor, err
}

// replayedMessages returns a page of the messages that died in a queue and were replayed.
func (s *Server) replayedMessages(
	ctx context.Context, queue string, f *dead.Filter, after event.ID, limit int,
) (out []wire.Message, cursor string, err error) {
	looked := 0
	for e, err := range s.replayedEvents(ctx, queue, after) {
		if err != nil {
			return nil, "", err
		}
		if len(out) == limit || looked == max(listMostRead, limit) {
			return out, after.String(), nil
		}
		after = e.ID
		looked++
		m, err := s.replayedMessage(ctx, s.deps.State, e, f)
		if err != nil {
			return nil, "", err
		}
		if m != nil {
			out = append(out, *m)
		}
	}
	return out, "", nil
}

// replayedMessage returns the message that this event replayed, as it was when it was dead, and
// what became of it. It returns nil if its history has been deleted or f does not select it.
func (s *Server) replayedMessage(
	ctx context.Context, st State, e *event.Event, f *dead.Filter,
) (*wire.Message, error) {
	history, err := s.deps.Log.History(ctx, e.Subject)
	l := lifeOf(history, e.Subject)
	if err != nil || l == nil {
		return nil, err
	}
	v := l.view()
	if f != nil {
		if selected, err := s.deadLetters(st).Selects(f, &v); !selected {
			return nil, err
		}
	}
	m, _, err := s.pastMessage(l)
	if err != nil {
		return nil, err
	}
	m.ReplayedAt, m.NewMessageID = wire.Time(event.ClockOf(e.ID)), e.ID.String()
	became, _, err := s.fate(ctx, st, e.ID)
	if m.ReplayResult = became.String(); became == event.StateNone {
		m.ReplayResult = "unknown"
	}
	return &m, err
}

// replayedEvents yields the replayed events of messages that died in a queue, above after.
func (s *Server) replayedEvents(
	ctx context.Context, queue string, after event.ID,
) iter.Seq2[*event.Event, error] {
	const page = 200
	return func(yield func(*event.Event, error) bool) {
		var upTo uint64
		for more := true; more; {
			upTo, _ = s.deps.Models.Position() // before reading: later replays are read from the log
			found, err := s.deps.Models.Replayed(queue, after, page)
			if err = cmp.Or(err, ctx.Err()); err != nil {
				yield(nil, err)
				return
			}
			for i := range found {
				after = found[i].ID
				e, err := s.deps.Log.Event(event.RefOf(after))
				if gone(err) || notFound(err) {
					continue
				}
				if !yield(e, err) || err != nil {
					return
				}
			}
			more = len(found) == page
		}
		// The replays that the read model does not have yet.
		from := max(upTo+1, event.RefOf(after).Index)
		for e, err := range s.deps.Log.Events(ctx, from, math.MaxUint64) {
			wanted := err != nil ||
				e.Type == event.Replayed && e.DiedIn == queue && e.ID.Compare(after) > 0
			if wanted && !yield(e, err) {
				return
			}
		}
	}
}

// deadGroups answers GET /v1/queues/{queue}/dead/groups.
func (s *Server) deadGroups(q *request) error {
	q.read(append([]string{"step", "limit", "most", "cursor", "at", "consistency"},
		filterParams...)...)
	name, limit, f, st := q.queue(), q.limit(100, 1000), q.queryFilter(), q.state()
	step, after, most := get(q, q.step), q.queryID("cursor"), q.number("most", 0, 1, math.MaxInt32)
	q.do(func() error { return diedIn(st, name) })
	out := get(q, func() (wire.DeadGroups, error) {
		search := &dead.Search{Queue: name, Filter: *f, After: after, Most: int(most)}
		return s.deadLetters(st).Groups(q.Context(), search, limit, step)
	})
	return q.answer(http.StatusOK, &out)
}

// step reads a duration from a minute to a year, in ms; 0 if it is absent.
func (q *request) step() (int64, error) {
	text := q.query.Get("step")
	if !q.query.Has("step") {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Minute || d > 365*24*time.Hour {
		return 0, bad("step", "step must be a duration from 1m to 8760h, such as 1h, not %s",
			echo(text))
	}
	return d.Milliseconds(), nil
}

// getDead answers GET /v1/queues/{queue}/dead/{message_id}, by any id that the message
// has or had. A replayed message is answered as in the listing.
func (s *Server) getDead(q *request) error {
	q.read("at", "consistency")
	name, id, st := q.queue(), q.pathID("message_id"), q.state()
	return q.answer(http.StatusOK, get(q, func() (m *wire.Message, err error) {
		t, err := s.follow(q.Context(), st, id)
		if err != nil {
			return nil, err
		}
		if t.live != nil && t.live.DiedIn(name) {
			m = &wire.Message{}
			*m, err = s.message(t.live)
			return m, err
		}
		for _, e := range slices.Backward(t.moves) {
			if e.Type == event.Replayed && e.DiedIn == name { // when it had died there last
				m, err = s.replayedMessage(q.Context(), st, e, nil)
				break
			}
		}
		if err == nil && m == nil {
			err = q.notDead("message_id", name, id, &t)
		}
		return m, err
	}))
}

func (q *request) notDead(field, queue string, id event.ID, t *trail) *event.Problem {
	return event.Problemf(event.CodeMessageNotFound, field,
		"message %s is not dead in queue %s: %s", id, queue, q.became(id, t))
}

// became describes what became of a message.
func (q *request) became(id event.ID, t *trail) string {
	switch live := t.live; {
	case live == nil && t.life == nil, !q.seesAny(t):
		// The same text, so that it does not reveal what is in other queues.
		return "there never was one, or its history has been deleted"
	case live != nil && live.Dead != nil:
		return fmt.Sprintf("it died in queue %s and is in queue %s as %s",
			q.named(live.Dead.Queue), q.named(live.Queue), t.id)
	case live != nil && t.id != id:
		return fmt.Sprintf("it is in queue %s, %s as %s", q.named(live.Queue), live.State, t.id)
	case live != nil:
		return fmt.Sprintf("it is in queue %s, %s", q.named(live.Queue), live.State)
	}
	what := t.life.state().String() + " in queue " + q.named(t.life.queue())
	if e := t.life.last; e.Type == event.Discarded {
		what = fmt.Sprintf("discarded (%s)", e.Reason)
	}
	return fmt.Sprintf("it was %s at %s", what, wire.Time(event.ClockOf(t.life.last.ID)))
}

// seesAny reports whether the token may read anything about a message: where it is, if it is live,
// or some event of its history.
func (q *request) seesAny(t *trail) bool {
	v := t.live
	return q.who == nil || v != nil && (q.sees(v.Queue) || v.Dead != nil && q.sees(v.Dead.Queue)) ||
		len(q.visible(t.history)) > 0
}

// named returns a queue's name if the token may read it, else a placeholder.
func (q *request) named(queue string) string {
	if q.sees(queue) {
		return queue
	}
	return "(another)"
}

// adminDead answers GET /admin/queues/{queue}/dlq with the messages that died last, newest first.
func (s *Server) adminDead(q *request) error {
	q.read("limit", "tenant_id")
	name, limit := q.queue(), q.limit(1000, 10_000)
	q.fresh()
	q.do(func() error { return diedIn(s.deps.State, name) })
	q.ofTenant(name)
	if q.err != nil {
		return q.err
	}
	var newest []event.MessageView
	search := &dead.Search{Queue: name}
	for v, err := range s.deadLetters(s.deps.State).Select(q.Context(), search) {
		if err != nil {
			return err
		}
		if newest = append(newest, *v); len(newest) == 2*limit {
			newest = slices.Delete(newest, 0, limit)
		}
	}
	messages, err := s.messages(newest[max(0, len(newest)-limit):], math.MaxInt64)
	var out wire.AdminDeadLetters
	for _, m := range slices.Backward(messages) {
		out.DeadLetters = append(out.DeadLetters, wire.AdminDeadLetter{
			ID: m.ID, FailedAt: int64(m.Dead.FailedAt) / 1000, Error: m.Dead.Error,
			Attempts: m.Dead.Attempts, Preview: preview(&m),
		})
	}
	q.err = err
	return q.answer(http.StatusOK, &out)
}

// previewed is the maximum number of payload bytes in a preview.
const previewed = 1 << 10

// preview returns a payload; bytes, and the beginning of a long payload, as text.
func preview(m *wire.Message) wire.AdminPreview {
	b := []byte(m.Payload)
	if m.PayloadBytes != nil {
		b = m.PayloadBytes
	}
	truncated := len(b) > previewed
	if !truncated && m.PayloadBytes == nil {
		return wire.AdminPreview{Payload: m.Payload}
	}
	if b = b[:min(len(b), previewed)]; truncated && m.PayloadBytes == nil {
		for !utf8.Valid(b) {
			b = b[:len(b)-1] // part of a character that was cut
		}
	}
	text, _ := wire.Marshal(strings.ToValidUTF8(string(b), "\uFFFD")) // an error: not UTF-8
	return wire.AdminPreview{Payload: text, Truncated: truncated}
}

// adminReplay answers POST /admin/queues/{queue}/dlq/{message_id}/replay.
func (s *Server) adminReplay(q *request) error {
	to := s.moveOne(q, event.TaskReplay, "tenant_id")
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true, NewMessageID: to.String()})
}

// adminPurge answers DELETE /admin/queues/{queue}/dlq/{message_id}.
func (s *Server) adminPurge(q *request) error {
	s.moveOne(q, event.TaskPurge, "tenant_id")
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true})
}

package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"time"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// listWithin is how long a listing reads error texts until it answers with what
// it has found so far, and where to go on.
const listWithin = 10 * time.Second

// finder finds dead letters in a state.
func (s *Server) finder(st State) *dead.Finder {
	return &dead.Finder{State: st, Contents: s.Contents}
}

// filterParams are the query parameters of a filter of dead letters.
var filterParams = []string{"reason", "error", "key", "kind", "from", "to", "fingerprint"}

// queryFilter reads a filter from the query.
func (q *request) queryFilter() (f *dead.Filter) {
	query := q.query
	for _, name := range filterParams {
		if v := query.Get(name); !utf8.ValidString(v) {
			q.refuse(name, "%s must be UTF-8", name)
		} else if v == "" && query.Has(name) && name != "key" && name != "kind" && name != "error" {
			q.refuse(name, "%s must not be empty", name)
		}
	}
	in := wire.DeadFilter{
		Reason: query.Get("reason"), Error: query.Get("error"), From: query.Get("from"), To: query.Get("to"),
		Fingerprint: query.Get("fingerprint"), Key: q.text("key", event.MaxKeyBytes), Kind: q.text("kind", maxKind),
	}
	return get(q, func() (*dead.Filter, error) { return q.deadFilter(&in, "") })
}

// deadFilter checks a filter; prefix goes before the names of its fields.
func (q *request) deadFilter(in *wire.DeadFilter, prefix string) (*dead.Filter, error) {
	f := &dead.Filter{Reason: in.Reason, Error: in.Error, Key: in.Key, Kind: in.Kind, Fingerprint: in.Fingerprint}
	if _, ok := dead.ParseReason(in.Reason); !ok {
		return nil, bad(prefix+"reason", "%sreason must be max_attempts, expired, rejected or key_dead, not %s", prefix, echo(in.Reason))
	}
	var key, kind string
	if in.Key != nil {
		key = *in.Key
	}
	if in.Kind != nil {
		kind = *in.Kind
	}
	err := cmp.Or(within(prefix+"error", in.Error, 1024), within(prefix+"key", key, event.MaxKeyBytes), within(prefix+"kind", kind, maxKind))
	if err != nil {
		return nil, err
	}
	if in.Fingerprint != "" && !fingerprint.MatchString(in.Fingerprint) {
		return nil, bad(prefix+"fingerprint", "%sfingerprint must be 12 hex digits, as in dead/groups, not %s", prefix, echo(in.Fingerprint))
	}
	if in.From != "" {
		at, err := q.parseInstant(prefix+"from", in.From)
		if err != nil {
			return nil, err
		}
		f.From, f.FromIndex = at.Time, at.Index
	}
	if in.To != "" {
		at, err := q.parseInstant(prefix+"to", in.To)
		if err != nil {
			return nil, err
		}
		switch at.Kind {
		case event.InstantTime, event.InstantNow:
			f.To = max(at.Time, 1)
		case event.InstantStart:
			f.To = 1 // nothing had died yet
		case event.InstantIndex, event.InstantID:
			f.ToIndex = max(at.Index, 1)
		}
	}
	return f, nil
}

var fingerprint = regexp.MustCompile(`^[0-9a-f]{12}$`)

// died refuses a queue in which nothing died and that is not there. Where
// messages died in one that was deleted since, they can still be seen.
func died(st State, name string) error {
	if _, ok := st.Queue(name); !ok && st.DeadCount(name) == 0 {
		return queueNotFound(name)
	}
	return nil
}

// listDead answers GET /v1/queues/{queue}/dead.
func (s *Server) listDead(q *request) error {
	in := q.read(append([]string{"state", "limit", "cursor", "at", "consistency"}, filterParams...)...)
	name, limit, after := in.queue(), in.limit(100, 1000), in.queryID("cursor")
	state := in.choice("state", "dead", "replayed")
	if state == "replayed" && q.query.Has("at") {
		in.refuse("at", "at goes with state=dead")
	}
	f, st := in.queryFilter(), in.state()
	if in.err != nil {
		return in.err
	}
	var out wire.DeadList
	var err error
	if state == "replayed" {
		// History has them even if the queue was deleted long ago.
		out.Dead, out.NextCursor, err = s.replayedMessages(q.Context(), name, f, after, limit)
	} else if err = died(st, name); err == nil {
		out.Dead, out.NextCursor, err = s.deadMessages(q.Context(), st, name, f, after, limit)
	}
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &out)
}

// deadMessages returns a page of what died in a queue.
func (s *Server) deadMessages(ctx context.Context, st State, queue string, f *dead.Filter, after event.ID, limit int) (out []wire.Message, cursor string, err error) {
	searching, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	var letters []dead.Letter
	more := false
	last, err := s.finder(st).Select(searching, queue, f, dead.Between{After: after}, dead.WithError, func(l *dead.Letter) bool {
		if more = len(letters) == limit; !more {
			letters = append(letters, *l)
		}
		return !more
	})
	switch {
	case err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		more = true // what is found so far, and where to go on
	case err != nil:
		return nil, "", err
	case more:
		last = letters[limit-1].ID
	}
	if more {
		cursor = last.String()
	}
	out, err = s.letters(letters)
	return out, cursor, err
}

// letters returns the views of dead messages.
func (s *Server) letters(letters []dead.Letter) ([]wire.Message, error) {
	refs := make([]event.Ref, len(letters))
	for i := range letters {
		refs[i] = letters[i].Content
	}
	contents, err := s.Contents(refs)
	if err != nil {
		return nil, err
	}
	out := make([]wire.Message, len(letters))
	for i := range letters {
		out[i] = messageOf(&letters[i].MessageView, contents[i])
		out[i].Dead = deadView(letters[i].Dead)
		out[i].Dead.Error = letters[i].Error
	}
	return out, nil
}

// replayedMessages returns a page of what died in a queue and was replayed.
func (s *Server) replayedMessages(ctx context.Context, queue string, f *dead.Filter, after event.ID, limit int) ([]wire.Message, string, error) {
	begun := time.Now()
	out, cursor := []wire.Message{}, ""
	last := after
	err := s.replayedEvents(ctx, queue, after, func(e *event.Event) (bool, error) {
		if len(out) == limit || time.Since(begun) > listWithin {
			cursor = last.String()
			return false, nil
		}
		last = e.ID
		m, err := s.replayedMessage(ctx, e)
		if err == nil && m != nil && fits(f, m, event.RefOf(e.Subject).Index) {
			out = append(out, *m)
		}
		return true, err
	})
	return out, cursor, err
}

// fits reports whether a filter selects a message that is not dead any more. index is that
// of the entry in which it died.
func fits(f *dead.Filter, m *wire.Message, index uint64) bool {
	d := m.Dead
	if d == nil || f.Reason != "" && f.Reason != d.Reason || f.Key != nil && *f.Key != m.Key || f.Kind != nil && *f.Kind != m.Kind ||
		f.From > 0 && int64(d.FailedAt) < f.From || f.To > 0 && int64(d.FailedAt) > f.To ||
		index < f.FromIndex || f.ToIndex > 0 && index > f.ToIndex || f.Error != "" && !dead.Contains(d.Error, f.Error) {
		return false
	}
	if f.Fingerprint == "" {
		return true
	}
	r, _ := dead.ParseReason(d.Reason)
	return dead.Fingerprint(r, dead.Pattern(d.Error)) == f.Fingerprint
}

// replayedMessage returns the message that was replayed by this event, as it was when it was
// dead, and what became of it. Nil where its history is gone.
func (s *Server) replayedMessage(ctx context.Context, e *event.Event) (*wire.Message, error) {
	history, err := s.deps.Log.History(ctx, e.Subject)
	if err != nil {
		return nil, err
	}
	l := lifeOf(history, e.Subject)
	if l == nil {
		return nil, nil
	}
	m, err := s.pastMessage(l)
	if err != nil {
		return nil, err
	}
	m.ReplayedAt, m.NewMessageID = wire.Time(event.ClockOf(e.ID)), e.ID.String()
	became, _, err := s.fate(ctx, e.ID)
	if err != nil {
		return nil, err
	}
	if m.ReplayResult = became.String(); became == event.StateNone {
		m.ReplayResult = "unknown"
	}
	return &m, nil
}

// replayedEvents calls fn with the replays of what died in a queue, above after,
// until it returns false.
func (s *Server) replayedEvents(ctx context.Context, queue string, after event.ID, fn func(e *event.Event) (bool, error)) error {
	const page = 200
	var upTo uint64
	for s.deps.Models != nil {
		upTo, _ = s.deps.Models.Position() // before looking: what comes meanwhile is more
		found, err := s.deps.Models.Replayed(queue, after, page)
		if err != nil {
			return err
		}
		for i := range found {
			after = found[i].ID
			e, err := s.deps.Log.Event(event.RefOf(after))
			if err != nil && (s.gone(err) || s.notFound(err)) {
				continue
			}
			if err != nil {
				return err
			}
			if more, err := fn(e); err != nil || !more {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(found) < page {
			break
		}
	}
	// What the read model does not have yet.
	next := s.deps.Log.Blocks(max(upTo+1, event.RefOf(after).Index))
	for {
		b, err := next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range b.Events {
			e := &b.Events[i]
			if e.Type != event.Replayed || e.DiedIn != queue || e.ID.Compare(after) <= 0 {
				continue
			}
			if more, err := fn(e); err != nil || !more {
				return err
			}
		}
	}
}

// deadGroups answers GET /v1/queues/{queue}/dead/groups.
func (s *Server) deadGroups(q *request) error {
	in := q.read(append([]string{"limit", "at", "consistency"}, filterParams...)...)
	name, limit, f, st := in.queue(), in.limit(100, 1000), in.queryFilter(), in.state()
	in.do(func() error { return died(st, name) })
	if in.err != nil {
		return in.err
	}
	groups, total, err := s.finder(st).Groups(q.Context(), name, f, limit)
	if err != nil {
		return err
	}
	out := wire.DeadGroups{Groups: []wire.DeadGroup{}, Total: total}
	for _, g := range groups {
		ids := make([]string, len(g.Messages))
		for i, id := range g.Messages {
			ids[i] = id.String()
		}
		out.Groups = append(out.Groups, wire.DeadGroup{
			Fingerprint: g.Fingerprint, Error: g.Error, Pattern: g.Pattern, Reason: g.Reason.String(), Count: g.Count,
			FirstFailedAt: wire.Time(g.First), LastFailedAt: wire.Time(g.Last), MessageIDs: ids,
		})
	}
	return q.answer(http.StatusOK, &out)
}

// getDead answers GET /v1/queues/{queue}/dead/{message_id}: by any id that the
// message ever had; one that was replayed is answered as in the listing.
func (s *Server) getDead(q *request) error {
	in := q.read("consistency")
	name, id := in.queue(), in.pathID("message_id")
	in.fresh()
	if in.err != nil {
		return in.err
	}
	v, was, err := s.deadNow(q, name, id)
	if err != nil {
		return err
	}
	if v == nil {
		e, err := s.deps.Log.Event(event.RefOf(was.replayed))
		if err != nil || e.ID != was.replayed {
			return was.problem("message_id", name, id)
		}
		m, err := s.replayedMessage(q.Context(), e)
		if err != nil {
			return err
		}
		if m == nil {
			return was.problem("message_id", name, id)
		}
		return q.answer(http.StatusOK, m)
	}
	letters := []dead.Letter{{MessageView: *v}}
	if err := s.fillErrors(letters); err != nil {
		return err
	}
	out, err := s.letters(letters)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &out[0])
}

// fillErrors reads the error texts of dead letters.
func (s *Server) fillErrors(letters []dead.Letter) error {
	views := make([]event.MessageView, len(letters))
	for i := range letters {
		views[i] = letters[i].MessageView
	}
	texts, err := s.finder(s.deps.State).Errors(views)
	if err != nil {
		return err
	}
	for i := range letters {
		letters[i].Error = texts[i]
	}
	return nil
}

// became describes what became of a message that is not dead (any more) in a queue.
type became struct {
	replayed event.ID // when it had died there last, and was replayed; zero: it was not
	text     string
}

func (b became) problem(field, queue string, id event.ID) *event.Problem {
	return event.Problemf(event.CodeMessageNotFound, field, "message %s is not dead in queue %s: %s", id, queue, b.text)
}

// deadNow follows a message from any id that it ever had to what it is now: v is
// nil where that is not one that died in queue.
func (s *Server) deadNow(q *request, queue string, id event.ID) (v *event.MessageView, was became, err error) {
	live, ok := s.deps.State.Message(id)
	if ok && dead.IsDeadIn(&live, queue) {
		return &live, was, nil
	}
	at := id
	var history []event.Event
	var l *life
	if !ok {
		if history, err = s.deps.Log.History(q.Context(), id); err != nil {
			return nil, was, err
		}
		for l = lifeOf(history, id); l != nil && l.moved != nil; l = lifeOf(history, at) {
			if at = l.moved.ID; l.moved.Type == event.Replayed && l.moved.DiedIn == queue {
				was.replayed = at
			}
			if live, ok = s.deps.State.Message(at); ok {
				break
			}
		}
	}
	switch {
	case ok && dead.IsDeadIn(&live, queue):
		return &live, was, nil
	case l == nil && !ok, !q.seesAny(history, ok, &live):
		// In the same words, so that nobody learns what there is in other queues.
		was.text = "there never was one, or its history has been deleted"
	case ok && live.Dead != nil:
		was.text = fmt.Sprintf("it died in queue %s and is in queue %s as %s", q.named(live.Dead.Queue), q.named(live.Queue), at)
	case ok:
		was.text = fmt.Sprintf("it is in queue %s, %s", q.named(live.Queue), live.State)
		if at != id {
			was.text += " as " + at.String()
		}
	case l.last.Type == event.Discarded:
		was.text = fmt.Sprintf("it was discarded (%s) at %s", l.last.Reason, wire.Time(event.ClockOf(l.last.ID)))
	default:
		was.text = fmt.Sprintf("it was %s in queue %s at %s", l.state(), q.named(l.queue()), wire.Time(event.ClockOf(l.last.ID)))
	}
	return nil, was, nil
}

// seesAny reports whether the token may read of a message: of where it is, if it is
// live, or of something that happened to it.
func (q *request) seesAny(history []event.Event, live bool, v *event.MessageView) bool {
	return q.who == nil || live && (q.sees(v.Queue) || v.Dead != nil && q.sees(v.Dead.Queue)) || len(q.visible(history)) > 0
}

// named is a queue's name to those who may read it.
func (q *request) named(queue string) string {
	if q.sees(queue) {
		return queue
	}
	return "(another)"
}

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// Replays lists what was replayed, behind the log.
type Replays interface {
	// Replayed returns the ids of the events by which messages that had died in a
	// queue were replayed, above after, rising, at most limit; upTo is the index up
	// to which none is missing. History may have let go of the events.
	Replayed(queue string, after event.ID, limit int) (ids []event.ID, upTo uint64, err error)
}

// listWithin is how long a listing reads error texts until it answers with what
// it has found so far, and where to go on.
const listWithin = 10 * time.Second

// finder finds dead letters in a state.
func (s *Server) finder(st State) *dead.Finder {
	return &dead.Finder{State: st, Contents: s.Contents}
}

// filterParams are the query parameters of a filter of dead letters.
var filterParams = []string{"reason", "error", "key", "kind", "from", "to", "fingerprint"}

// deadQuery reads a filter from the query.
func (q *request) deadQuery() (*dead.Filter, error) {
	f := wire.DeadFilter{
		Reason: q.query.Get("reason"), Error: q.query.Get("error"), From: q.query.Get("from"), To: q.query.Get("to"),
		Fingerprint: q.query.Get("fingerprint"),
	}
	text := func(name string) *string {
		if !q.query.Has(name) {
			return nil
		}
		v := q.query.Get(name)
		return &v
	}
	f.Key, f.Kind = text("key"), text("kind")
	for _, name := range filterParams {
		if v := q.query.Get(name); !utf8.ValidString(v) {
			return nil, bad(name, "%s must be UTF-8", name)
		} else if v == "" && q.query.Has(name) && name != "key" && name != "kind" && name != "error" {
			return nil, bad(name, "%s must not be empty", name)
		}
	}
	return q.deadFilter(&f, "")
}

// deadFilter checks a filter; in goes before the names of its fields.
func (q *request) deadFilter(in *wire.DeadFilter, prefix string) (*dead.Filter, error) {
	f := &dead.Filter{Reason: in.Reason, Error: in.Error, Key: in.Key, Kind: in.Kind, Fingerprint: in.Fingerprint}
	if _, ok := dead.ParseReason(in.Reason); !ok {
		return nil, bad(prefix+"reason", "%sreason must be max_attempts, expired, rejected or key_dead, not %s", prefix, echo(in.Reason))
	}
	if err := within(prefix+"error", in.Error, 1024); err != nil {
		return nil, err
	}
	if in.Key != nil {
		if err := within(prefix+"key", *in.Key, event.MaxKeyBytes); err != nil {
			return nil, err
		}
	}
	if in.Kind != nil {
		if err := within(prefix+"kind", *in.Kind, maxKind); err != nil {
			return nil, err
		}
	}
	if n := len(in.Fingerprint); n != 0 && (n != 12 || !isHex(in.Fingerprint)) {
		return nil, bad(prefix+"fingerprint", "%sfingerprint must be 12 hex digits, as dead/groups tells them, not %s", prefix, echo(in.Fingerprint))
	}
	if in.From != "" {
		at, err := q.instantOf(prefix+"from", in.From)
		if err != nil {
			return nil, err
		}
		switch at.Kind {
		case event.InstantTime, event.InstantNow:
			f.From = at.Time
		case event.InstantIndex, event.InstantID:
			f.FromIndex = at.Index
		}
	}
	if in.To != "" {
		at, err := q.instantOf(prefix+"to", in.To)
		if err != nil {
			return nil, err
		}
		switch at.Kind {
		case event.InstantTime, event.InstantNow:
			f.To = max(at.Time, 1)
		case event.InstantStart:
			f.To = 1 // nothing was there
		case event.InstantIndex, event.InstantID:
			f.ToIndex = max(at.Index, 1)
		}
	}
	return f, nil
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

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
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow(append([]string{"state", "limit", "cursor", "at", "consistency"}, filterParams...)...); err != nil {
		return err
	}
	limit, err := q.number("limit", 100, 1, 1000)
	if err != nil {
		return err
	}
	var after event.ID
	if q.query.Has("cursor") {
		if after, err = ulid("cursor", q.query.Get("cursor")); err != nil {
			return err
		}
	}
	state := q.query.Get("state")
	if q.query.Has("state") && state != "dead" && state != "replayed" {
		return bad("state", "state must be dead or replayed")
	}
	if state == "replayed" && q.query.Has("at") {
		return bad("at", "at goes with state=dead")
	}
	f, err := q.deadQuery()
	if err != nil {
		return err
	}
	st, release, err := q.state()
	if err != nil {
		return err
	}
	defer release()
	out := wire.DeadList{}
	if state == "replayed" {
		// Its queue may be gone for long: history keeps it all the same.
		out.Dead, out.NextCursor, err = s.replayedMessages(q.Context(), name, f, after, int(limit))
	} else if err = died(st, name); err == nil {
		out.Dead, out.NextCursor, err = s.deadMessages(q.Context(), st, name, f, after, int(limit))
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

// letters returns dead messages as they are told.
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

// fits is dead.Filter's for a message that is not dead any more. index is that
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

// replayedMessage tells a message that was replayed by this event: as it was
// when it was dead, and what became of it. Nil where its history is gone.
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
	for s.deps.Replays != nil {
		ids, known, err := s.deps.Replays.Replayed(queue, after, page)
		if err != nil {
			return err
		}
		upTo = known
		for _, after = range ids {
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
		if len(ids) < page {
			break
		}
	}
	// What the read model has not come to yet.
	next, done := s.deps.Log.Blocks(max(upTo+1, event.RefOf(after).Index))
	defer done()
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
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow(append([]string{"limit", "at", "consistency"}, filterParams...)...); err != nil {
		return err
	}
	limit, err := q.number("limit", 100, 1, 1000)
	if err != nil {
		return err
	}
	f, err := q.deadQuery()
	if err != nil {
		return err
	}
	st, release, err := q.state()
	if err != nil {
		return err
	}
	defer release()
	if err := died(st, name); err != nil {
		return err
	}
	groups, total, err := s.finder(st).Groups(q.Context(), name, f, int(limit))
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
// message ever had; one that was replayed is told as the listing does.
func (s *Server) getDead(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	id, err := ulid("message_id", q.PathValue("message_id"))
	if err != nil {
		return err
	}
	if err := q.allow("consistency"); err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	v, was, err := s.deadNow(q, name, id)
	if err != nil {
		return err
	}
	if v == nil {
		if e, err := s.deps.Log.Event(event.RefOf(was.replayed)); err == nil && e.ID == was.replayed {
			m, err := s.replayedMessage(q.Context(), e)
			if err == nil && m != nil {
				err = q.answer(http.StatusOK, m)
			}
			if m != nil || err != nil {
				return err
			}
		}
		return was.problem("message_id", name, id)
	}
	texts, err := s.finder(s.deps.State).Errors([]event.MessageView{*v})
	if err != nil {
		return err
	}
	out, err := s.letters([]dead.Letter{{MessageView: *v, Error: texts[0]}})
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &out[0])
}

// became is what became of a message that is not dead (any more) in a queue.
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

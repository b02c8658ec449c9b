package api

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// A handler reads the parts of its request in sequence. The first error is kept in request.err:
// later reads return zero values, commit proposes nothing, and answer returns the error. So a
// handler checks err only where it must not use a zero value.

// read checks that the query has only these parameters, and returns q.
func (q *request) read(query ...string) *request {
	q.do(func() error { return q.allow(query...) })
	return q
}

// get calls read unless an earlier read failed.
func get[T any](q *request, read func() (T, error)) (v T) {
	if q.err == nil {
		got, err := read()
		if q.err = cmp.Or(q.err, err); q.err == nil { // read may have set q.err
			v = got
		}
	}
	return v
}

// do is get for a function that returns only an error.
func (q *request) do(f func() error) {
	if q.err == nil {
		err := f()
		q.err = cmp.Or(q.err, err)
	}
}

// refuse records an invalid argument.
func (q *request) refuse(field, format string, args ...any) {
	q.refuseAt(-1, field, format, args...)
}

// refuseAt records an invalid argument at a position of a list.
func (q *request) refuseAt(i int, field, format string, args ...any) {
	if q.err == nil {
		q.err = bad(field, format, args...).At(i)
	}
}

// allow rejects query parameters that are not in names, and ones that occur twice. A name that ends
// in a dot allows all names that begin with it; one that ends in + may be repeated.
func (q *request) allow(names ...string) error {
	for name, values := range q.query {
		often := slices.Contains(names, name+"+")
		known := often || slices.ContainsFunc(names, func(n string) bool {
			if strings.HasSuffix(n, ".") {
				return strings.HasPrefix(name, n) && name != n
			}
			return n == name
		})
		switch {
		case !known:
			return bad(clip(name, 60), "unknown query parameter %s", echo(name))
		case len(values) > 1 && !often:
			return bad(name, "query parameter %s was given %d times", echo(name), len(values))
		}
	}
	return nil
}

// validName returns an error unless name can be the name of a queue or webhook.
func validName(field, name string) error {
	if !event.ValidName(name) {
		return bad(field, "%s must match %s; it was %s", field, event.Names, echo(name))
	}
	return nil
}

// pathName returns the name of a queue or webhook in the path.
func (q *request) pathName(param string) string {
	name := q.PathValue(param)
	q.do(func() error { return validName(param, name) })
	return name
}

// queue returns the queue in the path.
func (q *request) queue() string { return q.pathName("queue") }

// nameCursor returns the cursor of a list that is sorted by name, "" if it is absent.
func (q *request) nameCursor() string {
	after := q.query.Get("cursor")
	if q.query.Has("cursor") && !event.ValidName(after) {
		q.refuse("cursor", "cursor must be the next_cursor of an answer")
	}
	return after
}

// ulid parses an id.
func ulid(field, s string) (event.ID, error) {
	id, err := event.ParseID(s)
	if err != nil {
		return id, bad(field, "%s must be a ULID, 26 characters; it was %s", field, echo(s))
	}
	return id, nil
}

// pathID returns an id in the path.
func (q *request) pathID(name string) event.ID {
	return get(q, func() (event.ID, error) { return ulid(name, q.PathValue(name)) })
}

// queryID returns an id in the query, zero if it is absent.
func (q *request) queryID(name string) (id event.ID) {
	if !q.query.Has(name) {
		return id
	}
	return get(q, func() (event.ID, error) { return ulid(name, q.query.Get(name)) })
}

// text returns a text parameter of at most limit bytes, nil if it is absent.
func (q *request) text(name string, limit int) *string {
	if !q.query.Has(name) {
		return nil
	}
	v := q.query.Get(name)
	if !utf8.ValidString(v) {
		q.refuse(name, "%s must be UTF-8", name)
	}
	q.do(func() error { return within(name, v, limit) })
	return &v
}

// label returns a nonempty text parameter to filter by, "" if it is absent.
func (q *request) label(name string, limit int) string {
	v := q.text(name, limit)
	if v != nil && *v == "" {
		q.refuse(name, "%s must have 1 to %d bytes", name, limit)
	}
	return deref(v)
}

// choice returns a parameter that has one of these values, "" if it is absent.
func (q *request) choice(name string, values ...string) string {
	v := q.query.Get(name)
	if q.query.Has(name) && !slices.Contains(values, v) {
		last := len(values) - 1
		q.refuse(name, "%s must be %s or %s, not %s",
			name, strings.Join(values[:last], ", "), values[last], echo(v))
	}
	return v
}

// flag reads a parameter that is true or false.
func (q *request) flag(name string) bool { return q.choice(name, "true", "false") == "true" }

// number reads a parameter that is a whole number from lo to hi, def if it is absent.
func (q *request) number(name string, def, lo, hi int64) int64 {
	if !q.query.Has(name) {
		return def
	}
	n, err := strconv.ParseInt(q.query.Get(name), 10, 64)
	if err != nil || n < lo || n > hi {
		q.refuse(name, "%s must be a whole number from %d to %d", name, lo, hi)
		return def
	}
	return n
}

func (q *request) limit(def, most int64) int { return int(q.number("limit", def, 1, most)) }

// instant returns a parameter that is an instant in the past, now if it is absent.
func (q *request) instant(name string) event.Instant {
	if !q.query.Has(name) {
		return event.Instant{Kind: event.InstantNow}
	}
	return get(q, func() (event.Instant, error) { return q.parseInstant(name, q.query.Get(name)) })
}

// optionalInstant parses an instant in a field of the body, the zero Instant if text is "".
func (q *request) optionalInstant(field, text string) (at event.Instant) {
	if text == "" {
		return at
	}
	return get(q, func() (event.Instant, error) { return q.parseInstant(field, text) })
}

// instantForms describes how an instant is written.
const instantForms = "an RFC 3339 time, an event's ULID, index:N, " +
	"a duration before now such as 15m, start or now"

// parseInstant parses an instant in the past.
func (q *request) parseInstant(name, value string) (event.Instant, error) {
	now := q.s.clock(q.s.deps.State)
	at, err := event.ParseInstant(value, now)
	if err != nil {
		return at, bad(name, "%s must be %s", name, instantForms)
	}
	switch at.Kind {
	case event.InstantTime:
		if at.Time > now {
			return at, bad(name, "%s is in the future; it must be %s", name, instantForms)
		}
		at.Time = max(at.Time, 0)
	case event.InstantIndex, event.InstantID:
		if head := q.s.deps.Log.Head(); at.Index > head {
			return at, bad(name, "%s is beyond the end of the log, index:%d; it must be %s",
				name, head, instantForms)
		}
	}
	return at, nil
}

// rangeProblem turns the log's error about an instant into a problem that names the parameter.
func (q *request) rangeProblem(name string, err error) error {
	if !gone(err) && log.IsRange(err) {
		return bad(name, "%s: %s", name, clip(err.Error(), 300))
	}
	return err
}

// body decodes the body.
func (q *request) body(v any) { q.do(func() error { return q.decode(v, false) }) }

// optionalBody decodes the body if there is one.
func (q *request) optionalBody(v any) { q.do(func() error { return q.decode(v, true) }) }

// noBody accepts no body, or {}.
func (q *request) noBody() { q.optionalBody(&struct{}{}) }

// barrier waits until this node has applied everything that was committed before the call.
func (q *request) barrier() { q.do(func() error { return q.s.barrier(q.Context()) }) }

// stale reports whether the request accepts a stale answer.
func (q *request) stale() bool {
	return q.choice("consistency", "linearizable", "stale") == "stale"
}

// fresh waits until a read is linearizable or, with consistency=stale, sets the age header.
func (q *request) fresh() {
	if q.stale() && q.err == nil {
		q.setAge()
	} else {
		q.barrier()
	}
	if q.err == nil {
		q.setAppliedIndex()
	}
}

// setAppliedIndex sets X-Qlogd-Applied-Index: the answer includes all entries up to it. It must be
// called before the state is read, so that the answer may include more entries, never fewer.
func (q *request) setAppliedIndex() {
	q.w.Header().Set("X-Qlogd-Applied-Index", strconv.FormatUint(q.s.deps.State.Index(), 10))
}

// setAge sets X-Qlogd-Age-Ms: how stale the answer may be.
func (q *request) setAge() {
	age := "unknown"
	if d, ok := q.s.deps.Node.Age(); ok {
		age = strconv.FormatInt(max(d, 0).Milliseconds(), 10)
	}
	q.w.Header().Set("X-Qlogd-Age-Ms", age)
}

// state returns the state to read from: the past one of at=, else the live one.
func (q *request) state() State {
	if q.fresh(); q.query.Has("at") {
		at := q.instant("at")
		if st := get(q, func() (State, error) { return q.s.past(q, at) }); st != nil {
			return st
		}
	}
	return q.s.deps.State
}

// stateAt returns the state after an entry, or the live one if that is not available (any more).
func (q *request) stateAt(index uint64) State {
	at := event.Instant{Kind: event.InstantIndex, Index: index}
	if st, err := q.s.deps.Past(q.Context(), at); err == nil {
		return st
	}
	return q.s.deps.State
}

// pastState is a State as of an instant.
type pastState struct {
	State
	at int64 // Unix ms
}

// past returns the state of an instant.
func (s *Server) past(q *request, at event.Instant) (State, error) {
	if at.Kind == event.InstantNow { // still a past state, so that rates are null as in any other
		return &pastState{State: s.deps.State, at: s.clock(s.deps.State)}, nil
	}
	st, err := s.deps.Past(q.Context(), at)
	if err != nil {
		return nil, q.rangeProblem("at", err)
	}
	return &pastState{State: st, at: st.Clock()}, nil
}

// clock returns a state's instant; that of the live state is now, even while nothing happens.
func (s *Server) clock(st State) int64 {
	if p, ok := st.(*pastState); ok {
		return p.at
	}
	return max(st.Clock(), s.deps.Node.Clock())
}

// upTo returns the part of a history up to a past state; all of it for the live state.
func upTo(st State, history []event.Event) []event.Event {
	if _, past := st.(*pastState); !past {
		return history
	}
	return cut(history, st.Index())
}

// cut returns the part of a history up to an entry.
func cut(history []event.Event, index uint64) []event.Event {
	return slices.DeleteFunc(history, func(e event.Event) bool {
		return event.RefOf(e.ID).Index > index
	})
}

// found looks up key with look; if it does not exist, the request fails with missing.
func found[K, V any](q *request, key K, look func(K) (V, bool), missing func(K) *event.Problem) V {
	v, ok := look(key)
	if !ok {
		q.do(func() error { return missing(key) })
	}
	return v
}

// page returns the views of the first n values that keep accepts and, if there are more, the cursor
// of the last view.
func page[T, V any](
	q *request, list []T, n int, keep func(*T) bool, view func(*T) (V, error),
	cursor func(*V) string,
) (out []V, next string) {
	for i := range list {
		if q.err != nil || !keep(&list[i]) {
			continue
		}
		if len(out) == n {
			return out, cursor(&out[n-1])
		}
		out = append(out, get(q, func() (V, error) { return view(&list[i]) }))
	}
	return out, ""
}

// deref returns what p points to, the zero value for nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// nilIfZero returns a pointer to v, nil for the zero value.
func nilIfZero[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

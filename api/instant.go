package api

import (
	"github.com/qlogd/qlogd/event"
)

// forms tells how an instant is written.
const forms = "an RFC 3339 time, an event's ULID, index:N, a duration before now such as 15m, start or now"

// instant reads a query parameter that names an instant in the past.
func (q *request) instant(name string) (event.Instant, error) {
	return q.instantOf(name, q.query.Get(name))
}

// instantOf reads an instant in the past.
func (q *request) instantOf(name, value string) (event.Instant, error) {
	st := q.s.deps.State
	now := clock(st)
	at, err := event.ParseInstant(value, now)
	if err != nil {
		return at, bad(name, "%s must be %s", name, forms)
	}
	switch at.Kind {
	case event.InstantTime:
		if at.Time > now {
			return at, bad(name, "%s is in the future; it must be %s", name, forms)
		}
		at.Time = max(at.Time, 0)
	case event.InstantIndex, event.InstantID:
		if head := q.s.deps.Log.Head(); at.Index > head {
			return at, bad(name, "%s is beyond the end of the log, index:%d; it must be %s", name, head, forms)
		}
	}
	return at, nil
}

// rangeProblem names the parameter in the Log's word about an instant.
func (q *request) rangeProblem(name string, err error) error {
	if !q.s.gone(err) && q.s.isRange(err) {
		return bad(name, "%s: %s", name, clip(err.Error(), 300))
	}
	return err
}

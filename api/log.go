package api

import (
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

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

// forms describes how an instant is written.
const forms = "an RFC 3339 time, an event's ULID, index:N, " +
	"a duration before now such as 15m, start or now"

// parseInstant reads an instant in the past.
func (q *request) parseInstant(name, value string) (event.Instant, error) {
	now := q.s.clock(q.s.deps.State)
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
			return at, bad(name, "%s is beyond the end of the log, index:%d; it must be %s",
				name, head, forms)
		}
	}
	return at, nil
}

// rangeProblem names the parameter in the Log's error about an instant.
func (q *request) rangeProblem(name string, err error) error {
	if !gone(err) && log.IsRange(err) {
		return bad(name, "%s: %s", name, clip(err.Error(), 300))
	}
	return err
}

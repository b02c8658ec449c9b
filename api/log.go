package api

import (
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Proof shows the event log to those who want to hold it against what they
// keep elsewhere.
type Proof interface {
	// HeadAt returns the newest block up to an index of the log, 0 in an empty
	// one. Errors are as LogErrors says.
	HeadAt(index uint64) (wire.LogHead, error)
	// LogSegments returns the log's files, oldest first.
	LogSegments() wire.LogSegments
}

// logHead answers GET /v1/log/head?at=: the newest block's index and chain.
func (s *Server) logHead(q *request) error {
	if err := q.allow("consistency", "at"); err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	if s.deps.Proof == nil {
		return &problemNotFound
	}
	at := event.Instant{Kind: event.InstantNow}
	if q.query.Has("at") {
		var err error
		if at, err = q.instant("at"); err != nil {
			return err
		}
	}
	index, err := s.deps.Log.To(at)
	if err != nil {
		return q.rangeProblem("at", err)
	}
	head, err := s.deps.Proof.HeadAt(index)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &head)
}

// logSegments answers GET /v1/log/segments.
func (s *Server) logSegments(q *request) error {
	if err := q.allow("consistency"); err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	if s.deps.Proof == nil {
		return &problemNotFound
	}
	out := s.deps.Proof.LogSegments()
	if out.Segments == nil {
		out.Segments = []wire.LogSegment{}
	}
	return q.answer(http.StatusOK, &out)
}

package api

import (
	"net/http"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
)

// healthz says that the process is alive.
func (s *Server) healthz(q *request) error {
	return q.answer(http.StatusOK, &wire.Health{Status: "ok"})
}

func (q *request) notReady(reasons []string) error {
	q.w.Header().Set("Retry-After", "1")
	return q.answer(http.StatusServiceUnavailable, &wire.Health{Status: "not_ready", Reasons: reasons})
}

// readyz says whether this node should get requests, and if not, why.
func (s *Server) readyz(q *request) error {
	ok, reasons := true, []string(nil)
	if s.deps.Ready != nil {
		ok, reasons = s.deps.Ready.Ready()
	}
	if s.draining() {
		ok, reasons = false, append([]string{"shutting down"}, reasons...)
	}
	if !ok {
		return q.notReady(slices.Concat(reasons, s.secretsMissing(), s.pushUnready()))
	}
	// Without a secret some webhooks are turned away, and some queues not
	// delivered; all else is served, so that one wrong definition does not take
	// every node out of service.
	return q.answer(http.StatusOK, &wire.Health{Status: "ready", Reasons: append(s.secretsMissing(), s.pushUnready()...)})
}

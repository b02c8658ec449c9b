package api

import (
	"net/http"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Unready answers while a node has nothing to serve from: before its cluster is
// formed, and while what it stands on is exchanged. It is alive and not ready,
// and reasons says why; every other request is told to try again.
func Unready(reasons func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{Request: r, w: w, id: requestID(r)}
		q.write = r.Method != http.MethodGet && r.Method != http.MethodHead && strings.HasPrefix(r.URL.Path, "/v1/")
		head := w.Header()
		head.Set("X-Request-Id", q.id)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Cache-Control", "no-store")
		var err error
		switch r.URL.Path {
		case "/healthz":
			err = q.answer(http.StatusOK, &wire.Health{Status: "ok"})
		case "/readyz":
			err = q.notReady(reasons())
		default:
			err = &event.Problem{Code: codeNoLeader, Index: -1, RetryAfterMS: 1000, Detail: "this node does not serve yet: " + strings.Join(reasons(), "; ")}
		}
		if p, ok := err.(*event.Problem); ok {
			q.fail(p)
		}
	})
}

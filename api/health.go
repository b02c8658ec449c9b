package api

import (
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// healthz answers GET /healthz: the process is alive.
func (q *request) healthz() error {
	return q.answer(http.StatusOK, &wire.Health{Status: "ok"})
}

func (q *request) notReady(reasons []string) error {
	q.w.Header().Set("Retry-After", "1")
	health := &wire.Health{Status: "not_ready", Reasons: reasons}
	return q.answer(http.StatusServiceUnavailable, health)
}

// readyz answers GET /readyz: whether this node should get requests, and if not, why.
func (s *Server) readyz(q *request) error {
	ok, reasons := s.deps.Node.Ready()
	if s.draining() {
		ok, reasons = false, append([]string{"shutting down"}, reasons...)
	}
	// Without a secret some webhooks are refused and some queues not delivered. All else is served,
	// so that one wrong definition does not take every node out of service.
	secrets := append(s.secretsMissing(), s.deps.Push.Unready()...)
	if !ok {
		return q.notReady(slices.Concat(reasons, secrets))
	}
	return q.answer(http.StatusOK, &wire.Health{Status: "ready", Reasons: secrets})
}

// Unready returns a handler for a node that cannot serve yet: its cluster is not formed, or its
// state is replaced. It is alive and not ready, for these reasons; other requests get 503.
func Unready(reasons func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := newRequest(nil, w, r, "")
		var err error
		if strings.HasPrefix(r.URL.Path, "/problems/") {
			err = q.problemPage()
		} else if r.URL.Path == "/healthz" {
			err = q.healthz()
		} else if r.URL.Path == "/readyz" {
			err = q.notReady(reasons())
		} else {
			err = &event.Problem{Code: codeNoLeader, Index: -1, RetryAfterMS: 1000,
				Detail: "this node does not serve yet: " + strings.Join(reasons(), "; ")}
		}
		if p, ok := err.(*event.Problem); ok {
			q.fail(p)
		}
	})
}

//go:embed openapi.yaml
var openAPIYAML []byte

//go:embed docs.html
var docsPage []byte

// openAPI returns the API's description as JSON, with the program's version.
func openAPI(version string) []byte {
	var doc map[string]any
	if err := yaml.Unmarshal(openAPIYAML, &doc); err != nil {
		panic(fmt.Sprintf("api: openapi.yaml: %v", err)) // embedded, and tested
	}
	doc["info"].(map[string]any)["version"] = version
	b, err := json.Marshal(doc, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("api: openapi.yaml: %v", err))
	}
	return b
}

func (s *Server) serveOpenAPI(q *request) error {
	q.send(http.StatusOK, typeJSON, s.openapi())
	return nil
}

// serveDocs answers with a page that reads /openapi.json; it needs nothing from elsewhere.
func (s *Server) serveDocs(q *request) error {
	q.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; "+
		"script-src 'unsafe-inline'; connect-src 'self'")
	q.send(http.StatusOK, "text/html; charset=utf-8", docsPage)
	return nil
}

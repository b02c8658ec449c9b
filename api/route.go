package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// handler answers a request, or returns the error that is to be told.
type handler func(q *request) error

// mux has every route, and who may call it. A route whose method changes
// something is a write: its problems tell the outcome.
func (s *Server) mux() *http.ServeMux {
	m := http.NewServeMux()
	add := func(pattern string, rule access, h handler) {
		s.rules[pattern] = rule
		m.Handle(pattern, s.serve(pattern, rule, h))
	}
	free, admin := access{on: open}, access{roleAdmin, anywhere}
	read, consume := access{roleRead, onPath}, access{roleConsume, onPath}

	add("GET /v1/queues", access{roleRead, somehow}, s.listQueues)
	add("GET /v1/queues/{queue}", read, s.getQueue)
	add("GET /v1/queues/{queue}/stats", read, s.queueStats)
	add("PUT /v1/queues/{queue}", admin, s.putQueue)
	add("PATCH /v1/queues/{queue}", admin, s.patchQueue)
	add("DELETE /v1/queues/{queue}", admin, s.deleteQueue)
	add("POST /v1/queues/{queue}/pause", admin, func(q *request) error { return s.pauseQueue(q, true) })
	add("POST /v1/queues/{queue}/resume", admin, func(q *request) error { return s.pauseQueue(q, false) })
	add("POST /v1/queues/{queue}/purge", admin, s.purgeQueue)

	add("POST /v1/queues/{queue}/messages", access{roleProduce, onPath}, s.produce)
	add("GET /v1/queues/{queue}/messages", read, s.peekMessages)
	add("GET /v1/messages/{id}", access{roleRead, somehow}, s.getMessage)
	add("DELETE /v1/messages/{id}", admin, s.deleteMessage)
	add("GET /v1/messages/{id}/history", access{roleRead, somehow}, s.messageHistory)

	add("GET /v1/queues/{queue}/dead", read, s.listDead)
	add("GET /v1/queues/{queue}/dead/groups", read, s.deadGroups)
	add("GET /v1/queues/{queue}/dead/{message_id}", read, s.getDead)
	add("DELETE /v1/queues/{queue}/dead/{message_id}", admin, s.deleteDead)
	add("POST /v1/queues/{queue}/dead/replay", admin, s.replayDead)
	add("POST /v1/queues/{queue}/dead/purge", admin, s.purgeDead)
	add("POST /v1/messages/{id}/erase", admin, s.eraseMessage)
	add("POST /v1/queues/{queue}/erase", admin, s.eraseKey)
	add("GET /v1/tasks", access{roleRead, somehow}, s.listTasks)
	add("GET /v1/tasks/{id}", access{roleRead, somehow}, s.getTask)
	add("DELETE /v1/tasks/{id}", admin, s.cancelTask)
	add("POST /v1/tasks/{id}/resume", admin, s.resumeTask)

	add("POST /v1/queues/{queue}/messages/import", access{roleProduce, onPath}, s.importMessages)
	add("POST /v1/messages/{id}/resurrect", admin, s.resurrect)
	add("GET /v1/messages/{id}/edits", access{roleRead, somehow}, s.messageEdits)

	add("GET /v1/queues/{queue}/explain", read, s.explain)

	// The first design's shapes.
	add("GET /admin/queues", access{roleRead, somehow}, s.adminQueues)
	add("GET /admin/queues/{queue}/dlq", read, s.adminDead)
	add("POST /admin/queues/{queue}/dlq/{message_id}/replay", admin, s.adminReplay)
	add("DELETE /admin/queues/{queue}/dlq/{message_id}", admin, s.adminPurge)

	add("POST /v1/queues/{queue}/lease", consume, s.leaseOne)
	add("POST /v1/lease", access{roleConsume, somehow}, s.leaseMany)
	for name, kind := range settleKinds {
		add("POST /v1/queues/{queue}/"+name, consume, func(q *request) error { return s.settle(q, kind) })
		add("POST /v1/leases/{lease_id}/"+name, access{roleConsume, somehow}, func(q *request) error { return s.settleOne(q, kind) })
	}
	add("POST /v1/transactions", access{on: known}, s.transact)

	add("GET /v1/definitions", admin, s.getDefinitions) // as webhooks are
	add("PUT /v1/definitions", admin, s.putDefinitions)

	add("GET /v1/events", access{roleRead, somehow}, s.events)
	add("GET /v1/log/head", access{roleRead, somehow}, s.logHead)
	add("GET /v1/log/segments", access{roleRead, somehow}, s.logSegments)
	// Both tell of no queue: the one only what the token itself did, the other
	// numbers.
	add("GET /v1/operations/{idempotency_key}", access{on: known}, s.operations)
	add("GET /v1/operations/stats", access{roleRead, somehow}, s.operationStats)

	add("GET /v1/webhooks", admin, s.listWebhooks)
	add("GET /v1/webhooks/{name}", admin, s.getWebhook)
	add("PUT /v1/webhooks/{name}", admin, s.putWebhook)
	add("DELETE /v1/webhooks/{name}", admin, s.deleteWebhook)
	add("POST "+hookPath, free, s.hook)
	add("GET /v1/projections", access{roleRead, somehow}, s.projections)
	add("POST /v1/projections/rebuild", admin, s.rebuildProjections)

	add("GET /v1/cluster", access{roleRead, somehow}, s.cluster)
	add("POST /v1/cluster/nodes", admin, s.addNode)
	add("DELETE /v1/cluster/nodes/{id}", admin, s.removeNode)
	add("POST /v1/cluster/transfer-leadership", admin, s.transferLeadership)
	add("POST /v1/cluster/snapshot", admin, s.snapshot)

	add("GET /healthz", free, s.healthz)
	add("GET /readyz", free, s.readyz)
	metrics := access{roleRead, anywhere} // they name all queues
	if s.opts.OpenMetrics {
		metrics = free
	}
	add("GET /metrics", metrics, s.metrics.serve)
	add("GET /openapi.json", free, s.serveOpenAPI)
	add("GET /docs", free, s.serveDocs)
	add("/", access{on: known}, s.noRoute)
	return m
}

// Handler returns the whole API.
func (s *Server) Handler() http.Handler {
	unclean := s.metrics.route("", "")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// ServeMux would redirect what is not a clean path; a queue's name that
		// is empty or made of dots is a mistake to be told.
		if field, ok := cleanPath(r.URL); !ok {
			s.serveAs("", unclean, access{on: known}, func(*request) error {
				if field != "" {
					return bad(field, "%s must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", field)
				}
				return s.noRoute(nil)
			}).ServeHTTP(w, r)
			return
		}
		s.routes.ServeHTTP(w, r)
	})
}

// cleanPath reports whether the path has neither empty nor dot segments, nor
// control characters; field names what such a segment stands for.
func cleanPath(u *url.URL) (field string, ok bool) {
	for i := range len(u.Path) {
		if u.Path[i] < 0x20 || u.Path[i] == 0x7f {
			if strings.HasPrefix(u.Path, "/v1/queues/") {
				return "queue", false
			}
			return "path", false
		}
	}
	p := u.EscapedPath()
	if !strings.Contains(p, "//") && !strings.Contains(p, "/.") && (len(p) < 2 || p[len(p)-1] != '/') {
		return "", true
	}
	segments := strings.Split(p, "/")[1:]
	for i, seg := range segments {
		if seg == "" || seg == "." || seg == ".." {
			if i == 2 && segments[0] == "v1" && segments[1] == "queues" {
				return "queue", false
			}
			return "", p == "/"
		}
	}
	return "", true
}

// serve is around every handler: request id, panics, rights, encodings,
// problems, metrics.
func (s *Server) serve(pattern string, rule access, h handler) http.Handler {
	method, path, _ := strings.Cut(pattern, " ")
	return s.serveAs(pattern, s.metrics.route(method, path), rule, h)
}

func (s *Server) serveAs(pattern string, metrics *routeMetrics, rule access, h handler) http.Handler {
	_, path, _ := strings.Cut(pattern, " ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		s.begun.Add(1)
		q := &request{Request: r, s: s, w: w, route: pattern, path: path, id: requestID(r), begun: begun}
		q.write = r.Method != http.MethodGet && r.Method != http.MethodHead && (strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/admin/"))
		head := w.Header()
		q.setHead("X-Request-Id", q.id)
		head["X-Content-Type-Options"], head["Cache-Control"] = nosniff, noStore
		if r.ProtoMajor == 1 && s.draining() {
			// So that its client goes elsewhere before the listener closes, and not
			// in the middle of a request. HTTP/2 says it with GOAWAY.
			head.Set("Connection", "close")
		}
		if r.ContentLength != 0 {
			// Also where nobody reads the body: net/http drains it afterwards.
			_ = http.NewResponseController(w).SetReadDeadline(begun.Add(s.opts.BodyTimeout))
		}
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				s.log.Error("panic", "request_id", q.id, "route", pattern, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				if q.status == 0 {
					q.fail(s.problem(q, fmt.Errorf("panic")))
				} else {
					panic(http.ErrAbortHandler) // half an answer must not look whole
				}
			}
			metrics.request(q.status, time.Since(begun))
		}()
		// Rights before all else: a stranger learns nothing, not even what is wrong
		// with his request.
		err := q.refused(rule)
		if err == nil {
			err = q.check()
		}
		if err == nil {
			err = h(q)
		}
		if err != nil && q.status == 0 {
			if p := s.problem(q, err); p != nil {
				q.fail(p)
			} else {
				q.status = 499 // hung up: nobody hears it
			}
		}
	})
}

// Values that every answer has.
var nosniff, noStore = []string{"nosniff"}, []string{"no-store"}

// noRoute tells 404 from 405.
func (s *Server) noRoute(q *request) error {
	if q == nil {
		return &problemNotFound
	}
	var allow []string
	for _, m := range []string{"GET", "PUT", "POST", "PATCH", "DELETE"} {
		probe := &http.Request{Method: m, URL: q.URL, Host: q.Host}
		if _, pattern := s.routes.Handler(probe); pattern != "/" && pattern != "" {
			allow = append(allow, m)
		}
	}
	if len(allow) == 0 {
		return &problemNotFound
	}
	if slices.Contains(allow, "GET") {
		allow = append(allow, "HEAD")
	}
	q.w.Header().Set("Allow", strings.Join(allow, ", "))
	p := *bad("", "%s is not among the methods of this path: %s", echo(q.Method), strings.Join(allow, ", "))
	p.Code = codeMethodNotAllowed
	return &p
}

// requestID returns the client's X-Request-Id if it is well-formed (1 to 128
// visible ASCII characters), else a new one.
func requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) == 1 && visible(v[0], 128) {
		return v[0]
	}
	// Not a secret, so it need not be hard to guess, only new.
	var b [26]byte
	for i, n, bits := 0, uint64(0), 0; i < len(b); i++ {
		if bits < 5 {
			n, bits = rand.Uint64(), 64
		}
		b[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[n&31]
		n, bits = n>>5, bits-5
	}
	return string(b[:])
}

// visible reports whether v is 1 to n visible ASCII characters.
func visible(v string, n int) bool {
	if v == "" || len(v) > n {
		return false
	}
	for i := range len(v) {
		if v[i] <= 0x20 || v[i] >= 0x7f {
			return false
		}
	}
	return true
}

package api

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// statusClientGone is the status, in metrics, of a request whose client disconnected.
const statusClientGone = 499

// handler answers a request, or returns an error to answer with.
type handler func(q *request) error

// mux returns every route with its access rule.
func (s *Server) mux() *http.ServeMux {
	m := http.NewServeMux()
	add := func(pattern string, rule access, h handler) {
		s.rules[pattern] = rule
		m.Handle(pattern, s.serve(pattern, rule, h))
	}
	free, admin := access{on: open}, access{roleAdmin, allQueues}
	read, consume := access{roleRead, pathQueue}, access{roleConsume, pathQueue}

	add("GET /v1/queues", access{roleRead, anyQueue}, s.listQueues)
	add("GET /v1/queues/{queue}", read, s.getQueue)
	add("GET /v1/queues/{queue}/stats", read, s.queueStats)
	add("PUT /v1/queues/{queue}", admin, s.putQueue)
	add("PATCH /v1/queues/{queue}", admin, s.patchQueue)
	add("DELETE /v1/queues/{queue}", admin, s.deleteQueue)
	add("POST /v1/queues/{queue}/pause", admin, s.pauseQueue(true))
	add("POST /v1/queues/{queue}/resume", admin, s.pauseQueue(false))
	add("POST /v1/queues/{queue}/purge", admin, s.purgeQueue)

	add("POST /v1/queues/{queue}/messages", access{roleProduce, pathQueue},
		s.traced(opSend, opSend, s.produce))
	add("GET /v1/queues/{queue}/messages", read, s.peekMessages)
	add("GET /v1/messages/{id}", access{roleRead, anyQueue}, s.getMessage)
	add("PATCH /v1/messages/{id}", admin, s.rescheduleMessage)
	add("DELETE /v1/messages/{id}", admin, s.deleteMessage)
	add("GET /v1/messages/{id}/history", access{roleRead, anyQueue}, s.messageHistory)
	add("GET /v1/messages/{id}/lineage", access{roleRead, anyQueue}, s.messageLineage)

	add("GET /v1/queues/{queue}/dead", read, s.listDead)
	add("GET /v1/queues/{queue}/dead/groups", read, s.deadGroups)
	add("GET /v1/queues/{queue}/dead/{message_id}", read, s.getDead)
	add("DELETE /v1/queues/{queue}/dead/{message_id}", admin, s.deleteDead)
	add("POST /v1/queues/{queue}/dead/replay", admin, s.replayDead)
	add("POST /v1/queues/{queue}/resurrect", admin, s.undo)
	add("POST /v1/queues/{queue}/dead/purge", admin, s.purgeDead)
	add("POST /v1/messages/{id}/erase", admin, s.eraseMessage)
	add("POST /v1/queues/{queue}/erase", admin, s.eraseKey)
	add("GET /v1/tasks", access{roleRead, anyQueue}, s.listTasks)
	add("GET /v1/tasks/{id}", access{roleRead, anyQueue}, s.getTask)
	add("DELETE /v1/tasks/{id}", admin, s.cancelTask)
	add("POST /v1/tasks/{id}/resume", admin, s.resumeTask)

	add("POST /v1/queues/{queue}/messages/import", access{roleProduce, pathQueue},
		s.traced(opSend, "import", s.importMessages))
	add("POST /v1/messages/{id}/resurrect", admin, s.resurrect)
	add("GET /v1/messages/{id}/edits", access{roleRead, anyQueue}, s.messageEdits)

	add("GET /v1/queues/{queue}/explain", read, s.explain)
	add("GET /v1/attention", access{roleRead, anyQueue}, s.attention)
	add("GET /v1/workers", access{roleRead, anyQueue}, s.listWorkers)

	// Simplified forms of the calls above.
	add("GET /admin/queues", access{roleRead, anyQueue}, s.adminQueues)
	add("GET /admin/queues/{queue}/dlq", read, s.adminDead)
	add("POST /admin/queues/{queue}/dlq/{message_id}/replay", admin, s.adminReplay)
	add("DELETE /admin/queues/{queue}/dlq/{message_id}", admin, s.adminPurge)

	add("POST /v1/queues/{queue}/lease", consume, s.traced(opReceive, opReceive, s.leaseOne))
	add("POST /v1/lease", access{roleConsume, anyQueue},
		s.traced(opReceive, opReceive, s.leaseMany))
	for name, kind := range settleKinds {
		settle := s.traced(opSettle, name, s.settle(kind))
		add("POST /v1/queues/{queue}/"+name, consume, settle)
		add("POST /v1/leases/{lease_id}/"+name, access{roleConsume, anyQueue}, settle)
		add("POST /v1/"+name, access{roleConsume, anyQueue}, settle)
	}
	add("POST /v1/transactions", access{on: authenticated},
		s.traced(opSettle, "transaction", s.transact))

	add("GET /v1/definitions", admin, s.getDefinitions) // as webhooks are
	add("PUT /v1/definitions", admin, s.putDefinitions)

	add("GET /v1/events", access{roleRead, anyQueue}, s.events)
	add("GET /v1/log/head", access{roleRead, anyQueue}, s.logHead)
	add("GET /v1/log/segments", access{roleRead, anyQueue}, s.logSegments)
	// Neither is about a queue: one shows the token's own writes, the other only counts.
	add("GET /v1/operations/{idempotency_key}", access{on: authenticated}, s.operations)
	add("GET /v1/operations/stats", access{roleRead, anyQueue}, s.operationStats)

	add("GET /v1/webhooks", admin, s.listWebhooks)
	add("GET /v1/webhooks/{name}", admin, s.getWebhook)
	add("PUT /v1/webhooks/{name}", admin, s.putWebhook)
	add("DELETE /v1/webhooks/{name}", admin, s.deleteWebhook)
	add("GET /v1/webhooks/{name}/deliveries", admin, s.listDeliveries)
	add("POST "+hookPath, free, s.hook)
	add("GET /v1/projections", access{roleRead, anyQueue}, s.projections)
	add("POST /v1/projections/rebuild", admin, s.rebuildProjections)

	add("GET /v1/cluster", access{roleRead, anyQueue}, s.cluster)
	add("POST /v1/cluster/nodes", admin, s.addNode)
	add("DELETE /v1/cluster/nodes/{id}", admin, s.removeNode)
	add("POST /v1/cluster/nodes/{id}/verify", admin, s.verifyNode)
	add("POST /v1/cluster/transfer-leadership", admin, s.transferLeadership)
	add("POST /v1/cluster/snapshot", admin, s.snapshot)

	add("GET /healthz", free, (*request).healthz)
	add("GET /readyz", free, s.readyz)
	metrics := access{roleRead, allQueues} // they name all queues
	if s.opts.OpenMetrics {
		metrics = free
	}
	add("GET /metrics", metrics, s.metrics.serve)
	add("GET /problems/{code}", free, (*request).problemPage)
	add("GET /openapi.json", free, s.serveOpenAPI)
	add("GET /docs", free, s.serveDocs)
	s.rules["GET /"] = free
	m.Handle("GET /{$}", s.serve("GET /", free, s.index))
	add("/", access{on: authenticated}, s.noRoute)
	return m
}

// Exempt is the API's Guard.Exempt: webhook requests are authenticated by their signatures, and
// health checks may use any name for a node.
func Exempt(path string) (origin, host bool) {
	hook := strings.HasPrefix(path, "/hook/")
	return hook, hook || path == "/healthz" || path == "/readyz"
}

// Handler returns the whole API. Serve it with HTTPServer.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// ServeMux would redirect where a queue's name is empty or dots; it must be refused.
		field, ok := cleanPath(r.URL)
		if ok {
			s.routes.ServeHTTP(w, r)
			return
		}
		s.serve("", access{on: authenticated}, func(*request) error {
			if field == "" {
				return &problemNotFound
			}
			return bad(field, "%s must match %s", field, event.Names)
		}).ServeHTTP(w, r)
	})
}

// cleanPath reports whether the path has neither empty nor dot segments, nor control characters. If
// it has, field names the path parameter at fault, if there is one.
func cleanPath(u *url.URL) (field string, ok bool) {
	control := func(r rune) bool { return r < 0x20 || r == 0x7f }
	if strings.ContainsFunc(u.Path, control) {
		if strings.HasPrefix(u.Path, "/v1/queues/") {
			return "queue", false
		}
		return "path", false
	}
	p, n := u.EscapedPath(), 0
	for segment := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		if n++; segment == "" || segment == "." || segment == ".." {
			if n == 3 && strings.HasPrefix(p, "/v1/queues/") {
				return "queue", false
			}
			return "", len(p) < 2
		}
	}
	return "", true
}

// serve wraps a handler: request id, panics, access, encodings, problems, metrics.
func (s *Server) serve(pattern string, rule access, h handler) http.Handler {
	method, path, _ := strings.Cut(pattern, " ")
	packed := packs(method, path)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		s.begun.Add(1)
		q := newRequest(s, w, r, pattern)
		q.packed = packed
		if r.ProtoMajor == 1 && s.draining() {
			// So that the client reconnects elsewhere before the listener closes, and not in the
			// middle of a request. HTTP/2 has GOAWAY for this.
			w.Header().Set("Connection", "close")
		}
		fail := func(err error) {
			if p := s.problem(q, err); p != nil {
				q.fail(p)
			} else {
				q.status = statusClientGone
			}
		}
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler {
					panic(v)
				}
				s.log.Error("panic", "request_id", q.id, "route", pattern, "panic", fmt.Sprint(v),
					"stack", string(debug.Stack()))
				if q.status != 0 {
					panic(http.ErrAbortHandler) // half an answer must not look whole
				}
				fail(errors.New("panic"))
			}
			q.release()
			took := time.Since(begun)
			s.metrics.answered(method, path, q.status, took)
			q.logSlow(took)
		}()
		// Access first: without it a client must not learn even that the request is malformed.
		q.do(func() error { return q.refused(rule) })
		q.do(q.check)
		err := q.err
		if err == nil {
			err = h(q)
		}
		if err != nil && q.status == 0 {
			fail(err)
		}
	})
}

const (
	slowRequest = time.Second // after which a request is logged, its waits for work aside
	// maxSlowLogged is how many are logged in a second: an overload must not become one of the log.
	maxSlowLogged = 10
)

// logSlow logs the request if it took longer than it waits by its own wish.
func (q *request) logSlow(took time.Duration) {
	if took-q.patience > slowRequest && q.s.slow.Allow() {
		q.s.log.Info("slow request", "route", q.route, "queue", q.PathValue("queue"),
			"status", q.status, "took", took.Round(time.Millisecond), "actor", q.actor(),
			"request_id", q.id)
	}
}

// noRoute distinguishes 404 from 405.
func (s *Server) noRoute(q *request) error {
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
	return event.Problemf(codeMethodNotAllowed, "",
		"method %s is not allowed at this path, only %s; /docs describes it",
		echo(q.Method), strings.Join(allow, ", "))
}

// requestID returns the client's X-Request-Id if it is well-formed, else a new one.
func requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) == 1 && visible(v[0], 128) {
		return v[0]
	}
	return rand.Text()
}

// visible reports whether v is 1 to n visible ASCII characters.
func visible(v string, n int) bool {
	hidden := func(r rune) bool { return r <= 0x20 || r >= 0x7f }
	return v != "" && len(v) <= n && !strings.ContainsFunc(v, hidden)
}

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
	// Without a secret, some webhooks are refused and some queues are not delivered. The node is
	// still ready, so that one wrong definition does not take every node out of service.
	secrets := append(s.secretsMissing(), s.deps.Push.Unready()...)
	if !ok {
		return q.notReady(slices.Concat(reasons, secrets))
	}
	return q.answer(http.StatusOK, &wire.Health{Status: "ready", Reasons: secrets})
}

// Unready returns a handler for a node that cannot serve yet: its cluster is not formed, or its
// state is being replaced. The node is alive and not ready, with the reason why; other requests get
// 503.
func Unready(why string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := newRequest(nil, w, r, "")
		var err error
		if strings.HasPrefix(r.URL.Path, "/problems/") {
			err = q.problemPage()
		} else if r.URL.Path == "/healthz" {
			err = q.healthz()
		} else if r.URL.Path == "/readyz" {
			err = q.notReady([]string{why})
		} else {
			err = &event.Problem{Code: event.CodeNoLeader, Index: -1, RetryAfterMS: 1000,
				Detail: "this node does not serve yet: " + why}
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
	text := bytes.Replace(openAPIYAML, []byte("version: dev"),
		[]byte("version: "+strconv.Quote(version)), 1)
	var doc yaml.Node
	var b bytes.Buffer
	err := yaml.Unmarshal(text, &doc)
	if err == nil {
		err = writeJSON(jsontext.NewEncoder(&b), doc.Content[0])
	}
	if err != nil {
		panic(fmt.Sprintf("api: openapi.yaml: %v", err)) // embedded, and tested
	}
	return b.Bytes()
}

// writeJSON writes a YAML value as JSON and keeps the order of members.
func writeJSON(enc *jsontext.Encoder, n *yaml.Node) error {
	switch n.Kind {
	case yaml.AliasNode:
		return writeJSON(enc, n.Alias)
	case yaml.SequenceNode:
		err := enc.WriteToken(jsontext.BeginArray)
		for _, element := range n.Content {
			err = cmp.Or(err, writeJSON(enc, element))
		}
		return cmp.Or(err, enc.WriteToken(jsontext.EndArray))
	case yaml.MappingNode:
		err := enc.WriteToken(jsontext.BeginObject)
		for _, pair := range members(n) {
			err = cmp.Or(err, enc.WriteToken(jsontext.String(pair[0].Value)),
				writeJSON(enc, pair[1]))
		}
		return cmp.Or(err, enc.WriteToken(jsontext.EndObject))
	}
	var v any
	err := n.Decode(&v)
	return cmp.Or(err, json.MarshalEncode(enc, v))
}

// members returns the names and values of a mapping, including merged ones (<<).
func members(n *yaml.Node) (all [][]*yaml.Node) {
	own := map[string]bool{}
	for pair := range slices.Chunk(n.Content, 2) {
		own[pair[0].Value] = true
	}
	for pair := range slices.Chunk(n.Content, 2) {
		if pair[0].Tag != "!!merge" {
			all = append(all, pair)
			continue
		}
		for _, merged := range members(pair[1].Alias) {
			if !own[merged[0].Value] {
				all = append(all, merged)
			}
		}
	}
	return all
}

// index answers GET /.
func (s *Server) index(q *request) error {
	links := map[string]string{
		"queues": "v1/queues", "attention": "v1/attention", "cluster": "v1/cluster",
		"openapi": "openapi.json", "docs": "docs", "metrics": "metrics",
		"health": "healthz", "ready": "readyz",
	}
	if s.opts.Console {
		links["console"] = "ui/"
	}
	q.read()
	return q.answer(http.StatusOK, &wire.Index{
		Service: "qlogd", Version: s.opts.Version, Links: links,
	})
}

func (s *Server) serveOpenAPI(q *request) error {
	q.send(http.StatusOK, typeJSON, s.openapi())
	return nil
}

// docsPolicy is a Content-Security-Policy that permits the page's own style and script, by their
// hashes, and /openapi.json.
var docsPolicy = sync.OnceValue(func() string {
	hash := func(tag string) string {
		_, text, _ := strings.Cut(string(docsPage), "<"+tag+">")
		text, _, _ = strings.Cut(text, "</"+tag+">")
		sum := sha256.Sum256([]byte(text))
		return fmt.Sprintf("%s-src 'sha256-%s'", tag, base64.StdEncoding.EncodeToString(sum[:]))
	}
	return "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
		"frame-ancestors 'none'; " + hash("style") + "; " + hash("script")
})

// serveDocs answers with a self-contained page that reads /openapi.json.
func (s *Server) serveDocs(q *request) error {
	q.w.Header().Set("Content-Security-Policy", docsPolicy())
	q.send(http.StatusOK, "text/html; charset=utf-8", docsPage)
	return nil
}

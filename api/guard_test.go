package api

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// guarded returns what a server with this guard answers a request with: a code, or "" for what
// reaches the handler. headers are "Name: value, Name: value".
func guarded(g Guard, request, headers string) (code string) {
	g.Refuse = func(_ http.ResponseWriter, _ *http.Request, p *event.Problem) { code = p.Code }
	inner := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	srv := HTTPServer(inner, g, NewConns(MaxConns), slog.New(slog.DiscardHandler))
	method, path, _ := strings.Cut(request, " ")
	r := httptest.NewRequest(method, path, http.NoBody)
	r.Host = "127.0.0.1:7070"
	for h := range strings.SplitSeq(headers, ", ") {
		if name, v, _ := strings.Cut(h, ": "); name == "Host" {
			r.Host = v
		} else if name != "" {
			r.Header.Set(name, v)
		}
	}
	conn, _ := net.Pipe()
	defer conn.Close()
	srv.Handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(srv.ConnContext(r.Context(), conn)))
	return code
}

func TestOrigins(t *testing.T) {
	origin, host, err := ParsePublicURL("https://Ops.Example.com:443/qlogd/")
	require.NoError(t, err)
	g := Guard{Exempt: Exempt, Origins: []string{origin}, Hosts: []string{host}}
	link := strings.NewReplacer("LINK ",
		"Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: ")
	for _, c := range table(t, "origins", 3) {
		code := cmp.Or(guarded(g, c[1], link.Replace(c[2])), "passes")
		assert.Equal(t, code, c[0], "%s %s", c[1], c[2])
	}
}

func TestHosts(t *testing.T) {
	g := Guard{Exempt: Exempt, Hosts: []string{"Q.example.com.", "::1"}}
	for _, c := range table(t, "hosts", 2) {
		for host := range strings.SplitSeq(c[1], " ") {
			code := guarded(g, "GET /v1/queues", "Host: "+host)
			assert.Equal(t, code == "", c[0] == "passes", "%s: %q", host, code)
		}
	}
	for path, passes := range map[string]bool{
		"/healthz": true, "/readyz": true, "/hook/x": true,
		"/metrics": false, "/healthz/": false, "/": false,
	} {
		code := guarded(g, "GET "+path, "Host: evil.example.com")
		assert.Equal(t, code == "", passes, "%s: %q", path, code)
	}
	assert.Equal(t, guarded(Guard{AnyHost: true}, "POST /", "Host: evil.example.com"), "")
	assert.Equal(t, guarded(Guard{}, "GET /healthz", "Host: evil.example.com"), "misdirected_request")
}

// A path that is exempt leads nowhere else, however it is written.
func TestExemptPaths(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	before := h.proposals()
	for _, path := range []string{"/hook/../v1/queues/q/purge", "/hook/%2e%2e/v1/queues/q/purge",
		"/hook/..%2fv1/queues/q/purge", "/hook//v1/queues/q/purge", "/hook/x/../../v1/queues/q/purge"} {
		a := h.do("POST", path, "")
		assert.True(t, a.Code >= 400, "%s: %d", path, a.Code)
	}
	assert.Equal(t, h.proposals(), before, "proposed")
}

func TestPublicURLs(t *testing.T) {
	for _, c := range table(t, "public_urls", 2) {
		want, text := c[0], c[1]
		origin, host, err := ParsePublicURL(text)
		assert.Equal(t, strings.TrimSpace(origin+" "+host), want, "%s: %v", text, err)
		assert.Equal(t, err == nil, want != "", "%s: %v", text, err)
	}
}

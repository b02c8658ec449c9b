package api

import (
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
	const link = "Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: navigate, Sec-Fetch-Dest: "
	for _, c := range []struct {
		request, headers string
		passes           bool
	}{
		{"POST /v1/queues/q/purge", "", true}, // no browser
		{"POST /v1/queues/q/purge", "Sec-Fetch-Site: same-origin, Origin: http://127.0.0.1:7070", true},
		{"POST /v1/queues/q/purge", "Sec-Fetch-Site: none", true},
		{"POST /v1/queues/q/purge", "Sec-Fetch-Site: cross-site", false},
		{"POST /v1/queues/q/purge", "Sec-Fetch-Site: same-site, Origin: http://127.0.0.1:7071", false},
		{"POST /v1/queues/q/purge", "Origin: http://127.0.0.1:7070", true},
		{"POST /v1/queues/q/purge", "Origin: http://127.0.0.1:7071", false}, // another port
		{"POST /v1/queues/q/purge", "Origin: null", false},
		{"POST /v1/queues/q/purge", link + "document", false}, // a form
		{"POST /v1/queues/q/purge", "Sec-Fetch-Site: cross-site, Origin: https://ops.example.com", true},
		{"POST /v1/queues/q/purge", "Origin: https://ops.example.com", true}, // old browser
		{"POST /v1/queues/q/purge", "Origin: http://ops.example.com", false},
		{"POST /v1/queues/q/purge", "Origin: https://ops.example.com.evil.org", false},
		{"OPTIONS /v1/queues/q", "Sec-Fetch-Site: cross-site, Origin: https://evil.example.com", false},
		{"GET /v1/events?follow=true", "Sec-Fetch-Site: cross-site, Sec-Fetch-Mode: no-cors", false},
		{"GET /v1/queues?at=15m", "Origin: https://evil.example.com", false},
		{"HEAD /v1/queues", "Sec-Fetch-Site: cross-site", false},
		{"GET /docs", link + "document", true},
		{"GET /docs", link + "iframe", false},
		{"POST /hook/github", "Sec-Fetch-Site: cross-site", true},
		{"POST /hookx/github", "Sec-Fetch-Site: cross-site", false},
		{"GET /healthz", "Sec-Fetch-Site: cross-site", false},
	} {
		code := guarded(g, c.request, c.headers)
		assert.Equal(t, code == "", c.passes, "%s %s: %q", c.request, c.headers, code)
		if code != "" {
			assert.Equal(t, code, "cross_origin", "%s %s", c.request, c.headers)
		}
	}
}

func TestHosts(t *testing.T) {
	g := Guard{Exempt: Exempt, Hosts: []string{"Q.example.com.", "::1"}}
	for _, c := range []struct {
		hosts  string
		passes bool
	}{
		{"127.0.0.1:7070 10.0.0.1 [::1]:7070 [fe80::1] 0.0.0.0:1", true},
		{"localhost:7070 LocalHost. n1 my_node:80 qlogd-0", true},
		{"a.localhost b.local:7070 c.internal qlogd.prod.svc qlogd.prod.svc.cluster.local. X.SVC", true},
		{"q.example.com:7070 Q.EXAMPLE.com Q.example.com.:1", true},
		{"", true}, // HTTP/1.0
		{"evil.example.com evil.example.com:7070 EVIL.example.com. 127.0.0.1.evil.example.com", false},
		{"evil.notlocal a.xlocalhost evil.svc.example.com local.evil.com localhost.evil.com", false},
		{"x.q.example.com q.example.com.evil.com xq.example.com example.com", false},
		{".local . .. a..local localhost:80:80 a@b.local user@localhost evil.com/.local :7070", false},
		{"127.0.0.1%2eevil.com löcal.local evil.com\u3002local [evil.com] [evil.com]:80", false},
	} {
		for host := range strings.SplitSeq(c.hosts, " ") {
			code := guarded(g, "GET /v1/queues", "Host: "+host)
			assert.Equal(t, code == "", c.passes, "%s: %q", host, code)
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
	for text, want := range map[string]string{
		"https://ops.example.com/qlogd/":   "https://ops.example.com ops.example.com",
		"HTTPS://OPS.example.com:443":      "https://ops.example.com ops.example.com",
		"http://ops.example.com:8080/a/b":  "http://ops.example.com:8080 ops.example.com",
		"http://ops.example.com:/":         "http://ops.example.com ops.example.com",
		"http://[::1]:80/":                 "http://[::1] ::1",
		"https://ops.example.com:80":       "https://ops.example.com:80 ops.example.com",
		"ops.example.com":                  "",
		"ftp://ops.example.com":            "",
		"https://":                         "",
		"https:ops.example.com":            "",
		"https://u:p@ops.example.com":      "",
		"https://ops.example.com/?a":       "",
		"https://ops.example.com?":         "",
		"https://ops.example.com/#":        "",
		"https://ops.example.com:99999":    "",
		"https://*.example.com":            "",
		"https://öps.example.com":          "",
		"https://ops.example.com, http://": "",
	} {
		origin, host, err := ParsePublicURL(text)
		assert.Equal(t, strings.TrimSpace(origin+" "+host), want, "%s: %v", text, err)
		assert.Equal(t, err == nil, want != "", "%s: %v", text, err)
	}
}

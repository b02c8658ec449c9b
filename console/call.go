package console

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"github.com/qlogd/qlogd/client"
)

// pageTimeout bounds all calls of a page. The longest is a past that must be folded first.
const pageTimeout = 60 * time.Second

// newClient returns a client of a handler in this process. It does not repeat calls: a page shows
// what went wrong and can be loaded again.
func newClient(h http.Handler) (*client.Client, error) {
	return client.New("http://console.localhost", client.WithUserAgent("qlogd-console"),
		client.WithRetry(client.Retry{Attempts: 1}),
		client.WithHTTPClient(&http.Client{Transport: inProcess{h}}))
}

// inProcess is an http.RoundTripper that calls a handler. Values of the request's context reach it:
// so the API knows whose request it is.
type inProcess struct{ h http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(r *http.Request) (_ *http.Response, err error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{}) // from here on a write may be applied
	}
	in := r.Clone(r.Context())
	in.RequestURI, in.RemoteAddr, in.Host = r.URL.RequestURI(), "127.0.0.1:0", "localhost"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	w := &memory{header: http.Header{}}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the call was aborted: %v", v)
		}
	}()
	t.h.ServeHTTP(w, in)
	if err := r.Context().Err(); err != nil && w.status == 0 {
		return nil, err
	}
	if w.status == 0 {
		return nil, errors.New("the call was not answered")
	}
	return &http.Response{
		Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.header, Request: r,
		ContentLength: int64(w.body.Len()), Body: io.NopCloser(&w.body),
	}, nil
}

// memory is an http.ResponseWriter that keeps the answer.
type memory struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (m *memory) Header() http.Header { return m.header }

func (m *memory) WriteHeader(status int) {
	if m.status == 0 {
		m.status = status
	}
}

func (m *memory) Write(b []byte) (int, error) {
	m.WriteHeader(http.StatusOK)
	return m.body.Write(b)
}

// now are the options of a read of the present. The node answers from its own state, so that the
// console also works where no leader is known; its own writes are in that state.
func (p *page) now() client.CallOption { return client.Stale() }

// then are the options of a read at the instant that the page shows.
func (p *page) then() []client.CallOption {
	return []client.CallOption{client.Stale(), client.At(p.At)}
}

// as is how a script would do what a form does. No secret is in it.
type as struct{ Curl, CLI string }

// as returns the curl and the qlogd command of a call. body is JSON or "".
func (p *page) as(method, path, body string, cli ...string) *as {
	curl := "curl"
	if method != http.MethodGet {
		curl += " -X " + method
	}
	if p.c.opts.Tokens != nil {
		curl += ` -H "Authorization: Bearer $QLOGD_TOKEN"`
	}
	if body != "" {
		curl += " --json " + quote(body)
	}
	a := &as{Curl: curl + " " + quote(p.base+path)}
	if len(cli) > 0 {
		words := []string{"qlogd"}
		for _, w := range cli {
			words = append(words, quote(w))
		}
		a.CLI = strings.Join(append(words, "--addr", quote(p.base)), " ")
	}
	return a
}

// withFlags appends the flags that have a value, pairs of a name and that.
func withFlags(words []string, flags [][2]string) []string {
	for _, flag := range flags {
		if flag[1] != "" {
			words = append(words, "--"+flag[0], flag[1])
		}
	}
	return words
}

// quote returns a word for a POSIX shell.
func quote(s string) string {
	plain := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
			!strings.ContainsRune("-_./:=@,+", r)
	}
	if s != "" && !strings.ContainsFunc(s, plain) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

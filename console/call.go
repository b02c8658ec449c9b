package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
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
	in.Header.Set("X-Request-Id", idOf(r.Context()))
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

type idKey struct{}

// idOf returns the id of a request to the console, which its calls have too.
func idOf(ctx context.Context) string { id, _ := ctx.Value(idKey{}).(string); return id }

// withID gives a request an id, and its answer too. The id that a proxy has given it is kept.
func withID(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	id := r.Header.Get("X-Request-Id")
	invalid := func(c rune) bool { return c <= ' ' || c > '~' }
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, invalid) {
		id = rand.Text()
	}
	w.Header().Set("X-Request-Id", id)
	return w, r.WithContext(context.WithValue(r.Context(), idKey{}, id))
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

// as returns a call as a curl and a qlogd command, nil where it cannot be written. body is what its
// JSON is made of, nil for none; flags are pairs of a name and a value, "" for none.
func (p *page) as(method, path string, body any, words []string, flags ...string) *as {
	curl := "curl"
	if method != http.MethodGet {
		curl += " -X " + method
	}
	if p.c.opts.Tokens != nil {
		curl += ` -H "Authorization: Bearer $QLOGD_TOKEN"`
	}
	if body != nil {
		text, err := wire.Marshal(body)
		if err != nil {
			return nil // it is not UTF-8 somewhere
		}
		if string(text) != "{}" {
			curl += " --json " + quote(string(text))
		}
	}
	a := &as{Curl: curl + " " + quote(p.base+path)}
	if len(words) > 0 {
		for i := 0; i+1 < len(flags); i += 2 {
			if flags[i+1] != "" {
				words = append(words, "--"+flags[i], flags[i+1])
			}
		}
		a.CLI = "qlogd"
		for _, word := range append(words, "--addr", p.base) {
			a.CLI += " " + quote(word)
		}
	}
	return a
}

// v1 returns a path of the API.
func v1(parts ...string) string {
	path := "/v1"
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// query returns pairs of a name and a value as the query of a URL, without those that are "".
func query(pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// quote returns a word for a POSIX shell. What would not be seen in it is written by its bytes.
func quote(s string) string {
	if strings.ContainsFunc(s, hidden) {
		word := ""
		for _, b := range []byte(s) {
			if b < 0x20 || b > 0x7e || strings.IndexByte(`'\%`, b) >= 0 {
				word += fmt.Sprintf("\\%03o", b)
			} else {
				word += string(rune(b))
			}
		}
		return `"$(printf '` + word + `')"`
	}
	plain := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
			!strings.ContainsRune("-_./:=@,+", r)
	}
	if s != "" && !strings.ContainsFunc(s, plain) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

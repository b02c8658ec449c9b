package peer

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// A call is one HTTP/2 request: POST /call/{name}, its answer 200 and the
// handler's bytes, or one of these and an Error as JSON:
//
//	404  nobody handles that name, 413 the body is too large: no handler ran
//	500  the handler answered with an error
//
// A GET goes to the handler of files, on connections of their own: bulk data
// must not hold up calls.
const callPath = "/call/"

func protocols() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// http2Config notices within some seconds that nobody is there.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: 1000,
		SendPingTimeout:      2 * time.Second,
		PingTimeout:          2 * time.Second,
		WriteByteTimeout:     5 * time.Second,
	}
}

type connKey struct{}

func (n *Net) newServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(n.serve),
		Protocols:         protocols(),
		HTTP2:             http2Config(),
		ReadHeaderTimeout: greetTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(n.o.Logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return n.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

// newTransport keeps connections by target: the host of a request's URL is the
// target in hex, with a letter before it for connections of calls or of files.
func (n *Net) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(_ context.Context, _, host string) (net.Conn, error) {
			to, err := targetOf(host)
			if err != nil {
				return nil, err
			}
			// Not with the request's context: others may wait for it too.
			c, err := n.dial(n.ctx, to, kindRPC)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		Protocols:              protocols(),
		HTTP2:                  http2Config(),
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
	}
}

func hostOf(to Target, use string) string {
	return use + hex.EncodeToString([]byte(to.Addr+"\n"+to.Node+"\n"+to.Incarnation))
}

func targetOf(hostport string) (to Target, err error) {
	host, _, _ := strings.Cut(hostport, ":")
	b, err := hex.DecodeString(host[1:])
	if err != nil {
		return to, err
	}
	t := strings.SplitN(string(b), "\n", 3)
	return Target{Addr: t[0], Node: t[1], Incarnation: t[2]}, nil
}

// Call asks the node at to and waits for its answer, as long as ctx allows, or
// until nothing is heard from that node for some seconds. It never repeats a
// request that a handler may have seen: see NotSent. from is who answered, as
// far as known.
func (n *Net) Call(ctx context.Context, to Target, name string, body []byte) (out []byte, from Identity, err error) {
	if int64(len(body)) > n.maxCall {
		err = &notSent{n.tooLarge("body", len(body))}
	} else {
		out, from, err = n.call(ctx, to, name, body)
	}
	if err != nil {
		return nil, from, fmt.Errorf("call %s at %s: %w", name, to.Addr, err)
	}
	return out, from, nil
}

func (n *Net) call(ctx context.Context, to Target, name string, body []byte) ([]byte, Identity, error) {
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: hostOf(to, "c"), Path: callPath + name},
		Header: http.Header{}, ContentLength: int64(len(body)),
		Body: io.NopCloser(bytes.NewReader(body)),
		GetBody: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(body)), nil
		},
	}
	if len(body) == 0 {
		r.Body, r.GetBody = http.NoBody, nil
	}
	resp, from, err := n.send(ctx, r)
	if err != nil {
		return nil, from, err
	}
	defer resp.Body.Close()
	b, err := readAll(resp.Body, resp.ContentLength, 2*n.maxCall+64<<10) // an Error's base64 swells
	if err != nil {
		return nil, from, outer(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return b, from, nil
	}
	e := &Error{}
	if err := json.Unmarshal(b, e); err != nil || e.Code == "" {
		return nil, from, fmt.Errorf("unexpected answer with status %d", resp.StatusCode)
	}
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusRequestEntityTooLarge {
		return nil, from, &notSent{e}
	}
	return nil, from, e
}

// Get asks the node at to for the bytes from..to of a file. Fewer bytes, or an
// end that was not the node's wish, are an error of the reader.
func (n *Net) Get(ctx context.Context, target Target, path string, from, to int64) (io.ReadCloser, error) {
	r := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: hostOf(target, "f"), Path: path},
		Header: http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}},
	}
	resp, _, err := n.send(ctx, r)
	if err == nil && (resp.StatusCode != http.StatusPartialContent || resp.ContentLength != to-from) {
		b, _ := readAll(io.LimitReader(resp.Body, 1<<10), 0, 1<<10)
		err = fmt.Errorf("status %d, %d bytes: %s", resp.StatusCode, resp.ContentLength, strings.TrimSpace(string(b)))
		resp.Body.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("get %s from %s: %w", path, target.Addr, err)
	}
	return resp.Body, nil
}

// send makes one request. net/http repeats it only where the other side has
// said, or it is certain, that it was not looked at.
func (n *Net) send(ctx context.Context, r *http.Request) (*http.Response, Identity, error) {
	var got atomic.Pointer[conn]
	resp, err := n.client.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if c, ok := i.Conn.(*conn); ok {
				got.Store(c)
			}
		},
	})))
	var from Identity
	if c := got.Load(); c != nil {
		from = c.peer
	} else if err != nil && !NotSent(err) {
		err = &notSent{err} // there never was a connection
	}
	if err != nil {
		err = outer(ctx, err)
	}
	return resp, from, err
}

// serve is one request at the side that answers.
func (n *Net) serve(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	name, call := strings.CutPrefix(r.URL.Path, callPath)
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	n.running.Add(1) // under mu, so that Close waits for it
	defer n.running.Done()
	h, files := n.handlers[name], n.files
	n.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && files != nil:
		files.ServeHTTP(w, r)
		return
	case r.Method != http.MethodPost || !call || h == nil:
		fail(w, http.StatusNotFound, &Error{Code: "unknown_call", Detail: fmt.Sprintf("nobody answers %.100q here", name)})
		return
	}
	body, err := readAll(r.Body, r.ContentLength, n.maxCall)
	if errors.Is(err, errTooLarge) {
		fail(w, http.StatusRequestEntityTooLarge, n.tooLarge("body", int(r.ContentLength)))
		return
	}
	if err != nil || r.ContentLength != int64(len(body)) {
		panic(http.ErrAbortHandler) // without the whole body nothing happens
	}
	out, err := h(r.Context(), c.peer, body)
	if err == nil && int64(len(out)) > n.maxCall {
		err = n.tooLarge("answer", len(out))
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	_, _ = w.Write(out) // an error is the caller's to see
}

func (n *Net) tooLarge(what string, size int) *Error {
	return &Error{Code: "too_large", Detail: fmt.Sprintf("%s of %d bytes, more than %d", what, size, n.maxCall)}
}

// fail answers with an Error made of err.
func fail(w http.ResponseWriter, status int, err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Code: "internal", Detail: err.Error()}
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and bytes
	}
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

var errTooLarge = errors.New("too large")

// readAll reads at most limit bytes. Memory grows with what has come, not with
// what was announced.
func readAll(r io.Reader, announced, limit int64) ([]byte, error) {
	if announced > limit {
		return nil, errTooLarge
	}
	b := bytes.NewBuffer(make([]byte, 0, min(max(announced, 0)+bytes.MinRead, 1<<20)))
	if _, err := b.ReadFrom(io.LimitReader(r, limit+1)); err != nil {
		return nil, err
	}
	if int64(b.Len()) > limit {
		return nil, errTooLarge
	}
	return b.Bytes(), nil
}

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

// A call is one HTTP/2 request: POST /call/{name}, its response 200 and the handler's bytes,
// or one of these and an Error as JSON:
//
//	404, 413  there is no handler of that name, the body is too large: no handler ran
//	500       the handler returned an error
//
// A GET goes to the handler of files, on connections of their own: bulk data must not delay
// calls.
const callPath = "/call/"

func protocols() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// http2Config detects within some seconds that the other side is gone.
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

// newTransport keeps connections by target: the host of a request's URL is the target in hex,
// with a letter before it for connections of calls or of files.
func (n *Net) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(_ context.Context, _, host string) (net.Conn, error) {
			host, _, _ = strings.Cut(host, ":")
			b, err := hex.DecodeString(host[1:])
			if err != nil {
				return nil, err
			}
			t := strings.SplitN(string(b), "\n", 3)
			// Not with the request's context: others may wait for the connection too.
			c, err := n.dial(n.ctx, Target{Addr: t[0], Node: t[1], Incarnation: t[2]}, kindRPC)
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

func urlOf(to Target, use, path string) *url.URL {
	host := use + hex.EncodeToString([]byte(to.Addr+"\n"+to.Node+"\n"+to.Incarnation))
	return &url.URL{Scheme: "http", Host: host, Path: path}
}

// Call calls the node at to and waits for its response, until ctx ends or nothing is heard
// from that node for some seconds. It never repeats a request that a handler may have seen:
// see NotSent. from is the node that responded, as far as known.
func (n *Net) Call(
	ctx context.Context, to Target, name string, body []byte,
) (out []byte, from Identity, err error) {
	if len(body) > maxCall {
		err = &notSent{tooLarge(len(body))}
	} else {
		out, from, err = n.call(ctx, to, name, body)
	}
	if err != nil {
		return nil, from, fmt.Errorf("call %s at %s: %w", name, to.Addr, err)
	}
	return out, from, nil
}

func (n *Net) call(
	ctx context.Context, to Target, name string, body []byte,
) ([]byte, Identity, error) {
	r := &http.Request{
		Method: http.MethodPost, URL: urlOf(to, "c", callPath+name),
		Header: http.Header{}, ContentLength: int64(len(body)), Body: http.NoBody,
	}
	if len(body) > 0 {
		r.GetBody = func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(body)), nil
		}
		r.Body, _ = r.GetBody()
	}
	resp, from, err := n.send(ctx, r)
	if err != nil {
		return nil, from, err
	}
	defer resp.Body.Close()
	b, err := readAll(resp.Body, resp.ContentLength, maxCall+64<<10)
	if err != nil {
		return nil, from, outer(ctx, err)
	}
	e := &Error{}
	switch {
	case resp.StatusCode == http.StatusOK:
		return b, from, nil
	case json.Unmarshal(b, e) != nil || e.Code == "":
		return nil, from, fmt.Errorf("unexpected response with status %d", resp.StatusCode)
	case resp.StatusCode < http.StatusInternalServerError:
		return nil, from, &notSent{e}
	}
	return nil, from, e
}

// Get requests the bytes from..to of a file at a node. A response with fewer bytes, or a
// connection that breaks, is an error of the reader.
func (n *Net) Get(
	ctx context.Context, target Target, path string, from, to int64,
) (io.ReadCloser, error) {
	resp, _, err := n.send(ctx, &http.Request{
		Method: http.MethodGet, URL: urlOf(target, "f", path),
		Header: http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}},
	})
	if err == nil {
		status, size := resp.StatusCode, resp.ContentLength
		if status == http.StatusPartialContent && size == to-from {
			return resp.Body, nil
		}
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		resp.Body.Close()
		err = fmt.Errorf("status %d, %d bytes: %s", status, size, bytes.TrimSpace(b))
	}
	return nil, fmt.Errorf("get %s from %s: %w", path, target.Addr, err)
}

// send sends one request. net/http repeats it only where the other side has said, or it is
// certain, that it was not read.
func (n *Net) send(ctx context.Context, r *http.Request) (*http.Response, Identity, error) {
	var got atomic.Pointer[conn]
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if c, ok := i.Conn.(*conn); ok {
			got.Store(c)
		}
	}}
	resp, err := n.client.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, trace)))
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

// serve serves one request.
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
		detail := fmt.Sprintf("no handler for %.100q", name)
		fail(w, http.StatusNotFound, &Error{Code: "unknown_call", Detail: detail})
		return
	}
	body, err := readAll(r.Body, r.ContentLength, maxCall)
	if errors.Is(err, errTooLarge) {
		fail(w, http.StatusRequestEntityTooLarge, tooLarge(int(r.ContentLength)))
		return
	}
	if err != nil || r.ContentLength != int64(len(body)) {
		panic(http.ErrAbortHandler) // without the whole body nothing happens
	}
	out, err := h(r.Context(), c.peer, body)
	if err == nil && len(out) > maxCall {
		err = tooLarge(len(out))
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	_, _ = w.Write(out) // the caller sees an error
}

func tooLarge(size int) *Error {
	return &Error{Code: "too_large", Detail: fmt.Sprintf("%d bytes, more than %d", size, maxCall)}
}

// fail responds with an Error made of err.
func fail(w http.ResponseWriter, status int, err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Code: "internal", Detail: err.Error()}
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings
	}
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

var errTooLarge = errors.New("too large")

// readAll reads at most limit bytes. Memory grows with what has arrived, not with what was
// announced.
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

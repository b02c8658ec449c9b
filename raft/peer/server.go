package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// A call is one HTTP/2 request: POST /call/{name}, or /stream/{name} on a
// connection of its own. The body is the byte 'q' and what the caller gave: so
// it is never empty, and without its last byte no handler is called (see
// request in call.go). The answer is 200 and the handler's bytes, or one of
// these and an Error as JSON:
//
//	404  nobody handles that name, 413 the body is too large: no handler ran
//	500  the handler answered with an error
const (
	callPath   = "/call/"
	streamPath = "/stream/"
	lead       = 'q'

	// maxStreams bounds how many calls of one node are under way.
	maxStreams = 1000
	// An idle connection is asked after pingAfter whether somebody is there,
	// who then has pingWait to say so.
	pingAfter = 2 * time.Second
	pingWait  = 2 * time.Second
	// writeWait is how long not a byte may get into a connection.
	writeWait = 5 * time.Second
)

var http2 = http.HTTP2Config{
	MaxConcurrentStreams:          maxStreams,
	MaxReadFrameSize:              256 << 10,
	MaxReceiveBufferPerConnection: 3 << 20,
	MaxReceiveBufferPerStream:     2 << 20,
	SendPingTimeout:               pingAfter,
	PingTimeout:                   pingWait,
	WriteByteTimeout:              writeWait,
}

func plainHTTP2() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

type connKey struct{}

func newServer(n *Net) *http.Server {
	h2 := http2
	return &http.Server{
		Handler:           http.HandlerFunc(n.serve),
		Protocols:         plainHTTP2(),
		HTTP2:             &h2,
		ReadHeaderTimeout: n.o.HandshakeTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(n.logger.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return n.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

// Handle makes h answer the calls of that name, in place of an older one. nil:
// nobody does. What an older one has begun goes on.
func (n *Net) Handle(name string, h Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h == nil {
		delete(n.handlers, name)
		return
	}
	n.handlers[name] = h
}

// HandleStream is as Handle, for Stream.
func (n *Net) HandleStream(name string, h StreamHandler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h == nil {
		delete(n.streams, name)
		return
	}
	n.streams[name] = h
}

// serve is one call at the side of who answers.
func (n *Net) serve(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok || r.Method != http.MethodPost {
		http.Error(w, "not a call", http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	n.running.Add(1) // under mu, so that Close waits for it
	defer n.running.Done()
	var h Handler
	var s StreamHandler
	name, call := strings.CutPrefix(r.URL.Path, callPath)
	if call && !c.bulk {
		h = n.handlers[name]
	} else if name, call = strings.CutPrefix(r.URL.Path, streamPath); call && c.bulk {
		s = n.streams[name]
	}
	n.mu.Unlock()
	if h == nil && s == nil {
		fail(w, http.StatusNotFound, &Error{Code: "unknown_call", Detail: fmt.Sprintf("nobody answers %q here", clip(name))})
		return
	}
	body, err := readAll(r.Body, r.ContentLength, n.o.MaxCall+1)
	if errors.Is(err, errTooLarge) {
		fail(w, http.StatusRequestEntityTooLarge, &Error{Code: "too_large", Detail: fmt.Sprintf("%s: a body of more than %d bytes", name, n.o.MaxCall)})
		return
	}
	if err != nil || r.ContentLength != int64(len(body)) || len(body) == 0 || body[0] != lead {
		// The caller broke off. Without the whole body nothing happens.
		panic(http.ErrAbortHandler)
	}
	body = body[1:]
	if s != nil {
		n.serveStream(w, r, c, s, body)
		return
	}
	out, err := h(r.Context(), c.peer, body)
	if err == nil && int64(len(out)) > n.o.MaxCall {
		err = answerTooLarge(name, len(out), n.o.MaxCall)
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Write(out)
}

func (n *Net) serveStream(w http.ResponseWriter, r *http.Request, c *conn, h StreamHandler, body []byte) {
	out := &begun{w: w}
	if err := h(r.Context(), c.peer, body, out); err != nil {
		if out.yes {
			n.logger.Warn("a stream to another node broke off", "call", r.URL.Path, "node", c.peer.Node, "error", err)
			panic(http.ErrAbortHandler) // resets it: the reader must not take it for the end
		}
		fail(w, http.StatusInternalServerError, err)
	}
}

// begun knows whether a byte was written.
type begun struct {
	w   io.Writer
	yes bool
}

func (b *begun) Write(p []byte) (int, error) {
	b.yes = b.yes || len(p) > 0
	return b.w.Write(p)
}

func answerTooLarge(name string, size int, limit int64) error {
	return &Error{Code: "too_large", Detail: fmt.Sprintf("%s: an answer of %d bytes, more than %d", name, size, limit)}
}

func fail(w http.ResponseWriter, status int, err error) {
	w.WriteHeader(status)
	w.Write(marshalError(err))
}

// marshalError makes an Error of whatever error, as JSON.
func marshalError(err error) []byte {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Code: "internal", Detail: err.Error()}
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and bytes
	}
	return b
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

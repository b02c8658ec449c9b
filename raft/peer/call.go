package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
)

// link is the connection over which all calls to one address go.
type link struct {
	mu      sync.Mutex
	http    *http.ClientConn
	conn    *conn
	dialing *dialing
}

// dialing is a connection on its way. Who wants it waits for done.
type dialing struct {
	to   Target
	done chan struct{}
	http *http.ClientConn
	conn *conn
	err  error
}

// Call asks the node at to and waits for its answer, as long as ctx allows, or
// until nothing is heard from that node for some seconds. All calls to an
// address share one connection. It never repeats a request that a handler may
// have seen: see NotSent. from is who answered, as far as known.
func (n *Net) Call(ctx context.Context, to Target, name string, body []byte) (answer []byte, from Identity, err error) {
	for again := false; ; again = true {
		cc, c, fresh, err := n.link(ctx, to)
		if err != nil {
			return nil, from, fmt.Errorf("call %s at %s: %w", name, to.Addr, err)
		}
		answer, err = n.callOn(ctx, cc, name, body)
		if err == nil {
			return answer, c.peer, nil
		}
		// The connection takes no more, having lived too long or been ended
		// over there: the next one may.
		if !again && !fresh && refusedByConn(ctx, err) {
			n.retire(to.Addr, cc)
			continue
		}
		return nil, c.peer, fmt.Errorf("call %s at %s: %w", name, to.Addr, err)
	}
}

// Stream asks the node at to on a connection of its own, which is closed
// when ctx ends or the reader is closed; one of them must happen. The reader's
// end is the stream's end: whatever cuts it short is an error.
func (n *Net) Stream(ctx context.Context, to Target, name string, body []byte) (io.ReadCloser, error) {
	fail := func(err error) (io.ReadCloser, error) {
		return nil, fmt.Errorf("stream %s from %s: %w", name, to.Addr, err)
	}
	c, err := n.dial(ctx, to, kindBulk)
	if err != nil {
		return fail(err)
	}
	cc, err := n.newClientConn(c)
	if err != nil {
		return fail(&notSent{err})
	}
	stop := context.AfterFunc(ctx, func() { cc.Close() })
	resp, err := n.send(ctx, cc, streamPath, name, body)
	if err != nil {
		stop()
		cc.Close()
		return fail(err)
	}
	return &stream{ReadCloser: resp.Body, stop: stop, cc: cc}, nil
}

// stream closes its connection.
type stream struct {
	io.ReadCloser
	stop func() bool
	cc   *http.ClientConn
}

func (s *stream) Close() error {
	s.stop()
	err := s.ReadCloser.Close()
	s.cc.Close()
	return err
}

// link returns a connection to the target, and whether it was made for this.
func (n *Net) link(ctx context.Context, to Target) (cc *http.ClientConn, c *conn, fresh bool, err error) {
	n.mu.Lock()
	l := n.links[to.Addr]
	if l == nil {
		l = &link{}
		n.links[to.Addr] = l
	}
	n.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return nil, nil, false, &notSent{err}
		}
		l.mu.Lock()
		if l.http != nil && l.http.Err() == nil && fits(l.conn.peer, to) == nil {
			defer l.mu.Unlock()
			return l.http, l.conn, false, nil
		}
		d := l.dialing
		if d == nil {
			d = &dialing{to: to, done: make(chan struct{})}
			// Not with ctx: others wait for it too.
			if !n.spawn(func() { n.connect(l, d) }) {
				l.mu.Unlock()
				return nil, nil, false, &notSent{net.ErrClosed}
			}
			l.dialing = d
		}
		l.mu.Unlock()
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, nil, false, &notSent{ctx.Err()}
		}
		if d.to == to {
			return d.http, d.conn, true, d.err
		}
	}
}

// refusedByConn tells whether it was the connection that did not take a
// request, and not its caller who gave up or its handler that is missing.
func refusedByConn(ctx context.Context, err error) bool {
	var e *Error
	return NotSent(err) && ctx.Err() == nil && !errors.As(err, &e)
}

// retire lets a connection finish what is under way on it, and not be used for
// more: it may have no number left for another stream, and not say so.
func (n *Net) retire(addr string, cc *http.ClientConn) {
	n.mu.Lock()
	l := n.links[addr]
	n.mu.Unlock()
	l.mu.Lock()
	if l.http == cc {
		l.http, l.conn = nil, nil
	}
	l.mu.Unlock()
	closeIdle := func(cc *http.ClientConn) {
		if cc.InFlight() == 0 {
			cc.Close()
		}
	}
	cc.SetStateHook(closeIdle)
	closeIdle(cc)
}

// connect makes l's connection.
func (n *Net) connect(l *link, d *dialing) {
	c, err := n.dial(n.ctx, d.to, kindRPC)
	var cc *http.ClientConn
	if err == nil {
		if cc, err = n.newClientConn(c); err != nil {
			err = &notSent{err}
		}
	}
	d.http, d.conn, d.err = cc, c, err
	l.mu.Lock()
	old := l.http
	if err == nil {
		l.http, l.conn = cc, c
	}
	l.dialing = nil
	l.mu.Unlock()
	if err == nil && old != nil {
		old.Close() // dead, or to who was there before
	}
	close(d.done)
}

type dialKey struct{}

// newTransport only makes connections out of what it finds in the context. It
// never sends anything itself: its RoundTrip would repeat requests as it sees
// fit, a ClientConn's does not.
func newTransport() *http.Transport {
	h2 := http2
	h2.MaxReceiveBufferPerStream = 3 << 20
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return ctx.Value(dialKey{}).(*conn), nil
		},
		Protocols:              plainHTTP2(),
		HTTP2:                  &h2,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
	}
}

func (n *Net) newClientConn(c *conn) (*http.ClientConn, error) {
	cc, err := n.client.NewClientConn(context.WithValue(n.ctx, dialKey{}, c), "http", "peer:80")
	if err != nil {
		c.Close()
		return nil, err
	}
	return cc, nil
}

// callOn makes one call, once.
func (n *Net) callOn(ctx context.Context, cc *http.ClientConn, name string, body []byte) ([]byte, error) {
	resp, err := n.send(ctx, cc, callPath, name, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := readAll(resp.Body, resp.ContentLength, n.o.MaxCall)
	if errors.Is(err, errTooLarge) {
		err = fmt.Errorf("an answer of more than %d bytes", n.o.MaxCall)
	}
	if err != nil {
		return nil, outer(ctx, err)
	}
	return b, nil
}

func tooLargeHere(size int, limit int64) error {
	return &notSent{&Error{Code: "too_large", Detail: fmt.Sprintf("a body of %d bytes, more than %d", size, limit)}}
}

// send makes one request, once, and returns an answer of status 200.
func (n *Net) send(ctx context.Context, cc *http.ClientConn, path, name string, body []byte) (*http.Response, error) {
	if int64(len(body)) > n.o.MaxCall {
		return nil, tooLargeHere(len(body), n.o.MaxCall)
	}
	rb := newRequest(body)
	r := (&http.Request{
		Method: http.MethodPost,
		URL:    &url.URL{Scheme: "http", Host: "peer", Path: path + name},
		Header: http.Header{}, Body: rb, ContentLength: int64(len(body)) + 1,
	}).WithContext(ctx)
	resp, err := cc.RoundTrip(r)
	if err != nil {
		if turnedBack := unprocessed(err); rb.cut() || turnedBack {
			return nil, &notSent{outer(ctx, err)}
		}
		return nil, outer(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := readAll(resp.Body, resp.ContentLength, 2*n.o.MaxCall+(64<<10)) // base64 swells
	if err != nil {
		return nil, outer(ctx, err)
	}
	e := &Error{}
	if err := json.Unmarshal(b, e); err != nil || e.Code == "" {
		return nil, fmt.Errorf("an answer that is none: status %d", resp.StatusCode)
	}
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusRequestEntityTooLarge {
		return nil, &notSent{e}
	}
	return nil, e
}

// request is a call's body on its way out. It knows whether its last byte was
// taken: if it was not, and never will be, then no handler has run, whatever
// else is unknown of the request.
type request struct {
	mu   sync.Mutex
	left []byte
	lead bool // still to come
	shut bool
}

func newRequest(body []byte) *request { return &request{left: body, lead: true} }

func (r *request) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return 0, net.ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	k := 0
	if r.lead {
		p[0], k, r.lead = lead, 1, false
	}
	c := copy(p[k:], r.left)
	r.left = r.left[c:]
	if k += c; k == 0 {
		return 0, io.EOF
	}
	return k, nil
}

func (r *request) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	return nil
}

// cut ends the body, and tells whether some of it was not taken.
func (r *request) cut() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	return r.lead || len(r.left) > 0
}

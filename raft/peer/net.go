// Package peer is the network between the nodes of a cluster: one port for all of it
// (serve --raft-addr), on which each connection begins with a hello that says which node
// connects and which one it looks for. After that it carries calls in HTTP/1.1, or a stream of
// hashicorp/raft (RaftLayer).
package peer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/internal/certs"
	"github.com/qlogd/qlogd/internal/sharedsecret"
)

// Identity is what a node says of itself.
type Identity struct {
	Cluster     string `json:"cluster"`     // "" while it belongs to none
	Node        string `json:"node"`        // its name: n1
	Incarnation string `json:"incarnation"` // of its data directory
	Raft        string `json:"raft"`        // addresses at which others reach it (host:port)
	HTTP        string `json:"http"`
}

// Target is a node to reach: at Addr must be that Node in that Incarnation, else the other
// side refuses. "" is any.
type Target struct{ Addr, Node, Incarnation string }

// Options of a node's network.
type Options struct {
	// Listener accepts the connections of other nodes. Net closes it.
	Listener net.Listener
	// Dial opens a plain connection; nil: TCP.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	TLS    *certs.Keeper        // mutual, on every connection; nil: none
	Secret *sharedsecret.Secret // that both sides of every connection must have; nil: none
	// Closed is why this node has no connections to others; "": it has.
	Closed string
	Self   Identity
	Logger *slog.Logger
	// MaxConns bounds the open connections; over it, the oldest without a hello is closed.
	MaxConns int // default 1024
}

// Bounds that keep unknown hosts, and nodes that hang, from using up all resources.
const (
	dialTimeout  = 3 * time.Second // for a connection and its hello
	greetTimeout = 5 * time.Second // for a hello to arrive
	maxCall      = 80 << 20        // bytes of a call's body, and of its response
)

// Handler answers a call. An error becomes an *Error at the other side.
type Handler func(ctx context.Context, from Identity, body []byte) ([]byte, error)

// Error is the response of a handler, or of the other side's handshake.
type Error struct {
	Code   string // "refused" by the handshake, "unknown_call", else the handler's
	Detail string
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// NotSent reports whether a call certainly did not reach a handler, so that it can be
// repeated, here or elsewhere, without being carried out twice: there was no connection, the
// other side refused it, or has no handler of that name.
func NotSent(err error) bool {
	_, ok := errors.AsType[*notSent](err)
	return ok
}

// notSent is the error of a call that reached no handler. It is a type and not an Error's code,
// because a handler may pass on the refusal of a third node.
type notSent struct{ err error }

func (n *notSent) Error() string { return n.err.Error() }
func (n *notSent) Unwrap() error { return n.err }

// lastAnswers is how long Close waits for running calls to end.
const lastAnswers = 500 * time.Millisecond

// Net is a node's end of the network between nodes. Its methods may be called from any goroutine.
type Net struct {
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	server *http.Server

	mu       sync.Mutex
	self     Identity
	handlers map[string]handling
	clients  map[Target]*http.Transport
	raft     *RaftLayer // nil: no replica runs here
	// conns are all that are open, in both directions, from before their hello on, the oldest
	// first. Invariant: one whose hello named an older self than self is not in it.
	conns []*conn

	warned sync.Map // of messages: their *rate.Sometimes
}

// New starts to accept connections at once: calls that arrive before Handle are refused.
func New(o Options) (*Net, error) {
	if err := o.Self.check(); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Net{
		o: o, self: o.Self, handlers: map[string]handling{}, clients: map[Target]*http.Transport{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.Handle(n.ctx, callPing, func(context.Context, Identity, []byte) ([]byte, error) {
		return nil, nil
	})
	n.server = &http.Server{
		Handler:           http.HandlerFunc(n.serve),
		ReadHeaderTimeout: greetTimeout,
		IdleTimeout:       2 * keepIdle,
		MaxHeaderBytes:    maxHello,
		ErrorLog:          log.New(warnings{n}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return n.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	go func() { _ = n.server.Serve(listener{o.Listener, n}) }()
	return n, nil
}

// handling is a handler and how long it serves.
type handling struct {
	ctx context.Context
	Handler
}

// Handle makes h serve the calls of that name, in place of an older one, until ctx ends. Calls that
// have begun continue.
func (n *Net) Handle(ctx context.Context, name string, h Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handlers[name] = handling{ctx, h}
}

// Addr is where the listener listens.
func (n *Net) Addr() string { return n.o.Listener.Addr().String() }

// Closed is why this node has no connections to others; "": it has.
func (n *Net) Closed() string { return n.o.Closed }

// Self is who this node says it is.
func (n *Net) Self() Identity {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self
}

// SetSelf changes who this node says it is. Connections on which it said
// otherwise are closed, and what is under way on them fails.
func (n *Net) SetSelf(i Identity) {
	n.mu.Lock()
	changed := n.self != i
	n.self = i
	n.mu.Unlock()
	if changed {
		n.closeConns(func(*conn) bool { return true })
	}
}

// closeConns closes the connections that are open now and for which f holds.
func (n *Net) closeConns(f func(*conn) bool) {
	n.mu.Lock()
	open := slices.DeleteFunc(slices.Clone(n.conns), func(c *conn) bool { return !f(c) })
	n.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// Close closes the listener and all connections, and returns when all
// handlers have ended: their contexts do. A handler must not call it.
func (n *Net) Close() error {
	// To the other side a broken connection would be an unknown outcome.
	ctx, cancel := context.WithTimeout(n.ctx, lastAnswers)
	_ = n.server.Shutdown(ctx) // what is left then is cut off
	cancel()
	n.cancel()
	n.closeConns(func(*conn) bool { return true })
	return n.server.Shutdown(context.Background()) // returns when the handlers have
}

// listener accepts connections for the server.
type listener struct {
	net.Listener
	net *Net
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			err = acceptError{err}
		}
		return nil, err
	}
	c := &conn{Conn: raw, raw: raw, net: l.net}
	if err := l.net.enter(c); err != nil {
		raw.Close()
		return nil, err
	}
	if k := l.net.o.TLS; k != nil {
		return tls.Server(c, k.Server(true)), nil
	}
	return c, nil
}

// acceptError is one after which net/http logs, waits, and accepts again.
type acceptError struct{ error }

func (acceptError) Timeout() bool   { return false }
func (acceptError) Temporary() bool { return true }

// enter adds a connection to the open ones. Where there are too many, the oldest that has not sent
// its hello is closed: unknown hosts take no room from nodes.
func (n *Net) enter(c *conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil || c.layer != nil && c.layer != n.raft {
		return net.ErrClosed
	}
	n.conns = append(n.conns, c)
	strange := slices.IndexFunc(n.conns, func(o *conn) bool { return !o.greeted })
	if len(n.conns) > n.o.MaxConns && strange >= 0 {
		n.conns[strange].raw.Close() // its reader ends with an error
		n.conns = slices.Delete(n.conns, strange, strange+1)
	}
	return nil
}

type connKey struct{} // of the *conn in a request's context

// conn is a connection to another node, in either direction.
type conn struct {
	net.Conn // raw, or TLS over it in a connection that this side has opened
	raw      net.Conn
	net      *Net
	layer    *RaftLayer // nil: it carries calls; guarded by net.mu
	greeted  bool       // it was opened here, or its hello accepted; guarded by net.mu
	peer     Identity   // after the hello

	challenge string // to the side that has connected, of its first hello; "": none yet
}

// Close closes at once, also where TLS would first send an alert to a peer that does not read.
func (c *conn) Close() error {
	c.net.mu.Lock()
	c.net.conns = slices.DeleteFunc(c.net.conns, func(o *conn) bool { return o == c })
	c.net.mu.Unlock()
	return c.raw.Close()
}

// RaftLayer is the listener and dialer of package raft's transport.
type RaftLayer struct {
	net   *Net
	conns chan net.Conn
	ctx   context.Context // ends with Close
	end   context.CancelFunc
}

// Raft returns the layer on which Raft's connections arrive until it is closed. There is one at
// a time: it must be closed before the next one.
func (n *Net) Raft() *RaftLayer {
	l := &RaftLayer{net: n, conns: make(chan net.Conn)}
	l.ctx, l.end = context.WithCancel(n.ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.raft = l
	return l
}

// Addr implements net.Listener.
func (l *RaftLayer) Addr() net.Addr { return l.net.o.Listener.Addr() }

// Accept implements net.Listener.
func (l *RaftLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial opens a connection to another node's Raft. It takes at most timeout.
func (l *RaftLayer) Dial(t Target, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.net.ctx, timeout)
	defer cancel()
	c, _, err := l.net.dial(ctx, t, l)
	return c, err
}

// Close implements net.Listener. It ends Accept and closes all of the layer's connections, in both
// directions.
func (l *RaftLayer) Close() error {
	l.net.mu.Lock()
	if l.net.raft == l {
		l.net.raft = nil
	}
	l.net.mu.Unlock()
	l.end()
	l.net.closeConns(func(c *conn) bool { return c.layer == l })
	return nil
}

// warn logs each message at most once a minute: nobody who can connect must be able to fill the
// disk.
func (n *Net) warn(msg string, args ...any) {
	each, _ := n.warned.LoadOrStore(msg, &rate.Sometimes{Interval: time.Minute})
	each.(*rate.Sometimes).Do(func() { n.o.Logger.Warn(msg, args...) })
}

// warnings are what net/http logs.
type warnings struct{ net *Net }

func (w warnings) Write(line []byte) (int, error) {
	w.net.warn("connection between nodes failed", "error", string(bytes.TrimSpace(line)))
	return len(line), nil
}

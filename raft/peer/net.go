package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Close waits this long for running calls to end, and for their responses to be sent.
const (
	lastAnswers = 500 * time.Millisecond
	lastBytes   = 50 * time.Millisecond
)

// Net is a node's end of the network between nodes. Its methods may be called
// from any goroutine.
type Net struct {
	o       Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	running sync.WaitGroup // handlers; added to under mu, while not closed
	server  *http.Server
	client  *http.Transport
	calls   *feed // connections for server

	mu       sync.Mutex
	closed   bool
	self     Identity
	handlers map[string]Handler
	files    http.Handler
	raft     *RaftLayer
	// conns are all that are open, in both directions, from before their handshake on.
	// Invariant: one whose handshake named an older self than self is not in it.
	conns    map[*conn]struct{}
	greeting []*conn // of conns: incoming ones during their handshake, the oldest first
	warned   map[string]warning
}

// New starts to accept connections at once: those that arrive before Handle or Raft was called
// are refused.
func New(o Options) (*Net, error) {
	if o.Listener == nil {
		return nil, errors.New("peer: no listener")
	}
	if (o.Server == nil) != (o.Client == nil) {
		return nil, errors.New("peer: TLS on one side only")
	}
	if err := o.Self.check(); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Net{
		o: o, self: o.Self, handlers: map[string]Handler{},
		conns: map[*conn]struct{}{}, warned: map[string]warning{},
		calls: newFeed(o.Listener.Addr()),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.server, n.client = n.newServer(), n.newTransport()
	n.wg.Go(n.accept)
	n.wg.Go(func() { _ = n.server.Serve(n.calls) })
	return n, nil
}

// Addr is where the listener listens.
func (n *Net) Addr() string { return n.o.Listener.Addr().String() }

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
	var open []*conn
	for c := range n.conns {
		if f(c) {
			open = append(open, c)
		}
	}
	n.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// Close closes the listener and all connections, and returns when all
// goroutines have ended, handlers too: their contexts end. A handler must not
// call it.
func (n *Net) Close() error {
	n.mu.Lock()
	n.closed = true
	layer := n.raft
	n.mu.Unlock()
	err := n.o.Listener.Close()
	if layer != nil {
		layer.Close()
	}
	// To the other side a broken connection would be an unknown outcome.
	answered := make(chan struct{})
	go func() { n.running.Wait(); close(answered) }()
	select {
	case <-answered:
	case <-time.After(lastAnswers): // what is left is cut off
	}
	ctx, cancel := context.WithTimeout(n.ctx, lastBytes)
	_ = n.server.Shutdown(ctx) // would wait a second for idle connections
	cancel()
	n.cancel()
	n.closeConns(func(*conn) bool { return true })
	n.calls.Close()
	n.server.Close()
	n.client.CloseIdleConnections()
	n.wg.Wait()
	n.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil // closed before
	}
	return err
}

// accept lets others in, until Close.
func (n *Net) accept() {
	for {
		c, err := n.o.Listener.Accept()
		if err == nil {
			n.wg.Go(func() { n.greet(c) })
			continue
		}
		n.mu.Lock()
		closed := n.closed
		n.mu.Unlock()
		if closed {
			return
		}
		// Out of file descriptors, for instance: open connections can still be served.
		n.warn("cannot accept a connection from another node", "error", err)
		select {
		case <-n.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// greet does the handshake with an incoming connection, and delivers it.
func (n *Net) greet(raw net.Conn) {
	c := &conn{Conn: raw, raw: raw, net: n}
	if n.enter(c, true) != nil {
		raw.Close()
		return
	}
	raw.SetDeadline(time.Now().Add(greetTimeout))
	h, err := n.listen(c)
	if err != nil {
		n.warn("connection from an unknown host refused", "from", raw.RemoteAddr(), "error", err)
		c.Close()
		return
	}
	c.peer = h.From
	self, layer, err := n.judge(h)
	if err == nil && h.Kind != kindWho {
		err = n.admit(c)
	}
	a := answer{From: self}
	if err != nil {
		a.Refused = err.Error()
		n.warn("node refused", "node", h.From.Node, "incarnation", h.From.Incarnation,
			"cluster", h.From.Cluster, "from", raw.RemoteAddr(), "error", err)
	}
	if werr := write(c.Conn, a); werr != nil || err != nil || h.Kind == kindWho {
		c.Close()
		return
	}
	raw.SetDeadline(time.Time{})
	if h.Kind == kindRaft {
		layer.deliver(c)
	} else {
		n.calls.deliver(c)
	}
}

// enter adds a connection to the open ones. Where too many have not sent their hello, the
// oldest is closed: unknown hosts take no room from nodes.
func (n *Net) enter(c *conn, incoming bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	n.conns[c] = struct{}{}
	if !incoming {
		return nil
	}
	n.greeting = append(n.greeting, c)
	if len(n.greeting) > maxGreeting {
		n.greeting[0].raw.Close() // its greet does the rest
		n.greeting = n.greeting[1:]
	}
	return nil
}

// admit lets an incoming connection stay after its handshake.
func (n *Net) admit(c *conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, in := n.conns[c]; !in {
		return net.ErrClosed // meanwhile
	}
	if open := len(n.conns) - len(n.greeting); open >= maxConns {
		return fmt.Errorf("%d connections are open, no more are accepted", open)
	}
	n.greetedLocked(c)
	return nil
}

func (n *Net) greetedLocked(c *conn) {
	n.greeting = slices.DeleteFunc(n.greeting, func(o *conn) bool { return o == c })
}

// conn is a connection. It is not a *tls.Conn even where there is TLS below: net/http must
// see plain HTTP/2, because its handshake is not the first thing sent.
type conn struct {
	net.Conn // TLS, or raw itself
	raw      net.Conn
	net      *Net
	layer    *RaftLayer // guarded by net.mu
	peer     Identity
}

// Close closes at once, also where TLS would first send an alert to a peer that does not read.
// The protocols above have ends of their own.
func (c *conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.greetedLocked(c)
	c.net.mu.Unlock()
	return c.raw.Close()
}

// feed is a listener that is given its connections.
type feed struct {
	addr net.Addr
	c    chan net.Conn
	done chan struct{}
	once sync.Once
}

func newFeed(addr net.Addr) *feed {
	return &feed{addr: addr, c: make(chan net.Conn), done: make(chan struct{})}
}

func (f *feed) deliver(c net.Conn) {
	select {
	case f.c <- c:
	case <-f.done:
		c.Close()
	}
}

// Accept implements net.Listener.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.c:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// Addr implements net.Listener.
func (f *feed) Addr() net.Addr { return f.addr }

// warning is logged at most once a minute, with how often there was cause for it since: nobody
// who can connect must be able to fill the disk.
type warning struct {
	last  time.Time
	count int
}

func (n *Net) warn(msg string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.warned[msg]
	w.count++
	if now := time.Now(); now.Sub(w.last) >= time.Minute {
		n.o.Logger.Warn(msg, append(args, "times", w.count)...)
		w = warning{last: now}
	}
	n.warned[msg] = w
}

// RaftLayer is the listener and dialer of package raft's transport.
type RaftLayer struct {
	*feed
	net *Net
}

// Raft returns the layer on which Raft's connections arrive from now on. An older one is closed.
func (n *Net) Raft() *RaftLayer {
	l := &RaftLayer{net: n, feed: newFeed(n.o.Listener.Addr())}
	n.mu.Lock()
	old, closed := n.raft, n.closed
	n.raft = l
	n.mu.Unlock()
	if old != nil {
		old.Close()
	}
	if closed {
		l.Close()
	}
	return l
}

func (l *RaftLayer) deliver(c *conn) {
	if l.own(c) {
		l.feed.deliver(c)
	}
}

// own makes a connection end with the layer, or at once if that has ended: the goroutine that
// serves it in package raft ends only then.
func (l *RaftLayer) own(c *conn) bool {
	l.net.mu.Lock()
	c.layer = l
	l.net.mu.Unlock()
	select {
	case <-l.done:
		c.Close()
		return false
	default:
		return true
	}
}

// Dial opens a connection to another node's Raft. It takes at most timeout.
func (l *RaftLayer) Dial(t Target, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.net.ctx, timeout)
	defer cancel()
	c, err := l.net.dial(ctx, t, kindRaft)
	if err != nil {
		return nil, err
	}
	if !l.own(c) {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close ends Accept and closes all of the layer's connections, in both
// directions.
func (l *RaftLayer) Close() error {
	n := l.net
	n.mu.Lock()
	l.feed.Close()
	if n.raft == l {
		n.raft = nil
	}
	n.mu.Unlock()
	n.closeConns(func(c *conn) bool { return c.layer == l })
	return nil
}

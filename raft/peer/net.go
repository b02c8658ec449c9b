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

// Close waits this long for running calls to be answered, and for the answers to
// be on their way.
const (
	lastAnswers = 500 * time.Millisecond
	lastBytes   = 50 * time.Millisecond
)

// Net is a node's end of the network between nodes. Its methods may be called
// from any goroutine.
type Net struct {
	o       Options
	maxCall int64
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	running sync.WaitGroup // handlers; added to under mu, while not closed
	server  *http.Server
	client  *http.Transport
	calls   *feed // connections for server

	strangers, refusals minutely

	mu       sync.Mutex
	closed   bool
	self     Identity
	handlers map[string]Handler
	files    http.Handler
	raft     *RaftLayer
	// conns are all that are open, in both directions, from before their
	// handshake on. Invariant: one whose handshake named an older self than
	// self is not in it.
	conns    map[*conn]struct{}
	accepted int     // of conns: of others, and let in
	greeting []*conn // of conns: of others, and not yet let in; the oldest first
}

// New starts to accept connections at once: those that come before Handle or
// Raft was called are refused.
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
		o: o, self: o.Self, maxCall: maxCall, handlers: map[string]Handler{},
		conns: map[*conn]struct{}{}, calls: newFeed(o.Listener.Addr()),
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
	// What handlers have answered is on its way still: the other side would take
	// a broken connection for an unknown outcome.
	answered := make(chan struct{})
	go func() { n.running.Wait(); close(answered) }()
	select {
	case <-answered:
	case <-time.After(lastAnswers): // what is left is cut off
	}
	ctx, cancel := context.WithTimeout(n.ctx, lastBytes)
	_ = n.server.Shutdown(ctx) // idle connections would linger for a second
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
		// Out of file descriptors, say: those who are in can still be served.
		n.strangers.warn(n.o.Logger, "cannot accept a connection from another node", "error", err)
		select {
		case <-n.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// greet does the handshake with a connection that came in, and hands it on.
func (n *Net) greet(raw net.Conn) {
	c := &conn{Conn: raw, raw: raw, net: n, incoming: true}
	if n.enter(c) != nil {
		raw.Close()
		return
	}
	raw.SetDeadline(time.Now().Add(greetTimeout))
	h, err := n.listen(c)
	if err != nil {
		n.strangers.warn(n.o.Logger, "connection of a stranger refused", "from", raw.RemoteAddr(), "error", err)
		c.Close()
		return
	}
	c.peer = h.From
	self, layer, err := n.judge(h)
	if err == nil && h.Kind != kindWho {
		err = n.letIn(c)
	}
	a := answer{From: self}
	if err != nil {
		a.Refused = err.Error()
		n.refusals.warn(n.o.Logger, "node refused", "node", h.From.Node, "incarnation", h.From.Incarnation,
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

// enter counts a connection among the open ones. Strangers take no room from
// nodes: where there are too many, the oldest of them gives way.
func (n *Net) enter(c *conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	n.conns[c] = struct{}{}
	if !c.incoming {
		return nil
	}
	n.greeting = append(n.greeting, c)
	if len(n.greeting) > maxGreeting {
		n.greeting[0].raw.Close() // its greet does the rest
		n.greeting = n.greeting[1:]
	}
	return nil
}

// letIn counts a connection among those of nodes, after its handshake.
func (n *Net) letIn(c *conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, in := n.conns[c]; !in {
		return net.ErrClosed // meanwhile
	}
	if n.accepted >= maxConns {
		return fmt.Errorf("%d connections are open, no more are let in", n.accepted)
	}
	n.greeted(c)
	n.accepted++
	c.accepted = true
	return nil
}

// greeted takes a connection out of those in their handshake. mu is held.
func (n *Net) greeted(c *conn) {
	n.greeting = slices.DeleteFunc(n.greeting, func(o *conn) bool { return o == c })
}

// conn is a connection that Net knows of. It is not a *tls.Conn even where
// there is TLS below: net/http must see plain HTTP/2, as its handshake is not
// the first thing said.
type conn struct {
	net.Conn // TLS, or raw itself
	raw      net.Conn
	net      *Net
	incoming bool
	accepted bool       // by letIn; guarded by net.mu
	layer    *RaftLayer // guarded by net.mu
	peer     Identity
	once     sync.Once
}

// Close closes at once, also where TLS would first say goodbye to a peer that
// does not listen. The protocols above have ends of their own.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		n := c.net
		n.mu.Lock()
		delete(n.conns, c)
		n.greeted(c)
		if c.accepted {
			n.accepted--
		}
		n.mu.Unlock()
		err = c.raw.Close()
	})
	return err
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

// minutely is a warning that is logged at most once a minute, with the number of
// times there was cause for it since: nobody who can connect must be able to
// fill the disk.
type minutely struct {
	mu    sync.Mutex
	last  time.Time
	count int
}

func (m *minutely) warn(logger *slog.Logger, msg string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	if now := time.Now(); m.last.IsZero() || now.Sub(m.last) >= time.Minute {
		logger.Warn(msg, append(args, "times", m.count)...)
		m.last, m.count = now, 0
	}
}

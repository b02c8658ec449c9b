package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Close waits so long for calls in hand to be answered, and for the answers to
// be on their way.
const (
	lastAnswers = 500 * time.Millisecond
	lastBytes   = 50 * time.Millisecond
)

// Net is a node's end of the inside network. Its methods may be called from
// any goroutine.
type Net struct {
	o       Options
	logger  *slog.Logger
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	running sync.WaitGroup // handlers; added to under mu, while not closed
	server  *http.Server
	client  *http.Transport
	calls   *feed // connections for server

	strangers, refusals told

	mu       sync.Mutex
	closed   bool
	self     Identity
	handlers map[string]Handler
	streams  map[string]StreamHandler
	raft     *RaftLayer
	// conns are all that are open, in both directions, from before their
	// handshake on. Invariant: one whose handshake told an older self than
	// self is not in it.
	conns    map[*conn]struct{}
	accepted int // of conns: of others, and let in
	// greeting are those of conns that have come and not yet been let in, the
	// oldest first.
	greeting []*conn
	links    map[string]*link
}

// New starts to accept connections at once: to those that come before Handle
// or Raft was called it says that there is nothing yet.
func New(o Options) (*Net, error) {
	if o.Listener == nil {
		return nil, errors.New("peer: no listener")
	}
	if (o.Server == nil) != (o.Client == nil) {
		return nil, errors.New("peer: TLS on one side only")
	}
	if _, err := (hello{from: o.Self}).encode(); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	if o.Dial == nil {
		d := &net.Dialer{Timeout: dialTimeout}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxCall == 0 {
		o.MaxCall = 80 << 20
	}
	if o.MaxConns == 0 {
		o.MaxConns = 1024
	}
	if o.MaxGreeting == 0 {
		o.MaxGreeting = 256
	}
	if o.MaxGreetingFrom == 0 {
		o.MaxGreetingFrom = 32
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 5 * time.Second
	}
	n := &Net{
		o: o, logger: o.Logger, self: o.Self,
		handlers: map[string]Handler{}, streams: map[string]StreamHandler{},
		conns: map[*conn]struct{}{}, links: map[string]*link{},
		calls: newFeed(o.Listener.Addr()),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.server = newServer(n)
	n.client = newTransport()
	n.wg.Go(n.accept)
	n.wg.Go(func() { n.server.Serve(n.calls) })
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
	if n.self == i {
		n.mu.Unlock()
		return
	}
	n.self = i
	open := n.drain()
	n.mu.Unlock()
	closeAll(open)
}

// Close closes the listener and all connections, and returns when all
// goroutines have ended, handlers too: their contexts end. A handler must not
// call it.
func (n *Net) Close() error {
	n.mu.Lock()
	n.closed = true
	layer := n.raft
	open := n.drain()
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
	closeAll(open)
	n.calls.Close()
	n.server.Close()
	n.wg.Wait()
	n.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil // closed before
	}
	return err
}

func (n *Net) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// drain takes all connections out. The caller holds mu, and closes them
// without it.
func (n *Net) drain() []*conn {
	var open []*conn
	for c := range n.conns {
		open = append(open, c)
	}
	return open
}

func closeAll(open []*conn) {
	for _, c := range open {
		c.Close()
	}
}

// accept lets in who comes, until Close.
func (n *Net) accept() {
	for wait := time.Duration(0); ; {
		c, err := n.o.Listener.Accept()
		if err == nil {
			wait = 0
			n.wg.Go(func() { n.greet(c) })
			continue
		}
		if n.isClosed() {
			return
		}
		// Out of file descriptors, say: whoever is in can still be served.
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		n.strangers.tell(n.logger, "cannot accept a connection from another node", "error", err)
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// greet does the handshake with who comes, and hands the connection on.
func (n *Net) greet(raw net.Conn) {
	remote := raw.RemoteAddr().String()
	c := &conn{Conn: raw, raw: raw, net: n, host: remote}
	if host, _, err := net.SplitHostPort(remote); err == nil {
		c.host = host
	}
	crowded, err := n.meet(c)
	if err != nil {
		raw.Close()
		return
	}
	if crowded != nil {
		crowded.Close() // its own greet tells
	}
	raw.SetDeadline(time.Now().Add(n.o.HandshakeTimeout))
	h, err := n.listen(c)
	if err != nil {
		// Some can be told why.
		if v := versionError(0); errors.As(err, &v) {
			n.reply(c, answer{refused: true, reason: v.Error()})
		}
		c.Close()
		if c.crowded.Load() {
			err = errors.New("others came after it, and it had not said who it is")
		}
		n.strangers.tell(n.logger, "turned away who connected to the port for nodes", "from", remote, "error", err)
		return
	}
	c.peer = h.from
	self, layer, err := n.judge(h)
	if err == nil && h.kind != kindWho { // who only asks is gone at once
		err = n.letIn(c)
	}
	if err != nil {
		n.reply(c, answer{refused: true, from: self, reason: err.Error()})
		c.Close()
		n.refusals.tell(n.logger, "refused a node", "node", h.from.Node, "incarnation", h.from.Incarnation, "cluster", h.from.Cluster, "from", remote, "error", err)
		return
	}
	if err := n.reply(c, answer{from: self}); err != nil {
		c.Close()
		return
	}
	raw.SetDeadline(time.Time{})
	switch h.kind {
	case kindRaft:
		layer.deliver(c)
	case kindRPC, kindBulk:
		c.bulk = h.kind == kindBulk
		n.calls.deliver(c)
	default:
		c.Close()
	}
}

// spawn runs f on a goroutine that Close waits for. False: Net is closed.
func (n *Net) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.wg.Go(f)
	return true
}

// enter counts a connection among the open ones.
func (n *Net) enter(c *conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	n.conns[c] = struct{}{}
	return nil
}

// meet counts a connection among those that are in their handshake. They take
// no room from nodes: where they are too many, or too many of them from one
// address, the oldest of them gives way, which the caller is to close. So who
// holds connections open without a word keeps no node out, which says at once
// who it is.
func (n *Net) meet(c *conn) (crowded *conn, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, net.ErrClosed
	}
	n.conns[c] = struct{}{}
	if len(n.greeting) >= n.o.MaxGreeting {
		crowded = n.greeting[0]
	}
	same := 0
	for _, o := range slices.Backward(n.greeting) {
		if o.host != c.host {
			continue
		}
		if same++; same >= n.o.MaxGreetingFrom {
			crowded = o
		}
	}
	if crowded != nil {
		crowded.crowded.Store(true)
		n.greeted(crowded)
	}
	n.greeting = append(n.greeting, c)
	return crowded, nil
}

// greeted takes a connection out of those in their handshake. n.mu is held.
func (n *Net) greeted(c *conn) {
	if i := slices.Index(n.greeting, c); i >= 0 {
		n.greeting = slices.Delete(n.greeting, i, i+1)
	}
}

// letIn counts a connection among those of nodes, after its handshake.
func (n *Net) letIn(c *conn) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, in := n.conns[c]; !in {
		return net.ErrClosed // meanwhile
	}
	if n.accepted >= n.o.MaxConns {
		return fmt.Errorf("%d connections are open, no more are let in", n.accepted)
	}
	n.greeted(c)
	n.accepted++
	c.accepted = true
	return nil
}

// listen reads the hello of who connected.
func (n *Net) listen(c *conn) (hello, error) {
	if n.o.Server != nil {
		t := tls.Server(c.raw, n.o.Server)
		if err := t.HandshakeContext(n.ctx); err != nil {
			return hello{}, fmt.Errorf("TLS: %w", err)
		}
		c.Conn = t
	}
	return readHello(c.Conn)
}

func (n *Net) reply(c *conn, a answer) error {
	b, err := a.encode()
	if err != nil {
		return err
	}
	_, err = c.Conn.Write(b)
	return err
}

// judge says why a node is not let in, or nil.
func (n *Net) judge(h hello) (self Identity, layer *RaftLayer, err error) {
	n.mu.Lock()
	self, layer = n.self, n.raft
	n.mu.Unlock()
	if h.kind == kindWho {
		return self, nil, nil
	}
	if err := fits(self, h.target); err != nil {
		return self, nil, err
	}
	if err := together(self, h.from, h.kind); err != nil {
		return self, nil, err
	}
	if h.kind == kindRaft && layer == nil {
		return self, nil, errors.New("no replica runs here yet")
	}
	return self, layer, nil
}

// fits tells whether a node is the one looked for.
func fits(i Identity, t Target) error {
	if t.Node != "" && t.Node != i.Node {
		return fmt.Errorf("this is node %q, not %q", i.Node, t.Node)
	}
	if t.Incarnation != "" && t.Incarnation != i.Incarnation {
		return fmt.Errorf("node %q is here with another data directory: incarnation %q, not %q", i.Node, i.Incarnation, t.Incarnation)
	}
	return nil
}

// together tells whether two nodes may speak, as far as clusters go.
func together(self, other Identity, k kind) error {
	switch {
	case self.Cluster != "" && other.Cluster != "" && self.Cluster != other.Cluster:
		return fmt.Errorf("node %q belongs to cluster %q, node %q to %q", self.Node, self.Cluster, other.Node, other.Cluster)
	case k == kindRaft && (self.Cluster == "" || other.Cluster == ""):
		return errors.New("no Raft between nodes that do not both belong to a cluster")
	}
	return nil
}

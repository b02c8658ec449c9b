// Package api is qlogd's HTTP interface: routes, limits, problems. It decides
// nothing: it checks requests, proposes commands and returns their results; reads go
// to the state and the event log.
//
// Invariant: a request refused here never reaches the Proposer, so bad input leaves no
// entry in the log.
package api

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/event"
)

// Server serves the HTTP API. It is created by New and ended by Drain and Close.
type Server struct {
	deps    Deps
	opts    Options
	log     *slog.Logger
	routes  *http.ServeMux
	rules   map[string]access // by pattern
	waiters *waiters
	schemas schemaCache
	hooks   webhooks
	ops     *tracker
	once    onceOnly
	metrics *metrics
	openapi func() []byte // JSON, made when first asked for

	begun     atomic.Uint64   // requests
	undrained context.Context // ended by Drain
	drainNow  context.CancelFunc
	drain     <-chan struct{} // undrained's
	closed    chan struct{}
	closeOnce sync.Once
	done      sync.WaitGroup
}

// New returns a server that runs until Close.
func New(deps Deps, opts Options) *Server {
	opts.defaults()
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		deps: deps, opts: opts, log: deps.Logger,
		closed: make(chan struct{}),
		rules:  map[string]access{}, ops: newTracker(), once: onceOnly{calls: map[event.Hash]*onceCall{}},
	}
	s.undrained, s.drainNow = context.WithCancel(context.Background())
	s.drain = s.undrained.Done()
	s.waiters = newWaiters(func(queue string, kinds []string) int { return deps.State.Leasable(queue, kinds) })
	s.metrics = newMetrics(s)
	s.openapi = sync.OnceValue(func() []byte { return openAPI(opts.Version) })
	s.routes = s.mux()
	s.done.Go(func() { s.waiters.run(s.closed) })
	return s
}

// Applied reports queues in which something became leasable.
func (s *Server) Applied(queues []string) { s.waiters.applied(queues) }

// Drain begins the shutdown: /readyz is not ready, waiting leases answer empty, streams
// end, new leases get 503 shutting_down. Other requests are still served.
func (s *Server) Drain() { s.drainNow() }

// A server that drains is quiet after quietFor without a request; it waits for that
// at most quietWithin.
const (
	quietFor    = 100 * time.Millisecond
	quietWithin = 500 * time.Millisecond
)

// Quiesce waits, after Drain, until no request has come for a moment. Call it before
// the http.Server's Shutdown, which closes connections that are idle at that instant:
// a request on its way on one of them would be lost, and its client would not know
// whether it was executed.
func (s *Server) Quiesce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietWithin)
	defer cancel()
	for before, seen := uint64(0), s.begun.Load()+1; seen != before; {
		before = s.begun.Load()
		select {
		case <-time.After(quietFor):
		case <-ctx.Done():
			return
		}
		seen = s.begun.Load()
	}
}

// Close ends what New started. Call it after the http.Server's Shutdown.
func (s *Server) Close() {
	s.Drain()
	s.closeOnce.Do(func() { close(s.closed) })
	s.done.Wait()
}

func (s *Server) draining() bool { return s.undrained.Err() != nil }

// HTTPServer returns an http.Server with timeouts fit for untrusted clients. It speaks
// HTTP/1.1 and HTTP/2, also without TLS (prior knowledge).
// The handler may change from one Server's to another's with the same Options.
func HTTPServer(h http.Handler, opts Options, logger *slog.Logger) *http.Server {
	opts.defaults()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ReadHeaderTimeout: 5 * time.Second, // slow headers
		// From the end of the headers to the end of the answer: body, the
		// longest wait, commit, and 30 s to take the answer. Streams push it on.
		WriteTimeout:   opts.BodyTimeout + event.MaxWaitMS*time.Millisecond + opts.WriteTimeout + 30*time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10, // more: 431
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// Limit bounds the open connections of a listener, in all and from one address; one
// too many is closed at once. 0 is no bound.
func Limit(l net.Listener, total, perIP int) net.Listener {
	return &limited{Listener: l, total: total, perIP: perIP, from: map[string]int{}}
}

type limited struct {
	net.Listener
	total, perIP int

	mu   sync.Mutex
	open int
	from map[string]int
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			host = c.RemoteAddr().String()
		}
		if l.enter(host) {
			return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(host) })}, nil
		}
		_ = c.Close()
	}
}

// limitedConn leaves its listener's count when it is closed.
type limitedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite sends the end of the response before the connection is closed:
// net/http does so where it has not read the whole request.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (l *limited) enter(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total > 0 && l.open >= l.total || l.perIP > 0 && l.from[host] >= l.perIP {
		return false
	}
	l.open++
	l.from[host]++
	return true
}

func (l *limited) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.from[host]--; l.from[host] <= 0 {
		delete(l.from, host)
	}
}

// barrier makes a read linearizable, unless the client wants it stale.
func (s *Server) barrier(ctx context.Context) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	return s.deps.Node.Barrier(ctx)
}

// Package api is qlogd's HTTP interface: routes, limits, problems. It decides nothing: it checks
// requests, proposes commands and returns their results; reads go to the state and the event log.
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

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/qlogd/qlogd/event"
)

// Server serves the HTTP API. It is created by New and ended by Drain.
type Server struct {
	deps    Deps
	opts    Options
	log     *slog.Logger
	routes  *http.ServeMux
	rules   map[string]access // by pattern
	waiters *waiters
	schemas cache[*schema]
	hooks   cache[*compiledWebhook]
	ops     *tracker
	once    *lru.Cache[event.Hash, *onceCall] // by Idempotency-Key
	metrics *metrics
	openapi func() []byte // JSON, made when first asked for

	begun     atomic.Uint64   // requests
	undrained context.Context // ended by Drain
	drainNow  context.CancelFunc
}

// New returns a server.
func New(deps Deps, opts Options) *Server {
	opts.defaults()
	s := &Server{
		deps: deps, opts: opts, log: deps.Logger,
		rules: map[string]access{}, ops: newTracker(),
		schemas: newCache[*schema](), hooks: newCache[*compiledWebhook](),
	}
	s.once, _ = lru.New[event.Hash, *onceCall](keepOnce) // an error: less than one
	s.undrained, s.drainNow = context.WithCancel(context.Background())
	s.waiters = newWaiters(deps.State.Leasable)
	s.metrics = newMetrics(s)
	s.openapi = sync.OnceValue(func() []byte { return openAPI(opts.Version) })
	s.routes = s.mux()
	return s
}

// Applied reports queues in which something became leasable.
func (s *Server) Applied(queues []string) { s.waiters.applied(queues) }

// Drain begins the shutdown: /readyz is not ready, waiting leases answer empty, streams end, new
// leases get 503 shutting_down. Other requests are still served.
func (s *Server) Drain() { s.drainNow() }

// A server that drains is quiet after quietFor without a request; it waits for that
// at most quietWithin.
const (
	quietFor    = 100 * time.Millisecond
	quietWithin = 500 * time.Millisecond
)

// Quiesce waits, after Drain, until no request has come for a moment. Call it before the
// http.Server's Shutdown, which closes connections that are idle at that instant: a request on its
// way on one of them would be lost, and its client would not know whether it was executed.
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

func (s *Server) draining() bool { return s.undrained.Err() != nil }

// Open connections of an HTTPServer, in all and from one address.
const (
	maxConns      = 20_000
	maxConnsPerIP = 10_000
)

// HTTPServer returns an http.Server with timeouts and limits fit for untrusted clients. It speaks
// HTTP/1.1 and HTTP/2, also without TLS (prior knowledge). The handler may change from one Server's
// to another's with the same Options.
func HTTPServer(h http.Handler, opts Options, logger *slog.Logger) *http.Server {
	opts.defaults()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:   h,
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      30 * time.Second, PingTimeout: 15 * time.Second,
		},
		ConnState:         limitConns(maxConns, maxConnsPerIP),
		ReadHeaderTimeout: 5 * time.Second, // slow headers
		// From the end of the headers to the end of the answer: body, the longest wait, commit, and
		// 30 s to receive the answer. Streams extend it.
		WriteTimeout: opts.BodyTimeout + event.MaxWaitMS*time.Millisecond +
			opts.WriteTimeout + 30*time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10, // more: 431
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// limitConns returns a ConnState hook that closes connections beyond total, or beyond perIP from
// one address, at once.
func limitConns(total, perIP int) func(net.Conn, http.ConnState) {
	var mu sync.Mutex
	open, from := 0, map[string]int{} // connections, in all and by address
	return func(c net.Conn, state http.ConnState) {
		if state == http.StateActive || state == http.StateIdle {
			return
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			open++
			if from[host]++; open > total || from[host] > perIP {
				_ = c.Close()
			}
			return
		}
		open--
		if from[host]--; from[host] == 0 {
			delete(from, host)
		}
	}
}

// barrier makes a read linearizable, unless the client wants it stale.
func (s *Server) barrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.WriteTimeout)
	defer cancel()
	return s.deps.Node.Barrier(ctx)
}

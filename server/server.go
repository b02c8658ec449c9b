// Package server puts a node together: its listeners, and the engine on its data directory.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/console"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/certs"
	"github.com/qlogd/qlogd/internal/sharedsecret"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/webhook"
)

// Node is a running server: the listeners, the lock on the data directory, and the engine on it.
type Node struct {
	c      *Config
	logger *slog.Logger
	cardMu sync.Mutex    // held to change the card
	card   *datadir.Node // the identity of this directory

	limits    connLimits
	conns     *api.Conns // of clients, on all listeners
	http      *http.Server
	httpLis   net.Listener
	peers     *peer.Net
	auth      *api.Auth            // nil: everybody may do everything
	certs     *certs.Keeper        // of the API; nil: no TLS
	peerCerts *certs.Keeper        // of the connections between nodes; nil: no TLS
	shared    *sharedsecret.Secret // of all nodes of the cluster; nil: none
	egress    *webhook.Client      // sends to addresses that users gave
	secrets   *webhook.Secrets     // of webhooks and push
	tracer    trace.Tracer         // nil: no spans are exported

	// now answers requests: the engine's API, or a handler that refuses them.
	now atomic.Pointer[serving]
	// reopens takes requests to open the engine again, until endKeeping is called.
	reopens    chan change
	endKeeping func()

	broken chan error
	ready  chan struct{}

	lifetime
}

// lifetime is what a node or an engine has open, and the goroutines that it runs.
type lifetime struct {
	// work is what runs until background ends.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	closers []func(context.Context) error // of what is open, in the order of opening
}

func (l *lifetime) begin() {
	l.background, l.cancel = context.WithCancel(context.Background())
}

// closing registers what close does.
func (l *lifetime) closing(f func(context.Context) error) { l.closers = append(l.closers, f) }

// release is closing of what takes no time.
func (l *lifetime) release(f func() error) {
	l.closing(func(context.Context) error { return f() })
}

// close closes what is open, the last opened first.
func (l *lifetime) close(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(l.closers) {
		errs = append(errs, f(ctx))
	}
	l.cancel()
	return errors.Join(errs...)
}

// closeAfter closes what is open after an error, which is the one that counts.
func (l *lifetime) closeAfter(err *error) {
	if *err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.close(ctx)
	}
}

// Start starts a node, and returns when it serves or, if its cluster is still to be formed or
// found, when it has begun to look for it. On an error everything that was opened is closed, and
// nothing on disk has been harmed. c must not change afterwards.
func Start(c *Config, logger *slog.Logger) (_ *Node, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	for _, w := range c.warnings {
		logger.Warn(w.text, w.name, w.addr)
	}
	n := &Node{c: c, logger: logger, broken: make(chan error, 8), ready: make(chan struct{}),
		reopens: make(chan change, 1)}
	if n.limits, err = limitConns(); err != nil {
		return nil, err
	}
	n.begin()
	n.conns = api.NewConns(n.limits.clients)
	n.egress = webhook.NewClient(c.PushAllowPrivate, "qlogd/"+c.Version, n.limits.egress)
	defer n.closeAfter(&err)
	// Files and addresses first: a mistake in them must be found before anything is created.
	if err := n.readSecrets(); err != nil {
		return nil, err
	}
	endpoint, err := otlpEndpoint(c.Getenv)
	if err != nil {
		return nil, err
	}
	n.release(func() error { n.egress.Close(); return n.secrets.Close() })
	if n.httpLis, err = n.listen("http-addr", c.HTTPAddr); err != nil {
		return nil, err
	}
	raftLis, err := n.listen("raft-addr", c.RaftAddr)
	if err != nil {
		return nil, err
	}
	// The lock before anything in the directory is read: a second process must not see what the
	// first is writing.
	lock, err := datadir.Acquire(c.DataDir)
	if err != nil {
		return nil, err
	}
	n.release(lock.Close)
	if n.card, err = openCard(c, logger); err != nil {
		return nil, err
	}
	if err := n.startTracing(endpoint); err != nil {
		return nil, err
	}
	if n.peers, err = n.openPeers(raftLis); err != nil {
		return nil, err
	}
	n.release(n.peers.Close)
	n.closing(func(ctx context.Context) error {
		if e := n.engine(); e != nil {
			return e.close(ctx)
		}
		return nil
	})
	n.release(func() error { n.cancel(); n.work.Wait(); return nil })
	if n.card.Blank() {
		n.serveNothing("the cluster is not formed yet")
	} else {
		raft.AnswerBootstrap(n.peers, n.card)
		if err := n.open(); err != nil {
			return nil, err
		}
		if err := n.checkJoin(c.Join); err != nil {
			return nil, err
		}
	}
	// After the engine is open: no request is served before a formed cluster's node is complete.
	if err := n.serveAPI(); err != nil {
		return nil, err
	}
	if err := n.serveAdmin(); err != nil {
		return nil, err
	}
	var kept sync.WaitGroup
	keeping, stop := context.WithCancel(context.Background())
	n.endKeeping = func() { stop(); kept.Wait() }
	kept.Go(func() { n.keepEngine(keeping) })
	n.work.Go(n.announce)
	return n, nil
}

// HTTPAddr returns the address that the node listens on.
func (n *Node) HTTPAddr() string { return n.httpLis.Addr().String() }

// Ready is closed when the node is ready for the first time.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Broken receives the reason why the node cannot continue. It is not to be stopped then, for its
// files or its state cannot be trusted: the process ends, and the next start checks them.
func (n *Node) Broken() <-chan error { return n.broken }

// announce logs that the node listens and, once it is ready, that it serves.
func (n *Node) announce() {
	n.logger.Info("listening", "http_addr", n.HTTPAddr(), "raft_addr", n.peers.Addr())
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for tries := 1; ; tries++ {
		ready, reasons := false, []string{"there is nothing to serve from yet"}
		if e := n.engine(); e != nil {
			ready, reasons = e.replica.Ready()
		}
		if ready {
			break
		}
		if tries%500 == 0 { // 10 s
			n.logger.Warn("not ready yet", "reasons", reasons)
		}
		select {
		case <-tick.C:
		case <-n.background.Done():
			return
		}
	}
	self := n.peers.Self()
	n.logger.Info("serving", "http", n.HTTPAddr(), "raft", self.Raft, "node", self.Node,
		"cluster", self.Cluster, "data-dir", n.c.DataDir, "version", n.c.Version)
	close(n.ready)
}

// listen listens on an address of the settings. What serves there may close it first.
func (n *Node) listen(setting, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	n.release(func() error { _ = l.Close(); return nil })
	return l, nil
}

// readSecrets reads certificates and tokens.
func (n *Node) readSecrets() (err error) {
	c := n.c
	if c.AuthFile != "" {
		if n.auth, err = api.LoadAuth(c.AuthFile); err != nil {
			return settingsf("auth-file: %w", err)
		}
	}
	if c.TLSCert != "" {
		if n.certs, err = certs.Load(c.TLSCert, c.TLSKey, "", n.logger); err != nil {
			return settingsf("tls-cert: %w", err)
		}
	}
	if c.RaftTLSCert != "" {
		n.peerCerts, err = certs.Load(c.RaftTLSCert, c.RaftTLSKey, c.RaftTLSCA, n.logger)
		if err != nil {
			return settingsf("raft-tls-cert: %w", err)
		}
	}
	if c.ClusterSecretFile != "" {
		if n.shared, err = sharedsecret.Load(c.ClusterSecretFile); err != nil {
			return settingsf("cluster-secret-file: %w", err)
		}
	}
	if n.secrets, err = webhook.NewSecrets(c.Getenv, c.SecretsDir); err != nil {
		return settingsf("secrets-dir: %w", err)
	}
	return nil
}

// Reload reads certificates and tokens again, and calls done for each setting. What has a mistake
// stays as it was.
func (n *Node) Reload(done func(setting string, err error)) {
	if n.auth != nil {
		done("auth-file", n.auth.Reload())
	}
	if n.certs != nil {
		done("tls-cert", n.certs.Reload())
	}
	if n.peerCerts != nil {
		done("raft-tls-cert", n.peerCerts.Reload())
	}
	if n.shared != nil {
		done("cluster-secret-file", n.shared.Reload())
	}
	if n.c.SecretsDir != "" {
		done("secrets-dir", nil) // each file is read when it is needed
	}
}

// serveAPI begins to serve HTTP.
func (n *Node) serveAPI() error {
	handler, err := n.handler()
	if err != nil {
		return err
	}
	guard := n.guard()
	guard.AnyHost, guard.Exempt = n.auth != nil, api.Exempt
	n.http = api.HTTPServer(handler, guard, n.conns, n.logger)
	serve := func() error { return n.http.Serve(n.httpLis) }
	if n.certs != nil {
		n.http.TLSConfig = n.certs.Server(false)
		serve = func() error { return n.http.ServeTLS(n.httpLis, "", "") }
	}
	n.release(n.http.Close)
	n.work.Go(func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("http: %w", err))
		}
	})
	return nil
}

// handler returns what clients reach: the API and, unless it is turned off, the console.
func (n *Node) handler() (http.Handler, error) {
	served := http.HandlerFunc(n.serveHTTP)
	if n.c.NoConsole {
		return served, nil
	}
	o := console.Options{
		API: served, PublicURLs: n.c.PublicURL, Proxies: n.c.proxies,
		Source: n.source, Version: n.c.Version, Logger: n.logger,
	}
	if n.auth != nil { // else o.Tokens would not be nil
		o.Tokens = n.auth
	}
	return console.New(o)
}

// source returns the address that a request comes from.
func (n *Node) source(r *http.Request) netip.Addr {
	remote, _ := netip.ParseAddrPort(r.RemoteAddr) // net/http has set it
	return webhook.Source(remote.Addr(), r.Header["X-Forwarded-For"], n.c.proxies)
}

// guard returns the Guard of a listener whose requests need no token.
func (n *Node) guard() api.Guard {
	return api.Guard{Origins: n.c.origins, Hosts: n.c.hosts, Refuse: n.refuse}
}

// refuse answers what a Guard refuses.
func (n *Node) refuse(w http.ResponseWriter, r *http.Request, p *event.Problem) {
	var s *api.Server
	if e := n.engine(); e != nil {
		s = e.api
	}
	s.Refuse(w, r, p)
}

// serveAdmin serves c.Admin on an address of its own, if one is set: never where clients are.
func (n *Node) serveAdmin() error {
	if n.c.AdminAddr == "" {
		return nil
	}
	l, err := n.listen("admin-addr", n.c.AdminAddr)
	if err != nil {
		return err
	}
	admin := api.HTTPServer(n.c.Admin, n.guard(), n.conns, n.logger)
	admin.WriteTimeout = 0 // a profile takes as long as it is asked to
	n.release(admin.Close)
	n.logger.Info("serving profiles", "admin", l.Addr().String())
	n.work.Go(func() {
		if err := admin.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.logger.Error("admin listener failed", "error", err)
		}
	})
	return nil
}

// DrainTime is how long requests get to end when a node stops.
const DrainTime = 8 * time.Second

// Stop ends a node in the opposite order. ctx bounds how long requests may take; an unanswered one
// then has an unknown outcome, as after a crash.
func (n *Node) Stop(ctx context.Context) error {
	n.endKeeping() // the engine is not exchanged any more
	e := n.engine()
	if e != nil {
		// No new leases, /readyz says no, long polls and streams end: otherwise Shutdown would wait
		// a minute for them.
		e.api.Drain()
		e.push.Drain()
		e.verifier.Stop()
		// Leadership before the requests have ended: new ones are forwarded to the next leader, and
		// none waits for an election.
		if err := e.replica.StepDown(ctx); err != nil {
			n.logger.Warn("leadership was not transferred", "error", err)
		}
		// Clients move to other nodes meanwhile: a request that is being sent on a connection
		// that is closed would have an unknown outcome.
		e.api.Quiesce(ctx)
	}
	// Requests end while Raft can still commit them.
	err := n.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests were cut off: %w", err), n.http.Close())
	}
	return errors.Join(err, n.close(ctx))
}

// fail ends the node; the first reason counts.
func (n *Node) fail(err error) {
	select {
	case n.broken <- err:
	default:
	}
}

func (n *Node) apiOptions() api.Options {
	return api.Options{
		MaxPayload: n.c.MaxPayloadBytes, MaxRequest: n.c.MaxRequestBytes,
		HistoryRetention: n.c.HistoryRetention, AutoCreateQueues: n.c.AutoCreateQueues,
		MaxQueues: n.c.MaxQueues,
		Auth:      n.auth, OpenMetrics: n.c.OpenMetrics, TrustedProxies: n.c.proxies,
		Console: !n.c.NoConsole, Version: n.c.Version, Conns: n.conns,
	}
}

// serving answers requests until it is retired.
type serving struct {
	*engine // nil: there is none
	handler http.Handler
	open    sync.RWMutex // held for reading by requests, and for ever once it is retired
}

func (n *Node) serveHTTP(w http.ResponseWriter, r *http.Request) {
	s := n.now.Load()
	for !s.open.TryRLock() {
		s = n.now.Load() // the one that has taken its place
	}
	defer s.open.RUnlock()
	s.handler.ServeHTTP(w, r)
}

// serveNothing answers requests while there is no engine.
func (n *Node) serveNothing(why string) *serving {
	return n.now.Swap(&serving{handler: api.Unready(why)})
}

// engine returns the one that serves now, nil if there is none.
func (n *Node) engine() *engine {
	if s := n.now.Load(); s != nil {
		return s.engine
	}
	return nil
}

// open opens an engine and lets it serve.
func (n *Node) open() error {
	// A crash may have interrupted an installation.
	if _, err := fetch.Install(vfs.OS{}, n.c.DataDir, nil, n.logger); err != nil {
		return err
	}
	e, err := openEngine(n)
	if errors.Is(err, raft.ErrRolledBack) {
		n.logger.Error("the data directory is older than what this node acknowledged", "error", err)
		if err := n.reincarnate(); err != nil {
			return err
		}
		e, err = openEngine(n)
	}
	if errors.Is(err, raft.ErrOlder) {
		return directoryf("%w: entries that were acknowledged are missing in %s; "+
			"put the newest copy of the whole directory back, or give them up with "+
			"--accept-older-data", err, n.c.DataDir)
	}
	if err != nil {
		return err
	}
	n.now.Store(&serving{engine: e, handler: e.api.Handler()})
	return nil
}

// change is why the engine is opened again, and what is done to the directory while it is closed:
// after a fetch, and when the directory must continue as another member (raft.ErrRolledBack).
type change struct {
	why string
	do  func() error
}

// requestReopen requests that the engine is opened again. A second request while one waits is the
// same one.
func (n *Node) requestReopen(c change) {
	select {
	case n.reopens <- c:
	default:
	}
}

// keepEngine forms or finds the cluster if that is still to be done, and opens the engine again
// when it is asked to.
func (n *Node) keepEngine(ctx context.Context) {
	if n.card.Blank() {
		err := raft.Bootstrap(ctx, raft.BootstrapOptions{
			Net: n.peers, Card: n.card, Logger: n.logger,
			Expect: n.c.BootstrapExpect, Join: n.c.Join,
			Save: func() error { return n.card.Write(n.c.DataDir) },
		})
		if _, ok := errors.AsType[raft.SettingsError](err); ok {
			err = settingsf("%w", err)
		}
		if err == nil {
			err = n.open()
		}
		if err != nil {
			if ctx.Err() == nil {
				n.fail(err)
			}
			return
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-n.reopens:
			if err := n.reopen(c); err != nil {
				n.fail(fmt.Errorf("%s: %w", c.why, err))
				return
			}
		}
	}
}

// reopen exchanges the engine. Open requests end before; new ones are asked to try again.
func (n *Node) reopen(c change) error {
	n.logger.Info("reopening the data directory", "why", c.why)
	began := time.Now()
	old := n.serveNothing(c.why)
	old.api.Drain()
	old.open.Lock() // all requests have ended, and none begins
	ctx, cancel := context.WithTimeout(context.Background(), DrainTime)
	defer cancel()
	if err := old.close(ctx); err != nil {
		// As after a crash: the start repairs it.
		n.logger.Warn("closing the data directory failed", "error", err)
	}
	if err := c.do(); err != nil {
		return err
	}
	if err := n.open(); err != nil {
		return err
	}
	n.logger.Info("reopened", "took", time.Since(began).Round(time.Millisecond))
	return nil
}

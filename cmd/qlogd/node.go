package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/internal/certs"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/webhook"
	"github.com/qlogd/qlogd/webhook/egress"
)

// node is a running server: the listeners, the lock on the data directory, and
// the engine that stands on it.
type node struct {
	c      *config
	logger *slog.Logger
	cardMu sync.Mutex    // held to change the card
	card   *datadir.Node // who this directory is; see datadir

	lock    *datadir.Lock
	http    *http.Server
	httpLis net.Listener
	admin   *http.Server
	peers   *peer.Net
	auth    *api.Auth      // nil: everybody may do everything
	certs   *certs.Keeper  // of the API; nil: no TLS
	inside  *certs.Keeper  // of the connections between nodes
	egress  *egress.Client // sends to addresses that users gave
	forward *forwarder     // sends webhooks to their targets
	hooked  *webhook.Secrets

	friends  int       // join addresses at which this cluster has answered; meet's
	stranger sync.Once // another one did, and that was told

	// now serves requests: the engine's API, or what says that there is none.
	now atomic.Pointer[serving]
	// again takes why the engine is to be opened anew; keep does it, until
	// keeping ends.
	again   chan change
	keeping context.CancelFunc
	kept    sync.WaitGroup

	// work is what runs in the background, until background ends.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	// broken takes why the node can't go on: from Raft, the log, or a listener.
	broken chan error
}

// startNode builds a node. The order matters, and each line says why it stands
// where it does. Whatever fails, what was opened before is closed again, and
// nothing on disk has been harmed.
//
// It returns when the node serves, or where its cluster is yet to be formed or
// found: then that goes on in the background.
func startNode(c *config, logger *slog.Logger) (_ *node, err error) {
	n := &node{c: c, logger: logger, broken: make(chan error, 8), again: make(chan change, 1)}
	n.background, n.cancel = context.WithCancel(context.Background())
	n.egress = egress.New(egress.Options{AllowPrivate: c.PushAllowPrivate, UserAgent: "qlogd/" + build().Version})
	n.forward = newForwarder(c)
	defer func() {
		if err != nil {
			_ = n.close() // the first error is what counts
		}
	}()
	// What is read of files first: a mistake in them must be told before
	// anything is made on disk.
	if err := n.readSecrets(); err != nil {
		return nil, err
	}
	// Then the addresses, for the same reason. Nothing is accepted yet.
	if n.httpLis, err = net.Listen("tcp", c.HTTPAddr); err != nil {
		return nil, fmt.Errorf("http-addr: %w", err)
	}
	raftLis, err := net.Listen("tcp", c.RaftAddr)
	if err != nil {
		return nil, fmt.Errorf("raft-addr: %w", err)
	}
	defer func() {
		if n.peers == nil {
			err = errors.Join(err, raftLis.Close())
		}
	}()
	// The lock before anything in the directory is read: a second process must
	// not see, let alone change, what the first is writing.
	if n.lock, err = datadir.Acquire(c.DataDir); err != nil {
		return nil, err
	}
	// The card before the rest: it says whether this program may read it, and
	// who this node is to the others.
	if n.card, err = openCard(c, logger); err != nil {
		return nil, err
	}
	if n.peers, err = n.openPeers(raftLis); err != nil {
		return nil, err
	}
	if n.card.Blank() {
		n.serveNothing("the cluster is not formed yet")
	} else {
		n.tellFormed()
		if err := n.open(); err != nil {
			return nil, err
		}
		left, err := n.meet(n.background, c.Join)
		if err != nil {
			return nil, strangerError(err)
		}
		n.work.Go(func() { n.meetOthers(left) })
	}
	// Listening after the engine is open: of a cluster that is formed already
	// nobody is answered before all of it is there.
	if err := n.listen(); err != nil {
		return nil, err
	}
	if err := n.serveAdmin(); err != nil {
		return nil, err
	}
	keeping, stop := context.WithCancel(context.Background())
	n.keeping = stop
	n.kept.Go(func() { n.keep(keeping) })
	return n, nil
}

// readSecrets reads certificates and tokens.
func (n *node) readSecrets() (err error) {
	c := n.c
	if c.AuthFile != "" {
		if n.auth, err = api.LoadAuth(c.AuthFile); err != nil {
			return usagef("auth-file: %w", err)
		}
	}
	if c.TLSCert != "" {
		if n.certs, err = certs.Load(c.TLSCert, c.TLSKey, ""); err != nil {
			return usagef("tls-cert: %w", err)
		}
		n.certs.Logger = n.logger
	}
	if c.RaftTLSCert != "" {
		if n.inside, err = certs.Load(c.RaftTLSCert, c.RaftTLSKey, c.RaftTLSCA); err != nil {
			return usagef("raft-tls-cert: %w", err)
		}
		n.inside.Logger = n.logger
	}
	if n.hooked, err = webhook.NewSecrets(os.Getenv, c.SecretsDir); err != nil {
		return usagef("secrets-dir: %w", err)
	}
	return nil
}

// reloadSecrets reads them anew, and tells done of each setting; a mistake leaves
// what it names as it was.
func (n *node) reloadSecrets(done func(setting string, err error)) {
	if n.auth != nil {
		done("auth-file", n.auth.Reload())
	}
	if n.certs != nil {
		done("tls-cert", n.certs.Reload())
	}
	if n.inside != nil {
		done("raft-tls-cert", n.inside.Reload())
	}
	if n.hooked.Reload(); n.c.SecretsDir != "" {
		done("secrets-dir", nil) // each file is read when it is needed
	}
}

const (
	maxConns      = 20_000
	maxConnsPerIP = 10_000
)

// listen begins to serve HTTP.
func (n *node) listen() error {
	n.http = api.HTTPServer(http.HandlerFunc(n.serveHTTP), n.apiOptions(), n.logger)
	l := api.Limit(n.httpLis, maxConns, maxConnsPerIP)
	serve := func() error { return n.http.Serve(l) }
	if n.certs != nil {
		n.http.TLSConfig = n.certs.Server(false)
		serve = func() error { return n.http.ServeTLS(l, "", "") }
	}
	n.work.Go(func() {
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("http: %w", err))
		}
	})
	return nil
}

// stop ends a node in the opposite order. ctx bounds how long requests in hand
// may take; what is unanswered then has an unknown outcome, as after a crash.
func (n *node) stop(ctx context.Context) error {
	// Nobody exchanges the engine any more.
	n.keeping()
	n.kept.Wait()
	e := n.engine()
	if e != nil {
		// No new leases, /readyz says no, long polls and streams end: else
		// Shutdown would wait a minute for them.
		e.api.Drain()
		// Nor leases of ours; what is on its way to a target ends meanwhile.
		e.push.Drain()
		// Leadership before requests in hand have ended: what comes meanwhile is
		// forwarded to whoever leads next, and nobody waits for an election.
		if err := e.replica.StepDown(ctx); err != nil {
			n.logger.Warn("leadership was not handed over; the others elect", "error", err)
		}
		// While clients go elsewhere: what is on its way on a connection that is
		// then closed would be lost, and its client not know what became of it.
		e.api.Quiesce(ctx)
	}
	// Requests in hand end while Raft can still commit them.
	err := n.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests in hand were cut off: %w", err), n.http.Close())
	}
	n.cancel()
	if n.admin != nil {
		err = errors.Join(err, n.admin.Close()) // its listener is part of the work
	}
	n.work.Wait()
	if e != nil {
		n.now.Store(nil)
		err = errors.Join(err, e.stop(ctx))
	}
	return errors.Join(err, n.close())
}

// close closes what is open, the last opened first. The lock goes last: until
// then nobody else may look.
func (n *node) close() error {
	n.cancel()
	if n.keeping != nil {
		n.keeping()
	}
	n.kept.Wait()
	var errs []error
	if n.http != nil {
		errs = append(errs, n.http.Close())
	} else if n.httpLis != nil {
		errs = append(errs, n.httpLis.Close())
	}
	if n.admin != nil {
		errs = append(errs, n.admin.Close())
	}
	n.work.Wait()
	if e := n.engine(); e != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		errs = append(errs, e.stop(ctx))
		cancel()
	}
	if n.peers != nil {
		errs = append(errs, n.peers.Close())
	}
	n.egress.Close()
	n.forward.client.Close()
	if n.hooked != nil {
		errs = append(errs, n.hooked.Close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Release())
	}
	return errors.Join(errs...)
}

// fail tells that the node can't go on; the first one counts.
func (n *node) fail(err error) {
	select {
	case n.broken <- err:
	default:
	}
}

func (n *node) apiOptions() api.Options {
	proxies, _ := n.c.proxies() // checked by load
	return api.Options{
		MaxPayload: n.c.MaxPayloadBytes, MaxRequest: n.c.MaxRequestBytes,
		HistoryRetention: n.c.HistoryRetention, AutoCreateQueues: n.c.AutoCreateQueues,
		Auth: n.auth, OpenMetrics: n.c.OpenMetrics, Version: build().Version, TrustedProxies: proxies,
	}
}

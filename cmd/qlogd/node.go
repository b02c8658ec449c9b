package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/internal/datadir"
)

// node is a running server: the listeners, the lock on the data directory, and
// the engine that stands on it.
type node struct {
	c      *config
	logger *slog.Logger
	card   *datadir.Node

	lock    *datadir.Lock
	http    *http.Server
	httpLis net.Listener
	admin   *http.Server

	// now serves requests: the engine's API, or what says that there is none
	// yet. Requests in hand hold gate for reading; whoever exchanges the engine
	// waits for them.
	now  atomic.Pointer[serving]
	gate sync.RWMutex

	// work is what runs in the background, until background ends.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	// broken takes why the node can't go on: from Raft, the log, or a listener.
	broken chan error
}

// serving is an engine with its handler.
type serving struct {
	*engine
	handler http.Handler
}

// startNode builds a node. The order matters, and each line says why it stands
// where it does. Whatever fails, what was opened before is closed again, and
// nothing on disk has been harmed.
func startNode(c *config, logger *slog.Logger) (_ *node, err error) {
	n := &node{c: c, logger: logger, broken: make(chan error, 8)}
	n.background, n.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			_ = n.close() // the first error is what counts
		}
	}()

	// The addresses first: a port in use must be told before anything is made
	// on disk. Nothing is accepted yet.
	if n.httpLis, err = net.Listen("tcp", c.HTTPAddr); err != nil {
		return nil, fmt.Errorf("http-addr: %w", err)
	}
	// The lock before anything in the directory is read: a second process must
	// not see, let alone change, what the first is writing.
	if n.lock, err = datadir.Acquire(c.DataDir); err != nil {
		return nil, err
	}
	// The card before the rest: it says whether this program may read it.
	if n.card, err = openCard(c, logger); err != nil {
		return nil, err
	}
	if err := n.open(); err != nil {
		return nil, err
	}
	// Listening is the last thing: whoever is answered finds all of it there.
	n.http = n.engine().api.HTTPServer()
	n.http.Handler = http.HandlerFunc(n.serveHTTP)
	n.work.Go(func() {
		if err := n.http.Serve(api.Limit(n.httpLis, maxConns, maxConnsPerIP)); !errors.Is(err, http.ErrServerClosed) {
			n.fail(fmt.Errorf("http: %w", err))
		}
	})
	if err := n.serveAdmin(); err != nil {
		return nil, err
	}
	return n, nil
}

const (
	maxConns      = 20_000
	maxConnsPerIP = 10_000
)

// engine returns the one that serves now.
func (n *node) engine() *engine {
	if s := n.now.Load(); s != nil {
		return s.engine
	}
	return nil
}

// open opens an engine and lets it serve.
func (n *node) open() error {
	e, err := openEngine(n.c, n.card, n.logger, n.fail)
	if err != nil {
		return err
	}
	n.now.Store(&serving{e, e.api.Handler()})
	return nil
}

func (n *node) serveHTTP(w http.ResponseWriter, r *http.Request) {
	n.gate.RLock()
	defer n.gate.RUnlock()
	n.now.Load().handler.ServeHTTP(w, r)
}

// stop ends a node in the opposite order. ctx bounds how long requests in hand
// may take; what is unanswered then has an unknown outcome, as after a crash.
func (n *node) stop(ctx context.Context) error {
	// No new leases, /readyz says no, long polls and streams end: else the
	// next line would wait a minute for them.
	n.engine().api.Drain()
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
	err = errors.Join(err, n.engine().stop(ctx))
	n.now.Store(nil)
	return errors.Join(err, n.close())
}

// close closes what is open, the last opened first. The lock goes last: until
// then nobody else may look.
func (n *node) close() error {
	n.cancel()
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

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/datadir"
	"github.com/qlogd/qlogd/internal/eventlog"
	"github.com/qlogd/qlogd/internal/vfs"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
)

// node is a running server: everything that start made, for stop to end.
type node struct {
	c      *config
	logger *slog.Logger
	card   *datadir.Node

	lock    *datadir.Lock
	log     *eventlog.Log
	machine *machine
	replica *raft.Replica
	models  *store.Store
	api     *api.Server
	http    *http.Server
	httpLis net.Listener
	admin   *http.Server

	// background ends with cancel; work is what runs in it.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	// broken takes why the node can't go on: from Raft, the log, or a listener.
	broken chan error
}

// startNode builds a node. The order matters, and each line says why it stands
// where it does. Whatever fails, what was opened before is closed again, and
// nothing on disk has been harmed.
func startNode(c *config, logger *slog.Logger) (_ *node, err error) {
	n := &node{c: c, logger: logger, broken: make(chan error, 8)}
	n.background, n.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			n.close()
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
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	sink := newMetrics(registry)
	if err := raft.RouteLibraryMetrics(sink); err != nil {
		return nil, err
	}
	ro := n.raftOptions(sink)

	// The event log and its fold before Raft, which goes on from them.
	found, err := recoverDisk(n.background, ro, datadir.Path(c.DataDir, datadir.LogDir), n.card.LogSegmentBytes, logger)
	if err != nil {
		return nil, err
	}
	n.log = found.log
	// Retention tells in the log what it deletes, and syncs that, before it does;
	// a copy may end before it was told.
	if before, deleted := n.log.DeletedBefore(); deleted && before >= found.state.History() && (n.card.Fork == nil || before > n.card.Fork.Index) {
		return nil, fmt.Errorf("the event log begins behind index %d, but retention has let go only of what is before index %d: its first segments are lost; put the whole directory back from a backup", before, found.state.History())
	}

	// The read models follow behind the log and stand in nobody's way.
	if n.models, err = store.Open(datadir.Path(c.DataDir, datadir.ProjectionFile), n.card.ClusterID, store.Options{Logger: logger}); err != nil {
		return nil, err
	}
	// Machine and api know each other only by these two hooks, and the api is
	// made after Raft has begun to apply: so they look it up.
	hooks := &hooks{discards: newDiscards(logger)}
	n.machine = &machine{
		Machine: fsm.New(found.state, &appender{log: n.log, count: hooks.count}, fsm.Options{Touched: hooks.touched}),
		log:     n.log,
	}
	ro.Machine = n.machine
	// Raft last of what writes: from here on entries are applied.
	if n.replica, err = raft.Open(ro); err != nil {
		return nil, err
	}
	n.api = api.New(n.deps(found.past, registry), n.apiOptions())
	hooks.set(n.api)

	n.work.Go(func() { n.follow() })
	n.work.Go(func() { hooks.discards.run(n.background) })
	n.work.Go(func() { n.retain() })
	// Listening is the last thing: whoever is answered finds all of it there.
	n.http = n.api.HTTPServer()
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

// stop ends a node in the opposite order. ctx bounds how long requests in hand
// may take; what is unanswered then has an unknown outcome, as after a crash.
func (n *node) stop(ctx context.Context) error {
	// No new leases, /readyz says no, long polls and streams end: else the
	// next line would wait a minute for them.
	n.api.Drain()
	// Requests in hand end while Raft can still commit them.
	err := n.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("requests in hand were cut off: %w", err), n.http.Close())
	}
	// Nobody asks the state, the log or Raft any more, but for what runs behind.
	n.cancel()
	if n.admin != nil {
		err = errors.Join(err, n.admin.Close()) // its listener is part of the work
	}
	n.work.Wait()
	n.api.Close()
	// Raft before the event log: it applies until it has stopped.
	err = errors.Join(err, n.replica.Shutdown(ctx))
	n.replica = nil
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
	if n.api != nil {
		n.api.Close()
	}
	n.work.Wait()
	if n.replica != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		errs = append(errs, n.replica.Shutdown(ctx))
		cancel()
	}
	if n.models != nil {
		errs = append(errs, n.models.Close())
	}
	if n.log != nil {
		errs = append(errs, n.log.Close()) // syncs: the next start has nothing to heal
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

func (n *node) raftOptions(sink raft.Metrics) raft.Options {
	c := n.c
	return raft.Options{
		NodeID: n.card.NodeID, ClusterID: n.card.ClusterID,
		Dir: datadir.Path(c.DataDir, datadir.RaftDir), CheckpointDir: datadir.Path(c.DataDir, datadir.CheckpointDir),
		FS: vfs.OS{}, BindAddr: c.RaftAddr, Logger: n.logger, Metrics: sink,
		Bootstrap: true, OnFatal: n.fail,
		SnapshotThreshold: c.CheckpointEvery, SnapshotInterval: c.CheckpointAge,
		ClockOffset: n.card.ClockOffsetMS,
		FreeBytes:   func() (uint64, error) { return freeBytes(c.DataDir) },
	}
}

func (n *node) apiOptions() api.Options {
	return api.Options{
		MaxPayload: n.c.MaxPayloadBytes, MaxRequest: n.c.MaxRequestBytes,
		HistoryRetention: n.c.HistoryRetention, AutoCreateQueues: n.c.AutoCreateQueues,
		Version: build().Version,
	}
}

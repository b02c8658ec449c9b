package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// engine is all that stands on a data directory: the event log, the state that
// it folds to, Raft, the read models, and the API over them. A node opens one,
// and opens it anew where what lies in the directory was exchanged under it.
type engine struct {
	c      *config
	logger *slog.Logger
	card   *datadir.Node

	log     *eventlog.Log
	machine *machine
	replica *raft.Replica
	models  *store.Store
	api     *api.Server

	// background ends with cancel; work is what runs in it.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	// fail takes why the node can't go on: from Raft, the log, or a listener.
	fail func(error)
}

// openEngine opens what is on disk. The order matters, and each line says why
// it stands where it does. Whatever fails, what was opened before is closed
// again, and nothing on disk has been harmed.
func openEngine(c *config, card *datadir.Node, logger *slog.Logger, fail func(error)) (_ *engine, err error) {
	e := &engine{c: c, logger: logger, card: card, fail: fail}
	e.background, e.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			_ = e.close() // the first error is what counts
		}
	}()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	sink := newMetrics(registry)
	if err := raft.RouteLibraryMetrics(sink); err != nil {
		return nil, err
	}
	ro := e.raftOptions(sink)

	// The event log and its fold before Raft, which goes on from them.
	found, err := recoverDisk(e.background, ro, datadir.Path(c.DataDir, datadir.LogDir), card.LogSegmentBytes, logger)
	if err != nil {
		return nil, err
	}
	e.log = found.log
	// Retention tells in the log what it deletes, and syncs that, before it does;
	// a copy may end before it was told.
	if before, deleted := e.log.DeletedBefore(); deleted && before >= found.state.History() && (card.Fork == nil || before > card.Fork.Index) {
		return nil, fmt.Errorf("the event log begins behind index %d, but retention has let go only of what is before index %d: its first segments are lost; put the whole directory back from a backup", before, found.state.History())
	}

	// The read models follow behind the log and stand in nobody's way.
	if e.models, err = store.Open(datadir.Path(c.DataDir, datadir.ProjectionFile), card.ClusterID, store.Options{Logger: logger}); err != nil {
		return nil, err
	}
	// Machine and api know each other only by these two hooks, and the api is
	// made after Raft has begun to apply: so they look it up.
	hooks := &hooks{discards: newDiscards(logger)}
	e.machine = &machine{
		Machine: fsm.New(found.state, &appender{log: e.log, count: hooks.count}, fsm.Options{Touched: hooks.touched, Known: rules()}),
		log:     e.log,
	}
	ro.Machine = e.machine
	// Raft last of what writes: from here on entries are applied.
	if e.replica, err = raft.Open(ro); err != nil {
		return nil, err
	}
	e.api = api.New(e.deps(found.past, registry), e.apiOptions())
	hooks.set(e.api)

	e.work.Go(func() { e.follow() })
	e.work.Go(func() { hooks.discards.run(e.background) })
	e.work.Go(func() { e.retain() })
	return e, nil
}

// stop ends an engine in the opposite order, when no request is in hand any
// more. ctx bounds how long Raft may take.
func (e *engine) stop(ctx context.Context) error {
	// Nobody asks the state, the log or Raft any more, but for what runs behind.
	e.cancel()
	e.work.Wait()
	e.api.Close()
	// Raft before the event log: it applies until it has stopped.
	err := e.replica.Shutdown(ctx)
	e.replica = nil
	return errors.Join(err, e.close())
}

// close closes what is open, the last opened first.
func (e *engine) close() error {
	e.cancel()
	var errs []error
	if e.api != nil {
		e.api.Close()
	}
	e.work.Wait()
	if e.replica != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		errs = append(errs, e.replica.Shutdown(ctx))
		cancel()
	}
	if e.models != nil {
		errs = append(errs, e.models.Close())
	}
	if e.log != nil {
		errs = append(errs, e.log.Close()) // syncs: the next start has nothing to heal
	}
	return errors.Join(errs...)
}

func (e *engine) raftOptions(sink raft.Metrics) raft.Options {
	c := e.c
	return raft.Options{
		NodeID: e.card.NodeID, ClusterID: e.card.ClusterID,
		Dir: datadir.Path(c.DataDir, datadir.RaftDir), CheckpointDir: datadir.Path(c.DataDir, datadir.CheckpointDir),
		FS: vfs.OS{}, Incarnation: e.card.Incarnation, HTTPAddr: c.HTTPAddr, Logger: e.logger, Metrics: sink,
		Initial:           []raft.Member{{ID: e.card.NodeID, Incarnation: e.card.Incarnation, RaftAddr: c.RaftAddr, HTTPAddr: c.HTTPAddr, Voter: true}},
		OnFatal:           e.fail,
		Rules:             rules(),
		SnapshotThreshold: c.CheckpointEvery, SnapshotInterval: c.CheckpointAge,
		ClockOffset: e.card.ClockOffsetMS,
		FreeBytes:   func() (uint64, error) { return freeBytes(c.DataDir) },
	}
}

func (e *engine) apiOptions() api.Options {
	return api.Options{
		MaxPayload: e.c.MaxPayloadBytes, MaxRequest: e.c.MaxRequestBytes,
		HistoryRetention: e.c.HistoryRetention, AutoCreateQueues: e.c.AutoCreateQueues,
		Version: build().Version,
	}
}

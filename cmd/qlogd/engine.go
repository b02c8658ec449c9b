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
	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/background/push"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/replay"
)

// engine is everything on a data directory: the event log, the state that it folds to, Raft, the
// read models, and the API on top. A node opens it again when the directory was exchanged.
type engine struct {
	c      *config
	logger *slog.Logger
	card   *datadir.Node
	peers  *peer.Net

	log     *log.Log
	machine *fsm.Replica
	replica *raft.Replica
	models  *store.Store
	api     *api.Server
	push    *push.Engine
	tasks   *task.Runner

	archiver *archive.Archiver
	erasures *erasure.Node
	fetching sync.Mutex // held while something is fetched

	// work runs until background ends.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	lacking     raft.Offers // the leader's newest offer of what this node lacks
	stopServing func()      // ends what other nodes are sent of the files

	fail func(error)  // ends the node
	ask  func(change) // requests that the engine is opened again
}

// openEngine opens what is on disk. On an error everything that was opened is closed, and nothing
// on disk has been harmed.
func openEngine(n *node) (_ *engine, err error) {
	c, card, logger := n.c, n.card, n.logger
	e := &engine{
		c: c, logger: logger, card: card, peers: n.peers,
		lacking: make(raft.Offers, 1), fail: n.fail, ask: n.ask,
	}
	e.background, e.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			_ = e.close() // the first error counts
		}
	}()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	sink := &metrics{registry: registry}
	if err := raft.RouteLibraryMetrics(sink); err != nil {
		return nil, err
	}
	ro := e.raftOptions(sink)
	ro.OnOut, ro.OnJoined, ro.Joined = n.outOfCluster, n.joined, card.Joined

	// The event log and its fold before Raft, which goes on from them.
	heldFrom, _, err := raft.Held(ro)
	if err != nil {
		return nil, err
	}
	found, err := replay.Recover(e.background, replay.Recovery{
		FS: ro.FS, LogDir: datadir.Path(c.DataDir, datadir.LogDir), CheckpointDir: ro.CheckpointDir,
		SegmentSize: card.LogSegmentBytes, HeldFrom: heldFrom, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	e.log = found.Log
	if err := e.checkBeginning(found.State.History()); err != nil {
		return nil, err
	}
	e.archiver = archive.NewArchiver(archive.ArchiverOptions{
		Archive: c.Archive, DataDir: c.DataDir, ClusterID: card.ClusterID, SegmentBytes: e.log.SegmentSize(),
		Segments: e.log.Segments, Leader: func() bool { return e.replica.Leader() }, Every: c.ArchiveInterval,
		Registry: registry, Logger: logger,
	})
	models := datadir.Path(c.DataDir, datadir.ProjectionFile)
	if e.models, err = store.Open(models, card.ClusterID, store.Options{Logger: logger}); err != nil {
		return nil, err
	}
	e.machine = fsm.NewReplica(found.State, e.log, fsm.Options{})
	if e.erasures, err = e.newErasures(); err != nil {
		return nil, err
	}
	// Raft last of all that writes: from here on entries are applied.
	ro.Machine, ro.Changed = e.machine, make(chan struct{}, 1)
	if e.replica, err = raft.Open(ro); err != nil {
		return nil, err
	}
	e.stopServing = fetch.Serve(e.peers, fetch.Source{
		FS: vfs.OS{}, DataDir: c.DataDir, Log: e.log, Snapshot: e.replica.Snapshot, Logger: logger,
	})
	e.push = e.newPush(n, registry)
	past := replay.NewPast(found.Past, 4, 2)
	e.api = api.New(api.Deps{
		Node: e.replica, State: e.machine, Log: e.log, Models: e.models,
		Past: func(ctx context.Context, at event.Instant) (api.State, error) {
			return past.At(ctx, at)
		},
		Proof: proof{e}, Cluster: clusterView{e.replica}, Push: e.push, Eraser: e.eraser(),
		Secrets: n.hooked, Forward: n.egress, Logger: e.logger, Registry: registry,
	}, n.apiOptions())
	e.answerOthers(true)
	e.tasks = e.newTasks()

	for _, run := range []func(context.Context){
		e.tasks.Run, e.archiver.Run, e.erasures.Run,
		func(ctx context.Context) { e.observe(ctx, ro.Changed) },
		func(context.Context) { e.follow() },
		func(context.Context) { e.retain() },
		func(context.Context) { e.fetchLacking() },
	} {
		e.work.Go(func() { run(e.background) })
	}
	e.push.Start()
	return e, nil
}

// checkBeginning refuses a log whose first segments were lost, not deleted by retention: its live
// messages would have no payload. Retention writes to the log what it deletes, and syncs that,
// before it does; a copy may end before that.
func (e *engine) checkBeginning(history uint64) error {
	before, deleted := e.log.DeletedBefore()
	if !deleted || before < history || e.card.Fork != nil && before <= e.card.Fork.Index {
		return nil
	}
	return fmt.Errorf("the event log begins behind index %d, but retention has deleted only what is before index %d: "+
		"its first segments are lost; put the whole directory back from a backup", before, history)
}

func (e *engine) raftOptions(sink raft.Metrics) raft.Options {
	c := e.c
	return raft.Options{
		NodeID: e.card.NodeID, ClusterID: e.card.ClusterID, Incarnation: e.card.Incarnation,
		Dir:           datadir.Path(c.DataDir, datadir.RaftDir),
		CheckpointDir: datadir.Path(c.DataDir, datadir.CheckpointDir),
		FS:            vfs.OS{}, Net: e.peers, HTTPAddr: e.peers.Self().HTTP, Contacts: c.Join, Wall: time.Now,
		Logger: e.logger, Metrics: sink, OnFatal: e.fail, OnLacking: e.lacking.Put,
		SnapshotThreshold: c.CheckpointEvery, SnapshotInterval: c.CheckpointAge,
		// Frequent checkpoints are often wanted for a short Raft log behind them.
		TrailingLogs: min(max(c.CheckpointEvery, 256), 4096),
		ClockOffset:  e.card.ClockOffsetMS, Initial: e.card.Initial,
		FreeBytes: func() (uint64, error) { return freeBytes(c.DataDir) },
	}
}

// answerOthers begins or ends to answer the questions of other nodes' APIs.
func (e *engine) answerOthers(on bool) {
	for name, answer := range e.api.Answers() {
		if !on {
			answer = nil
		}
		e.replica.HandleMembers(name, answer)
	}
}

// observe wakes the goroutines that what was applied concerns, and logs discarded messages: a
// thousand that expire together are one line.
func (e *engine) observe(ctx context.Context, changed <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer e.warnOfDiscarded()
	leads := false
	var queues, tasks, erasures uint64
	for {
		select {
		case <-changed:
		case <-tick.C:
			e.warnOfDiscarded()
			continue
		case <-ctx.Done():
			return
		}
		e.api.Applied(e.machine.TakeLeasable())
		was := leads
		leads = e.replica.Leader()
		counts := e.machine.Counts()
		differs := func(seen *uint64, types ...event.Type) bool {
			was := *seen
			*seen = 0
			for _, t := range types {
				*seen += counts[t]
			}
			return *seen != was
		}
		if differs(&queues, event.QueueCreated, event.QueueUpdated, event.QueueDeleted) || leads != was {
			e.push.Wake()
		}
		if differs(&tasks, event.TaskCreated, event.TaskCancelled, event.TaskResumed, event.TaskEnded) || leads != was {
			e.tasks.Wake()
		}
		if differs(&erasures, event.Erased, event.TaskSealed, event.TaskResumed) {
			e.erasures.Wake()
		}
	}
}

func (e *engine) warnOfDiscarded() {
	for of, d := range e.machine.TakeDiscarded() {
		e.logger.Warn("messages were discarded: their queue has no dead-letter queue",
			"queue", of.Queue, "reason", of.Reason.String(), "count", d.Count, "last", d.Last)
	}
}

// followAgain is the time between tries after the read models could not go on.
const followAgain = 10 * time.Second

// follow lets the read models follow the log. They can be rebuilt, so an error of theirs (a full
// disk) stops nothing else.
func (e *engine) follow() {
	for {
		err := e.models.Follow(e.background, followed{e.log})
		if e.background.Err() != nil {
			return
		}
		e.logger.Error("projection store stopped, retrying", "error", err, "in", followAgain)
		select {
		case <-time.After(followAgain):
		case <-e.background.Done():
			return
		}
	}
}

// followed is the event log for the read models, whose Wait is for at least an index: the log's own
// is for one above.
type followed struct{ *log.Log }

// Wait implements store.Source.
func (f followed) Wait(ctx context.Context, index uint64) error {
	if index == 0 {
		return ctx.Err()
	}
	return f.Log.Wait(ctx, index-1)
}

// keepForRaft is left of a stop's time when deliveries are given up: for their messages to be given
// back, and for Raft.
const keepForRaft = 3 * time.Second

// stop ends an engine in the opposite order, after the last request. ctx bounds how long deliveries
// and Raft may take.
func (e *engine) stop(ctx context.Context) error {
	deliver, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok {
		deliver, cancel = context.WithDeadline(ctx, end.Add(-keepForRaft))
	}
	e.push.Stop(deliver)
	cancel()
	e.cancel()
	e.work.Wait()
	e.answerOthers(false)
	e.api.Drain()
	// Raft before the event log: it applies until it has stopped.
	err := e.replica.Shutdown(ctx)
	e.replica = nil
	return errors.Join(err, e.close())
}

// close closes what is open, the last opened first.
func (e *engine) close() error {
	e.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var errs []error
	if e.push != nil {
		e.push.Stop(e.background) // at once: background has ended
	}
	if e.api != nil {
		e.api.Drain()
	}
	e.work.Wait()
	if e.replica != nil {
		errs = append(errs, e.replica.Shutdown(ctx))
	}
	if e.stopServing != nil { // before the log is closed: it is read from there
		e.stopServing()
	}
	if e.models != nil {
		errs = append(errs, e.models.Close())
	}
	if e.log != nil {
		errs = append(errs, e.log.Close()) // syncs: the next start has nothing to repair
	}
	return errors.Join(errs...)
}

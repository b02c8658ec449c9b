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
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/background/push"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/replay"
)

// engine is all that stands on a data directory: the event log, the state that
// it folds to, Raft, the read models, and the API over them. A node opens one,
// and opens it anew where what lies in the directory was exchanged under it.
type engine struct {
	c      *config
	logger *slog.Logger
	card   *datadir.Node
	peers  *peer.Net

	log     *eventlog.Log
	machine *fsm.Replica
	replica *raft.Replica
	models  *store.Store
	api     *api.Server
	push    *push.Engine
	tasks   *task.Runner

	archiver *archiver
	erasures *erasure.Node
	fetching sync.Mutex // held while something is fetched

	// background ends with cancel; work is what runs in it.
	background context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup

	// lacking takes the leader's newest offer of what this node has missed.
	lacking raft.Offers
	// stopServing ends what other nodes are sent of the files.
	stopServing func()

	fail func(error)  // the node can't go on
	ask  func(change) // the engine is to be opened anew
}

// openEngine opens what is on disk. The order matters, and each line says why
// it stands where it does. Whatever fails, what was opened before is closed
// again, and nothing on disk has been harmed.
func openEngine(n *node) (_ *engine, err error) {
	c, card, logger := n.c, n.card, n.logger
	e := &engine{
		c: c, logger: logger, card: card, peers: n.peers,
		lacking: make(raft.Offers, 1), fail: n.fail, ask: n.ask,
	}
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
	// Retention tells in the log what it deletes, and syncs that, before it does;
	// a copy may end before it was told.
	if before, deleted := e.log.DeletedBefore(); deleted && before >= found.State.History() && (card.Fork == nil || before > card.Fork.Index) {
		return nil, fmt.Errorf("the event log begins behind index %d, but retention has let go only of what is before index %d: its first segments are lost; put the whole directory back from a backup", before, found.State.History())
	}

	if e.archiver, err = newArchiver(e, registry); err != nil {
		return nil, err
	}
	// The read models follow behind the log and stand in nobody's way.
	if e.models, err = store.Open(datadir.Path(c.DataDir, datadir.ProjectionFile), card.ClusterID, store.Options{Logger: logger}); err != nil {
		return nil, err
	}
	e.machine = fsm.NewReplica(found.State, e.log, fsm.Options{})
	if e.erasures, err = e.newErasures(); err != nil {
		return nil, err
	}
	ro.Machine, ro.Changed = e.machine, make(chan struct{}, 1)
	// Raft last of what writes: from here on entries are applied.
	if e.replica, err = raft.Open(ro); err != nil {
		return nil, err
	}
	// What the others may ask for of files is served when a checkpoint can be taken.
	e.stopServing = fetch.Serve(e.peers, fetch.Source{
		ClusterID: card.ClusterID, FS: vfs.OS{}, DataDir: c.DataDir, Log: e.log, Snapshot: e.snapshot, Logger: logger,
	})
	e.api = api.New(e.deps(n, found.Past, registry), n.apiOptions())
	// It leases and settles as the api does, and is asked by it.
	e.push = e.newPush(n, registry)
	e.answerOthers()
	// Tasks after all that they stand on; what began before is looked for at once.
	e.tasks = e.newTasks()

	e.work.Go(func() { e.observe(ro.Changed) })
	e.work.Go(func() { e.tasks.Run(e.background) })
	e.work.Go(func() { e.follow() })
	e.work.Go(func() { e.retain() })
	e.work.Go(func() { e.archiver.run(e.background) })
	e.push.Start()
	e.work.Go(func() { e.erasures.Run(e.background) })
	e.work.Go(e.fetchLacking)
	return e, nil
}

// snapshot takes a checkpoint for a node that needs one.
func (e *engine) snapshot() error { return e.replica.Snapshot() }

// stop ends an engine in the opposite order, when no request is in hand any
// more. ctx bounds how long Raft may take.
func (e *engine) stop(ctx context.Context) error {
	// What was delivered is settled while there is somebody to settle it with.
	e.stopPush(ctx)
	// Nobody asks the state, the log or Raft any more, but for what runs behind.
	e.cancel()
	e.work.Wait()
	e.peers.Handle(api.AskOperations, nil)
	e.peers.Handle(api.AskWaiters, nil)
	e.replica.HandleMembers(api.AskPush, nil)
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
	if e.push != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		e.push.Stop(ended)
	}
	if e.api != nil {
		e.api.Close()
	}
	e.work.Wait()
	if e.replica != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		errs = append(errs, e.replica.Shutdown(ctx))
		cancel()
	}
	// Before the log is closed: it is read from there.
	if e.stopServing != nil {
		e.stopServing()
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
	c, self := e.c, e.peers.Self()
	ro := raft.Options{
		NodeID: e.card.NodeID, ClusterID: e.card.ClusterID, Incarnation: e.card.Incarnation,
		Dir: datadir.Path(c.DataDir, datadir.RaftDir), CheckpointDir: datadir.Path(c.DataDir, datadir.CheckpointDir),
		FS: vfs.OS{}, Net: e.peers, HTTPAddr: self.HTTP, Contacts: c.Join, Wall: time.Now, Logger: e.logger, Metrics: sink,
		OnFatal: e.fail, OnLacking: e.lacking.Put,
		SnapshotThreshold: c.CheckpointEvery, SnapshotInterval: c.CheckpointAge,
		// Who wants checkpoints often wants the Raft log short behind them.
		TrailingLogs: min(max(c.CheckpointEvery, 256), 4096),
		ClockOffset:  e.card.ClockOffsetMS,
		FreeBytes:    func() (uint64, error) { return freeBytes(c.DataDir) },
	}
	for _, m := range e.card.Initial {
		member := raft.Member{ID: m.ID, Incarnation: m.Incarnation, RaftAddr: m.RaftAddr, HTTPAddr: m.HTTPAddr, Voter: true}
		if member.RaftAddr == "" { // a cluster of one, made where nobody else had to know
			member.RaftAddr, member.HTTPAddr = self.Raft, self.HTTP
		}
		ro.Initial = append(ro.Initial, member)
	}
	if e.card.Incarnation == "" {
		// Older than incarnations: such a directory is of a cluster of one, and
		// may have been left half made.
		ro.Initial = []raft.Member{{ID: e.card.NodeID, RaftAddr: self.Raft, HTTPAddr: self.HTTP, Voter: true}}
	}
	return ro
}

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/background/push"
	"github.com/qlogd/qlogd/background/retention"
	"github.com/qlogd/qlogd/background/scrub"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/background/verify"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/replay"
)

// engine is everything on a data directory: the event log, the state that it folds to, Raft, the
// read models, and the API on top. A node opens it again when the directory was exchanged.
type engine struct {
	*Node

	log     *log.Log
	machine *fsm.Replica
	replica *raft.Replica
	models  *store.Store
	follows *loop.Loop // models
	api     *api.Server
	push    *push.Engine
	tasks   *task.Runner // while this node leads
	own     *task.Runner // of this node, wherever the leader is

	archiver *archive.Archiver
	eraser   *erasure.Eraser
	scrubber *scrub.Scrubber
	verifier *verify.Verifier
	fetching sync.Mutex  // held while something is fetched
	single   atomic.Bool // no other node is a member, as of a second ago

	lifetime
}

// openEngine opens what is on disk. On an error everything that was opened is closed, and nothing
// on disk has been harmed.
func openEngine(n *Node) (_ *engine, err error) {
	c, card, logger := n.c, n.card, n.logger
	e := &engine{Node: n, follows: loop.New(followEvery, followAgain)}
	e.begin()
	defer e.closeAfter(&err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	sink := &metrics{registry: registry}
	if err := sink.followLibraries(); err != nil {
		return nil, err
	}
	e.scrubber = e.newScrubber(registry)
	ro := e.raftOptions(sink)
	if ro.Witness, err = witness.Open(vfs.OS{}, c.witnessFile(), card); err != nil {
		return nil, err
	}
	ro.Witness.Accept = c.AcceptOlderData

	// The event log and its fold before Raft, which continues from them.
	heldFrom, err := raft.Held(ro)
	if err != nil {
		return nil, err
	}
	history, state, err := replay.Recover(e.background, log.Options{
		FS: ro.FS, Dir: datadir.Path(c.DataDir, datadir.LogDir),
		SegmentSize: card.LogSegmentBytes, HeldFrom: heldFrom, Logger: logger,
		Damaged: e.scrubber.Found, Only: e.single.Load,
	}, ro.CheckpointDir)
	if err != nil {
		return nil, err
	}
	e.log, e.scrubber.Log = history.Log, history.Log
	e.verifier = e.newVerifier()
	// Closing syncs: the next start has nothing to repair.
	e.release(e.log.Close)
	if err := e.checkBeginning(state.History()); err != nil {
		return nil, err
	}
	e.archiver = archive.NewArchiver(archive.ArchiverOptions{
		Archive: c.Archive, DataDir: c.DataDir, ClusterID: card.ClusterID, Every: c.ArchiveInterval,
		SegmentBytes: e.log.SegmentSize(), Segments: e.log.Segments,
		Leader:   func() bool { return e.replica.Leader() },
		Registry: registry, Logger: logger,
	})
	models := datadir.Path(c.DataDir, datadir.ProjectionFile)
	e.models, err = store.Open(models, card.ClusterID, logger)
	if err != nil {
		return nil, err
	}
	e.release(e.models.Close)
	e.machine = fsm.NewReplica(state, e.log)
	// Raft last of all that writes: from here on entries are applied.
	ro.Machine, ro.Changed = e.machine, make(chan struct{}, 1)
	if e.replica, err = raft.Open(ro); err != nil {
		return nil, err
	}
	e.closing(e.replica.Shutdown)
	e.countMembers()
	if e.eraser, err = e.newEraser(); err != nil {
		return nil, err
	}
	stopServing := fetch.Serve(e.peers.Handle, fetch.Source{
		FS: vfs.OS{}, DataDir: c.DataDir, Log: e.log, Snapshot: e.replica.Snapshot, Logger: logger,
	})
	e.release(func() error { stopServing(); return nil })
	e.push = e.newPush(registry)
	past := replay.NewPast(history, 4)
	e.api = api.New(api.Deps{
		Node: e.replica, State: e.machine, Log: e.log,
		Models: hurriedModels{e.models, e.follows},
		Past: func(ctx context.Context, at event.Instant) (api.State, error) {
			return past.At(ctx, at)
		},
		HeadAt: func(index uint64) (wire.LogHead, error) {
			return replay.HeadAt(e.log, e.card, index)
		},
		LogSegments: e.logSegments, Push: e.push, Eraser: e.eraser,
		Secrets: n.secrets, Forward: n.egress, Logger: e.logger, Registry: registry,
		Tracer: n.tracer,
	}, n.apiOptions())
	e.exportNode(registry)
	e.push.Lease, e.push.Settle = e.api.LeaseHere, e.api.SettleHere
	for name, answer := range e.api.Answers() {
		e.replica.HandleMembers(e.background, name, answer)
	}
	e.release(func() error { e.api.Drain(); return nil })
	e.tasks, e.own = e.newTasks(), e.newOwnTasks()
	e.start(ro.Changed)
	return e, nil
}

// start starts the goroutines of the engine.
func (e *engine) start(changed <-chan struct{}) {
	for _, run := range []func(context.Context){
		e.tasks.Run, e.own.Run, e.archiver.Run, e.eraser.Run, e.retention(e.c.HistoryRetention).Run,
		e.scrubber.Run, e.follow, e.fetchLacking, func(ctx context.Context) { e.observe(ctx, changed) },
	} {
		e.work.Go(func() { run(e.background) })
	}
	e.push.Start()
	e.closing(func(ctx context.Context) error {
		if end, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, end.Add(-keepForRaft))
			defer cancel()
		}
		e.push.Stop(ctx)
		e.cancel()
		e.work.Wait()
		return nil
	})
}

// keepForRaft is left of a stop's time when deliveries are given up: for their messages to be
// given back, and for Raft.
const keepForRaft = 3 * time.Second

func (e *engine) retention(limit time.Duration) *retention.Retention {
	return &retention.Retention{
		Limit: limit, Log: e.log, State: e.machine, Replica: e.replica,
		KeepFrom: e.archiver.KeepFrom, Logger: e.logger,
	}
}

// checkBeginning refuses a log whose first segments were lost, not deleted by retention: its live
// messages would have no payload. Retention writes to the log what it deletes, and syncs that,
// before it does; a copy may end before that.
func (e *engine) checkBeginning(history uint64) error {
	before, _ := e.log.Begins()
	if before == 0 || before < history || e.card.Fork != nil && before <= e.card.Fork.Index {
		return nil
	}
	return fmt.Errorf("the event log begins behind index %d, but retention has deleted only what "+
		"is before index %d: its first segments are lost; "+
		"put the whole directory back from a backup", before, history)
}

func (e *engine) raftOptions(sink raft.Metrics) raft.Options {
	c := e.c
	return raft.Options{
		Node:          *e.card,
		Dir:           datadir.Path(c.DataDir, datadir.RaftDir),
		CheckpointDir: datadir.Path(c.DataDir, datadir.CheckpointDir),
		FS:            vfs.OS{}, Wall: time.Now,
		Net: e.peers, Contacts: c.Join, AnnouncedOnly: c.alone(), Logger: e.logger, Metrics: sink,
		OnFatal: e.replicaFailed,
		OnJoined: func() { // from here on a directory that is in no configuration was removed
			if err := e.changeCard(func(card *datadir.Node) { card.Joined = true }); err != nil {
				e.fail(err)
			}
		},
		SnapshotThreshold: c.CheckpointEntries, SnapshotInterval: c.CheckpointInterval,
		DiskTimeout: c.DiskTimeout,
		// Frequent checkpoints are often wanted for a short Raft log behind them.
		TrailingLogs: min(max(c.CheckpointEntries, 256), 4096),
		FreeBytes:    func() (uint64, error) { return freeBytes(c.DataDir) },
		ReserveBytes: api.DiskReserve,
		Health:       e.health,
	}
}

// health is what the other nodes get to know of this one's files, disk and program.
func (e *engine) health() datadir.Health {
	h := e.scrubber.Health()
	h.Verifying = e.verifier.Verifying()
	h.Version = e.c.Version
	h.FreeBytes, h.SizeBytes, _ = diskSpace(e.c.DataDir) // zeros: not known
	return h
}

func (e *engine) newScrubber(registry *prometheus.Registry) *scrub.Scrubber {
	return scrub.New(scrub.Options{
		FS: vfs.OS{}, DataDir: e.c.DataDir, Rate: e.c.ScrubRate,
		Busy: e.busy, Segment: e.replaceSegment,
		Checkpoint: func(ctx context.Context, name string) error {
			return e.replica.ReplaceCheckpoint(ctx, name)
		},
		Registry: registry, Logger: e.logger,
	})
}

// newVerifier returns the verifier of a log that was opened, and to which nothing is appended yet.
func (e *engine) newVerifier() *verify.Verifier {
	return verify.New(verify.Options{
		FS: vfs.OS{}, DataDir: e.c.DataDir, Node: e.card, Log: e.log, Opened: e.log.Head(),
		Rate: e.c.verifyRate, Busy: e.busy, Damaged: e.scrubber.Found, Logger: e.logger,
	})
}

// busy reports whether the node has no time for what can wait: the batcher refuses background work
// then.
func (e *engine) busy() bool {
	_, used := e.replica.Load()
	return used >= 0.25
}

// observe wakes the goroutines that depend on the applied entries, and logs discarded messages: a
// thousand that expire together are one line.
func (e *engine) observe(ctx context.Context, changed <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer e.warnOfDiscarded()
	leads, seen := false, uint64(0)
	for {
		select {
		case <-changed:
		case <-tick.C:
			e.warnOfDiscarded()
			e.countMembers()
			continue
		case <-ctx.Done():
			return
		}
		e.api.Applied(e.machine.TakeLeasable())
		was, before := leads, seen
		leads, seen = e.replica.Leader(), 0
		counts := e.machine.Counts()
		for _, t := range wakers {
			seen += counts[t]
		}
		if leads != was || seen != before {
			e.push.Wake()
			e.tasks.Wake()
			e.own.Wake()
			e.eraser.Wake()
		}
	}
}

func (e *engine) countMembers() { e.single.Store(len(e.replica.Members()) == 1) }

// wakers are the rare events after which there may be deliveries, tasks or erasures to begin or
// to end.
var wakers = []event.Type{
	event.QueueCreated, event.QueueUpdated, event.QueueDeleted, event.TaskCreated,
	event.TaskCancelled, event.TaskResumed, event.TaskSealed, event.TaskEnded, event.Erased,
}

func (e *engine) warnOfDiscarded() {
	for of, d := range e.machine.TakeDiscarded() {
		e.logger.Warn("messages were discarded: their queue has no dead-letter queue",
			"queue", of.Queue, "reason", of.Reason.String(), "count", d.Count, "last", d.Last)
	}
}

// The read models catch up with the log every followEvery; after an error they pause longer.
const (
	followEvery = time.Second
	followAgain = 10 * time.Second
)

// follow keeps the read models up to date with the log. They can be rebuilt, so an error of theirs
// (a full disk) stops nothing else.
func (e *engine) follow(ctx context.Context) {
	work := func(ctx context.Context) error {
		return e.models.CatchUp(ctx, e.log, func(uint64) {})
	}
	e.follows.Run(ctx, work, e.logger.Error, "projection store stopped, retrying")
}

// hurriedModels are read models that catch up at once when a reader waits for them.
type hurriedModels struct {
	*store.Store
	follows *loop.Loop
}

func (m hurriedModels) Wait(ctx context.Context, index uint64) error {
	if at, _ := m.Position(); at < index {
		m.follows.Wake()
	}
	return m.Store.Wait(ctx, index)
}

// newPush returns the engine that delivers for queues with push. It leases and settles through the
// api, which is set before it is started.
func (e *engine) newPush(registry *prometheus.Registry) *push.Engine {
	d := push.Deps{
		Leads: e.replica.Leader, Barrier: e.replica.Barrier, Queues: e.machine.Queues,
		Content: e.log.Content, Now: e.replica.Clock, Secrets: e.secrets.Find,
		Client: e.egress, MaxPayload: e.c.MaxPayloadBytes, Worker: "push@" + e.card.NodeID,
		Registry: registry, Logger: e.logger,
	}
	if e.card.PushOff() {
		d.Off = "this data directory continues a copy of the past (qlogd replay --into): " +
			"push_off in its node.json says whether it delivers"
	}
	return push.New(d)
}

// newTasks returns the runner of tasks while this node leads.
func (e *engine) newTasks() *task.Runner {
	o := task.Options{
		Propose: e.replica.Propose, Barrier: e.replica.Barrier, Leader: e.replica.Leader,
		Tasks: e.machine.Tasks, Content: e.log.Content, Logger: e.logger,
		Run: e.api.Tasks(e.replica.Propose),
	}
	o.Run[event.TaskVerify] = verify.Watch(e.members)
	return task.New(o)
}

// newOwnTasks returns the runner of this node's own tasks.
func (e *engine) newOwnTasks() *task.Runner {
	return task.New(task.Options{
		Propose: e.replica.Propose, Content: e.log.Content, Logger: e.logger,
		Tasks: func() []event.TaskView {
			return slices.DeleteFunc(e.machine.Tasks(), func(t event.TaskView) bool {
				return !t.Verifies(e.replica.Self())
			})
		},
		Run: map[event.TaskKind]task.Run{event.TaskVerify: e.verifier.Run},
	})
}

// members returns the members of the cluster, each in its incarnation.
func (e *engine) members() (out []string) {
	for _, m := range e.replica.Members() {
		out = append(out, m.Server())
	}
	return out
}

// newEraser returns what carries erasures out.
func (e *engine) newEraser() (*erasure.Eraser, error) {
	o := erasure.Options{
		Log: e.log, State: e.machine.Machine, FS: vfs.OS{}, DataDir: e.c.DataDir, Logger: e.logger,
		Propose: e.replica.Propose, Self: e.replica.Self, Members: e.members,
		PurgeLog: e.replica.PurgeLog, OpenPast: e.openPast,
		Fetched: func() error { // removes what was fetched and is not installed (I22)
			if !e.fetching.TryLock() {
				return errors.New("this node is fetching missing log segments")
			}
			defer e.fetching.Unlock()
			return fetch.Discard(vfs.OS{}, e.c.DataDir)
		},
	}
	if e.archiver != nil {
		o.Archive = e.archiver.Erase
	}
	return erasure.New(o)
}

// openPast opens the log together with the archive before it, if that goes back further.
func (e *engine) openPast(ctx context.Context) (*log.Log, func(), error) {
	none := func() {}
	if before, _ := e.log.Begins(); before == 0 || e.archiver == nil {
		return e.log, none, nil
	}
	mounted, err := e.archiver.Mount(ctx)
	if mounted == nil || err != nil {
		return e.log, none, err
	}
	if mounted.Missing != "" {
		e.logger.Warn("archived history is missing", "what", mounted.Missing)
	}
	d, err := replay.OpenOn(mounted, e.c.DataDir, e.card, false)
	if err != nil {
		return nil, none, err
	}
	return d.Log, func() { _ = d.Close() }, nil // files that were only read
}

func (e *engine) logSegments() wire.LogSegments {
	out := replay.Segments(e.log, e.card)
	for i := range out.Segments {
		s := &out.Segments[i]
		s.Archived = s.Sealed && e.archiver.Has(s.LastIndex)
	}
	return out
}

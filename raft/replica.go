// Package raft is one replica: hashicorp/raft (imported nowhere else) with its
// stores and guards, the batcher that groups commands into entries, the clock
// that makes due things happen, and snapshots in the right order with the event
// log. It drives a Machine and does not know what a message is.
//
// The guards of design.md section 9 and where they stand:
//
//	a LogStore that is not monotonic                 logStore.IsMonotonic
//	a stalled or full disk freezes the cluster       logStore.guard, disk
//	persistVote writes in two transactions           votes
//	nobody finds flipped bits                        votes, logStore.GetLog, checkpoint
//	everything is applied again after a restart      fsm.ApplyBatch
//	a snapshot is labelled below the state           fsm.Snapshot
//	no snapshot until a command is applied           batcher.setLeader
//	a Raft log that does not fit the snapshot        stores.check
//	RestoreCommittedLogs wants another store         config
//	unknown outcomes                                 outcome, batcher.returned
//	pipelining can deadlock replication              AppendEntriesPipeline
//	bulk under the library's deadline                transport.InstallSnapshot, offer
//	a snapshot is installed over and over            transport.refuse, transport.adapt
//	a failed peer is left waiting                    transport.AppendEntries
//	a transfer of leadership sticks                  Replica.unstick
//	a directory that went back in time votes         rollback.go
//	a half-made or lost store                        stores.bootstrap, openStores
//
// Nothing here is global but what RouteLibraryMetrics sets: several replicas can
// live in one process.
package raft

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// Replica is one member of a Raft group.
type Replica struct {
	o      Options
	id     hraft.ServerID // this node's, in the configuration
	raft   *hraft.Raft
	trans  hraft.Transport
	stores *stores
	fsm    *fsm
	clock  *clock
	b      *batcher

	barriers    barriers
	confirmer   *confirmer
	peers       peers
	membership  membership
	rollback    rollback
	agreement   *agreement
	lacking     lack // catchup.go
	checkpoints checkpoints
	conf        committed
	run         lifecycle
}

// lifecycle is how a replica starts, fails and stops.
type lifecycle struct {
	leads   chan bool // hashicorp/raft's notifications; it blocks until they are read
	started atomic.Bool
	dead    atomic.Pointer[error]
	failed  chan struct{} // closed with dead
	stop    chan struct{} // closed: every goroutine of ours ends
	once    sync.Once
	ctx     context.Context // ends with stop
	wg      sync.WaitGroup
}

// peers is what this node knows of the other members: status.go.
type peers struct {
	table      *table
	contact    contacts
	leaderAddr atomic.Value // LeaderHTTP
	commits    *commitNotifier
}

// membership is this node's own place in the configuration: membership.go.
type membership struct {
	joined   atomic.Bool            // the configuration has had this server
	why      atomic.Pointer[string] // why it is not a member, or has another address there
	changing chan struct{}          // of capacity one: held while the configuration changes
	yielding atomic.Int64           // until when a transfer may be in progress, Unix ns
}

// rollback is what proves that this directory did not go back in time: rollback.go.
type rollback struct {
	evidence *evidence
	free     atomic.Bool            // this node takes part in Raft
	holding  atomic.Pointer[string] // why it does not
	out      atomic.Bool            // OnOut was called
}

// checkpoints is when the next checkpoint is written: snapshot.go.
type checkpoints struct {
	snapNow chan struct{}
	snapped atomic.Pointer[snapped]
}

// committed is the newest configuration that is known to be committed: see known.
type committed struct {
	mu     sync.Mutex
	newest configuration
}

// Open starts a replica on what is on disk. The Machine must have recovered
// before. It returns before a leader is known: see Ready.
func Open(o Options) (_ *Replica, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	r := &Replica{
		o: o, clock: &clock{wall: o.Wall, offset: o.ClockOffset}, confirmer: &confirmer{busy: map[hraft.ServerID]bool{}},
		run: lifecycle{leads: make(chan bool, 8), stop: make(chan struct{}), failed: make(chan struct{})},
	}
	r.peers.table, r.peers.commits = newTable(), newCommitNotifier()
	r.membership.changing = make(chan struct{}, 1)
	r.checkpoints.snapNow = make(chan struct{}, 1)
	r.agreement = newAgreement()
	r.barriers.r = r
	var end context.CancelFunc
	r.run.ctx, end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			end()
		}
	}()
	if r.stores, err = openStores(o, faults{r.fatal, r.die}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.stores.close()
		}
	}()
	if err = r.start(); err != nil {
		return nil, err
	}
	r.run.wg.Go(func() {
		<-r.run.stop
		r.handle(false)
		end()
	})
	return r, nil
}

func (r *Replica) start() error {
	if err := r.stores.bootstrap(r.o); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	if err := r.stores.check(r.o); err != nil {
		return err
	}
	if err := checkRules(r.o); err != nil { // after check, which may restore a checkpoint
		return err
	}
	r.id = r.o.self().serverID()
	if newest, ok := r.stores.snaps.newest(); ok {
		r.conf.newest = configuration{newest.ConfigurationIndex, hraft.DecodeConfiguration(newest.Configuration).Servers}
	}
	var err error
	if r.rollback.evidence, err = openEvidence(r.stores.votes); err != nil {
		return err
	}
	r.fsm = newFSM(r.o, r.stores.snaps, r.fatal)
	r.fsm.marked = r.agreement.note
	r.stores.log.applied = func() uint64 {
		p := r.fsm.progress()
		return max(p.index, p.head)
	}
	r.fsm.applied, r.fsm.configured = r.applied, r.configured
	// The first configuration needs no commit: it was decided when the cluster was formed.
	_, initial := r.o.first().find(r.id)
	_, in := r.conf.newest.find(r.id)
	r.membership.joined.Store(initial || in || r.o.Joined)
	shown, err := r.admission()
	if err != nil {
		return err
	}
	// Before anybody can ask anything of it.
	others, _ := r.known().otherVoters(r.id)
	r.rollback.free.Store(r.o.Net == nil || len(others) == 0)
	if err := r.askContacts(shown); err != nil {
		return err
	}
	began := r.fsm.progress()
	r.snappedAt(began)
	r.b = newBatcher(&r.o, r.fsm, r.clock, r.fatal, r.run.failed)
	r.b.idle, r.b.waiters.lacking, r.b.opening = r.peers.commits.signal, r.behind, r.upgrade

	conf := r.config()
	r.trans = newTransport(r)
	if r.raft, err = newRaft(conf, r.fsm, r.stores, r.trans); err != nil {
		closeTransport(r.trans)
		return fmt.Errorf("start Raft: %w", err)
	}
	r.run.started.Store(true)
	r.clock.open(began.clock, r.alone())
	r.handle(true)
	r.b.apply = func(data []byte) hraft.ApplyFuture {
		return r.raft.ApplyLog(hraft.Log{Data: data}, r.o.StoreDeadline)
	}
	if r.alone() {
		// Nobody else can be leader: a heartbeat timeout that is lowered makes
		// hashicorp/raft stand for election at once, rather than after up to
		// two of them.
		rc := r.raft.ReloadableConfig()
		rc.HeartbeatTimeout, rc.ElectionTimeout = r.o.HeartbeatTimeout, r.o.ElectionTimeout
		if err := r.raft.ReloadConfig(rc); err != nil {
			r.o.Logger.Warn("reload of Raft's timeouts failed", "error", err)
		}
	}
	r.connect()
	r.run.wg.Go(r.watchLeadership)
	r.run.wg.Go(r.watchLeader)
	r.run.wg.Go(func() { r.b.run(r.run.stop) })
	r.run.wg.Go(r.takeSnapshots)
	r.run.wg.Go(r.agree)
	r.run.wg.Go(r.keepEvidence)
	r.run.wg.Go(r.watchPeers)
	r.run.wg.Go(r.tendMembership)
	if t, ok := r.trans.(*transport); ok {
		r.run.wg.Go(func() { r.notifyCommits(t) })
	}
	if !r.rollback.free.Load() {
		r.run.wg.Go(func() { r.seekAdmission(shown) })
	}
	return nil
}

// newRaft is hraft.NewRaft, which panics where it cannot read an entry.
func newRaft(c *hraft.Config, f *fsm, s *stores, t hraft.Transport) (_ *hraft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return hraft.NewRaft(c, f, s.log, s.votes, s.snaps, t)
}

func (r *Replica) config() *hraft.Config {
	c := hraft.DefaultConfig()
	c.LocalID = r.id
	c.Logger = hlog(r.o.Logger, "raft")
	c.NotifyCh = r.run.leads
	// One millisecond more than wanted: see start.
	c.HeartbeatTimeout = r.o.HeartbeatTimeout + time.Millisecond
	c.ElectionTimeout = r.o.ElectionTimeout + time.Millisecond
	c.LeaderLeaseTimeout = r.o.LeaderLeaseTimeout
	c.CommitTimeout = r.o.CommitTimeout
	c.TrailingLogs = max(r.o.TrailingLogs, 1) // 0 would look like a removal of all: logStore.DeleteRange
	// Entries are up to 1 MiB: one message to a follower stays below 16.
	c.MaxAppendEntries = 16
	// takeSnapshots says when, by bytes too, and without dice.
	c.SnapshotInterval, c.SnapshotThreshold = math.MaxInt64/4, math.MaxUint64
	// The state was folded from the newest checkpoint and the event log, which
	// leads further than the checkpoint: restoring it would go back.
	c.NoSnapshotRestoreOnStart = true
	// Wants a store that tracks commits; raft-wal does not.
	c.RestoreCommittedLogs = false
	c.NoLegacyTelemetry = true
	return c
}

// fatal ends this replica's part: what is on disk, or the state, can no longer
// be trusted. The first call counts.
func (r *Replica) fatal(err error) {
	if !r.run.dead.CompareAndSwap(nil, &err) {
		return
	}
	close(r.run.failed)
	r.o.Logger.Error("the replica cannot go on", "error", err)
	if r.run.started.Load() {
		closeTransport(r.trans) // no more votes, no more responses
	}
	r.o.OnFatal(err)
}

// die is fatal for a goroutine of hashicorp/raft that would panic at the error:
// it ends here instead, so that OnFatal decides how the process does.
func (r *Replica) die(err error) {
	r.fatal(err)
	if r.run.started.Load() {
		runtime.Goexit()
	}
}

// Propose replicates a command and returns what executing it answered. The
// error is an *event.Problem: one that says Unknown may still be executed.
func (r *Replica) Propose(ctx context.Context, c *event.Command) (event.Result, error) {
	if refused := r.refuses(); refused != nil {
		return event.Result{}, refused
	}
	return r.b.propose(ctx, c)
}

// Begin is Propose in two steps, for a command and some that go along with it:
// they come to stand in the same entry, in the order of their classes, if that
// has room for them. It returns at once, with a function for each command, to be
// called once, that waits for the answer as Propose does. Where the first
// command is refused, the others are not proposed.
func (r *Replica) Begin(c *event.Command, along []*event.Command) []func(context.Context) (event.Result, error) {
	if refused := r.refuses(); refused != nil {
		return slices.Repeat([]func(context.Context) (event.Result, error){
			func(context.Context) (event.Result, error) { return event.Result{}, refused },
		}, 1+len(along))
	}
	return r.b.begin(c, along)
}

// refuses says why this node takes no write now; nil: it does.
func (r *Replica) refuses() *event.Problem {
	if r.run.dead.Load() != nil {
		return problem(CodeNoLeader, "this node has failed and is about to end; the write was not proposed", false, 1000)
	}
	if r.behind() {
		return catchingUp()
	}
	return nil
}

// signalChanged wakes the reader of Options.Changed.
func (r *Replica) signalChanged() {
	select {
	case r.o.Changed <- struct{}{}:
	default:
	}
}

// applied is called by the FSM after each batch.
func (r *Replica) applied(p progress) {
	r.b.applied()
	r.b.waiters.applied(p.index)
	r.signalChanged()
	if p.unmarked >= r.o.MarkEntries {
		r.agreement.signal()
	}
	s := r.checkpoints.snapped.Load()
	if r.o.snapshotDue(p.entries-s.entries, p.bytes-s.bytes, s.size) {
		select {
		case r.checkpoints.snapNow <- struct{}{}:
		default:
		}
	}
}

// watchLeadership takes hashicorp/raft's notifications.
func (r *Replica) watchLeadership() {
	for {
		select {
		case leader := <-r.run.leads:
			if leader {
				r.leadTime()
			}
			r.b.setLeader(leader)
			r.barriers.moved()
			r.signalChanged() // after the batcher knows: readers then see it
		case <-r.run.stop:
			return
		}
	}
}

// Self is what the configuration calls this node: see Member.Server.
func (r *Replica) Self() string { return string(r.id) }

// Package raft is one replica: hashicorp/raft (imported nowhere else) with its stores, the batcher
// that groups commands into entries, the clock that makes due things happen, and snapshots in the
// right order with the event log. It drives a Machine and does not know what a message is.
//
// What protects against traps of the libraries:
//
//	entries that a stalled or full disk does not take   disk, room
//	term and vote in two transactions, flipped bits     votes, logStore.GetLog, checkpoint
//	entries that are applied again after a restart      fsm.ApplyBatch
//	a snapshot that is labelled below the state         fsm.Snapshot
//	no snapshot until a command is applied              batcher.setLeader
//	a Raft log that does not fit the snapshot           stores.check
//	unknown outcomes (I15)                              outcome, batcher.failure
//	pipelines that deadlock                             transport.AppendEntriesPipeline
//	bulk under the library's deadline (I17)             transport.InstallSnapshot
//	a leadership transfer that sticks                   Replica.unstick
//	reads that a late response confirms                 Replica.confirmLeadership
//	a rolled-back directory that votes (I16)            rollback.go
//
// Nothing here is global: several replicas can live in one process.
package raft

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/hlog"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log/clock"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// Replica is one member of a Raft group.
type Replica struct {
	o      Options
	id     hraft.ServerID // this node's, in the configuration
	raft   *hraft.Raft
	trans  *transport
	stores *stores
	fsm    *fsm
	clock  *clock.Clock
	b      *batcher

	reads      reads
	peers      peers
	membership membership
	rollback   rollback
	agreement  agreement
	lacking    atomic.Pointer[Offer]     // catchup.go; nil: nothing
	offers     chan struct{}             // of capacity one: lacking is new
	snapNow    chan struct{}             // of capacity one: a checkpoint is due
	holdUntil  atomic.Pointer[time.Time] // no checkpoint before; nil: at any time
	run        lifecycle
}

// lifecycle is how a replica starts, fails and stops.
type lifecycle struct {
	leads   chan bool // hashicorp/raft's notifications; it blocks until they are read
	started atomic.Bool
	dead    atomic.Pointer[error]
	ctx     context.Context
	end     context.CancelFunc
	stop    <-chan struct{} // ctx.Done(): the replica has failed or ends, and its goroutines do
	once    sync.Once
	wg      sync.WaitGroup
}

// peers is what this node knows of the other members: status.go.
type peers struct {
	contact    atomic.Pointer[contact]
	leaderAddr atomic.Value // LeaderHTTP
	accepted   sync.Map     // of hraft.ServerID: when the newest request it accepted was sent

	mu   sync.Mutex
	seen map[hraft.ServerID]MemberStatus // their last answers
}

// membership is this node's own place in the configuration: membership.go.
type membership struct {
	joined   atomic.Bool            // the configuration has had this server; that is on disk
	why      atomic.Pointer[string] // why it is not a member
	logged   rate.Sometimes         // of why
	refused  rate.Sometimes         // limits the warnings of nodes that were not announced
	changing chan struct{}          // of capacity one: held while the configuration changes
}

// rollback is what proves that this directory did not go back in time: rollback.go.
type rollback struct {
	evidence *witness.Promises[hraft.ServerID]
	came     peerStatus             // what was on disk at the start
	older    string                 // how that ends before its high-water mark; "": it does not
	free     atomic.Bool            // this node takes part in Raft
	holding  atomic.Pointer[string] // why it does not
	// replaced is the first index that another node's older directory lacks; 0: none came with one.
	replaced atomic.Uint64
	// Until a silent voter has answered, no messages of Raft go between it and this node: they are
	// promises, and would change what it compares with.
	silent witness.Silent[hraft.ServerID]
}

// Open starts a replica on what is on disk. The Machine must have recovered
// before. It returns before a leader is known: see Ready.
func Open(o Options) (*Replica, error) {
	if o.NodeID == "" || o.Dir == "" || o.CheckpointDir == "" || o.Machine == nil {
		return nil, errors.New("raft: NodeID, Dir, CheckpointDir and Machine are needed")
	}
	o = o.withDefaults()
	r := &Replica{o: o, clock: clock.New(o.Wall, o.ClockOffsetMS)}
	r.run.leads = make(chan bool, 8)
	r.run.ctx, r.run.end = context.WithCancel(context.Background())
	r.run.stop = r.run.ctx.Done()
	r.reads.wake = make(chan struct{}, 1)
	r.peers.seen = map[hraft.ServerID]MemberStatus{}
	r.peers.contact.Store(&contact{})
	r.membership.changing = make(chan struct{}, 1)
	r.membership.logged, r.membership.refused = oncePerMinute(), oncePerMinute()
	r.snapNow, r.offers = make(chan struct{}, 1), make(chan struct{}, 1)
	r.agreement.wake = make(chan struct{}, 1)
	var err error
	if r.stores, err = openStores(o, newDisk(o, r.fatal, r.die)); err == nil {
		if err = r.start(); err == nil {
			return r, nil
		}
		r.stores.close()
	}
	r.run.end()
	return nil, err
}

// applyTimeout is how long hashicorp/raft may take to begin with an entry.
const applyTimeout = 5 * time.Second

func (r *Replica) start() error {
	if err := r.stores.bootstrap(r.o); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	if err := r.stores.check(r.o); err != nil {
		return err
	}
	// Rather than fail at the next entry.
	if rules := r.o.Machine.Rules(); rules > r.o.Rules {
		return fmt.Errorf("data directory requires rules version %d, this binary supports up to %d",
			rules, r.o.Rules)
	}
	r.id = r.o.self().serverID()
	var err error
	if r.rollback.evidence, err = openEvidence(r.stores.votes); err != nil {
		return err
	}
	r.fsm = newFSM(r.o, r.stores.snaps, r.fatal)
	r.stores.log.committed = func() uint64 { // at least up to there
		p := r.fsm.progress()
		return max(p.index, p.head, r.o.Witness.HighWater().Index)
	}
	r.fsm.applied, r.fsm.disk = r.applied, r.stores.disk
	if newest := r.stores.snaps.Newest(); newest.Index > 0 {
		r.fsm.now.conf = configurationOf(newest)
	}
	// The first configuration needs no commit: it was decided when the cluster was formed.
	_, initial := r.o.first().find(r.id)
	_, in := r.fsm.progress().conf.find(r.id)
	r.fsm.now.joined = in
	r.membership.joined.Store(initial || in || r.o.Joined)
	if err := r.admission(); err != nil {
		return err
	}
	// Before anybody can ask anything of it.
	know := r.known()
	others, _ := know.otherVoters(r.id)
	r.rollback.free.Store(len(others) == 0)
	// One that is alone as far as its directory knows would lead: the cluster may have grown since.
	_, in = know.find(r.id)
	if in && len(others) == 0 {
		if err := r.askAdmission(&know, map[hraft.ServerID]uint64{}); err != nil {
			return err
		}
	}
	if older := r.rollback.older; older != "" && len(others) == 0 {
		err := ErrOlder
		if !in && len(r.o.Contacts) > 0 {
			err = ErrRolledBack // it has forgotten the others, too
		}
		return fmt.Errorf("%w: %s", err, older)
	}
	began := r.fsm.progress()
	r.b = newBatcher(&r.o, r.fsm, r.clock, r.fatal)
	r.b.forward.target = func() peer.Target { return r.otherLeader().target() }
	r.b.forward.call = r.o.Net.Call
	r.b.unavailable = r.unavailable

	conf := r.config()
	r.trans = newTransport(r)
	if r.raft, err = newRaft(conf, r.fsm, r.stores, r.trans); err != nil {
		r.trans.Close()
		return fmt.Errorf("start Raft: %w", err)
	}
	r.run.started.Store(true)
	r.b.apply = func(data []byte) hraft.ApplyFuture {
		return r.raft.ApplyLog(hraft.Log{Data: data}, applyTimeout)
	}
	r.clock.Follow(began.clock, 0, time.Time{})
	if r.alone() {
		r.clock.Lead(began.clock, true)
		// Nobody else can be leader: a heartbeat timeout that is lowered makes hashicorp/raft stand
		// for election at once, rather than after up to two of them.
		rc := r.raft.ReloadableConfig()
		rc.HeartbeatTimeout, rc.ElectionTimeout = r.o.HeartbeatTimeout, r.o.HeartbeatTimeout
		if err := r.raft.ReloadConfig(rc); err != nil {
			r.o.Logger.Warn("reload of Raft's timeouts failed", "error", err)
		}
	}
	r.answerOthers()
	r.run.wg.Go(r.watchLeadership)
	r.run.wg.Go(r.confirmReads)
	r.run.wg.Go(func() { r.b.run(r.run.stop) })
	r.run.wg.Go(r.takeSnapshots)
	r.run.wg.Go(r.agree)
	r.run.wg.Go(r.tendMembership)
	r.run.wg.Go(r.notifyCommits)
	r.run.wg.Go(r.keepHighWater)
	if !r.rollback.free.Load() {
		r.run.wg.Go(r.seekAdmission)
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
	c.Logger = hlog.New(r.o.Logger, "raft")
	c.NotifyCh = r.run.leads
	// One millisecond more than wanted: see start.
	c.HeartbeatTimeout = r.o.HeartbeatTimeout + time.Millisecond
	c.ElectionTimeout = c.HeartbeatTimeout
	c.LeaderLeaseTimeout = r.o.LeaderLeaseTimeout
	c.CommitTimeout = r.o.CommitTimeout
	// 0 would look like a removal of all: logStore.DeleteRange.
	c.TrailingLogs = max(r.o.TrailingLogs, 1)
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

// fatal ends the replica: what is on disk, or the state, can no longer be trusted, or this
// directory is no member any more. The first call counts.
func (r *Replica) fatal(err error) {
	if !r.run.dead.CompareAndSwap(nil, &err) {
		return
	}
	r.run.end()
	r.o.Logger.Error("replica cannot continue", "error", err)
	if r.run.started.Load() {
		r.trans.Close() // no more votes, no more responses
		r.b.giveUp()
	}
	r.o.OnFatal(err)
}

// die is fatal for a goroutine of hashicorp/raft that would panic at the error: the
// goroutine ends instead, so that OnFatal decides how the process ends.
func (r *Replica) die(err error) {
	r.fatal(err)
	if r.run.started.Load() {
		runtime.Goexit()
	}
}

// await returns what a future of hashicorp/raft does, or why the replica failed: a goroutine that
// died answers nobody.
func (r *Replica) await(f hraft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- f.Error() }()
	select {
	case err := <-answer:
		return err
	case <-r.run.stop:
	}
	if dead := r.run.dead.Load(); dead != nil {
		return *dead
	}
	return <-answer
}

// Propose replicates a command and returns what executing it answered. The
// error is an *event.Problem: one that says Unknown may still be executed.
func (r *Replica) Propose(ctx context.Context, c *event.Command) (event.Result, error) {
	return r.b.propose(ctx, c)
}

// Wait waits for the answer to a command.
type Wait = func(context.Context) (event.Result, error)

// Begin is Propose in two steps, for a command and some that go along with it: they are
// in the same entry, in the order of their classes, if that has room for them. It returns
// at once, with a function for each command, to be called once, that waits for the answer
// as Propose does. If the first command is refused, the others are not proposed.
func (r *Replica) Begin(c *event.Command, along []*event.Command) []Wait {
	return r.b.begin(append([]*event.Command{c}, along...)...)
}

// unavailable returns why this node accepts and applies nothing now; nil: it does.
func (r *Replica) unavailable() *event.Problem {
	if r.run.dead.Load() != nil {
		return notNow("this node has failed and is about to exit; nothing was proposed")
	}
	select {
	case <-r.run.stop:
		return shuttingDown()
	default:
	}
	if r.missing() > 0 {
		return catchingUp()
	}
	if r.stores.disk.Stalled() {
		return notNow("%v; retry on another node", watchdog.ErrStalled)
	}
	return nil
}

// signal sends to a channel of capacity one, unless it is full or nil.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// oncePerMinute limits a log line that may be repeated often.
func oncePerMinute() rate.Sometimes { return rate.Sometimes{Interval: time.Minute} }

// applied is called by the FSM after each batch.
func (r *Replica) applied(p progress) {
	r.b.applied()
	signal(r.o.Changed)
	if p.unmarked == 0 || p.unmarked >= r.o.MarkEntries { // a new mark, or it is time for one
		signal(r.agreement.wake)
	}
	if r.snapshotDue(p) {
		signal(r.snapNow)
	}
}

// watchLeadership follows who leads, be it this node, until the replica stops.
func (r *Replica) watchLeadership() {
	seen := make(chan hraft.Observation, 1)
	// Not blocking: an observation that finds the channel full is dropped, and the one
	// in it makes us look at the newest state.
	o := hraft.NewObserver(seen, false, func(o *hraft.Observation) bool {
		_, ok := o.Data.(hraft.LeaderObservation)
		return ok
	})
	r.raft.RegisterObserver(o)
	defer r.raft.DeregisterObserver(o)
	for {
		r.peers.leaderAddr.Store(r.otherLeader().HTTPAddr)
		r.b.moved()
		select {
		case leads := <-r.run.leads:
			if leads { // before anything is stamped
				r.followClock()
				r.clock.Lead(r.fsm.progress().clock, r.alone())
				r.askPeers()
			}
			r.b.setLeader(leads)
			signal(r.o.Changed) // after the batcher knows: readers then see it
		case <-seen:
		case <-r.run.stop:
			return
		}
	}
}

// Self is what the configuration calls this node: see Member.Server.
func (r *Replica) Self() string { return string(r.id) }

// codeNoMember is the code of a peer.Error: the caller is not of the cluster, or not a
// member of it as far as this node knows. Nothing was done.
const codeNoMember = "no_member"

// forCluster accepts calls only from nodes of this cluster; they need not be members.
func (r *Replica) forCluster(h peer.Handler) peer.Handler {
	return func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if from.Cluster != r.o.ClusterID {
			return nil, &peer.Error{Code: codeNoMember, Detail: fmt.Sprintf(
				"node %q is of cluster %q, not of %q", from.Node, from.Cluster, r.o.ClusterID)}
		}
		return h(ctx, from, body)
	}
}

// forMembers accepts calls only from members: their own API has checked what they
// forward, tokens included.
func (r *Replica) forMembers(h peer.Handler) peer.Handler {
	return r.forCluster(func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		if !r.member(serverID(from.Node, from.Incarnation)) && !r.member(serverID(from.Node, "")) {
			return nil, &peer.Error{Code: codeNoMember,
				Detail: fmt.Sprintf("node %q is no member", from.Node)}
		}
		return h(ctx, from, body)
	})
}

// HandleMembers serves the calls of that name that members of the cluster make, until ctx ends.
func (r *Replica) HandleMembers(ctx context.Context, name string, h peer.Handler) {
	r.o.Net.Handle(ctx, name, r.forMembers(h))
}

// AskLeader calls the leader, in JSON, if it is another node. It returns errNotLeader where none is
// known.
func (r *Replica) AskLeader(ctx context.Context, name string, ask, answer any) error {
	to := r.otherLeader()
	if to.ID == "" {
		return errNotLeader
	}
	if _, err := peer.Ask(ctx, r.o.Net, to.target(), name, ask, answer); err != nil {
		return fmt.Errorf("the leader %s did not answer: %w", to.ID, err)
	}
	return nil
}

// AskOthers calls, in JSON, all other members that can be reached, and returns the answers
// that come before ctx ends.
func (r *Replica) AskOthers(ctx context.Context, name string, body []byte) (answers [][]byte) {
	var ask []peer.Target
	for _, m := range r.remotes() {
		if m.Reachable {
			ask = append(ask, m.target())
		}
	}
	q := json.RawMessage(body)
	for _, a := range callEach[json.RawMessage](ctx, r.o.Net, ask, name, q) {
		if a.err == nil { // else its part is missing; the caller cannot do better
			answers = append(answers, a.answer)
		}
	}
	return answers
}

// Shutdown transfers leadership, accepts nothing new, waits until what was accepted is
// answered or ctx ends, and closes everything. What is unanswered then is answered: not
// applied if it was not proposed yet, else unknown.
func (r *Replica) Shutdown(ctx context.Context) error {
	if err := r.StepDown(ctx); err != nil {
		r.o.Logger.Warn("leadership transfer at shutdown failed", "error", err)
	}
	r.b.close()
	r.b.until(ctx, func() bool { return r.b.queues.n == 0 && len(r.b.flight) == 0 })
	var err error
	r.run.once.Do(func() { err = r.end() })
	return err
}

func (r *Replica) end() error {
	r.run.end()
	r.b.stop()
	r.b.forward.sending.Wait()
	// hashicorp/raft forgets the futures of entries that are committed but not applied
	// when it shuts down. So nothing commits any more, and what has is applied first.
	r.trans.Close()
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	r.b.until(ctx, func() bool { return !r.b.busyLocked() })
	select {
	case r.membership.changing <- struct{}{}:
	case <-ctx.Done():
	}
	err := r.raft.Shutdown().Error()
	r.run.wg.Wait()
	r.b.giveUp()
	r.b.forward.serving.Wait()
	r.trans.wait()
	return errors.Join(err, r.stores.close())
}

// settleTime is how long committed entries may take to be applied at the end.
const settleTime = 100 * time.Millisecond

// StepDown transfers leadership to another voter, if this node has it and there is one.
// Until Shutdown this node goes on accepting requests, as one that does not lead. The
// error is why it still leads.
//
// It is called first when a node is drained: while the next leader starts, waiting
// commands stay here, and are then forwarded.
func (r *Replica) StepDown(ctx context.Context) error {
	var errs []error
	for _, v := range r.successors() {
		if !r.Leader() || ctx.Err() != nil {
			break
		}
		errs = append(errs, r.handOver(ctx, v))
	}
	if !r.Leader() || r.alone() {
		return nil
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// successors returns the other voters: the reachable ones (in the first second there are
// none) and those with the longest log first.
func (r *Replica) successors() []MemberStatus {
	all := slices.DeleteFunc(r.remotes(), func(v MemberStatus) bool {
		return !v.Votes || v.Status.Held
	})
	rank := func(v MemberStatus) uint64 {
		if v.Reachable {
			return v.Status.Last + 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b MemberStatus) int { return cmp.Compare(rank(b), rank(a)) })
	return all
}

// quiesce is how long a transfer waits for the entries in flight. The outcome of one that
// is not committed when leadership ends would be unknown to its clients.
const quiesce = time.Second

// handOver transfers leadership to another voter: it proposes nothing new, waits for the
// entries in flight, and returns when this node does not lead any more.
func (r *Replica) handOver(ctx context.Context, to MemberStatus) error {
	b := r.b
	defer b.hold()()
	drained, cancel := context.WithTimeout(ctx, quiesce)
	b.until(drained, func() bool { return !b.busyLocked() || !b.lead.leader })
	cancel()
	// Its future is not awaited: hashicorp/raft does not complete it in every case.
	r.raft.LeadershipTransferToServer(to.serverID(), to.serverAddress())
	// The library's attempt ends within an election timeout; then the other node stands
	// for election, and may still lose it.
	won, cancel := context.WithTimeout(ctx, 3*r.o.HeartbeatTimeout)
	defer cancel()
	if !b.until(won, func() bool { return !b.lead.leader }) {
		r.run.wg.Go(r.unstick)
		return fmt.Errorf("transfer leadership to %s: it did not take over", to.ID)
	}
	// Waiting commands are forwarded at once when a leader is known.
	b.until(won, func() bool { return b.lead.leader || b.forward.to != peer.Target{} })
	return nil
}

// transferSticks is how long a transfer may leave hashicorp/raft refusing all entries (#696)
// before this replica ends, so that another one leads. Where the other node does not respond, it
// refuses them for rpcTimeout.
const transferSticks = rpcTimeout + 5*time.Second

// transfer makes a voter the leader, "" any.
func (r *Replica) transfer(to string) error {
	if to == r.o.NodeID {
		return nil
	}
	for _, m := range r.successors() {
		if !m.Reachable || to != "" && m.ID != to {
			continue
		}
		ctx, cancel := r.within(transferSticks)
		defer cancel()
		if err := r.handOver(ctx, m); err != nil {
			p := notNow("leadership was not transferred: %v", err)
			p.Unknown = true
			return p
		}
		return nil
	}
	if to == "" {
		return conflict("", "there is no other voter that can be reached")
	}
	for _, m := range r.remotes() {
		if m.ID == to && m.Votes {
			return conflict("to", "node %s cannot be reached", to)
		} else if m.ID == to {
			return conflict("to", "node %s is no voter", to)
		}
	}
	return noMember("to", to)
}

// unstick watches, after a transfer that failed, that hashicorp/raft accepts entries again: its
// transfer may never end, and it refuses every entry meanwhile.
func (r *Replica) unstick() {
	began := r.b.probe()
	accepts := func() bool { return !r.b.lead.leader || r.b.lead.accepted.After(began) }
	for parts := 10; parts > 0; { // a pause of the process uses up one of them
		ctx, cancel := r.within(transferSticks / 10)
		ok := r.b.until(ctx, accepts)
		cancel()
		if ok || r.run.ctx.Err() != nil {
			return
		} else if !r.stores.disk.Stalled() { // what a disk may take is DiskTimeout
			parts--
		}
	}
	r.fatal(fmt.Errorf("leadership transfer blocks all writes for %v", transferSticks))
}

// full reports whether this node's disk is too full for produce.
func (r *Replica) full() bool {
	return r.b.room.refuses(event.ClassProduce, r.b.room.space.Free()) != nil
}

// makeRoom transfers leadership to a voter whose disk has room, if this one's has none:
// only the leader's disk decides what is refused.
func (r *Replica) makeRoom() {
	if !r.full() {
		return
	}
	for _, v := range r.successors() {
		if !v.Status.Full && v.level() {
			r.o.Logger.Warn("disk is nearly full: transferring leadership", "to", v.ID)
			ctx, cancel := r.within(transferSticks)
			defer cancel()
			if err := r.handOver(ctx, v); err != nil {
				r.o.Logger.Warn("leadership transfer failed", "error", err)
			}
			return
		}
	}
}

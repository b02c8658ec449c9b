package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft-wal/types"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/filekv"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/replay"
)

const (
	raftSegment = 16 << 10 // bytes
	marksEvery  = 50       // entries
)

// engine is cmd's, below HTTP and without read models: what uses a data
// directory, from its opening to its closing.
type engine struct {
	l       *life
	log     *log.Log
	machine *fsm.Replica
	replica *raft.Replica

	background  context.Context
	cancel      context.CancelFunc
	work        sync.WaitGroup
	stopServing func()
	stopping    atomic.Bool
	stopped     chan struct{}

	mu    sync.Mutex
	gone  bool // guarded by mu: nobody enters any more
	inUse sync.WaitGroup
}

// enter begins a request; leave ends it.
func (e *engine) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.gone {
		e.inUse.Add(1)
	}
	return !e.gone
}

func (e *engine) leave() { e.inUse.Done() }

// retire waits until no request is in flight.
func (e *engine) retire() {
	e.mu.Lock()
	e.gone = true
	e.mu.Unlock()
	e.inUse.Wait()
}

// install moves what was fetched in place; nil: it finishes what a crash interrupted.
func (l *life) install(p *fetch.Plan) error {
	installed, err := fetch.Install(l.fs, "/", p, l.logger)
	if installed {
		l.n.w.count("installed")
		l.n.w.say(l.n, "what it had missed is in place")
	}
	return err
}

// open opens an engine.
func (l *life) open() error {
	if err := l.install(nil); err != nil {
		return err
	}
	e, err := openEngine(l)
	if errors.Is(err, raft.ErrRolledBack) {
		l.n.w.count("lost its Raft store")
		l.n.w.say(l.n, "%v", err)
		if err := l.reincarnate(); err != nil {
			return err
		}
		e, err = openEngine(l)
	}
	if err != nil {
		return err
	}
	l.eng.Store(e)
	return nil
}

func openEngine(l *life) (_ *engine, err error) {
	w := l.n.w
	e := &engine{l: l, stopped: make(chan struct{})}
	e.background, e.cancel = context.WithCancel(l.alive)
	defer func() {
		if err != nil {
			_ = e.close()
		}
	}()
	ro := raft.Options{
		Node: *l.card, Dir: raftDir, CheckpointDir: checkpointDir, FS: l.fs,
		OpenKV: func(name string) (types.MetaStore, error) { return filekv.Open(l.fs, name) },
		Net:    l.peers, Contacts: w.addrs(),
		Wall: l.n.wallNow, Logger: l.logger,
		OnFatal: l.replicaFailed, OnJoined: l.joined,
		SnapshotThreshold: w.plan.Sizes.Checkpoint, SnapshotInterval: -1,
		TrailingLogs: w.plan.Sizes.Trailing, KeepCheckpoints: 2,
		SegmentBytes: raftSegment, MarkEntries: marksEvery,
		// Each beat is work.
		HeartbeatTimeout: time.Second, LeaderLeaseTimeout: time.Second / 2,
		CommitTimeout: 250 * time.Millisecond,
		FreeBytes: func() (uint64, error) {
			if l.n.full.Load() > 0 {
				return 1 << 20, nil
			}
			return 1 << 40, nil
		},
		BeforeStore: func() {
			if d := l.n.stall.Load(); d > 0 {
				time.Sleep(time.Duration(d))
			}
		},
		Limits: raft.Limits{Entries: 4},
	}
	for _, dir := range []string{logDir, raftDir, checkpointDir} {
		if err := l.fs.MkdirAll(dir); err != nil {
			return nil, err
		}
	}
	if ro.Witness, err = witness.Open(l.fs, markFile, l.card); err != nil {
		return nil, err
	}
	heldFrom, err := raft.Held(ro)
	if err != nil {
		return nil, err
	}
	history, state, err := replay.Recover(e.background, log.Options{
		FS: ro.FS, Dir: logDir, SegmentSize: l.card.LogSegmentBytes, HeldFrom: heldFrom,
		Logger: l.logger,
	}, checkpointDir)
	if err != nil {
		first, herr := raft.Held(ro)
		metas, bad, merr := checkpoint.List(l.fs, checkpointDir)
		w.say(l.n, "cannot recover: the Raft log begins at %d (%v), checkpoints are %v, bad "+
			"%v (%v)", first, herr, names(metas), bad, merr)
		w.saveDisk(l.n)
		return nil, err
	}
	e.log = history.Log
	e.machine = fsm.NewReplica(state, e.log)
	ro.Machine = &bent{Replica: e.machine, n: l.n}
	if e.replica, err = raft.Open(ro); err != nil {
		return nil, err
	}
	if w.o.NoVouch {
		l.peers.Handle(context.Background(), "raft.admission",
			func(context.Context, peer.Identity, []byte) ([]byte, error) {
				return []byte(`{"known":{"index":0,"servers":null}}`), nil
			})
	}
	e.stopServing = fetch.Serve(l.peers.Handle, fetch.Source{
		FS: l.fs, DataDir: "/", Log: e.log, Snapshot: e.replica.Snapshot, Logger: l.logger,
	})
	e.work.Go(e.fetchLacking)
	return e, nil
}

func names(metas []checkpoint.Meta) (out []string) {
	for _, m := range metas {
		out = append(out, fmt.Sprintf("%s (head %d)", m.Name(), m.HeadIndex))
	}
	return out
}

// bent is the machine on a computer that is slow now and then.
type bent struct {
	*fsm.Replica
	n *node
}

func (b *bent) Apply(index uint64, entry []byte) (res []event.Result, err error) {
	if d := b.n.apply.Load(); d > 0 {
		time.Sleep(time.Duration(d))
	}
	return b.Replica.Apply(index, entry)
}

// fetchLacking brings what this node lacks when the leader says so, and has it
// installed.
func (e *engine) fetchLacking() {
	for {
		select {
		case <-e.replica.Offers():
		case <-e.background.Done():
			return
		}
		offer := e.replica.Offer()
		if offer == nil {
			continue
		}
		e.l.n.w.say(e.l.n, "lacks what leads to checkpoint %d", offer.Meta.Index)
		plan, err := fetch.Fetch(e.background, fetch.Options{
			Net: e.l.peers, From: e.replica.Sources(offer), Checkpoint: offer.Meta,
			FS: e.l.fs, DataDir: "/", Logger: e.l.logger,
		})
		switch {
		case e.background.Err() != nil:
			return
		case errors.Is(err, fetch.ErrDiffers) && !e.l.n.flipped.Load():
			e.l.n.w.find("%s can't catch up: %v", e.l.n.name, err)
		case err != nil:
			e.l.n.w.say(e.l.n, "did not fetch it: %v", err)
		default:
			e.l.n.w.count("fetched")
			e.l.ask(change{why: "installing what was fetched",
				do: func() error { return e.l.install(plan) }})
			return // the next engine goes on from there
		}
	}
}

// stop ends an engine when no request is in flight any more. A crash may come in
// the middle of a clean stop: who comes second waits.
func (e *engine) stop(ctx context.Context) error {
	if !e.stopping.CompareAndSwap(false, true) {
		<-e.stopped
		return nil
	}
	defer close(e.stopped)
	e.cancel()
	e.work.Wait()
	err := e.replica.Shutdown(ctx)
	e.replica = nil
	return errors.Join(err, e.close())
}

// close closes what is open, the last opened first.
func (e *engine) close() error {
	e.cancel()
	e.work.Wait()
	var errs []error
	if e.replica != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		errs = append(errs, e.replica.Shutdown(ctx))
		cancel()
	}
	if e.stopServing != nil {
		e.stopServing()
	}
	if e.log != nil {
		errs = append(errs, e.log.Close())
	}
	return errors.Join(errs...)
}

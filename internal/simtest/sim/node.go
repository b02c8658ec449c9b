package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/peer"
)

// node is a machine: a disk, an address, and at most one process.
type node struct {
	w    *world
	name string
	addr string

	// What the nemesis bends.
	wall  atomic.Int64 // ns by which its wall clock is off
	apply atomic.Int64 // ns that each entry takes
	stall atomic.Int64 // ns that a write of the Raft log takes
	full  atomic.Int64 // not 0: its disk has no room
	// stalled is set once that may have been too long for it.
	stalled atomic.Bool

	// flipped is set while a byte of its files is wrong.
	flipped atomic.Bool
	lost    atomic.Bool // it has ended as it must not; it stays down

	mu     sync.Mutex
	disk   *memdisk.Disk
	life   *life // nil: it is down
	lives  int
	wanted bool // it must run: a process that ends on its own is started again
}

// now returns the process that runs, nil for none.
func (n *node) now() *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// life is one process.
type life struct {
	n      *node
	no     int
	mem    *memdisk.Disk
	fs     vfs.FS
	logger *slog.Logger

	cardMu sync.Mutex
	card   *datadir.Node
	peers  *peer.Net
	eng    atomic.Pointer[engine]

	incarnation atomic.Value // string, of card
	// failAt is the operation of the disk that was made to fail; 0 none.
	failAt atomic.Int64

	again   chan change
	keeping context.CancelFunc
	kept    sync.WaitGroup

	// alive ends when no answer of this process can reach anybody any more.
	alive context.Context
	end   context.CancelFunc
	once  sync.Once
}

// change is why the engine is reopened, and what is done to the directory
// while it is closed.
type change struct {
	why string
	do  func() error
}

// start starts a process on the node's disk, unless there is one.
func (n *node) start() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted = true
	if n.life != nil || n.w.over.Load() || n.lost.Load() {
		return
	}
	n.lives++
	l := &life{
		n: n, no: n.lives, mem: n.disk, fs: n.disk,
		logger: n.w.loggerOf(n), again: make(chan change, 1),
	}
	l.alive, l.end = context.WithCancel(context.Background())
	var keeping context.Context
	keeping, l.keeping = context.WithCancel(l.alive)
	n.life = l
	n.w.say(n, "starts, life %d", l.no)
	listener, err := n.w.net.Listen(n.addr) // here: a crash closes it
	l.kept.Go(func() {
		if err == nil {
			err = l.run(keeping, listener)
		}
		if err != nil {
			l.fail(fmt.Errorf("start: %w", err))
		}
	})
}

// wallNow is the node's wall clock.
func (n *node) wallNow() time.Time { return time.Now().Add(time.Duration(n.wall.Load())) }

// run is what cmd's startNode does.
func (l *life) run(keeping context.Context, listener net.Listener) (err error) {
	n := l.n
	if l.card, err = readCard(l.fs); err != nil {
		return errors.Join(err, listener.Close())
	}
	if l.card == nil {
		l.card = datadir.NewBlank(n.name, l.n.w.plan.Sizes.Segment)
		if err := writeCard(l.fs, l.card); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	l.incarnation.Store(l.card.Incarnation)
	l.peers, err = peer.New(peer.Options{
		Listener: listener, Dial: l.dial, Logger: l.logger,
		Self: peer.Identity{
			Cluster: l.card.ClusterID, Node: n.name, Incarnation: l.card.Incarnation,
			Raft: n.addr, HTTP: n.name + ":7070",
		},
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	context.AfterFunc(l.alive, func() { l.peers.Close() })
	if !l.card.Blank() {
		raft.AnswerBootstrap(l.peers, l.card)
		if err := l.open(); err != nil {
			return err
		}
	}
	l.keep(keeping)
	return nil
}

// dial connects to others, while this process lives.
func (l *life) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.alive, cancel)()
	c, err := l.n.w.net.Dialer(l.n.name)(ctx, addr)
	if err == nil && l.alive.Err() != nil {
		c.Close()
		err = l.alive.Err()
	}
	return c, err
}

// keep forms or finds the cluster where that is still to be done, and opens the
// engine again when it is asked to.
func (l *life) keep(ctx context.Context) {
	if l.card.Blank() {
		err := raft.Bootstrap(ctx, raft.BootstrapOptions{
			Net: l.peers, Card: l.card, Expect: len(l.n.w.nodes), Join: l.n.w.addrs(),
			Save: func() error { return writeCard(l.fs, l.card) }, Logger: l.logger,
		})
		if err == nil {
			err = l.open()
		}
		if err != nil {
			if ctx.Err() == nil {
				l.fail(fmt.Errorf("form: %w", err))
			}
			return
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-l.again:
			if err := l.reopen(c); err != nil {
				l.fail(fmt.Errorf("%s: %w", c.why, err))
				return
			}
		}
	}
}

// drainTime is cmd's.
const drainTime = 8 * time.Second

// reopen exchanges the engine.
func (l *life) reopen(c change) error {
	l.n.w.say(l.n, "reopens: %s", c.why)
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if old := l.eng.Swap(nil); old != nil {
		old.retire()
		if err := old.stop(ctx); err != nil && l.alive.Err() == nil {
			l.logger.Warn("the data directory was not closed in order", "error", err)
		}
	}
	if c.do != nil {
		if err := c.do(); err != nil {
			return err
		}
	}
	return l.open()
}

// ask lets keep reopen the engine. A second wish while one waits is the
// same one.
func (l *life) ask(c change) {
	select {
	case l.again <- c:
	default:
	}
}

// replicaFailed learns that the replica cannot continue.
func (l *life) replicaFailed(why error) {
	switch {
	case errors.Is(why, raft.ErrRolledBack):
		l.n.w.say(l.n, "is out of the cluster: %v", why)
		l.n.w.count("rolled back")
		l.ask(change{"the data directory was rolled back", l.reincarnate})
	case errors.Is(why, raft.ErrRemoved):
		l.n.w.count("removed")
		l.fail(errRemoved)
	default:
		l.fail(why)
	}
}

// reincarnate makes this directory another member of its cluster.
func (l *life) reincarnate() error {
	l.cardMu.Lock()
	defer l.cardMu.Unlock()
	l.card.NewIncarnation()
	if err := witness.Remove(l.fs, markFile); err != nil {
		return err
	}
	if err := writeCard(l.fs, l.card); err != nil {
		return err
	}
	l.incarnation.Store(l.card.Incarnation)
	self := l.peers.Self()
	self.Incarnation = l.card.Incarnation
	l.peers.SetSelf(self)
	return nil
}

// joined learns that the cluster's configuration has this directory.
func (l *life) joined() {
	l.cardMu.Lock()
	defer l.cardMu.Unlock()
	if l.card.Joined {
		return
	}
	l.card.Joined = true
	if err := writeCard(l.fs, l.card); err != nil {
		l.fail(err)
	}
}

var errRemoved = errors.New("removed from the cluster")

// fail is the end of a process that can't go on. Not to be called from what
// stop waits for: it returns at once.
func (l *life) fail(err error) {
	l.once.Do(func() {
		w := l.n.w
		if l.alive.Err() != nil {
			return // it was killed before
		}
		w.say(l.n, "ends: %v", err)
		switch {
		case errors.Is(err, memdisk.ErrCrashed), l.mem.Crashed():
			// The power has failed in a write; the nemesis, or this, makes an end.
			w.work.Go(func() { l.n.crash(l, true, nil) })
		case errors.Is(err, errRemoved):
			// An operator empties the directory.
			w.work.Go(func() {
				l.n.crash(l, false, nil)
				l.n.wipe()
			})
		default:
			if !w.expected(l, err) {
				w.find("%s ended: %v", l.n.name, err)
				l.n.lost.Store(true)
			}
			w.work.Go(func() { l.n.crash(l, false, nil) })
		}
	})
}

// crash ends a process at once. power: what was not synced is lost, or parts of
// it; otherwise the files are as the process saw them. then, if set, is called
// before it is started again, with the disk that is left.
func (n *node) crash(l *life, power bool, r *rand.Rand) {
	n.mu.Lock()
	if l == nil || n.life != l {
		n.mu.Unlock()
		return
	}
	n.life = nil
	l.end()
	if r == nil {
		r = rand.New(rand.NewPCG(n.w.o.Seed, uint64(n.lives)))
	}
	switch {
	case power && r.IntN(3) == 0:
		n.disk = l.mem.CrashWith(memdisk.LoseAll, r)
	case power:
		n.disk = l.mem.Crash(r)
	default:
		n.disk = l.mem.CrashWith(memdisk.LoseNone, r)
	}
	wanted := n.wanted
	n.w.net.Crash(n.name)
	n.mu.Unlock()
	// What is left of it ends beside: it reaches neither disk nor network.
	n.w.work.Go(l.bury)
	if wanted {
		n.w.work.Go(func() {
			if n.w.sleep(500 * time.Millisecond) {
				n.mu.Lock()
				wanted := n.wanted
				n.mu.Unlock()
				if wanted {
					n.start()
				}
			}
		})
	}
}

// bury waits for the end of everything of a process that was killed.
func (l *life) bury() {
	l.kept.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if e := l.eng.Swap(nil); e != nil {
		e.retire()
		_ = e.stop(ctx)
	}
	if l.peers != nil {
		_ = l.peers.Close()
	}
}

// stop ends a process in order, as cmd does at SIGTERM.
func (n *node) stop() {
	n.mu.Lock()
	l := n.life
	n.wanted = false
	n.mu.Unlock()
	if l == nil {
		return
	}
	l.keeping()
	l.kept.Wait()
	ctx, cancel := context.WithTimeout(l.alive, drainTime)
	defer cancel()
	var err error
	if e := l.eng.Load(); e != nil {
		_ = e.replica.StepDown(ctx)
		l.eng.Store(nil)
		e.retire()
		err = e.stop(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != l {
		return // killed meanwhile
	}
	if err != nil {
		n.w.say(n, "did not stop in order: %v", err)
	}
	n.life = nil
	l.end()
	// As after a kill: nobody has this disk open any more.
	n.disk = l.mem.CrashWith(memdisk.LoseNone, rand.New(rand.NewPCG(0, 0)))
	n.w.net.Crash(n.name)
	n.w.work.Go(func() { _ = l.peers.Close() })
	n.w.say(n, "has stopped")
}

// errDisk is of a write that was made to fail.
var errDisk = errors.New("sim: input/output error")

// lose deletes a file of the Raft store of a node that is down.
func (n *node) lose(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w.say(n, "%s is deleted", name)
	if err := n.disk.Remove(raftDir + "/" + name); err != nil {
		n.w.say(n, "%v", err)
		return
	}
	if err := n.disk.SyncDir(raftDir); err != nil {
		n.w.find("%v", err)
	}
}

// flip changes a byte of a file that has checksums.
func (n *node) flip(r *rand.Rand) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var files []string
	for _, dir := range []string{logDir, checkpointDir, raftDir} {
		names, err := n.disk.List(dir)
		if err != nil {
			continue
		}
		for _, name := range names {
			// The two stores are bbolt's, and only here they are files of JSON.
			if path.Ext(name) != ".db" && len(n.disk.Get(path.Join(dir, name))) > 0 {
				files = append(files, path.Join(dir, name))
			}
		}
	}
	if len(n.disk.Get(markFile)) > 0 {
		files = append(files, markFile)
	}
	if len(files) == 0 {
		return false
	}
	name := files[r.IntN(len(files))]
	b := n.disk.Get(name)
	at := r.IntN(len(b))
	b[at] ^= 1 << r.IntN(8)
	n.disk.Put(name, b)
	n.w.say(n, "byte %d of %s is changed", at, name)
	return true
}

// wipe empties the disk of a node that is down.
func (n *node) wipe() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.disk = memdisk.New()
	n.w.say(n, "is wiped")
}

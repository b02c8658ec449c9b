package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/raft"
)

// Options of a run.
type Options struct {
	Seed  uint64
	Steps int // of the nemesis, at least; default 10
	// NoVouch is a mistake, to see that it is found: everybody vouches for everybody.
	NoVouch bool
	// Plan, if set, is done in place of the seed's own.
	Plan *Plan
	// Log takes what the nodes log, if set.
	Log slog.Handler
}

// Report is what came of a run.
type Report struct {
	Plan     Plan
	Ops      []crashtest.Op
	Findings []string
	Trace    []string
	Counts   map[string]int
	Took     time.Duration // of simulated time
	// Mended is how long it took, once all was healed, until every node was ready
	// and had its vote.
	Mended time.Duration
}

// world is a run.
type world struct {
	o     Options
	plan  Plan
	net   *memnet.Network
	nodes []*node
	start time.Time
	work  sync.WaitGroup
	busy  atomic.Int64 // faults under way
	over  atomic.Bool  // all is
	done  chan struct{}
	d     *crashtest.Driver

	mended time.Duration
	jitter atomic.Uint64
	slow   [3]atomic.Int64 // ns more to and from a node

	mu       sync.Mutex
	findings []string
	trace    []string
	counts   map[string]int
	copies   []backup
}

// backup is an old copy of a node's disk.
type backup struct {
	n    *node
	disk *memdisk.Disk
}

// Run does a run. It must be called in a bubble of testing/synctest of its own.
func Run(o Options) *Report {
	def(&o.Steps, 10)
	w := &world{o: o, start: time.Now(), counts: map[string]int{}, done: make(chan struct{})}
	if o.Plan != nil {
		w.plan = *o.Plan
		def(&w.plan.Sizes, sizes[0])
	} else {
		w.plan = NewPlan(o.Seed, o.Steps)
	}
	w.d = crashtest.NewDriver(crashtest.Options{
		Seed: o.Seed, Nodes: 3, Call: w.call,
		Pause: 400 * time.Millisecond, Lease: 3 * time.Second, KeyAge: 250,
	})
	w.net = memnet.New(memnet.Options{Latency: w.latency})
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		w.nodes = append(w.nodes, &node{w: w, name: name, addr: name + ":7071", disk: memdisk.New()})
	}
	w.run()
	w.over.Store(true)
	close(w.done)
	for _, n := range w.nodes {
		n.mu.Lock()
		l := n.life
		n.wanted = false
		n.mu.Unlock()
		n.crash(l, false, nil)
	}
	w.work.Wait()
	return &Report{Plan: w.plan, Ops: w.d.History.Ops(), Findings: w.findings, Trace: w.trace,
		Counts: w.counts, Took: time.Since(w.start), Mended: w.mended}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (w *world) addrs() (out []string) {
	for _, n := range w.nodes {
		out = append(out, n.addr)
	}
	return out
}

// sleep lets time pass, and reports whether the run still goes on.
func (w *world) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.done:
		return false
	}
}

func (w *world) latency(from, to string) time.Duration {
	// A walk over the golden ratio's multiples: as good as dice, and without a
	// lock.
	d := 200*time.Microsecond + time.Duration(w.jitter.Add(0x9E3779B97F4A7C15)>>44) // up to 1 ms
	for i, n := range w.nodes {
		if n.name == from || n.name == to {
			d += time.Duration(w.slow[i].Load())
		}
	}
	return d
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

func (w *world) line(who, format string, args []any) string {
	return fmt.Sprintf("%8.3fs %s ", time.Since(w.start).Seconds(), who) +
		fmt.Sprintf(format, args...)
}

// say writes down what happened.
func (w *world) say(n *node, format string, args ...any) {
	who := "  "
	if n != nil {
		who = n.name
	}
	line := w.line(who, format, args)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, line)
}

// find writes down what must not be.
func (w *world) find(format string, args ...any) {
	line := w.line("!!", format, args)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, line)
	w.findings = append(w.findings, line)
}

// expected reports whether a process may end of that: what was done to it says so.
func (w *world) expected(l *life, err error) bool {
	at := int(l.failAt.Load())
	switch {
	case errors.Is(err, raft.ErrDiverged), errors.Is(err, raft.ErrAhead):
		return false
	case errors.Is(err, errDisk), l.n.flipped.Load():
		return true
	case at > 0 && l.mem.Ops() >= at:
		return true // raft-wal's rotation fails in the background, and reports it at the next write
	}
	return l.n.stalled.Load() && strings.Contains(err.Error(), "the disk does not answer within")
}

// saveDisk keeps the files of a node that cannot start, where somebody wants to
// look into them (SIM_KEEP).
func (w *world) saveDisk(n *node) {
	dir := os.Getenv("SIM_KEEP")
	if dir == "" {
		return
	}
	for _, d := range []string{"/", logDir, raftDir, checkpointDir, "/" + datadir.IncomingDir} {
		names, err := n.disk.List(d)
		if err != nil {
			continue
		}
		to := filepath.Join(dir, fmt.Sprint(w.o.Seed), n.name, d)
		if err := os.MkdirAll(to, 0o755); err != nil {
			w.say(n, "%v", err)
		}
		for _, name := range names {
			if b := n.disk.Get(path.Join(d, name)); b != nil {
				if err := os.WriteFile(filepath.Join(to, name), b, 0o644); err != nil {
					w.say(n, "%v", err)
				}
			}
		}
	}
}

func (w *world) loggerOf(n *node) *slog.Logger {
	if w.o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(w.o.Log).With("node", n.name)
}

// mendTime is how long it may take, once all is healed, until every node is ready
// and has its vote. It is far beyond what is usual.
const mendTime = 45 * time.Second

// run is a run from the first start to the end.
func (w *world) run() {
	for _, n := range w.nodes {
		n.start()
	}
	if !w.healthy(60 * time.Second) {
		w.find("the cluster did not form: %s", w.illness())
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := w.d.Setup(ctx); err != nil {
		w.find("the queues were not created: %v", err)
		return
	}
	w.d.Go(4)
	w.nemesis()
	w.heal()
	healed := time.Now()
	well := w.healthy(mendTime)
	w.mended = time.Since(healed)
	began := w.d.History.Now()
	if !well {
		w.find("not healthy again %v after all was healed: %s", mendTime, w.illness())
	} else if h := w.d.History; !h.Wait(10*time.Second,
		func() bool { return h.FirstWrite(began) > 0 }) {
		w.find("in 10 s of health no write was done")
	}
	w.d.Stop()
	if len(w.findings) > 0 {
		return // what follows would only say it again
	}
	r := rand.New(rand.NewPCG(w.o.Seed, 2))
	w.cutAll(r, func() time.Duration { return 0 })
	if !w.healthy(mendTime) {
		w.find("not healthy %v after the power was back: %s", mendTime, w.illness())
		return
	}
	ctx, cancel = context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := errors.Join(w.cross(20*time.Second), w.d.Peek(ctx), w.d.Drain(ctx, 3)); err != nil {
		w.find("after the power was back: %v", err)
		return
	}
	w.judge()
}

// cross has a write done: what was under way before a crash of all comes before
// it, or never.
func (w *world) cross(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return w.d.Cross(ctx)
}

// with calls fn with a node's engine, if it has one.
func (n *node) with(fn func(e *engine)) bool {
	l := n.now()
	if l == nil {
		return false
	}
	e := l.eng.Load()
	if e == nil || !e.enter() {
		return false
	}
	defer e.leave()
	fn(e)
	return true
}

// illness says why not every node is up, has a vote, and has applied what was
// committed; "" if all is well.
func (w *world) illness() string {
	var why []string
	say := func(n *node, format string, args ...any) {
		why = append(why, n.name+": "+fmt.Sprintf(format, args...))
	}
	leaders := map[string]bool{}
	lowest, highest := uint64(1<<63), uint64(0)
	for _, n := range w.nodes {
		up := n.with(func(e *engine) {
			if ok, reasons := e.replica.Ready(); !ok {
				say(n, "not ready: %s", strings.Join(reasons, "; "))
				return
			}
			s := e.replica.Status()
			leaders[s.LeaderID] = true
			lowest, highest = min(lowest, s.Applied), max(highest, s.Commit)
			voters, members := 0, e.replica.Members()
			for _, m := range members {
				for _, o := range w.nodes {
					if l := o.now(); l != nil && m.ID == o.name && m.Votes &&
						l.incarnation.Load() == m.Incarnation {
						voters++
					}
				}
			}
			if voters != len(w.nodes) || len(members) != len(w.nodes) {
				say(n, "%d of %d servers vote: %v", voters, len(members), members)
			}
		})
		if !up {
			say(n, "is not up")
		}
	}
	if len(why) == 0 && len(leaders) != 1 {
		why = append(why, fmt.Sprintf("they follow %v", leaders))
	}
	if len(why) == 0 && lowest+32 < highest {
		why = append(why, fmt.Sprintf("one has applied %d of %d", lowest, highest))
	}
	return strings.Join(why, " | ")
}

// healthy waits until all is well.
func (w *world) healthy(within time.Duration) bool {
	return w.wait(within, func() bool { return w.illness() == "" })
}

// wait waits until ok.
func (w *world) wait(within time.Duration, ok func() bool) bool {
	for end := time.Now().Add(within); time.Now().Before(end); {
		if ok() {
			return true
		}
		if !w.sleep(100 * time.Millisecond) {
			return false
		}
	}
	return false
}

// heal ends all that was done, and starts who is down.
func (w *world) heal() {
	w.say(nil, "all is healed")
	w.net.HealAll()
	for i, n := range w.nodes {
		w.slow[i].Store(0)
		n.apply.Store(0)
		n.stall.Store(0)
		n.full.Store(0)
		n.start()
	}
}

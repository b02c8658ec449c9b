package forming

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/raft/peer"
)

// A world holds machines with disks and the network between them, for one
// synctest bubble. It can stop a machine at any step: a message that leaves,
// arrives or is answered, or a write before and after it reached the disk.
type world struct {
	t        *testing.T
	latency  time.Duration // of a message, at most
	mu       sync.Mutex
	rng      *rand.Rand
	machines []*machine
	steps    int
	// step, if set, is called at each step with those who take part in it.
	step func(n int, what string, parts ...*machine)
	cut  map[[2]*machine]bool
	log  []string
	wg   sync.WaitGroup
}

var errDead = errors.New("connection reset")

func newWorld(t *testing.T, seed uint64, n int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), latency: 50 * time.Millisecond, cut: map[[2]*machine]bool{}}
	var join []string
	for i := range n {
		join = append(join, fmt.Sprintf("10.0.0.%d:7071", i+1))
	}
	for i := range n {
		w.add(fmt.Sprintf("n%d", i+1), join[i], n, join)
	}
	return w
}

// machine is one node: its settings, its disk, and the process that runs on it.
type machine struct {
	w      *world
	id     string
	addr   string
	expect int
	join   []string

	// The disk.
	incarnation string
	saved       *Result

	proc   *proc
	ctx    context.Context // of proc; starting another one needs this one's end
	cancel context.CancelFunc
	begun  int // processes, and disks
	err    error
}

func (w *world) add(id, addr string, expect int, join []string) *machine {
	m := &machine{w: w, id: id, addr: addr, expect: expect, join: join, incarnation: id + ".1"}
	w.machines = append(w.machines, m)
	return m
}

// start runs the node as cmd does: Decide where it has no cluster, else Serve.
func (m *machine) start() {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.proc != nil {
		return
	}
	m.begun++
	m.ctx, m.cancel = context.WithCancel(context.Background())
	p := &proc{m: m, ctx: m.ctx, handlers: map[string]peer.Handler{}, self: peer.Identity{
		Node: m.id, Incarnation: m.incarnation, Raft: m.addr, HTTP: strings.Replace(m.addr, ":7071", ":7070", 1),
	}}
	m.proc, m.err = p, nil
	if m.saved != nil {
		p.self.Cluster = m.saved.Cluster
		cluster, initial := m.saved.Cluster, m.saved.Initial
		m.w.wg.Go(func() { Serve(p, cluster, initial) })
		return
	}
	clusters := 0
	m.w.wg.Go(func() {
		r, err := Decide(p.ctx, Options{
			Net: p, Expect: m.expect, Join: m.join, Save: p.save, Logger: slog.New(words{p}),
			NewCluster: func() string { clusters++; return fmt.Sprintf("%s/%d/%d", m.incarnation, m.begun, clusters) },
		})
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		if m.proc != p {
			return // it died on the way
		}
		m.err = err
		if err == nil && (m.saved == nil || m.saved.Cluster != r.Cluster || p.self.Cluster != r.Cluster) {
			m.w.t.Errorf("%s: returned %+v, saved %+v, is %+v", m.id, r, m.saved, p.self)
		}
	})
}

// stop ends the process at once, wherever it is; wipe takes its disk too.
func (m *machine) stop(wipe bool) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.proc != nil {
		m.proc = nil
		m.cancel()
	}
	if wipe {
		m.begun++
		m.incarnation, m.saved = fmt.Sprintf("%s.%d", m.id, m.begun), nil
	}
	m.w.note("%s stops, wiped %v", m.id, wipe)
}

// note keeps what happened, for a failure's sake. mu is held.
func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// happen is one step.
func (w *world) happen(what string, parts ...*machine) {
	w.mu.Lock()
	w.steps++
	n, step := w.steps, w.step
	var ids []string
	for _, m := range parts {
		ids = append(ids, m.id)
	}
	w.note("%d %s %s", n, what, strings.Join(ids, " "))
	w.mu.Unlock()
	if step != nil {
		step(n, what, parts...)
	}
}

// roll returns a number below n, and while a time up to d.
func (w *world) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

func (w *world) while(d time.Duration) time.Duration { return time.Duration(w.roll(int(d))) + 1 }

// travel lets a message be under way for a while.
func (w *world) travel(ctx context.Context) error {
	select {
	case <-time.After(w.while(w.latency)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *world) at(addr string) *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.addr == addr {
			return m.proc
		}
	}
	return nil
}

// proc is a running process, and its end of the network.
type proc struct {
	m    *machine
	ctx  context.Context
	told []string

	mu       sync.Mutex
	self     peer.Identity
	handlers map[string]peer.Handler
}

func (p *proc) alive() bool {
	p.m.w.mu.Lock()
	defer p.m.w.mu.Unlock()
	return p.m.proc == p
}

func (p *proc) Self() peer.Identity {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.self
}

func (p *proc) SetSelf(i peer.Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.self = i
}

func (p *proc) Handle(name string, h peer.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers[name] = h
}

func (p *proc) Call(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, peer.Identity, error) {
	var nobody peer.Identity
	w := p.m.w
	if !p.alive() {
		return nil, nobody, errDead
	}
	other := w.at(to.Addr)
	if other == nil {
		return nil, nobody, errors.New("connection refused")
	}
	w.mu.Lock()
	cut := w.cut[[2]*machine{p.m, other.m}]
	w.mu.Unlock()
	if cut {
		<-ctx.Done()
		return nil, nobody, ctx.Err()
	}
	w.happen(name+" leaves", p.m, other.m)
	if err := w.travel(ctx); err != nil {
		return nil, nobody, err
	}
	who, from := other.Self(), p.Self()
	w.happen(name+" arrives", p.m, other.m)
	switch {
	case !other.alive() || !p.alive():
		return nil, nobody, errDead
	case to.Node != "" && to.Node != who.Node || to.Incarnation != "" && to.Incarnation != who.Incarnation,
		from.Cluster != "" && who.Cluster != "" && from.Cluster != who.Cluster:
		return nil, nobody, &peer.Error{Code: "refused", Detail: "this is " + who.Node}
	}
	other.mu.Lock()
	h := other.handlers[name]
	other.mu.Unlock()
	if h == nil {
		return nil, who, &peer.Error{Code: "unknown_call", Detail: name}
	}
	answer, err := h(ctx, from, slices.Clone(body))
	w.happen(name+" handled", p.m, other.m)
	if !other.alive() {
		return nil, nobody, errDead
	}
	if terr := w.travel(ctx); terr != nil {
		return nil, nobody, terr
	}
	w.happen(name+" answered", p.m, other.m)
	if !p.alive() {
		return nil, nobody, errDead
	}
	return answer, who, err
}

// save is the durable write. After it every disk is looked at: no two may
// name different clusters, at no time.
func (p *proc) save(r Result) error {
	m, w := p.m, p.m.w
	w.happen("write", m)
	if err := w.travel(context.Background()); err != nil {
		return err
	}
	w.mu.Lock()
	if m.proc != p {
		w.mu.Unlock()
		return errDead
	}
	m.saved = &r
	w.note("%s belongs to %s", m.id, r.Cluster)
	for _, o := range w.machines {
		if o.saved != nil && o.saved.Cluster != r.Cluster {
			w.t.Errorf("two clusters: %s of %s, %s of %s\n%s", m.id, r.Cluster, o.id, o.saved.Cluster, strings.Join(w.log, "\n"))
		}
		if o.saved != nil && o.saved.Formed() && r.Formed() && !slices.Equal(o.saved.Initial, r.Initial) {
			w.t.Errorf("%s and %s are of the same cluster, but not of the same configuration:\n%v\n%v", m.id, o.id, r.Initial, o.saved.Initial)
		}
	}
	w.mu.Unlock()
	w.happen("written", m)
	if !p.alive() {
		return errDead
	}
	return nil
}

// settled reports whether every machine runs and belongs to a cluster.
func (w *world) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.proc == nil || m.saved == nil {
			return false
		}
	}
	return true
}

// await lets virtual time go on until all are settled, and then ends the world.
func (w *world) await() {
	w.t.Helper()
	for range 600 {
		if w.settled() {
			break
		}
		time.Sleep(time.Second) // in the bubble
	}
	if !w.settled() {
		w.mu.Lock()
		w.t.Errorf("not settled after 10 minutes: %s\n%s", w.tell(), strings.Join(w.log[max(0, len(w.log)-200):], "\n"))
		w.mu.Unlock()
	}
	w.end()
}

func (w *world) tell() string {
	var out []string
	for _, m := range w.machines {
		out = append(out, fmt.Sprintf("%s runs %v, saved %+v, failed with %v", m.id, m.proc != nil, m.saved, m.err))
	}
	return strings.Join(out, "; ")
}

func (w *world) end() {
	w.mu.Lock()
	w.step = nil
	w.mu.Unlock()
	for _, m := range w.machines {
		m.stop(false)
	}
	w.wg.Wait()
}

// words is a slog.Handler that keeps what a process said.
type words struct{ p *proc }

func (h words) Enabled(context.Context, slog.Level) bool { return true }
func (h words) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h words) WithGroup(string) slog.Handler            { return h }
func (h words) Handle(_ context.Context, r slog.Record) error {
	h.p.m.w.mu.Lock()
	defer h.p.m.w.mu.Unlock()
	h.p.told = append(h.p.told, r.Message)
	return nil
}

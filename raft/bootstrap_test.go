package raft

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
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/raft/peer"
)

// world is some machines and the network between them, in one synctest bubble.
type world struct {
	t        *testing.T
	net      *memnet.Network
	machines []*machine
	rngMu    sync.Mutex
	rng      *rand.Rand
	mu       sync.Mutex
	logged   lines
	// saving, if set, is called before and after each write of a decision.
	saving func(m *machine, done bool)
}

// machine is one node: its settings, its disk, and the process that runs on it.
type machine struct {
	w           *world
	id, addr    string
	expect      int
	join        []string
	disks       int           // incarnations
	saved       *datadir.Node // nil: it has no cluster
	cancel      func()        // ends the process; nil: none runs
	ended       func()        // waits for its end
	err         error
	incarnation string
}

// newWorld has n machines that are to form a cluster.
func newWorld(t *testing.T, seed uint64, n int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
	latency := func(string, string) time.Duration { return w.roll(50 * time.Millisecond) }
	w.net = memnet.New(memnet.Options{Latency: latency})
	var join []string
	for i := range n {
		join = append(join, fmt.Sprintf("n%d:7071", i+1))
	}
	for i, addr := range join {
		id := fmt.Sprintf("n%d", i+1)
		w.machines = append(w.machines, &machine{w: w, id: id, addr: addr, expect: n, join: join})
	}
	for _, m := range w.machines {
		m.wipe()
	}
	return w
}

func (w *world) roll(most time.Duration) time.Duration {
	w.rngMu.Lock()
	defer w.rngMu.Unlock()
	return time.Duration(w.rng.Int64N(int64(most)))
}

func (m *machine) wipe() {
	m.disks++
	m.incarnation, m.saved = fmt.Sprintf("%s.%d", m.id, m.disks), nil
}

// start runs the node as cmd does.
func (m *machine) start() {
	w := m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.cancel != nil {
		return
	}
	l, err := w.net.Listen(m.addr)
	if err != nil {
		w.t.Error(err)
		return
	}
	self := peer.Identity{Node: m.id, Incarnation: m.incarnation, Raft: m.addr}
	if m.saved != nil {
		self.Cluster = m.saved.ClusterID
	}
	p, err := peer.New(peer.Options{Listener: l, Dial: w.net.Dialer(m.id), Self: self})
	if err != nil {
		w.t.Error(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	m.cancel, m.ended = cancel, func() { p.Close(); <-done }
	if m.saved != nil {
		AnswerBootstrap(p, m.saved)
		close(done)
		return
	}
	go func() {
		defer close(done)
		card := &datadir.Node{}
		err := Bootstrap(ctx, BootstrapOptions{
			Net: p, Card: card, Expect: m.expect, Join: m.join,
			Save:   func() error { return m.save(ctx, card) },
			Logger: slog.New(slog.NewTextHandler(&w.logged, nil)),
		})
		w.mu.Lock()
		m.err = err
		w.mu.Unlock()
	}()
}

func (m *machine) save(ctx context.Context, card *datadir.Node) error {
	if m.w.saving != nil {
		m.w.saving(m, false)
	}
	m.w.mu.Lock()
	if ctx.Err() != nil {
		m.w.mu.Unlock()
		return ctx.Err()
	}
	m.saved = card
	m.w.mu.Unlock()
	m.w.one()
	if m.w.saving != nil {
		m.w.saving(m, true)
	}
	return nil
}

// kill ends the process, and the disk with it if wiped.
func (m *machine) kill(wipe bool) {
	m.w.mu.Lock()
	ended := func() {}
	if m.cancel != nil {
		m.cancel()
		m.w.net.Crash(m.id)
		m.cancel, ended = nil, m.ended
	}
	if wipe {
		m.wipe()
	}
	m.w.mu.Unlock()
	ended()
}

// one checks that all that have a cluster have the same one, and the same first
// configuration.
func (w *world) one() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first *datadir.Node
	for _, m := range w.machines {
		self := func(f datadir.Member) bool { return f.ID == m.id && f.Incarnation == m.incarnation }
		switch {
		case m.saved == nil:
		case m.saved.Initial != nil && !slices.ContainsFunc(m.saved.Initial, self):
			w.t.Errorf("%s is none of the first: %+v", m.incarnation, m.saved)
		case first == nil:
			first = m.saved
		case m.saved.ClusterID != first.ClusterID:
			w.t.Errorf("two clusters: %+v and %+v", first, m.saved)
		case m.saved.Initial != nil && first.Initial != nil &&
			!slices.Equal(m.saved.Initial, first.Initial):
			w.t.Errorf("two configurations: %+v and %+v", first, m.saved)
		case first.Initial == nil:
			first = m.saved
		}
	}
}

// await waits until all have a cluster, and ends.
func (w *world) await() {
	w.t.Helper()
	until(w.t, "all have a cluster", w.all)
	w.one()
	w.end()
}

func (w *world) all() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.machines, func(m *machine) bool { return m.saved == nil })
}

func (w *world) end() {
	w.net.HealAll()
	for _, m := range w.machines {
		m.kill(false)
	}
}

// failed is why a node's Bootstrap has ended.
func (m *machine) failed() string {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return fmt.Sprint(m.err)
}

func TestEveryOrderOfStarts(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {1, 2, 0}, {2, 1, 0}} {
		for _, apart := range []time.Duration{0, 300 * time.Millisecond, 20 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 3)
				for _, i := range order {
					time.Sleep(apart)
					w.machines[i].start()
				}
				began := time.Now()
				w.await()
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("order %v, %s apart: took %s after the last start", order, apart, took)
				}
				for _, m := range w.machines {
					assert.Equal(t, len(m.saved.Initial), 3, "%s: %+v", m.id, m.saved)
				}
			})
		}
	}
}

// TestStorm kills, wipes and cuts off at random for a while, also around the
// writes of decisions; then all comes back. At no time are there two clusters,
// and in the end there is one.
func TestStorm(t *testing.T) {
	seeds := uint64(80) // in make sim
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, 3)
			until := time.Now().Add(20 * time.Second)
			var wg sync.WaitGroup
			hit := func(m *machine) {
				wipe, away := w.roll(3) == 0, w.roll(4*time.Second)
				wg.Go(func() {
					m.kill(wipe)
					time.Sleep(away)
					m.start()
				})
			}
			w.saving = func(m *machine, done bool) {
				if time.Now().Before(until) && w.roll(2) == 0 {
					hit(w.machines[w.roll(3)])
					time.Sleep(w.roll(300 * time.Millisecond))
				}
			}
			for _, m := range w.machines {
				m.start()
			}
			for time.Now().Before(until) {
				time.Sleep(w.roll(2 * time.Second))
				w.net.HealAll()
				if a, b := w.machines[w.roll(3)], w.machines[w.roll(3)]; a != b && w.roll(2) == 0 {
					w.net.Cut(a.id, b.id)
				}
				if w.roll(3) == 0 {
					hit(w.machines[w.roll(3)])
				}
			}
			wg.Wait()
			w.net.HealAll()
			for _, m := range w.machines {
				m.start()
			}
			w.await()
			require.False(t, t.Failed(), "seed %d", seed)
		})
	}
}

// TestFailedWrite: a node that does not know whether it has formed answers
// nobody that it is fresh.
func TestFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 2)
		l, err := w.net.Listen("n1:7071")
		require.NoError(t, err)
		self := peer.Identity{Node: "n1", Incarnation: "i1", Raft: "n1:7071"}
		p, err := peer.New(peer.Options{Listener: l, Dial: w.net.Dialer("n1"), Self: self})
		require.NoError(t, err)
		defer p.Close()
		broken := errors.New("input/output error")
		w.machines[1].start()
		save := func() error {
			to := peer.Target{Addr: "n1:7071"}
			_, _, err := p.Call(t.Context(), to, rpcBootstrap, []byte("{}"))
			assert.True(t, err != nil && strings.Contains(err.Error(), "unknown_call"),
				"while it writes: %v", err)
			return broken
		}
		err = Bootstrap(t.Context(), BootstrapOptions{
			Net: p, Card: &datadir.Node{}, Expect: 2, Join: w.machines[0].join, Save: save,
			Logger: slog.New(slog.DiscardHandler),
		})
		if !errors.Is(err, broken) || p.Self().Cluster != "" {
			t.Errorf("%v; is %+v", err, p.Self())
		}
		w.end()
	})
}

// TestSettings: what keeps nodes from forming a cluster, in words, and settings
// that are refused at once.
func TestSettings(t *testing.T) {
	three := []string{"n1:7071", "n2:7071", "n3:7071"}
	expect := func(i, n int, join ...string) func([]*machine) {
		return func(ms []*machine) { ms[i].expect, ms[i].join = n, join }
	}
	for name, c := range map[string]struct {
		change func(ms []*machine)
		says   string // in the log
		err    string // of the first machine
	}{
		"expect": {expect(1, 2, three[:2]...), "n2:7071 (n2) expects 2 nodes, this one 3", ""},
		"lists": {expect(1, 3, "n1:7071", "n2:7071", "n4:7071"),
			"n2:7071 (n2) was given another list: " +
				"join is n1:7071, n2:7071, n4:7071 there, n1:7071, n2:7071, n3:7071 here", ""},
		"joiner": {expect(2, 0, three...),
			"n3:7071 (n3) does not form a cluster: start it with bootstrap-expect 3", ""},
		"only joiners": {func(ms []*machine) {
			for i := range ms {
				expect(i, 0, three...)(ms)
			}
		}, "n2:7071 (n2) belongs to none yet", ""},
		"own name": {func(ms []*machine) { ms[1].id = "n1" }, "",
			"there is a node n1 already at n2:7071"},
		"too few": {expect(0, 3, three[:2]...), "",
			"bootstrap-expect is 3, but join names 2 nodes"},
		"too many": {expect(0, 3, append(slices.Clone(three), "n4:7071")...), "",
			"bootstrap-expect is 3, but join names 4 nodes"},
		"nobody":      {expect(0, 3), "", "bootstrap-expect is 3, but join names 1 nodes"},
		"only itself": {expect(0, 1, three[:1]...), "", "join names only this node itself"},
		"no address":  {expect(0, 3, "n2"), "", "join: address n2: missing port"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 3)
				c.change(w.machines)
				for _, m := range w.machines {
					m.start()
				}
				until(t, c.says+c.err, func() bool {
					return c.says != "" && w.logged.has(c.says) ||
						c.err != "" && strings.Contains(w.machines[0].failed(), c.err)
				})
				time.Sleep(10 * time.Second) // the others do not form one, either
				w.end()
				for _, m := range w.machines {
					assert.True(t, m.saved == nil, "%s formed %+v", m.id, m.saved)
				}
			})
		})
	}
}

// TestLeavesItselfOut: a list without the own address is the same list; and one
// node alone needs none.
func TestLeavesItselfOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		for i, m := range w.machines {
			m.join = slices.Delete(slices.Clone(m.join), i, i+1)
			m.start()
		}
		w.await()
		alone := newWorld(t, 1, 1)
		alone.machines[0].join = nil
		alone.machines[0].start()
		alone.await()
	})
}

// TestFinds: who only joins, and who is wiped, finds the cluster at one address
// of several, and waits where there are two clusters' addresses.
func TestFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 4)
		for i, m := range w.machines {
			m.expect, m.join = 1, nil
			if i == 2 {
				m.join = []string{"n4:7071", "n1:7071"} // n4 does not run
			}
		}
		w.machines[0].start()
		time.Sleep(time.Second)
		w.machines[2].start()
		time.Sleep(time.Minute)
		w.mu.Lock()
		got := w.machines[2].saved
		w.mu.Unlock()
		assert.True(t, got != nil && got.Initial == nil &&
			got.ClusterID == w.machines[0].saved.ClusterID, "joins %+v", got)
		w.machines[1].saved = &datadir.Node{ClusterID: "other"}
		w.machines[1].start()
		w.machines[3].join = []string{"n1:7071", "n2:7071"}
		w.machines[3].start()
		time.Sleep(10 * time.Second)
		assert.Contains(t, w.machines[3].failed(), "nodes of two clusters")
		w.end()
	})
}

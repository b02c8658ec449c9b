package forming

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/raft/peer"
)

func (w *world) clusters() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		if m.saved != nil && !slices.Contains(out, m.saved.Cluster) {
			out = append(out, m.saved.Cluster)
		}
	}
	return out
}

// formed checks that all belong to one cluster and have its first
// configuration.
func (w *world) formed() {
	w.t.Helper()
	for _, m := range w.machines {
		if m.saved == nil || !m.saved.Formed() || len(m.saved.Initial) != len(w.machines) || m.saved.Contacts != nil {
			w.t.Errorf("%s: %+v", m.id, m.saved)
		}
	}
	if c := w.clusters(); len(c) != 1 {
		w.t.Errorf("clusters %v", c)
	}
}

func TestEveryOrderOfStarts(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, apart := range []time.Duration{0, 300 * time.Millisecond, 7 * time.Second, 5 * time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, 3)
				for _, i := range order {
					time.Sleep(apart)
					w.machines[i].start()
				}
				began := time.Now()
				w.await()
				if took := time.Since(began); took > 5*time.Second { // virtual: one tick, and three round trips
					t.Errorf("order %v, %s apart: took %s after the last start", order, apart, took)
				}
				w.formed()
			})
		}
	}
}

func TestStartsAtOnce(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, 3+2*int(seed%2))
			for _, m := range w.machines {
				time.AfterFunc(w.while(time.Second), m.start)
			}
			w.await()
			w.formed()
		})
	}
}

// TestCrashAtEveryStep lets each machine die at each single step of the forming,
// with and without its disk, and come back later.
func TestCrashAtEveryStep(t *testing.T) {
	steps := 0
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		for _, m := range w.machines {
			m.start()
		}
		w.await()
		steps = w.steps
	})
	if steps < 30 {
		t.Fatalf("only %d steps", steps)
	}
	for at := 1; at <= steps; at++ {
		for _, wipe := range []bool{false, true} {
			for victim := range 3 {
				for _, away := range []time.Duration{10 * time.Millisecond, 20 * time.Second} {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld(t, 1, 3)
						w.step = func(n int, _ string, _ ...*machine) {
							if n == at {
								m := w.machines[victim]
								m.stop(wipe)
								time.AfterFunc(away, m.start)
							}
						}
						for _, m := range w.machines {
							m.start()
						}
						w.await()
						if t.Failed() {
							t.Fatalf("step %d, n%d, wiped %v, away %s", at, victim+1, wipe, away)
						}
					})
				}
			}
		}
	}
}

// TestStorm kills, wipes and cuts off at random for a while; then all comes
// back. At no time are there two clusters, and in the end there is one.
func TestStorm(t *testing.T) {
	for seed := range uint64(120) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, 3)
			if seed%2 == 1 {
				w.latency = 1500 * time.Millisecond // answers outlive those who gave them
			}
			rare := 5 + w.roll(60)
			until := time.Now().Add(30 * time.Second)
			w.step = func(_ int, _ string, parts ...*machine) {
				m := parts[w.roll(len(parts))]
				if w.roll(rare) == 0 && time.Now().Before(until) && m.running() != nil {
					m.stop(w.roll(3) == 0)
					time.AfterFunc(w.while(8*time.Second), m.start)
				}
			}
			for _, m := range w.machines {
				time.AfterFunc(w.while(time.Second), m.start)
			}
			// One way at a time is cut.
			for time.Now().Before(until) {
				a, b := w.machines[w.roll(3)], w.machines[w.roll(3)]
				w.mu.Lock()
				clear(w.cut)
				w.cut[[2]*machine{a, b}] = a != b
				w.mu.Unlock()
				time.Sleep(time.Second)
			}
			w.mu.Lock()
			clear(w.cut)
			w.mu.Unlock()
			w.await()
			if c := w.clusters(); len(c) != 1 {
				t.Errorf("clusters %v", c)
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
}

// TestMixedLists: nodes whose lists differ, though they should not, form no two
// clusters that share a node's consent: each forms only what its own list says.
func TestMixedLists(t *testing.T) {
	formed := 0
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, 5)
			all := w.machines[0].join
			// Any two lists of three of five share a node.
			for _, m := range w.machines {
				m.expect, m.join = 3, nil
				for _, i := range w.rng.Perm(5)[:3] {
					m.join = append(m.join, all[i])
				}
			}
			// Some agree, or nothing would ever be formed.
			for i, some := 0, w.rng.Perm(5)[:3]; i < 3; i++ {
				w.machines[some[i]].join = []string{all[some[0]], all[some[1]], all[some[2]]}
			}
			w.step = func(_ int, _ string, parts ...*machine) {
				m := parts[w.roll(len(parts))]
				if w.roll(25) == 0 && m.running() != nil {
					m.stop(false)
					time.AfterFunc(time.Second, m.start)
				}
			}
			for _, m := range w.machines {
				time.AfterFunc(w.while(time.Second), m.start)
			}
			time.Sleep(40 * time.Second)
			w.end()
			formed += len(w.clusters())
		})
	}
	if formed < 50 {
		t.Errorf("only %d of 100 formed a cluster", formed)
	}
}

func (m *machine) running() *proc {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.proc
}

func (m *machine) said() []string {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return slices.Clone(m.proc.told)
}

func (m *machine) has() string {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.saved == nil {
		return ""
	}
	return m.saved.Cluster
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.steps
}

// TestWiped: a wiped node finds its cluster and does not form another, also
// where all the others are down at first.
func TestWiped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		for _, m := range w.machines {
			m.start()
		}
		for !w.settled() {
			time.Sleep(time.Second)
		}
		for _, m := range w.machines {
			m.stop(m.id == "n1") // the one that formed the cluster
		}
		n1 := w.machines[0]
		n1.start()
		time.Sleep(10 * time.Minute)
		if c := n1.has(); c != "" {
			t.Fatalf("alone it decided %s", c)
		}
		w.machines[1].start()
		w.machines[2].start()
		w.await()
		if c := w.clusters(); len(c) != 1 {
			t.Errorf("clusters %v", c)
		}
		if n1.saved.Formed() || len(n1.saved.Contacts) == 0 {
			t.Errorf("n1: %+v", n1.saved)
		}
	})
}

// TestJoinNeverForms: nodes that are only to join wait until there is a cluster.
func TestJoinNeverForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		join := []string{"10.0.0.1:7071", "10.0.0.2:7071", "10.0.0.3:7071"}
		for i, addr := range join {
			w.add(fmt.Sprintf("n%d", i+1), addr, 0, join).start()
		}
		time.Sleep(time.Hour)
		if c := w.clusters(); len(c) != 0 {
			t.Fatalf("clusters %v", c)
		}
		if told := w.machines[0].said(); len(told) < 300 || len(told) > 400 || !strings.Contains(told[0], "waiting for a cluster to join: ") {
			t.Errorf("told %d times, first %q", len(told), told[:1])
		}
		alone := w.machines[2]
		alone.stop(true)
		alone.expect, alone.join = 1, nil
		alone.start()
		w.await()
		for _, m := range w.machines {
			if m.saved.Formed() != (m == alone) || m.saved.Cluster != alone.saved.Cluster {
				t.Errorf("%s: %+v", m.id, m.saved)
			}
		}
		if got := alone.saved.Initial; len(got) != 1 || got[0] != (Member{"n3", alone.incarnation, "10.0.0.3:7071", "10.0.0.3:7070"}) {
			t.Errorf("alone: %+v", got)
		}
	})
}

// TestFourth: one more than expected is not part of the forming, and joins.
func TestFourth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		fourth := w.add("n0", "10.0.0.4:7071", 3, w.machines[0].join)
		fourth.start()
		for _, m := range w.machines {
			m.start()
		}
		w.await()
		if fourth.saved.Formed() || len(w.clusters()) != 1 {
			t.Errorf("%+v of %v", fourth.saved, w.clusters())
		}
	})
}

// TestCanceled: a node that is told to end while it waits does so, and leaves
// nothing decided.
func TestCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		m := w.machines[0]
		m.start()
		time.Sleep(time.Minute)
		p := m.running()
		p.m.cancel()
		w.wg.Wait()
		if m.err == nil || !strings.Contains(m.err.Error(), context.Canceled.Error()) || m.saved != nil {
			t.Errorf("%v, %+v", m.err, m.saved)
		}
		for name, h := range p.handlers {
			if h != nil {
				t.Errorf("%s is still answered", name)
			}
		}
		w.end()
	})
}

// TestProgress: it says whom it waits for, at once and every ten seconds, and
// does not ask all the time.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		w.machines[0].start()
		w.machines[1].start()
		time.Sleep(time.Minute)
		told := w.machines[0].said()
		if len(told) != 6 {
			t.Errorf("told %d times in a minute", len(told))
		}
		if got, want := told[len(told)-1], "waiting for 1 more of 3 nodes: 10.0.0.3:7071 does not answer (connection refused)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		before := w.count()
		time.Sleep(time.Minute)
		if calls := (w.count() - before) / 4; calls > 2*60 {
			t.Errorf("%d calls in a minute", calls)
		}
		w.end()
	})
}

// invite is what the cluster's leader on m tells the node at an address.
func (m *machine) invite(addr string, i peer.Invitation) error {
	body, err := json.Marshal(i)
	if err == nil {
		_, _, err = m.running().Call(context.Background(), peer.Target{Addr: addr}, peer.CallInvite, body)
	}
	return err
}

// TestInvited: a node whose list leads nowhere joins the cluster that invites it
// by its name and address, and no other; and none that may form one.
func TestInvited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 0)
		lead := w.add("n1", "10.0.0.1:7071", 1, nil)
		joins := w.add("n2", "10.0.0.2:7071", 0, []string{"10.0.0.9:7071"})
		forms := w.add("n3", "10.0.0.3:7071", 2, []string{"10.0.0.9:7071"})
		for _, m := range w.machines {
			m.start()
		}
		time.Sleep(time.Minute)
		for what, c := range map[string]struct {
			at   *machine
			i    peer.Invitation
			want string
		}{
			"another's name": {joins, peer.Invitation{Node: "n3", Raft: joins.addr}, "this is node n2, and n3 is expected"},
			"another place":  {joins, peer.Invitation{Node: "n2", Raft: "10.0.0.7:7071"}, "expected at 10.0.0.7:7071"},
			"may form one":   {forms, peer.Invitation{Node: "n3", Raft: forms.addr}, "without bootstrap-expect"},
		} {
			if err := lead.invite(c.at.addr, c.i); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := forms.invite(joins.addr, peer.Invitation{Node: "n2", Raft: joins.addr}); err == nil || !strings.Contains(err.Error(), "not an invitation") {
			t.Errorf("from a node without a cluster: %v", err)
		}
		time.Sleep(time.Minute)
		if joins.has() != "" || forms.has() != "" {
			t.Fatalf("n2 is of %q, n3 of %q", joins.has(), forms.has())
		}
		// Where who invites is gone before it is asked, nothing follows from it.
		w.mu.Lock()
		w.cut[[2]*machine{joins, lead}] = true
		w.mu.Unlock()
		mine := peer.Invitation{Node: "n2", Raft: joins.addr}
		if err := lead.invite(joins.addr, mine); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if c := joins.has(); c != "" {
			t.Fatalf("n2 is of %q on a word alone", c)
		}
		w.mu.Lock()
		clear(w.cut)
		w.mu.Unlock()
		if err := lead.invite(joins.addr, mine); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if joins.has() != lead.has() || joins.saved.Formed() || !slices.Equal(joins.saved.Contacts, []string{lead.addr}) {
			t.Errorf("n2: %+v", joins.saved)
		}
		if err := lead.invite(joins.addr, mine); err != nil {
			t.Errorf("again: %v", err)
		}
		// One that was formed goes nowhere else.
		p := lead.running()
		p.mu.Lock()
		hear := p.handlers[peer.CallInvite]
		p.mu.Unlock()
		_, err := hear(t.Context(), peer.Identity{Cluster: "other", Node: "n4", Raft: "10.0.0.4:7071"}, []byte(`{"node":"n1","raft":"10.0.0.1:7071"}`))
		if err == nil || !strings.Contains(err.Error(), "belongs to cluster") {
			t.Errorf("a formed one: %v", err)
		}
		w.end()
	})
}

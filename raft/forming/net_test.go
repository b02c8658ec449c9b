package forming

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/raft/peer"
)

// open makes a fresh node's end of the real inside network.
func open(t *testing.T, id, incarnation string, l net.Listener, dial func(context.Context, string) (net.Conn, error)) *peer.Net {
	t.Helper()
	n, err := peer.New(peer.Options{Listener: l, Dial: dial, Self: peer.Identity{Node: id, Incarnation: incarnation, Raft: l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func accepted(Result) error { return nil }

// TestOverPeerNet forms a cluster over TCP, and lets a wiped node find it.
func TestOverPeerNet(t *testing.T) {
	var join []string
	var listeners []net.Listener
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners, join = append(listeners, l), append(join, l.Addr().String())
	}
	results := make([]Result, 3)
	nets := make([]*peer.Net, 3)
	var wg sync.WaitGroup
	for i, l := range listeners {
		nets[i] = open(t, fmt.Sprintf("n%d", i+1), fmt.Sprintf("i%d", i+1), l, nil)
		wg.Go(func() {
			var err error
			if results[i], err = Decide(t.Context(), Options{Net: nets[i], Expect: 3, Join: join, Save: accepted}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, r := range results {
		if !r.Formed() || !reflect.DeepEqual(r, results[0]) || nets[i].Self().Cluster != r.Cluster {
			t.Errorf("n%d: %+v, is %+v", i+1, r, nets[i].Self())
		}
	}
	if err := nets[0].Close(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", join[0])
	if err != nil {
		t.Fatal(err)
	}
	wiped := open(t, "n1", "i4", l, nil)
	// One that was never told, as after a crash in the last moment.
	l2, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	untold := open(t, "n1", "i1", l2, nil)
	for _, c := range []struct {
		n    *peer.Net
		want Result
	}{
		{wiped, Result{Cluster: results[0].Cluster, Contacts: join[1:]}},
		{untold, Result{Cluster: results[0].Cluster, Initial: results[0].Initial}},
	} {
		got, err := Decide(t.Context(), Options{Net: c.n, Expect: 3, Join: join[1:], Save: accepted})
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v, %v; want %+v", got, err, c.want)
		}
	}
}

// TestOverPeerNetAtRandom starts nodes at any time, in simulated time.
func TestOverPeerNetAtRandom(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 4))
			slow := time.Duration(1 + r.Int64N(int64(30*time.Millisecond)))
			m := memnet.New(memnet.Options{Latency: func(string, string) time.Duration { return slow }})
			join := []string{"n1:7071", "n2:7071", "n3:7071"}
			results := make(chan Result, 3)
			for i, addr := range join {
				time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), func() {
					id := fmt.Sprintf("n%d", i+1)
					l, err := m.Listen(addr)
					if err != nil {
						t.Error(err)
						return
					}
					n := open(t, id, "i"+id, l, m.Dialer(id))
					got, err := Decide(t.Context(), Options{Net: n, Expect: 3, Join: join, Save: accepted})
					if err != nil {
						t.Error(err)
					}
					results <- got
				})
			}
			first := <-results
			for range 2 {
				if r := <-results; !reflect.DeepEqual(r, first) || !r.Formed() {
					t.Errorf("seed %d: %+v and %+v", seed, first, r)
				}
			}
		})
	}
}

// TestFailedWrite: who does not know whether he is formed tells nobody that he
// is, and promises nothing more.
func TestFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		first := w.machines[0]
		broken := errors.New("input/output error")
		p := &proc{m: first, ctx: t.Context(), handlers: map[string]peer.Handler{}, self: peer.Identity{Node: "n1", Incarnation: "n1.1", Raft: first.addr, HTTP: "10.0.0.1:7070"}}
		first.proc, first.cancel = p, func() {}
		w.machines[1].start()
		w.machines[2].start()
		var asked []byte
		_, err := Decide(t.Context(), Options{
			Net: p, Expect: 3, Join: first.join, Logger: slog.New(words{p}),
			Save: func(r Result) error {
				p.mu.Lock()
				state, pledge := p.handlers[callState], p.handlers[callPledge]
				p.mu.Unlock()
				asked, _ = state(t.Context(), peer.Identity{}, nil)
				_, err := pledge(t.Context(), peer.Identity{Node: "n1", Incarnation: "n1.1"}, []byte(`{"cluster":"x","initial":[{"id":"n1","incarnation":"n1.1"}]}`))
				if err == nil || !strings.Contains(err.Error(), "deciding something else") {
					t.Errorf("pledged meanwhile: %v", err)
				}
				return broken
			},
		})
		if !errors.Is(err, broken) || strings.Contains(string(asked), "cluster") || p.self.Cluster != "" {
			t.Errorf("%v; told %s, is %+v", err, asked, p.self)
		}
		time.Sleep(time.Minute)
		if c := w.clusters(); len(c) != 0 {
			t.Errorf("clusters %v", c)
		}
		w.end()
	})
}

// TestLateAnswer: what was answered before the node gave a pledge may come from
// one that is wiped by now; it is asked for again.
func TestLateAnswer(t *testing.T) {
	var saved []string
	p := &proc{handlers: map[string]peer.Handler{}, self: peer.Identity{Node: "n2", Incarnation: "i2"}}
	s := newSeat(Options{Net: p, Expect: 2, Logger: slog.New(slog.DiscardHandler), Save: func(r Result) error {
		saved = append(saved, r.Cluster)
		return nil
	}})
	all := []Member{{ID: "n1", Incarnation: "i1"}, {ID: "n2", Incarnation: "i2"}}
	s.see(all)
	since := s.pledges()
	if _, err := s.pledge(t.Context(), peer.Identity{Node: "n1", Incarnation: "i1"}, []byte(`{"cluster":"new","initial":[{"id":"n1","incarnation":"i1"},{"id":"n2","incarnation":"i2"}]}`)); err != nil {
		t.Fatal(err)
	}
	if says, err := s.adopt(since, Result{Cluster: "old", Initial: all}); err != nil || len(saved) > 0 || s.decided() != nil || !strings.Contains(says, "asking again") {
		t.Errorf("%q, %v; saved %v", says, err, saved)
	}
	if _, err := s.adopt(s.pledges(), Result{Cluster: "new", Initial: all}); err != nil || len(saved) != 1 || s.decided() == nil {
		t.Errorf("%v; saved %v", err, saved)
	}
}

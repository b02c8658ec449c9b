package raft

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// has tells whether a node has applied a name.
func (m *member) has(name string) bool { return slices.Contains(m.m.names(), name) }

// settled waits until the cluster has a leader that every node knows.
func (c *nodes) settled() *member {
	c.t.Helper()
	l := c.leader()
	for _, m := range c.members() {
		until(c.t, m.name+" knows the leader", func() bool {
			to := m.otherLeader().target()
			return m == l || to.Node == l.name
		})
	}
	return l
}

// A leader that is cut off answers nobody: neither its own readers nor those of
// others, and a write that it took is not called applied.
func deposedLeaderAnswersNobody(t *testing.T) {
	c := cluster(t, 3, func(o *Options) { o.LeaderWait = 500 * time.Millisecond })
	old := c.settled()
	c.put("before")
	c.isolate(old.name, true)
	// It reads as long as it thinks that it leads, and once more. Whatever was
	// written before a read began, the read shows or fails.
	var written atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for leads := true; leads; {
			leads = old.Leader()
			must := written.Load()
			assert.False(t, old.Barrier(t.Context()) == nil && must && !old.has("after"),
				"a deposed leader shows an old state")
		}
	}()
	c.put("after", old.name)
	written.Store(true)
	<-ended
	_, why := old.Ready()
	assert.True(t, contains(why, "no leader is known"), "ready: %v", why)
	// In bounded time, and as something that can be asked again.
	notApplied(t, old.Barrier(t.Context()), event.CodeNoLeader)
	notApplied(t, old.refused(t.Context(), put("late")), event.CodeNoLeader)
	c.isolate(old.name, false)
	until(t, "the old leader is back", func() bool { return old.Barrier(t.Context()) == nil })
	assert.True(t, old.has("after"), "a reader does not see what was written meanwhile")
	c.level()
	assert.False(t, old.has("late"), "what was not applied is")
}

// writers write through a node, without trying anything twice.
type writers struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	done    []string
	refused []string        // not applied
	why     map[string]bool // these were refused, or their outcome is unknown
}

// start lets n of them write until stop is closed.
func (w *writers) start(m *member, n int, stop <-chan struct{}) {
	w.why = map[string]bool{}
	for i := range n {
		w.wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
					w.write(m, fmt.Sprintf("%s-%d-%d", m.name, i, k))
					time.Sleep(time.Millisecond) // which is that of the bubble
				}
			}
		})
	}
}

func (w *writers) write(m *member, name string) {
	_, err := m.Propose(context.Background(), put(name))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.done = append(w.done, name)
		return
	}
	p := asProblem(m.t, err)
	w.why[p.Error()] = true
	if !p.Unknown {
		w.refused = append(w.refused, name)
	}
}

func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.done)
}

// Leadership is handed over and nobody notices: no write fails, on any node. A leader that is shut
// down answers all that it took, and the others' clients do not notice.
func leadersGo(t *testing.T) {
	c := cluster(t, 3, nil)
	c.settled()
	all, stop := map[string]*writers{}, make(chan struct{})
	for _, m := range c.members() {
		all[m.name] = &writers{}
		all[m.name].start(m, 2, stop)
	}
	more := func(but string) {
		t.Helper()
		for name, w := range all {
			want := w.count() + 10
			until(t, "writes go on", func() bool { return name == but || w.count() >= want })
		}
	}
	for range 3 {
		l := c.leader()
		more("")
		require.NoError(t, l.StepDown(t.Context()))
		assert.False(t, l.Leader(), "it still leads")
	}
	l := c.leader()
	more("")
	l.down()
	more(l.name)
	close(stop)
	for _, w := range all {
		w.wg.Wait()
	}
	c.level(l.name)
	applied := map[string]int{}
	for _, name := range c.leader(l.name).m.names() {
		applied[name]++
		assert.Equal(t, applied[name], 1, "%s was applied", name)
	}
	for name, w := range all {
		for _, n := range w.done {
			assert.Equal(t, applied[n], 1, "%s was done; applied", n)
		}
		for _, n := range w.refused {
			assert.Equal(t, applied[n], 0, "%s was refused; applied", n)
		}
		if name == l.name {
			delete(w.why, shuttingDown().Error())
		}
		assert.Equal(t, len(w.why), 0, "through %s: %v", name, w.why)
	}
}

// One node's wall clock is years off, and each node leads once: time goes on as
// the other two have it, on all nodes.
const year = 365 * 24 * time.Hour

func oneClockYearsOff(off time.Duration) func(*testing.T) {
	return func(t *testing.T) {
		var jump atomic.Int64
		c := cluster(t, 3, func(o *Options) {
			if o.NodeID == "n2" {
				o.Wall = func() time.Time {
					return time.Now().Add(off + time.Duration(jump.Load()))
				}
			}
		})
		check := func(what string) {
			t.Helper()
			for _, m := range c.members() {
				until(t, m.name+" tells the time: "+what, func() bool {
					// Within a minute: years are what this is about.
					return time.Since(time.UnixMilli(m.Clock())).Abs() < time.Minute
				})
			}
			for _, ms := range c.leader().m.times() {
				if d := time.Since(time.UnixMilli(ms)); d.Abs() > 10*time.Minute {
					t.Fatalf("%s: an entry is stamped %v ago", what, d)
				}
			}
		}
		c.put("due+600000")
		check("at the beginning")
		for range 4 {
			l := c.settled()
			jump.Add(int64(year)) // and jumps once more
			c.put("a")
			check("led by " + l.name)
			require.NoError(t, l.StepDown(t.Context()))
			c.put("b")
		}
		for _, m := range c.members() {
			m.m.mu.Lock()
			assert.True(t, m.m.fired <= 0,
				"%s: something that is due in ten minutes has happened", m.name)
			m.m.mu.Unlock()
		}
	}
}

// An old leader hears late what the others say: answers to what it asked before
// another one was elected reach it afterwards, and must confirm nothing. (With
// hashicorp/raft's VerifyLeader in confirm's place, reads here are stale.)
func answersOnASlowLineConfirmNothing(t *testing.T) {
	c := cluster(t, 3, func(o *Options) {
		o.HeartbeatTimeout = 3 * time.Second
		o.LeaderLeaseTimeout = 1500 * time.Millisecond
	})
	c.put("before")
	l := c.leader()
	c.level()
	next := c.others(l)[0]
	c.mu.Lock()
	c.slow = map[string]time.Duration{l.name: 700 * time.Millisecond}
	c.mu.Unlock()
	// Heartbeats whose answers are under way when the other one is elected.
	go func() {
		_ = l.raft.LeadershipTransferToServer(next.id, next.o.self().serverAddress()).Error()
	}()
	until(t, "the other one leads", func() bool { return next.raft.State() == hraft.Leader })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := next.Propose(ctx, put("after")); err != nil {
		t.Fatal(err)
	}
	if err := l.Barrier(ctx); err == nil && !l.has("after") {
		t.Error("a stale read")
	}
}

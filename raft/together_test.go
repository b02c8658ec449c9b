package raft

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// has tells whether a node has applied a name.
func (m *member) has(name string) bool { return slices.Contains(m.m.names(), name) }

// calm makes leadership change only by what a test does, also where the machine
// is busy.
func calm(o *Options) { o.HeartbeatTimeout = 2 * time.Second }

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
	// In bounded time, and as something that can be asked again.
	notApplied(t, old.Barrier(t.Context()), event.CodeNoLeader)
	notApplied(t, old.refused(t.Context(), put("late")), event.CodeNoLeader)
	c.isolate(old.name, false)
	until(t, "the old leader is back", func() bool { return old.Barrier(t.Context()) == nil })
	assert.True(t, old.has("after"), "a reader does not see what was written meanwhile")
	c.level()
	assert.False(t, old.has("late"), "what was not applied is")
}

// writers write through all nodes until stopped, without trying anything twice.
type writers struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	done    []string
	refused []string // not applied
	unknown []string
	why     map[string]int
	n       atomic.Int64
}

func (c *nodes) write(per int, but ...string) *writers {
	w := &writers{stop: make(chan struct{}), why: map[string]int{}}
	for _, m := range c.members() {
		if slices.Contains(but, m.name) {
			continue
		}
		for range per {
			w.wg.Go(func() {
				for {
					select {
					case <-w.stop:
						return
					default:
					}
					name := fmt.Sprintf("w%d", w.n.Add(1))
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					_, err := m.Propose(ctx, put(name))
					cancel()
					w.note(c.t, name, err)
					if err != nil { // else time does not pass where all is refused at once
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
	}
	return w
}

func (w *writers) note(t testing.TB, name string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.done = append(w.done, name)
		return
	}
	p := asProblem(t, err)
	w.why[p.Error()]++
	if p.Unknown {
		w.unknown = append(w.unknown, name)
	} else {
		w.refused = append(w.refused, name)
	}
}

// more waits until so many more writes have been done.
func (w *writers) more(t testing.TB, n int) {
	t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.done)
	}
	want := count() + n
	until(t, "writes go on", func() bool { return count() >= want })
}

// check stops the writers and holds what they were told against the log.
func (w *writers) check(t testing.TB, names []string) {
	t.Helper()
	applied := map[string]int{}
	for _, n := range names {
		applied[n]++
	}
	for n, times := range applied {
		assert.True(t, times <= 1, "%s was applied %d times", n, times)
	}
	for _, n := range w.done {
		assert.NotEqual(t, applied[n], 0, "%s was done and is not there", n)
	}
	for _, n := range w.refused {
		assert.Equal(t, applied[n], 0, "%s was not applied and is there", n)
	}
	t.Logf("%d done, %d refused, %d unknown: %v", len(w.done), len(w.refused), len(w.unknown),
		w.why)
}

// Leadership is handed over and nobody notices: no write fails, on any node.
func stepDownFailsNobody(t *testing.T) {
	c := cluster(t, 3, calm)
	term := c.settled().raft.CurrentTerm()
	w := c.write(4)
	for range 5 {
		l := c.leader()
		w.more(t, 50)
		began := time.Now()
		require.NoError(t, l.StepDown(t.Context()))
		handed := time.Since(began)
		w.more(t, 1)
		t.Logf("handed over in %v, the next write after %v", handed, time.Since(began))
		assert.False(t, l.Leader(), "it still leads")
	}
	close(w.stop)
	w.wg.Wait()
	c.level()
	w.check(t, c.leader().m.names())
	if len(w.refused)+len(w.unknown) > 0 {
		// More than one term for each handover: there was an election that this
		// test did not ask for.
		t.Errorf("writes failed, %d terms after 5 handovers: %v",
			c.leader().raft.CurrentTerm()-term, w.why)
	}
}

// A leader that is shut down answers all that it took, and the others' clients
// do not notice.
func shutdownOfTheLeader(t *testing.T) {
	c := cluster(t, 3, calm)
	l := c.settled()
	others := c.write(4, l.name)
	own := c.write(4, slices.DeleteFunc([]string{"n1", "n2", "n3"},
		func(n string) bool { return n == l.name })...)
	others.more(t, 50)
	own.more(t, 20)
	began := time.Now()
	shut := make(chan struct{})
	go func() { l.down(); close(shut) }()
	<-shut
	t.Logf("shut down in %v", time.Since(began))
	close(own.stop)
	own.wg.Wait()
	others.more(t, 50)
	close(others.stop)
	others.wg.Wait()
	c.leader(l.name)
	c.level(l.name)
	names := c.leader(l.name).m.names()
	// Names of the two kinds of writers are alike: check them apart from twice.
	for _, w := range []*writers{others, own} {
		for _, n := range w.done {
			assert.True(t, slices.Contains(names, n), "%s was done and is not there", n)
		}
		assert.Equal(t, len(w.unknown), 0, "unknown: %v", w.why)
	}
	assert.True(t, len(others.refused) <= 0,
		"refused by nodes that were not shut down: %v", others.why)
	for why := range own.why {
		assert.Equal(t, why, shuttingDown().Error(), "refused")
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

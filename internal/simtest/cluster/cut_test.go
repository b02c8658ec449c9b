package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// TestCutOffLeader: the leader hears nobody, is heard by nobody, or both; the
// others go on without it, it answers no read from what it remembers, and it is
// one of them again when the lines are mended.
func TestCutOffLeader(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(w *cluster.Network, n *cluster.Node){
		"both ways": (*cluster.Network).Isolate,
		"deaf":      (*cluster.Network).Deafen,
		"mute":      (*cluster.Network).Mute,
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Cuts: true})
			queue(t, c.Client(), "q", "")
			leader := c.WaitLeader()
			b, all := writesThrough(t, c.Others(leader))
			all.first(t, time.Now())
			began := time.Now()
			cut(c.Network(), leader)
			next := c.WaitLeader(leader)
			all.first(t, time.Now())
			t.Logf("%s leads %s after %s was cut off", next.Name(), time.Since(began).Round(time.Millisecond), leader.Name())
			b.stop()

			got, err := next.Client().Produce(t.Context(), "q", client.JSON("behind its back"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			once := leader.Client(client.WithRetry(client.Retry{Attempts: 1}))
			if m, err := once.Message(ctx, got[0].ID); err == nil {
				// By a line that is whole it may have asked the others: then it knows.
				t.Logf("it answers %s", m.State)
			}
			if list, err := once.Queue(ctx, "q"); err == nil {
				now, err := next.Client().Queue(ctx, "q")
				if err != nil || list.Stats.EnqueuedTotal != now.Stats.EnqueuedTotal {
					t.Errorf("it was cut off and tells %d messages, there are %d, %v", list.Stats.EnqueuedTotal, now.Stats.EnqueuedTotal, err)
				}
			} else {
				t.Logf("a read through it: %v", err)
			}
			c.Network().Mend()
			c.WaitReady()
			has(t, leader, []string{got[0].ID})
		})
	}
}

// TestCutLine: two of three nodes don't hear each other, the third hears both:
// somebody leads, and writes through each of them are done.
func TestCutLine(t *testing.T) {
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Cuts: true})
	queue(t, c.Client(), "q", "")
	leader := c.WaitLeader()
	other := c.Others(leader)[0]
	c.Network().Cut(leader, other)
	c.Network().Cut(other, leader)
	third := c.Others(leader, other)[0]
	b, all := writesThrough(t, []*cluster.Node{third})
	for range 50 {
		all.first(t, time.Now())
	}
	b.stop()
	c.Network().Mend()
	c.WaitReady()
}

// TestQueueIsThereAfterAllDied: what was made just before all nodes were killed
// is there.
func TestQueueIsThereAfterAllDied(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	var names []string
	for i := range 5 {
		name := []string{"a", "b", "c", "d", "e"}[i]
		queue(t, c.ClientFrom(c.Node(i%3)), name, "")
		c.Kill9All()
		names = append(names, name)
		c.LaunchAll()
		c.WaitReady()
		for _, n := range c.Nodes() {
			for _, name := range names {
				if _, err := n.Client().Queue(t.Context(), name); err != nil {
					t.Errorf("%s: queue %s: %v", n.Name(), name, err)
				}
			}
		}
	}
}

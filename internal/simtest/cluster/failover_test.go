package cluster_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// TestFailover kills the leader again and again, with the product's own timing,
// while each node is asked to write all the time, and measures how long it
// takes until a write is done; and it stops the leader in good order, where a
// client that repeats must not notice more than a pause.
//
//	FAILOVER_KILLS, FAILOVER_STOPS: how often
//	FAILOVER_TIMED=1: fail where it takes longer than is promised
func TestFailover(t *testing.T) {
	kills, stops := cluster.Number(t, "FAILOVER_KILLS", 0), cluster.Number(t, "FAILOVER_STOPS", 0)
	if kills+stops == 0 {
		t.Skip("a campaign: make failover")
	}
	timed := os.Getenv("FAILOVER_TIMED") != ""
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	queue(t, c.Client(), "q", "")

	killLeaders(t, c, kills, timed)
	stopLeaders(t, c, stops, timed)
}

func killLeaders(t *testing.T, c *cluster.Cluster, kills int, timed bool) {
	var took []time.Duration
	under := 0
	for range kills {
		leader := c.WaitLeader()
		all := newTries()
		b := newBackground(t)
		for _, n := range c.Others(leader) {
			all.produce(b, n, 10*time.Second)
		}
		all.first(t, time.Now()) // they are at it
		died := time.Now()
		leader.Kill9()
		first := all.first(t, died).Sub(died)
		took = append(took, first)
		if first < 3*time.Second {
			under++
		}
		b.stop()
		leader.Restart()
		c.WaitVoters()
	}
	t.Logf("figures: from the leader's death to the first write done: %s", cluster.Spread(took))
	assert.False(t, timed && under*100 < 95*kills,
		"%d of %d took 3 s or longer", kills-under, kills)
}

func stopLeaders(t *testing.T, c *cluster.Cluster, stops int, timed bool) {
	var gaps []time.Duration
	for i := range stops {
		leader := c.WaitLeader()
		b := newBackground(t)
		clients := map[string]*tries{}
		for _, n := range c.Nodes() {
			// Each begins with another node, one of them with the leader.
			all, cl := newTries(), c.ClientFrom(n)
			clients[n.Name()] = all
			b.loop(10*time.Millisecond, func() {
				begun := time.Now()
				_, err := cl.Produce(context.Background(), "q", client.JSON(i))
				all.add(begun, err)
			})
		}
		for _, all := range clients {
			all.first(t, time.Now())
		}
		asked := time.Now()
		leader.Term()
		gone := time.Now()
		c.WaitLeader(leader)
		for name, all := range clients {
			all.first(t, time.Now())
			gap := all.gap(asked)
			gaps = append(gaps, gap)
			t.Logf("stop %d (%s, gone after %s): the client that began with %s waited at most %s",
				i+1, leader.Name(), gone.Sub(asked).Round(time.Millisecond),
				name, gap.Round(time.Millisecond))
		}
		b.stop()
		for name, all := range clients {
			for _, err := range all.errors() {
				t.Errorf("stop %d: the client that began with %s got %v", i+1, name, err)
			}
		}
		leader.Restart()
		c.WaitVoters()
	}
	t.Logf("figures: stopped leader: longest time between two writes done, for each client: %s", cluster.Spread(gaps))
	for _, g := range gaps {
		assert.False(t, timed && g >= 500*time.Millisecond, "a client waited %s", g)
	}
}

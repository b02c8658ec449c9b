package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// TestWaitersOutliveTheLeader: leases that wait at the other nodes while the
// leader dies, stops or is handed over are given what comes afterwards, through
// whichever node it comes; nobody has to ask again.
func TestWaitersOutliveTheLeader(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	queue(t, c.Client(), "q", "")
	for name, end := range map[string]func(leader *cluster.Node){
		"dies":  (*cluster.Node).Kill9,
		"stops": (*cluster.Node).Term,
		"hands over": func(*cluster.Node) {
			if _, err := c.Client().TransferLeadership(t.Context(), ""); err != nil {
				t.Error(err)
			}
		},
	} {
		leader := c.WaitLeader()
		others := c.Others(leader)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		type answer struct {
			node string
			got  int
			err  error
		}
		answers := make(chan answer, len(others))
		for _, n := range others {
			go func() {
				got, err := n.Client().Lease(ctx, "q", client.LeaseOptions{Max: 1,
					Wait: 45 * time.Second})
				for _, m := range got {
					_, err = n.Client().Ack(ctx, "q", m.LeaseID)
				}
				answers <- answer{n.Name(), len(got), err}
			}()
		}
		for _, n := range others {
			waits(t, n)
		}
		end(leader)
		next := c.WaitLeader(leader)
		put := time.Now()
		for i := range others {
			if _, err := next.Client().Produce(t.Context(), "q",
				client.JSON(fmt.Sprint(name, i))); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for range others {
			a := <-answers
			if took := time.Since(put); a.err != nil || a.got != 1 || took > 20*time.Second {
				t.Errorf("the leader %s: who waited at %s got %d messages after %s, %v", name,
					a.node, a.got, took, a.err)
			}
		}
		cancel()
		if !leader.Running() {
			leader.Restart()
		}
		c.WaitVoters()
	}
}

// waits returns once somebody waits for a message of q at a node.
func waits(t *testing.T, n *cluster.Node) {
	t.Helper()
	// A message that is never there: of another queue. The node has taken up
	// requests in order, so an answer to a later one is enough.
	for range 3 {
		if _, err := n.Client().Queue(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
	}
}

package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// waitersOutliveTheLeader: leases that wait at the other nodes while the
// leader dies, stops or is handed over are given what comes afterwards, through
// whichever node it comes; nobody has to ask again.
func waitersOutliveTheLeader(t *testing.T, c *cluster.Cluster) {
	queue(t, c.Client(), "waited", "")
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
		const wait = time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		type answer struct {
			node string
			got  int
			err  error
		}
		answers := make(chan answer, len(others))
		var put atomic.Pointer[time.Time]
		for _, n := range others {
			go func() {
				var got []wire.LeasedMessage
				var err error
				// Again only if its time was over before, or as soon as, something came.
				for again := true; again; {
					got, err = n.Client().Lease(ctx, "waited", client.LeaseOptions{Max: 1, Wait: wait})
					at := put.Load()
					again = err == nil && len(got) == 0 && (at == nil || time.Since(*at) < wait/3)
				}
				for _, m := range got {
					_, err = n.Client().Ack(ctx, "waited", m.LeaseID)
				}
				answers <- answer{n.Name(), len(got), err}
			}()
		}
		for _, n := range others {
			waits(t, n)
		}
		end(leader)
		next := c.WaitLeader(leader)
		for i := range others {
			if _, err := next.Client().Produce(t.Context(), "waited",
				client.JSON(fmt.Sprint(name, i))); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		now := time.Now()
		put.Store(&now)
		for range others {
			a := <-answers
			if a.err != nil || a.got != 1 {
				t.Errorf("the leader %s: who waited at %s got %d messages, %v", name, a.node, a.got,
					a.err)
			}
		}
		cancel()
		if !leader.Running() {
			leader.Restart()
		}
		c.WaitVoters()
	}
}

// waits returns once a lease waits at a node.
func waits(t *testing.T, n *cluster.Node) {
	t.Helper()
	cluster.Until(t, func() error {
		_, b, err := n.Get(t.Context(), "/metrics")
		if err == nil && !bytes.Contains(b, []byte("\nqlogd_lease_waiters 1\n")) {
			err = fmt.Errorf("nobody waits at %s", n.Name())
		}
		return err
	})
}

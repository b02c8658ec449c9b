package cluster_test

import (
	"context"
	"fmt"
	"io"
	"strings"
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
			at   time.Time
		}
		answers := make(chan answer, len(others))
		for _, n := range others {
			go func() {
				got, err := n.Client().Lease(ctx, "q", client.LeaseOptions{Max: 1, Wait: 45 * time.Second})
				for _, m := range got {
					_, ackErr := n.Client().Ack(ctx, "q", m.LeaseID)
					err = ackErr
				}
				answers <- answer{n.Name(), len(got), err, time.Now()}
			}()
		}
		for _, n := range others {
			waits(t, n)
		}
		end(leader)
		next := c.WaitLeader(leader)
		put := time.Now()
		for i := range others {
			if _, err := next.Client().Produce(ctx, "q", client.JSON(fmt.Sprint(name, i))); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for range others {
			select {
			case a := <-answers:
				if a.err != nil || a.got != 1 {
					t.Errorf("the leader %s: who waited at %s got %d messages, %v", name, a.node, a.got, a.err)
				}
				t.Logf("the leader %s: who waited at %s was answered after %s", name, a.node, a.at.Sub(put).Round(time.Millisecond))
			case <-time.After(20 * time.Second):
				t.Errorf("the leader %s: there are messages, and somebody still waits after 20 s", name)
			}
		}
		cancel()
		if !leader.Running() {
			leader.Restart()
		}
		c.WaitVoters()
	}
}

// TestOneEntryAMessage: wherever a message is produced and wherever somebody waits
// for it, it is enqueued and leased in one entry, and nobody else leases in vain.
func TestOneEntryAMessage(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	queue(t, c.Client(), "q", "")
	leader := c.WaitLeader()
	followers := c.Others(leader)
	const rounds = 5
	for name, at := range map[string][2]*cluster.Node{
		"at the leader":           {leader, leader},
		"to another node":         {leader, followers[0]},
		"from another node":       {followers[0], leader},
		"at another node":         {followers[0], followers[0]},
		"from another to a third": {followers[0], followers[1]},
	} {
		for i := range rounds {
			var produced, leased cluster.Answer
			got := make(chan error, 1)
			go func() {
				m, err := at[1].Client().Lease(cluster.WithAnswer(t.Context(), &leased), "q", client.LeaseOptions{Max: 1, Wait: 30 * time.Second})
				if err == nil && len(m) != 1 {
					err = fmt.Errorf("%d messages", len(m))
				}
				if err == nil {
					_, err = at[1].Client().Ack(t.Context(), "q", m[0].LeaseID)
				}
				got <- err
			}()
			waitsAtLeader(t, leader)
			if _, err := at[0].Client().Produce(cluster.WithAnswer(t.Context(), &produced), "q", client.JSON(fmt.Sprint(name, i))); err != nil {
				t.Fatal(err)
			}
			if err := <-got; err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if produced.Index != leased.Index {
				t.Errorf("%s: enqueued in entry %d, leased in %d", name, produced.Index, leased.Index)
			}
		}
	}
}

// waitsAtLeader returns once a lease waits in the leader's line, be it another
// node's.
func waitsAtLeader(t *testing.T, leader *cluster.Node) {
	t.Helper()
	for {
		resp, err := leader.HTTP().Get(leader.URL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nqlogd_lease_waiters 1\n") {
			return
		}
		time.Sleep(time.Millisecond)
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

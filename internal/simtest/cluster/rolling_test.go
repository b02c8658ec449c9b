package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// work keeps clients busy that repeat what fails, each beginning with another
// node: some produce, some lease and ack. What they could not do is in tries.
func work(t *testing.T, c *cluster.Cluster) (*background, *tries) {
	t.Helper()
	b, all := newBackground(t), newTries()
	for _, n := range c.Nodes() {
		cl := c.ClientFrom(n)
		b.loop(25*time.Millisecond, func() {
			begun := time.Now()
			_, err := cl.Produce(context.Background(), "busy", client.JSON(1))
			err = named("produce", err)
			all.add(begun, err)
		})
		worker := c.ClientFrom(n)
		b.loop(25*time.Millisecond, func() {
			begun := time.Now()
			got, err := worker.Lease(context.Background(), "busy", client.LeaseOptions{Max: 10,
				Wait: 200 * time.Millisecond})
			err = named("lease", err)
			if err == nil && len(got) > 0 {
				ids := make([]string, len(got))
				for i, m := range got {
					ids[i] = m.LeaseID
				}
				results, ackErr := worker.Ack(context.Background(), "busy", ids...)
				err = named("ack", ackErr)
				for _, r := range results {
					if r.Status != "acked" {
						err = errors.Join(err, errors.New("a lease was "+r.Status))
					}
				}
			}
			all.add(begun, err)
		})
	}
	return b, all
}

// named says which request failed, and when.
func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", time.Now().UTC().Format("15:04:05.000"), what, err)
}

// rollingRestart: the nodes are stopped and started one after the other, and
// no client that repeats notices.
func rollingRestart(t *testing.T, c *cluster.Cluster) {
	cl := c.Client()
	queue(t, cl, "busy", "")
	queue(t, cl, "held", `{"delivery":{"lease_ms":3600000}}`)
	before := termOf(t, c)
	b, all := work(t, c)
	all.first(t, time.Now())
	// The leader last, as an operator would; and one more time the leader of then.
	leader := c.WaitLeader()
	for i, n := range append(c.Others(leader), leader) {
		// A lease that is held while the node goes, whichever node gave it.
		if _, err := n.Client().Produce(t.Context(), "held", client.JSON(i),
			client.JSON(i)); err != nil {
			t.Fatal(err)
		}
		held, err := n.Client().Lease(t.Context(), "held", client.LeaseOptions{Max: 2})
		require.True(t, err == nil && len(held) == 2, "leased %v, %v", held, err)
		n.Term()
		all.first(t, time.Now())
		n.Restart()
		all.first(t, time.Now())
		for _, m := range held {
			if _, err := cl.AckOne(t.Context(), m.LeaseID, wire.AckOne{}); err != nil {
				t.Errorf("a lease that was held while %s was stopped: %v", n.Name(), err)
			}
		}
	}
	b.stop()
	// A client does not repeat a lease that may have been given. That comes where nodes are too busy:
	// they elect a leader besides the one handover, or a client writes so late that the node ends
	// its connection at that moment.
	elections := termOf(t, c) - before - 1
	for _, err := range all.errors() {
		late := strings.Contains(err.Error(), "server closed idle connection")
		if strings.Contains(err.Error(), " lease: ") &&
			(late || elections > 0 && errors.Is(err, client.ErrNoLeader)) {
			t.Logf("%d elections that nobody asked for: %v", elections, err)
			continue
		}
		t.Error(err)
	}
}

// termOf returns the cluster's term.
func termOf(t *testing.T, c *cluster.Cluster) (term uint64) {
	t.Helper()
	cluster.Until(t, func() error {
		s, err := c.WaitLeader().Status(t.Context())
		if err == nil {
			term = s.Term
		}
		return err
	})
	return term
}

package cluster_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// some puts n messages into the queue q and returns their ids.
func some(t *testing.T, cl *client.Client, n int) []string {
	t.Helper()
	ids := make([]string, 0, n)
	for i := range n {
		got, err := cl.Produce(t.Context(), "q", client.JSON(i))
		require.NoError(t, err)
		ids = append(ids, got[0].ID)
	}
	return ids
}

// has checks that a node shows all of these messages.
func has(t *testing.T, n *cluster.Node, ids []string) {
	t.Helper()
	cl := n.Client()
	for _, id := range ids {
		if _, err := cl.Message(t.Context(), id); err != nil {
			t.Errorf("%s: message %s: %v", n.Name(), id, err)
		}
	}
}

// ended waits until a program has ended on its own, with an error.
func ended(t *testing.T, n *cluster.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Wait(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("%s does not end: %v\n%s", n.Name(), err, n.Log())
	}
}

// TestRemovedNode: a node that was taken out stays out, with its old directory;
// with an empty one it is taken in again.
func TestRemovedNode(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	cl := c.Client()
	queue(t, cl, "q", "")
	ids := some(t, cl, 5)
	n := c.Follower()
	n.Term()
	require.NoError(t, cl.RemoveNode(t.Context(), n.Name(), false))
	s, err := c.WaitLeader().Status(t.Context())
	if err != nil || len(s.Nodes) != 2 {
		t.Fatalf("the cluster is %+v, %v", s, err)
	}
	n.Launch()
	ended(t, n)
	assert.Contains(t, n.Log(), "removed", "it does not say that it was removed:")
	some(t, cl, 3)
	n.Wipe()
	n.Restart()
	c.WaitVoters()
	has(t, n, ids)
}

// TestStranger: a data directory of another cluster is refused, and not harmed.
func TestStranger(t *testing.T) {
	t.Parallel()
	other := cluster.StartCluster(t, cluster.Options{Nodes: 1})
	queue(t, other.Client(), "q", "")
	ids := some(t, other.Client(), 3)
	other.Node(0).Term()

	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	queue(t, c.Client(), "q", "")
	n := c.Node(0) // of the same name as the stranger
	n.Term()
	aside := n.Dir() + "-aside"
	require.NoError(t, os.Rename(n.Dir(), aside))
	require.NoError(t, os.CopyFS(n.Dir(), os.DirFS(other.Node(0).Dir())))
	n.Launch()
	ended(t, n)
	t.Logf("it said: %s", lastLine(n.Log()))
	some(t, c.Client(), 3)
	n.Wipe()
	require.NoError(t, os.Rename(aside, n.Dir()))
	n.Restart()
	other.Node(0).Restart()
	has(t, other.Node(0), ids)
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// TestGrow: one node becomes three: one asks to be taken in (--join), the other
// is taken in by POST /v1/cluster/nodes.
func TestGrow(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 1, Flags: []string{"--checkpoint-entries",
		"50", "--checkpoint-interval", "1s"}})
	cl := c.Node(0).Client()
	queue(t, cl, "q", "")
	ids := some(t, cl, 200)
	if _, err := cl.Snapshot(t.Context()); err != nil {
		t.Error(err)
	}
	second := c.Add("--join", c.Join()[0])
	second.Restart()
	c.WaitVoters()
	has(t, second, ids)

	third := c.Add("--join", c.Join()[0])
	voter := true
	if _, _, err := cl.AddNode(t.Context(), wire.NewNode{ID: third.Name(), RaftAddr: c.Join()[2],
		HTTPAddr: third.Addr(), Voter: &voter}); err != nil {
		t.Logf("POST before the node is there: %v", err)
	}
	third.Restart()
	c.WaitVoters()
	ids = append(ids, some(t, cl, 5)...)
	has(t, third, ids)
	// Any of them may go now.
	leader := c.WaitLeader()
	leader.Kill9()
	c.WaitLeader(leader)
	some(t, c.Client(), 1)
	leader.Restart()
}

// TestNoMajority: two of three are gone: writes and reads are refused in bounded
// time with a clear word, stale reads go on; and all is well when one comes back.
func TestNoMajority(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	queue(t, c.Client(), "q", "")
	ids := some(t, c.Client(), 3)
	require.NoError(t, c.WaitEqual(time.Minute))
	n := c.Follower()
	gone := c.Others(n)
	for _, g := range gone {
		g.Kill9()
	}
	once := n.Client(client.WithRetry(client.Retry{Attempts: 1}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for name, do := range map[string]func() error{
		"produce": func() error { _, err := once.Produce(ctx, "q", client.JSON(1)); return err },
		"lease": func() error {
			_, err := once.Lease(ctx, "q", client.LeaseOptions{})
			return err
		},
		"read":    func() error { _, err := once.Queue(ctx, "q"); return err },
		"message": func() error { _, err := once.Message(ctx, ids[0]); return err },
	} {
		wg.Go(func() {
			assert.ErrorIs(t, do(), client.ErrNoLeader, "%s:", name)
		})
	}
	wg.Wait()
	if _, err := once.Message(ctx, ids[0], client.Stale()); err != nil {
		t.Errorf("a stale read: %v", err)
	}
	if status, body, err := n.Do(ctx, http.MethodGet, "/readyz", nil); err != nil ||
		status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %s %v", status, body, err)
	}
	gone[0].Restart()
	some(t, c.Client(), 1)
	gone[1].Restart()
}

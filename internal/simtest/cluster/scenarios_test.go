package cluster_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := n.Wait(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("%s does not end: %v\n%s", n.Name(), err, n.Log())
	}
}

// stranger: a data directory of another cluster is refused, and not harmed.
func stranger(t *testing.T, c *cluster.Cluster) {
	other := cluster.StartCluster(t, cluster.Options{Nodes: 1})
	queue(t, other.Client(), "q", "")
	ids := some(t, other.Client(), 3)
	other.Node(0).Term()

	queue(t, c.Client(), "q", "")
	n := c.Node(0) // of the same name as the stranger
	n.Term()
	aside := n.Dir() + "-aside"
	require.NoError(t, os.Rename(n.Dir(), aside))
	require.NoError(t, os.Rename(other.Node(0).Dir(), n.Dir()))
	n.Launch()
	ended(t, n)
	t.Logf("it said: %s", lastLine(n.Log()))
	some(t, c.Client(), 3)
	require.NoError(t, os.Rename(n.Dir(), other.Node(0).Dir()))
	require.NoError(t, os.Rename(aside, n.Dir()))
	n.Restart()
	other.Node(0).Restart()
	has(t, other.Node(0), ids)
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// TestNodesGo: what clients see of nodes that go and come back.
func TestNodesGo(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Flags: []string{"--push-allow-private"}})
	for _, s := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{
		{"no majority", noMajority}, {"waiters outlive the leader", waitersOutliveTheLeader},
		{"rolling restart", rollingRestart}, {"stranger", stranger},
		{"push over failovers", pushOverFailovers}, {"hanging disk", hangingDisk},
	} {
		t.Run(s.name, func(t *testing.T) {
			s.run(t, c)
			c.WaitReady()
			c.WaitVoters()
		})
	}
}

// noMajority: two of three are gone: writes and reads are refused in bounded
// time with a clear word, stale reads go on; and all is well when one comes back.
func noMajority(t *testing.T, c *cluster.Cluster) {
	queue(t, c.Client(), "q", "")
	ids := some(t, c.Client(), 3)
	require.NoError(t, c.WaitEqual(3*time.Minute))
	n := c.Follower()
	gone := c.Others(n)
	for _, g := range gone {
		g.Kill9()
	}
	once := n.Client(client.WithRetry(client.Retry{Attempts: 1}))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
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
	if status, body, err := n.Get(ctx, "/readyz"); err != nil ||
		status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %s %v", status, body, err)
	}
	gone[0].Restart()
	some(t, c.Client(), 1)
	gone[1].Restart()
}

// TestIdleConnections: clients that connect and stay, more than the node may have open files, keep
// neither it from its log nor others out.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	n := cluster.Start(t, cluster.Options{
		Files: 1024, Flags: []string{"--checkpoint-entries", "20"}, // which open files
	})
	for range 1400 {
		c, err := net.Dial("tcp", strings.TrimPrefix(n.URL(), "http://"))
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.Equal(t, answer.StatusCode, http.StatusOK)
	}
	queue(t, n.Client(), "q", "")
	has(t, n, some(t, n.Client(), 100))
}

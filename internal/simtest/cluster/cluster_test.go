package cluster_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestMain(m *testing.M) {
	if addrs := os.Getenv(workerOf); addrs != "" {
		workAway(addrs)
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // they wait more than they work
	cluster.Main(m)
}

// TestNode: a client finds after its server's death what it put there before, and
// what runs at every test's end notices a flipped bit.
func TestNode(t *testing.T) {
	t.Parallel()
	n := cluster.Start(t, cluster.Options{NoVerify: true})
	c := n.Client()
	queue(t, c, "q", "")
	// Two, since damage to the last block would pass for a torn write.
	for range 2 {
		if _, err := c.Produce(t.Context(), "q", client.JSON("needle-in-the-log")); err != nil {
			t.Fatal(err)
		}
	}
	n.Kill9()
	require.False(t, n.Running(), "it still runs")
	once := n.Client(client.WithRetry(client.Retry{Attempts: 1}))
	if _, err := once.Queue(t.Context(), "q"); err == nil {
		t.Fatal("a dead server answers")
	}
	n.Restart()
	got, err := c.Lease(t.Context(), "q", client.LeaseOptions{})
	if err != nil || len(got) != 2 || string(got[0].Payload) != `"needle-in-the-log"` {
		t.Fatalf("leased %v, %v", got, err)
	}
	n.Term()
	require.NoError(t, n.Verify())
	segments, err := filepath.Glob(filepath.Join(n.Dir(), "log", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("no segments: %v", err)
	}
	b, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	at := bytes.Index(b, []byte("needle-in-the-log"))
	require.True(t, at >= 0, "the message is not in the log")
	b[at] ^= 1
	require.NoError(t, os.WriteFile(segments[0], b, 0o600))
	if err := n.Verify(); err == nil || !strings.Contains(err.Error(), filepath.Base(segments[0])) {
		t.Errorf("a flipped bit is reported as %v", err)
	}
}

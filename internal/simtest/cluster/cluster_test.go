package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

func TestMain(m *testing.M) {
	if addrs := os.Getenv(workerOf); addrs != "" {
		workAway(addrs)
		return
	}
	cluster.Plain()
	cluster.Main(m)
}

// put makes a queue and puts a message into it.
func put(t *testing.T, n *cluster.Node) *client.Client {
	t.Helper()
	c := n.Client()
	if _, _, err := c.PutQueue(t.Context(), "q", wire.PolicyUpdate{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Produce(t.Context(), "q", client.JSON("needle-in-the-log")); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKillAndRestart: a client outlives its server, and finds what it put there.
func TestKillAndRestart(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	c := put(t, n)
	n.Kill9()
	if n.Running() || n.Addr() != "" {
		t.Fatal("it runs on")
	}
	if _, err := n.Client(client.WithRetry(client.Retry{Attempts: 1})).Queue(t.Context(), "q"); err == nil {
		t.Fatal("a dead server answers")
	}
	n.Restart()
	got, err := c.Lease(t.Context(), "q", client.LeaseOptions{})
	if err != nil || len(got) != 1 || string(got[0].Payload) != `"needle-in-the-log"` {
		t.Fatalf("leased %v, %v", got, err)
	}
	n.Term()
	n.Restart()
}

// TestSecondProcess: a data directory has one server.
func TestSecondProcess(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	second := cluster.New(t, cluster.Options{Dir: n.Dir(), NoVerify: true})
	second.Launch()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := second.Wait(ctx); err == nil {
		t.Error("the second ended as if all were well")
	} else if ctx.Err() != nil {
		t.Error("the second runs")
	}
	if log := second.Log(); !strings.Contains(log, n.Dir()) {
		t.Errorf("the second does not name the directory: %s", log)
	}
}

// TestVerifyNotices: what runs at every test's end can fail.
func TestVerifyNotices(t *testing.T) {
	n := cluster.Start(t, cluster.Options{NoVerify: true})
	c := put(t, n)
	// Another block behind it: a damaged last one would be told as torn.
	if _, err := c.Produce(t.Context(), "q", client.JSON("another")); err != nil {
		t.Fatal(err)
	}
	n.Term()
	if err := n.Verify(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(n.Dir(), "log", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("no segments: %v", err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "needle-in-the-log")
	if at < 0 {
		t.Fatal("the message is not in the log")
	}
	b[at] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	err = n.Verify()
	if err == nil {
		t.Fatal("a flipped bit is not noticed")
	}
	if !strings.Contains(err.Error(), filepath.Base(segments[0])) {
		t.Errorf("the segment is not named: %v", err)
	}
}

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// inject has a running node's system calls tampered with by strace until the
// function that it returns is called.
func inject(t *testing.T, n *cluster.Node, how string) (end func()) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed")
	}
	cmd := exec.Command(strace, "-f", "-q", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject="+how, "-p", fmt.Sprint(n.Pid()))
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	traced := func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
		return !strings.Contains(string(b), "TracerPid:\t0\n")
	}
	for deadline := time.Now().Add(10 * time.Second); !traced(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			end()
			t.Skipf("strace does not attach: %s", said.String())
		}
	}
	return end
}

// writesThrough has some nodes asked to write all the time.
func writesThrough(t *testing.T, nodes []*cluster.Node) (*background, *tries) {
	t.Helper()
	b, all := newBackground(t), newTries()
	for _, n := range nodes {
		cl := n.Client(client.WithRetry(client.Retry{Attempts: 1}))
		b.every(20*time.Millisecond, 200, func(context.Context) {
			ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
			defer cancel()
			begun := time.Now()
			_, err := cl.Produce(ctx, "q", client.JSON("meanwhile"))
			all.add(begun, err)
		})
	}
	return b, all
}

// TestHangingDisk: a node's disk does not come back from a sync. If it is the
// leader's, the others elect another one; if a follower's, nobody notices.
func TestHangingDisk(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"leader", "follower"} {
		t.Run(of, func(t *testing.T) {
			c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
			queue(t, c.Client(), "q", "")
			ids := some(t, c.Client(), 3)
			n := c.WaitLeader()
			if of == "follower" {
				n = c.Follower()
			}
			end := inject(t, n, "fsync,fdatasync:delay_exit=60000000") // a minute
			began := time.Now()
			b, all := writesThrough(t, c.Others(n))
			if of == "leader" {
				c.WaitLeader(n)
			}
			all.first(t, began)
			t.Logf("a write is done %s after the %s's disk began to hang", time.Since(began).Round(time.Millisecond), of)
			for range 20 {
				all.first(t, time.Now())
			}
			b.stop()
			end() // a process is not gone before its tracer
			n.Kill9()
			n.Restart()
			has(t, n, ids)
		})
	}
}

// TestFailingDisk: a sync fails once. The node does not try again, for nobody
// knows what became of the pages: it ends, the others go on, and it comes back.
func TestFailingDisk(t *testing.T) {
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	cl := c.Client()
	queue(t, cl, "q", "")
	ids := some(t, cl, 3)
	n := c.WaitLeader()
	end := inject(t, n, "fsync,fdatasync:error=EIO:when=1")
	ids = append(ids, some(t, cl, 5)...) // through whoever leads
	ended(t, n)
	end()
	t.Logf("it said: %s", lastLine(n.Log()))
	c.WaitLeader(n)
	ids = append(ids, some(t, cl, 5)...)
	n.Restart()
	has(t, n, ids)
}

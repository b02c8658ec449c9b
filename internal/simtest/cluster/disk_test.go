package cluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

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
	cmd := exec.Command(strace, "-f", "-q", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e",
		"inject="+how, "-p", fmt.Sprint(n.Pid()))
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
	cluster.Until(t, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Pid()))
		if strings.Contains(string(b), "TracerPid:\t0\n") {
			return fmt.Errorf("strace does not attach: %s", said.String())
		}
		return err
	})
	return end
}

// hangingDisk: the leader's disk does not return from a sync: the others elect another one. (The
// simulation stalls disks of leaders and followers, and fails their writes.)
func hangingDisk(t *testing.T, c *cluster.Cluster) {
	queue(t, c.Client(), "q", "")
	ids := some(t, c.Client(), 3)
	n := c.WaitLeader()
	end := inject(t, n, "fsync,fdatasync:delay_exit=60000000") // a minute
	began := time.Now()
	b, all := newBackground(t), newTries()
	for _, o := range c.Others(n) {
		all.produce(b, o, 15*time.Second)
	}
	c.WaitLeader(n)
	all.first(t, began)
	t.Logf("a write is done %s after the disk began to hang",
		time.Since(began).Round(time.Millisecond))
	for range 20 {
		all.first(t, time.Now())
	}
	b.stop()
	end() // a process is not gone before its tracer
	n.Kill9()
	n.Restart()
	has(t, n, ids)
}

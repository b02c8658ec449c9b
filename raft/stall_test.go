package raft

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/watchdog"
)

// slowDisk is one on which the Raft log's writes hang while it has a gate, until that is closed.
type slowDisk struct {
	gate  atomic.Pointer[chan struct{}]
	hangs chan struct{} // has one element once a write hangs
}

// slow makes the Raft log's writes hang when that is asked for.
func slow(o *Options) *slowDisk {
	s := &slowDisk{hangs: make(chan struct{}, 1)}
	o.BeforeStore = func() {
		if gate := s.gate.Load(); gate != nil {
			signal(s.hangs)
			<-*gate
		}
	}
	return s
}

// stall makes the writes hang until the function that it returns is called.
func (s *slowDisk) stall() (end func()) {
	gate := make(chan struct{})
	s.gate.Store(&gate)
	return func() { s.gate.Store(nil); close(gate) }
}

// A leader whose disk stalls makes room for another after 5 s, goes on when the disk answers
// again, and ends after 30 s when it does not. A follower's stall disturbs nobody.
func stalledDisks(t *testing.T) {
	disks := map[string]*slowDisk{}
	c := cluster(t, 3, func(o *Options) { disks[o.NodeID] = slow(o) })
	c.put("before")
	old := c.settled()
	began, end := time.Now(), disks[old.name].stall()
	lost := make(chan error, 1)
	go func() {
		_, err := old.Propose(t.Context(), put("late"))
		lost <- err
	}()
	<-disks[old.name].hangs
	err := old.TransferLeadership(t.Context(), "")
	assert.True(t, err != nil, "leadership was transferred") // it goes on: the disk is to blame
	next := c.leader(old.name)
	took := time.Since(began)
	if took < watchdog.StallAfter || took > watchdog.StallAfter+10*time.Second {
		t.Errorf("another one leads after %v", took)
	}
	c.put("meanwhile", old.name)
	_, why := old.Ready()
	assert.True(t, contains(why, watchdog.ErrStalled.Error()), "ready: %v", why)
	notApplied(t, old.Barrier(t.Context()), event.CodeNoLeader)
	notApplied(t, old.refused(t.Context(), put("refused")), event.CodeNoLeader)
	time.Sleep(25*time.Second - time.Since(began))
	if age, ok := old.Age(); !ok || age < 19*time.Second || age > 21*time.Second {
		t.Errorf("the age of a stale read is %v, %v", age, ok)
	}
	end()
	outcomeUnknown(t, <-lost)
	until(t, "it is ready again", func() bool { ok, _ := old.Ready(); return ok })
	c.level()

	began, end = time.Now(), disks[old.name].stall()
	c.put("beside", old.name)
	err = <-old.died
	if took := time.Since(began); took < 30*time.Second || took > 32*time.Second {
		t.Errorf("a follower ends after %v", took)
	}
	for _, part := range []string{"store entries in /raft", "30s"} {
		assert.True(t, strings.Contains(err.Error(), part), "%q is not in: %v", part, err)
	}
	_, why = old.Ready()
	assert.True(t, len(why) == 1 && strings.Contains(why[0], "30s"), "ready: %v", why)
	end()
	assert.True(t, c.leader(old.name) == next, "leadership changed")
	c.put("after", old.name)
	want := []string{"before", "meanwhile", "beside", "after"}
	assert.True(t, slices.Equal(next.m.names(), want), "%v was applied", next.m.names())
}

// A pause of the process is no stall of its disk, however long it is. A child process stops itself
// for longer than its disk may take while a write is in progress.
func TestPausedProcess(t *testing.T) {
	const limit = time.Second
	if os.Getenv("RAFT_PAUSED") == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPausedProcess$")
		child.Env = append(os.Environ(), "RAFT_PAUSED=1")
		stdin, err := child.StdinPipe()
		require.NoError(t, err)
		stdout, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		var status syscall.WaitStatus
		_, err = syscall.Wait4(child.Process.Pid, &status, syscall.WUNTRACED, nil)
		require.NoError(t, err)
		require.True(t, status.Stopped(), "the child did not stop: %v", status)
		time.Sleep(limit + limit/4)
		require.NoError(t, stdin.Close()) // the disk answers as soon as it is resumed
		require.NoError(t, child.Process.Signal(syscall.SIGCONT))
		said, err := io.ReadAll(stdout)
		require.NoError(t, err)
		require.NoError(t, child.Wait(), "%s", said)
		return
	}
	o := on(memdisk.New())
	o.DiskTimeout = limit
	disk := slow(&o)
	n := boot(t, o)
	end := disk.stall()
	written := make(chan error, 1)
	go func() {
		_, err := n.Propose(context.Background(), put("a"))
		written <- err
	}()
	<-disk.hangs
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGSTOP))
	_, _ = io.ReadAll(os.Stdin)
	end()
	select {
	case err := <-written:
		require.NoError(t, err)
	case err := <-n.died:
		t.Fatal(fmt.Errorf("it ended: %w", err))
	}
}

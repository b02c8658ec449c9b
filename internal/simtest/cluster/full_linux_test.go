package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestFullDisk: the leader's disk is full. Writes are refused until a node leads
// that has room, which is soon; reads and settling leases go on; and once there is
// room again all is as before, without a restart of anything.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	disks := make([]string, 3)
	for i := range disks {
		disks[i] = filepath.Join(t.TempDir(), fmt.Sprint("disk", i))
		require.NoError(t, os.Mkdir(disks[i], 0o700))
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=512m", "none",
			disks[i]).CombinedOutput(); err != nil {
			t.Skipf("no file system can be mounted here: %v %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("umount", disks[i]).Run() })
	}
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3,
		PerNode: func(i int, o *cluster.Options) { o.Dir = filepath.Join(disks[i], "data") }})
	cl := c.Client()
	queue(t, cl, "q", "")
	ids := some(t, cl, 10)
	held, err := cl.Lease(t.Context(), "q", client.LeaseOptions{Max: 1})
	require.True(t, err == nil && len(held) == 1, "leased %v, %v", held, err)
	leader := c.WaitLeader()
	disk := filepath.Dir(leader.Dir())
	var room syscall.Statfs_t
	require.NoError(t, syscall.Statfs(disk, &room))
	filler := filepath.Join(disk, "filler")
	// What is left is for settling leases, which makes room.
	f, err := os.Create(filler)
	require.NoError(t, err)
	require.NoError(t, errors.Join(syscall.Fallocate(int(f.Fd()), 0, 0,
		int64(room.Bavail)*room.Bsize-100<<20), f.Close()))
	refused, done := 0, 0
	once := c.ClientFrom(c.Others(leader)[0], client.WithRetry(client.Retry{Attempts: 1}))
	write := func() error {
		got, err := once.Produce(t.Context(), "q", client.JSON("into a full disk"))
		switch {
		case err == nil:
			done++
			ids = append(ids, got[0].ID)
		case errors.Is(err, client.ErrInsufficientStorage):
			refused++
		case !errors.Is(err, client.ErrOutcomeUnknown) && !errors.Is(err, client.ErrNoLeader):
			t.Errorf("a write while the leader's disk is full: %v", err)
		}
		return err
	}
	for done < 10 { // two nodes have room
		cluster.Until(t, write)
	}
	t.Logf("%d writes were refused without room, %d done; %s led, %s leads", refused, done,
		leader.Name(), c.WaitLeader().Name())
	if _, err := cl.Queue(t.Context(), "q"); err != nil {
		t.Errorf("a read: %v", err)
	}
	if _, err := cl.Ack(t.Context(), "q", held[0].LeaseID); err != nil {
		t.Errorf("a lease from before: %v", err)
	}
	require.NoError(t, os.Remove(filler))
	cluster.Until(t, write)
	for _, n := range c.Nodes() {
		if !n.Running() {
			t.Errorf("%s has ended: %s", n.Name(), lastLine(n.Log()))
			n.Restart()
		}
	}
	for _, n := range c.Nodes() {
		has(t, n, ids)
	}
}

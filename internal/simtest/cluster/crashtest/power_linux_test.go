package crashtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestPowerCut runs the server on an ext4 file system of its own, in a file
// behind a loop device, and cuts it off like a power failure does: whatever was
// not flushed is gone, of the event log, of raft-wal, of the votes and of the
// read models in bbolt alike. POWER_CUTS says how often, CRASH_SEED repeats a
// run's choices. It needs root and a loop device.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	n := cluster.Start(t, cluster.Options{Dir: filepath.Join(d.dir, "data"), Flags: busyFlags})
	c := newCampaign(t, "CRASH_SEED", n)
	cut := c.crash(func() { d.cut(t); n.Kill9() }, func() { d.remount(t); n.Restart() })
	c.run(slices.Repeat([]fault{{"power cut", cut}}, cluster.Number(t, "POWER_CUTS", 1)))
}

// disk is a file system that can lose its power.
type disk struct{ image, dir string }

func newDisk(t *testing.T) *disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("cutting the power below a file system needs root: sudo make powercut")
	}
	tmp := t.TempDir()
	d := &disk{image: filepath.Join(tmp, "disk.img"), dir: filepath.Join(tmp, "mnt")}
	require.NoError(t, os.Mkdir(d.dir, 0o700))
	f, err := os.Create(d.image)
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Truncate(2<<30), f.Close()))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", d.image).CombinedOutput(); err != nil {
		t.Skipf("no ext4 can be made here: %v %s", err, out)
	}
	if err := d.mount(); err != nil {
		t.Skipf("no ext4 in a loop device can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		assert.NoError(t, d.unmount())
	})
	return d
}

func (d *disk) mount() error {
	out, err := exec.Command("mount", "-o", "loop", "-t", "ext4", d.image, d.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount: %w %s", err, out)
	}
	return nil
}

func (d *disk) unmount() error {
	out, err := exec.Command("umount", d.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("umount: %w %s", err, out)
	}
	return nil
}

// EXT4_IOC_SHUTDOWN is _IOR('X', 125, __u32); mode 2 drops all that was not
// flushed, the journal's tail included.
const (
	ioctlShutdown  = 2<<30 | 4<<16 | 'X'<<8 | 125
	withoutFlushes = uint32(2)
)

// cut ends the file system's life at once.
func (d *disk) cut(t *testing.T) {
	t.Helper()
	f, err := os.Open(d.dir)
	require.NoError(t, err)
	defer f.Close()
	mode := withoutFlushes
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), ioctlShutdown,
		uintptr(unsafe.Pointer(&mode))); errno != 0 {
		t.Fatalf("cut the power: %v", errno)
	}
}

// remount is the power coming back.
func (d *disk) remount(t *testing.T) {
	t.Helper()
	require.NoError(t, errors.Join(d.unmount(), d.mount()))
}

// TestDiskForgets: the disk keeps what was synced and loses what was not, or
// TestPowerCut would show nothing.
func TestDiskForgets(t *testing.T) {
	d := newDisk(t)
	write := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(d.dir, name))
		require.NoError(t, err)
		defer f.Close()
		if _, err := f.WriteString("a message"); err != nil {
			t.Fatal(err)
		}
		if !sync {
			return
		}
		dir, err := os.Open(d.dir)
		require.NoError(t, err)
		defer dir.Close()
		require.NoError(t, errors.Join(f.Sync(), dir.Sync()))
	}
	write("synced", true)
	write("forgotten", false)
	d.cut(t)
	d.remount(t)
	if b, err := os.ReadFile(filepath.Join(d.dir, "synced")); err != nil ||
		string(b) != "a message" {
		t.Errorf("what was synced is gone: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(d.dir, "forgotten")); err == nil && len(b) > 0 {
		t.Errorf("what was never synced is still there: %q", b)
	}
}

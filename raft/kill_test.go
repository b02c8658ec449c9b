package raft

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

var errKilled = errors.New("the process was killed")

// killFS is a disk as one process sees it. After so many changes the process is
// killed: none of its changes reaches the disk any more, but what it wrote
// before without a sync is in the page cache, and the next process sees it.
type killFS struct {
	*vfs.Mem
	left atomic.Int64
}

func (k *killFS) dead() error {
	if k.left.Add(-1) < 0 {
		return errKilled
	}
	return nil
}

func (k *killFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return killFile{f, k}, nil
}

func (k *killFS) Create(name string) (vfs.File, error) {
	if err := k.dead(); err != nil {
		return nil, err
	}
	return k.wrap(k.Mem.Create(name))
}
func (k *killFS) OpenReadWrite(name string) (vfs.File, error) {
	return k.wrap(k.Mem.OpenReadWrite(name))
}

func (k *killFS) Remove(name string) error {
	if err := k.dead(); err != nil {
		return err
	}
	return k.Mem.Remove(name)
}

func (k *killFS) Rename(from, to string) error {
	if err := k.dead(); err != nil {
		return err
	}
	return k.Mem.Rename(from, to)
}

func (k *killFS) SyncDir(dir string) error {
	if err := k.dead(); err != nil {
		return err
	}
	return k.Mem.SyncDir(dir)
}

type killFile struct {
	vfs.File
	k *killFS
}

func (f killFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.k.dead(); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f killFile) Truncate(size int64) error {
	if err := f.k.dead(); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f killFile) Sync() error {
	if err := f.k.dead(); err != nil {
		return err
	}
	return f.File.Sync()
}

// TestKillThenPowerCut kills the process in each write and sync, lets another go
// on from what the page cache shows, and then cuts the power. Nobody may have
// built on what only the cache held.
func TestKillThenPowerCut(t *testing.T) {
	whole := vfs.NewMem()
	story(t, on(whole))
	step := 3
	if everyCrash() {
		step = 1
	}
	for at := 1; at <= whole.Ops(); at += step {
		disk := vfs.NewMem()
		k := &killFS{Mem: disk}
		k.left.Store(int64(at))
		acked, _ := story(t, on(k))

		n, err := tryBoot(t, small(on(disk)))
		if err != nil {
			t.Fatalf("killed at %d: %v", at, err)
		}
		n.ready()
		n.put("more")
		// Whatever the second process has applied, its clients have seen.
		seen := n.m.names()
		if len(seen) <= len(acked) || fmt.Sprint(seen[:len(acked)]) != fmt.Sprint(acked) {
			t.Fatalf("killed at %d: %d were acknowledged, left are %v", at, len(acked), seen)
		}
		after := disk.CrashWith(vfs.LoseAll, rng(at))
		n.down()

		n, err = tryBoot(t, small(on(after)))
		if err != nil {
			t.Fatalf("killed at %d: after the power cut: %v", at, err)
		}
		n.ready()
		got := n.m.names()
		if fmt.Sprint(got) != fmt.Sprint(seen) {
			t.Fatalf("killed at %d: after the power cut %d of %d are left: %v", at, len(got), len(seen), got)
		}
		n.down()
	}
}

package raft

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path"
	"testing"

	"github.com/qlogd/qlogd/internal/vfs"
)

// directOn makes a segment as a log does that goes past the page cache.
func directOn(t *testing.T, fsys vfs.FS, name string, size int) *walFile {
	t.Helper()
	files := newWalFS(fsys)
	files.life.directAfter = 0
	f, err := files.Create(path.Dir(name), path.Base(name), uint64(size))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f.(*walFile)
}

// appendAll fills a segment with pieces of random length, the long ones longer
// than a direct write may be, and calls after behind each sync.
func appendAll(t *testing.T, f *walFile, size int, after func(want []byte)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 7))
	lengths := []int{1, 100, 511, vfs.DirectBlock - 1, vfs.DirectBlock, 3*vfs.DirectBlock + 17, 70_000, directMost + 5}
	want := make([]byte, size)
	for at := 0; at < size; {
		n := min(lengths[rng.IntN(len(lengths))], size-at)
		for i := range n {
			want[at+i] = byte(1 + rng.IntN(255))
		}
		if wrote, err := f.WriteAt(want[at:at+n], int64(at)); err != nil || wrote != n {
			t.Fatal(wrote, err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		at += n
		after(want)
	}
}

// What was written and synced is what is there, and outlives a power cut that
// takes all that was not.
func TestDirectIsDurable(t *testing.T) {
	const size = 4 << 20
	disk := vfs.NewMem()
	f := directOn(t, disk, "/x", size)
	n := 0
	appendAll(t, f, size, func(want []byte) {
		if n++; n%7 == 0 && !bytes.Equal(disk.Get("/x"), want) {
			t.Fatalf("write %d: what was written is not what is there", n)
		}
	})
	if f.direct.broken {
		t.Error("it fell back to the page cache")
	}
	if got := disk.CrashWith(vfs.LoseAll, rand.New(rand.NewPCG(1, 1))).Get("/x"); !bytes.Equal(got, disk.Get("/x")) {
		t.Error("a power cut took what was durable")
	}
}

// The same on the disk of this machine, read through the page cache.
func TestDirectOnDisk(t *testing.T) {
	const size = 8 << 20
	f := directOn(t, vfs.OS{}, t.TempDir()+"/x", size)
	if f.direct == nil {
		t.Skip("this file system can't")
	}
	got := make([]byte, size)
	appendAll(t, f, size, func(want []byte) {
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("what was written is not what is read: %v", err)
		}
	})
}

// unable is a disk that finds out by the first write that it can't.
type unable struct{ *vfs.Mem }

type unableFile struct{ vfs.File }

func (u unable) OpenDirect(name string) (vfs.File, error) {
	f, err := u.Mem.OpenDirect(name)
	return unableFile{f}, err
}

func (unableFile) WriteAt([]byte, int64) (int, error) { return 0, errors.ErrUnsupported }

// Where it can't be done all goes through the page cache, with its syncs.
func TestDirectFallsBack(t *testing.T) {
	const size = 1 << 20
	disk := vfs.NewMem()
	f := directOn(t, unable{disk}, "/x", size)
	appendAll(t, f, size, func([]byte) {})
	if !f.direct.broken {
		t.Error("it did not")
	}
	whole := disk.Get("/x")
	if got := disk.CrashWith(vfs.LoseAll, rand.New(rand.NewPCG(1, 1))).Get("/x"); !bytes.Equal(got, whole) || bytes.Contains(whole, []byte{0, 0, 0, 0}) {
		t.Error("a power cut took what was synced")
	}

	// Neither is a write that is no append.
	f = directOn(t, disk.Clone(), "/y", size)
	for _, at := range []int64{0, 10, 4} {
		if _, err := f.WriteAt([]byte{1, 2, 3}, at); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 14)
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, []byte{1, 2, 3, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3, 0}) {
		t.Errorf("%v %v", got, err)
	}
}

// What fails is told as nothing written: raft-wal takes io.EOF behind all bytes for
// the end of a file that it has filled.
func TestDirectFails(t *testing.T) {
	f := directOn(t, vfs.NewMem(), "/x", vfs.DirectBlock)
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte{1, 2, 3}, 10); n != 0 || err == nil {
		t.Errorf("%d bytes were written behind a file's end, %v", n, err)
	}
}

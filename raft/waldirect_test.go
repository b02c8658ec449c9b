package raft

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path"
	"sync/atomic"
	"testing"

	"github.com/qlogd/qlogd/internal/vfs"
)

// directOn opens a segment of zeros as the log does one that was a spare.
func directOn(t *testing.T, fsys vfs.FS, name string, size int) *walFile {
	t.Helper()
	f, err := fsys.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = f.WriteAt(make([]byte, size), 0); err == nil {
		err = f.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	wf := &walFile{File: f, fsys: fsys, dir: path.Dir(name), name: path.Base(name), spare: &spare{size: int64(size), busy: true}}
	wf.named.Store(true)
	wf.goDirect(int64(size))
	t.Cleanup(func() {
		if err := wf.Close(); err != nil {
			t.Error(err)
		}
	})
	return wf
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
	if err := disk.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	n := 0
	appendAll(t, f, size, func(want []byte) {
		if n++; n%7 == 0 && !bytes.Equal(disk.Get("/x"), want) {
			t.Fatalf("write %d: what was written is not what is there", n)
		}
	})
	if f.direct.Load().broken {
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
	if f.direct.Load() == nil {
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
	if err := disk.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	appendAll(t, f, size, func([]byte) {})
	if !f.direct.Load().broken {
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

// counting is a disk that counts the writes past the page cache.
type counting struct {
	*vfs.Mem
	n *atomic.Int64
}

type countingFile struct {
	vfs.File
	n *atomic.Int64
}

func (c counting) OpenDirect(name string) (vfs.File, error) {
	f, err := c.Mem.OpenDirect(name)
	return countingFile{f, c.n}, err
}

func (c countingFile) WriteAt(p []byte, off int64) (int, error) {
	c.n.Add(1)
	return c.File.WriteAt(p, off)
}

// A start copies the log's end into a spare, if there is one, and goes on in that
// past the page cache, too.
func TestDirectAfterAStart(t *testing.T) {
	const size = 1 << 20
	disk := counting{vfs.NewMem(), &atomic.Int64{}}
	index := uint64(0)
	store := func(s *logStore) {
		t.Helper()
		index++
		if err := s.StoreLog(entry(index, 10)); err != nil {
			t.Fatal(err)
		}
	}
	s := openLogOn(t, disk, size)
	for range size/zerosPay + 1 {
		store(s)
	}
	s.spare.work.Wait()
	if err := s.close(); err != nil || disk.Get(spareName) == nil {
		t.Fatalf("%v, or there is no spare", err)
	}
	s = openLogOn(t, disk, size)
	if s.spare.taken.Load() != 1 {
		t.Fatal("the spare was not taken")
	}
	for range size/zerosPay + 1 {
		store(s)
	}
	s.spare.work.Wait()
	before := disk.n.Load()
	for range 5 {
		store(s)
	}
	if n := disk.n.Load() - before; n != 5 {
		t.Errorf("%d of 5 entries were written past the page cache", n)
	}
	for i := range index {
		if err := wantEntry(s, i+1, 10); err != nil {
			t.Fatal(err)
		}
	}
}

// Where the segment before was full too soon for a spare to be wanted, the next one
// is written past the page cache from its first byte on, into a hole.
func TestDirectIntoAHole(t *testing.T) {
	const size = 8 << 20
	mem := vfs.NewMem()
	for name, c := range map[string]struct {
		fsys vfs.FS
		dir  string
	}{"memory": {mem, "/"}, "disk": {vfs.OS{}, t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			files := walFS{c.fsys, &spare{fsys: c.fsys, dir: c.dir, size: size}}
			var made []*walFile
			for i, busy := range []bool{false, false, true} {
				files.spare.busy = busy
				f, err := files.Create(c.dir, string(rune('a'+i)), size)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				made = append(made, f.(*walFile))
			}
			files.spare.busy = true // no zeros meanwhile
			if made[0].direct.Load() != nil || made[2].direct.Load() != nil {
				t.Error("what zeros may still be written into is written past the page cache")
			}
			f := made[1]
			if f.direct.Load() == nil {
				if c.fsys == mem {
					t.Fatal("it is not written past the page cache")
				}
				t.Skip("this file system can't")
			}
			got, n := make([]byte, size), 0
			appendAll(t, f, size, func(want []byte) {
				if n++; n%7 != 0 && want[size-1] == 0 {
					return
				}
				if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("what was written is not what is read: %v", err)
				}
			})
			if c.fsys == mem && !bytes.Equal(mem.CrashWith(vfs.LoseAll, rand.New(rand.NewPCG(1, 1))).Get("/b"), got) {
				t.Error("a power cut took what was durable")
			}
			if f.direct.Load().broken {
				t.Error("it fell back to the page cache")
			}
		})
	}
}

package vfs

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// recorder is a File that notes what is taken out of its cache.
type recorder struct {
	File
	took [][2]int64
}

func (r *recorder) uncache(from, to int64) { r.took = append(r.took, [2]int64{from, to}) }

func TestBehind(t *testing.T) {
	const step, page = behindStep, DirectBlock
	var r recorder
	var b Behind
	for _, end := range []int64{0, step - 1, step + page + 1, step + 2*page, 2*step + page - 1, 2*step + page, 9 * step} {
		b.Synced(&r, end)
	}
	want := [][2]int64{{0, step + page}, {0, 2*step + page}, {step + page, 9 * step}}
	if !slices.Equal(r.took, want) {
		t.Errorf("took %v, want %v", r.took, want)
	}
	b.Synced(plain{}, 99*step) // one without a cache: nothing happens
}

type plain struct{ File }

// TestBehindOnDisk looks whether the kernel still has what was let go of, and
// that nothing of it is lost.
func TestBehindOnDisk(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte("0123456789abcde\n"), (4*behindStep+100)/16)
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	has := func(off int64) bool {
		t.Helper()
		_, err := unix.Preadv2(int(f.(osFile).Fd()), [][]byte{make([]byte, 1)}, off, unix.RWF_NOWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			t.Skipf("can't be told here: %v", err)
		case err != nil:
			t.Fatal(err)
		}
		return true
	}
	if !has(0) || !has(4*behindStep) {
		t.Skip("this file system keeps nothing in the cache")
	}
	var b Behind
	b.Synced(f, int64(len(data)))
	if has(0) {
		t.Skip("this file system keeps all in the cache")
	}
	if has(2 * behindStep) {
		t.Error("what was let go of is still in the cache")
	}
	if got, err := ReadFile(OS{}, name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file has changed: %v", err)
	}
}

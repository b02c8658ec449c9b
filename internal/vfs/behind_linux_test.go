package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// recorder is a File that notes what is taken out of its cache.
type recorder struct {
	File
	took  [][2]int64
	calls []string // all of them
	fail  string   // the call that fails, with err
	err   error
}

func (r *recorder) Uncache(from, to int64) {
	r.took = append(r.took, [2]int64{from, to})
	_ = r.note("uncache", from, to)
}
func (r *recorder) WriteBack(from, to int64) error   { return r.note("write", from, to) }
func (r *recorder) WrittenBack(from, to int64) error { return r.note("wait", from, to) }

// note puts down a call with its range, in steps.
func (r *recorder) note(call string, from, to int64) error {
	r.calls = append(r.calls, fmt.Sprintf("%s %d-%d", call, from/behindStep, to/behindStep))
	if call == r.fail {
		return r.err
	}
	return nil
}

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

// TestWrittenBehind: each step is asked to be written, and let go of when the next
// one is; what a sync has written is not asked for again.
func TestWrittenBehind(t *testing.T) {
	const step = behindStep
	var r recorder
	var b Behind
	written := func(end int64) {
		t.Helper()
		if err := b.Written(&r, end); err != nil {
			t.Fatal(err)
		}
	}
	written(step - 1)
	written(2*step + 1)
	written(2*step + 2)
	written(4 * step)
	written(5 * step)
	b.Synced(&r, 7*step)
	written(8*step - 1)
	written(9 * step)
	written(11 * step)
	want := []string{
		"write 0-2",
		"write 2-4", "wait 0-2", "uncache 0-2",
		"write 4-5", "wait 2-4", "uncache 0-4",
		"uncache 2-7",
		"write 7-9",
		"write 9-11", "wait 7-9", "uncache 4-9",
	}
	if !slices.Equal(r.calls, want) {
		t.Errorf("got %q, want %q", r.calls, want)
	}
	if err := b.Written(plain{}, 99*step); err != nil {
		t.Errorf("without a cache: %v", err)
	}
}

// TestWrittenBehindFails: an error of the disk is told; where writing can't be
// asked for, nothing is waited for or let go of until a sync.
func TestWrittenBehindFails(t *testing.T) {
	disk := errors.New("disk")
	for _, call := range []string{"write", "wait"} {
		r := recorder{fail: call, err: disk}
		var b Behind
		err := errors.Join(b.Written(&r, behindStep), b.Written(&r, 2*behindStep))
		if !errors.Is(err, disk) {
			t.Errorf("%s: %v", call, err)
		}
	}
	for call, want := range map[string][]string{
		"write": {"write 0-1", "write 0-2", "write 0-3", "uncache 0-3"},
		"wait":  {"write 0-1", "write 1-2", "wait 0-1", "write 1-3", "wait 0-1", "uncache 0-3"}, // gVisor
	} {
		r := recorder{fail: call, err: fmt.Errorf("%w: no such call", ErrNotNow)}
		var b Behind
		for i := range int64(3) {
			if err := b.Written(&r, (i+1)*behindStep); err != nil {
				t.Error(err)
			}
		}
		b.Synced(&r, 3*behindStep)
		if !slices.Equal(r.calls, want) {
			t.Errorf("%s: got %q, want %q", call, r.calls, want)
		}
	}
}

// TestBehindOnDisk looks whether the kernel still has what was let go of, behind
// writing back and behind a sync, and that nothing of it is lost.
func TestBehindOnDisk(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := bytes.Repeat([]byte("0123456789abcde\n"), (4*behindStep+100)/16)
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
	// Each write is of the size of a step: the kernel may take the pages of a larger
	// one as one.
	var b Behind
	for at := 0; at < len(data); at += behindStep {
		end := min(at+behindStep, len(data))
		if _, err := f.WriteAt(data[at:end], int64(at)); err != nil {
			t.Fatal(err)
		}
		if err := b.Written(f, int64(end)); err != nil {
			t.Fatal(err)
		}
	}
	if !has(4 * behindStep) {
		t.Skip("this file system keeps nothing in the cache")
	}
	// Each place is looked at once: a look lets the system read it again.
	if has(behindStep) {
		var fsys unix.Statfs_t
		if err := unix.Fstatfs(int(f.(osFile).Fd()), &fsys); err != nil || fsys.Type != unix.EXT4_SUPER_MAGIC && fsys.Type != unix.XFS_SUPER_MAGIC {
			t.Skip("this file system keeps all in the cache")
		}
		t.Error("what was written back long ago is still in the cache")
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	b.Synced(f, int64(len(data)))
	if has(3 * behindStep) {
		t.Error("what was synced is still in the cache")
	}
	if got, err := ReadFile(OS{}, name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file has changed: %v", err)
	}
}

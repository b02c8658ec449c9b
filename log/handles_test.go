package log

import (
	"fmt"
	"path"
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

// A log of many more segments than files may be open is written, read and
// opened anew: a file just opened is never the one that is closed for room.
func TestMoreSegmentsThanOpenFiles(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll("/log"); err != nil {
		t.Fatal(err)
	}
	for i := range maxIdle + 20 {
		f, err := fs.Create(path.Join("/log", fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	h := newHandles(fs, "/log")
	for i := range maxIdle + 20 {
		f, done, err := h.borrow(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Size(); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
		done()
	}
	if len(h.open) > maxIdle {
		t.Errorf("%d files are open, more than %d", len(h.open), maxIdle)
	}
	if err := h.closeAll(); err != nil {
		t.Fatal(err)
	}
}

// The active segment's file is lent for as long as it is that, whoever reads the
// sealed one: nothing is opened for a sync that sealing has done.
func TestBorrowPinned(t *testing.T) {
	fs := vfs.NewMem()
	must(t, fs.MkdirAll("/log"))
	f, err := fs.Create("/log/a")
	must(t, err)
	h := newHandles(fs, "/log")
	none := func(when string) {
		t.Helper()
		if f, _, err := h.borrowPinned("a"); f != nil || err != nil {
			t.Errorf("%s: %v, %v", when, f, err)
		}
	}
	none("before it is pinned")
	h.pin("a", f)
	got, done, err := h.borrowPinned("a")
	if err != nil || got.File != f {
		t.Fatalf("%v, %v", got, err)
	}
	must(t, h.drop("a"))
	none("when it is sealed")
	if len(h.open) != 0 {
		t.Errorf("%d files are open", len(h.open))
	}
	must(t, f.Sync()) // who has it still uses it
	done()
	_, done, err = h.borrow("a")
	must(t, err)
	none("when it is read")
	done()
	must(t, h.closeAll())
	if _, _, err := h.borrowPinned("a"); err != ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

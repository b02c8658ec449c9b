package log

import (
	"fmt"
	"path"
	"testing"

	"github.com/qlogd/qlogd/internal/vfs"
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

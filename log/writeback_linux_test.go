package log

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/qlogd/qlogd/internal/vfs"
)

// TestWritesBack: what was appended some steps ago is on the disk and not in the
// system's cache any more, and can be read all the same.
func TestWritesBack(t *testing.T) {
	o := options(vfs.OS{})
	o.Dir, o.SegmentSize = filepath.Join(t.TempDir(), "log"), DefaultSegmentSize
	l := mustOpen(t, o)
	appendAll(t, l, large(1), large(2), large(3))
	f, err := os.Open(filepath.Join(o.Dir, segmentName(1)))
	must(t, err)
	defer f.Close()
	// Each place is looked at once: a look lets the system read it again.
	cached := func(off int64) bool {
		_, err := unix.Preadv2(int(f.Fd()), [][]byte{make([]byte, 1)}, off, unix.RWF_NOWAIT)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Skipf("can't be told here: %v", err)
		}
		return err == nil
	}
	if !cached(3 << 20) {
		t.Skip("this file system keeps nothing in the cache")
	}
	var fsys unix.Statfs_t
	must(t, unix.Fstatfs(int(f.Fd()), &fsys))
	switch uint32(fsys.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC: // others may keep it
		if cached(100 << 10) {
			t.Error("the first block is still in the cache")
		}
	}
	for i := uint64(1); i <= 3; i++ {
		got, _, err := l.Content(Ref{Index: i})
		must(t, err)
		if string(got) != string(large(i).Records[0].Content) {
			t.Errorf("block %d has changed", i)
		}
	}
}

package log

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/vfs"
)

// syncs counts the syncs of files.
type syncs struct {
	vfs.FS
	n    int
	fail error
}

func (s *syncs) Create(name string) (vfs.File, error) {
	f, err := s.FS.Create(name)
	return &syncing{f, s}, err
}

type syncing struct {
	vfs.File
	s *syncs
}

func (f *syncing) Sync() error {
	f.s.n++
	if f.s.fail != nil {
		return f.s.fail
	}
	return f.File.Sync()
}

// large is a block of about a megabyte.
func large(index uint64) *Block { return block(index, rec("large", strings.Repeat("x", 1<<20))) }

// TestSyncsBehind: what is appended is synced in the background as it grows, and
// what goes wrong there breaks the log.
func TestSyncsBehind(t *testing.T) {
	disk := &syncs{FS: vfs.NewMem()}
	o := options(disk)
	o.SegmentSize = DefaultSegmentSize
	l := mustOpen(t, o)
	for i := range 2 * syncEvery >> 20 {
		appendAll(t, l, large(uint64(i+1)))
	}
	if disk.n != 2 {
		t.Errorf("%d syncs of %d bytes", disk.n, 2*syncEvery)
	}
	disk.fail = fs.ErrInvalid
	var err error
	for i := uint64(100); err == nil && i < 200; i++ {
		err = l.Append(large(i))
	}
	if !errors.Is(err, disk.fail) {
		t.Errorf("a sync failed: %v", err)
	}
	if err := l.Append(large(300)); !errors.Is(err, ErrBroken) {
		t.Errorf("after that: %v", err)
	}
}

package log

import (
	"errors"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/vfs"
)

// syncs counts the syncs of files.
type syncs struct {
	vfs.FS
	n    int
	fail error
	back error // of writing back
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

func (f *syncing) Uncache(_, _ int64)           {}
func (f *syncing) WriteBack(_, _ int64) error   { return nil }
func (f *syncing) WrittenBack(_, _ int64) error { return f.s.back }

// large is a block of about a megabyte.
func large(index uint64) *Block { return block(index, rec("large", strings.Repeat("x", 1<<20))) }

// TestSyncsBehind: what is appended is synced in the background as it grows.
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
}

// TestBrokenBehind: what goes wrong in the background breaks the log, be it told by
// a sync or by writing back, where the kernel tells it only once.
func TestBrokenBehind(t *testing.T) {
	gone := errors.New("the disk is gone")
	for _, set := range []func(*syncs){func(s *syncs) { s.fail = gone }, func(s *syncs) { s.back = gone }} {
		disk := &syncs{FS: vfs.NewMem()}
		set(disk)
		o := options(disk)
		o.SegmentSize = DefaultSegmentSize
		l := mustOpen(t, o)
		var err error
		for i := uint64(1); err == nil && i < 20; i++ {
			err = l.Append(large(i))
		}
		if !errors.Is(err, gone) {
			t.Errorf("%+v: %v", disk, err)
		}
		disk.fail, disk.back = nil, nil
		if err := l.Sync(); !errors.Is(err, ErrBroken) {
			t.Errorf("a sync after that: %v", err)
		}
	}
}

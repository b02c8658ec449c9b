package raft

import (
	"math"
	"sync/atomic"

	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/internal/vfs"
)

// walFS gives raft-wal its files from internal/vfs, so that a crash test can
// walk through every write and sync of it.
type walFS struct{ fsys vfs.FS }

var _ waltypes.VFS = walFS{}

func (w walFS) ListDir(dir string) ([]string, error) { return w.fsys.List(dir) }

func (w walFS) Create(dir, name string, size uint64) (waltypes.WritableFile, error) {
	f, err := w.fsys.Create(join(dir, name))
	if err != nil {
		return nil, err
	}
	// The size that the segment will have, so that an append does not change it.
	if size > 0 && size <= math.MaxInt32 {
		if err := f.Truncate(int64(size)); err != nil {
			f.Close()
			return nil, err
		}
	}
	return &walFile{File: f, fsys: w.fsys, dir: dir}, nil
}

func (w walFS) Delete(dir, name string) error {
	if err := w.fsys.Remove(join(dir, name)); err != nil {
		return err
	}
	return w.fsys.SyncDir(dir)
}

func (w walFS) OpenReader(dir, name string) (waltypes.ReadableFile, error) {
	return w.fsys.OpenRead(join(dir, name))
}

// OpenWriter opens a segment after a restart. It is synced at once: after a kill
// the page cache shows writes that are not on disk, and raft-wal takes what it
// reads for durable.
func (w walFS) OpenWriter(dir, name string) (waltypes.WritableFile, error) {
	f, err := w.fsys.OpenReadWrite(join(dir, name))
	if err != nil {
		return nil, err
	}
	wf := &walFile{File: f, fsys: w.fsys, dir: dir}
	if err := wf.Sync(); err != nil {
		f.Close()
		return nil, err
	}
	return wf, nil
}

// walFile makes the file's name durable with its first sync, as raft-wal expects.
type walFile struct {
	vfs.File
	fsys  vfs.FS
	dir   string
	named atomic.Bool
}

func (f *walFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	if f.named.Load() {
		return nil
	}
	if err := f.fsys.SyncDir(f.dir); err != nil {
		return err
	}
	f.named.Store(true)
	return nil
}

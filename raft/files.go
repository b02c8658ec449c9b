package raft

import (
	"math"
	"path"

	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/log/vfs"
)

// walFS gives raft-wal its files from the file-system seam, so that a crash test
// can walk through every write and sync. Each write goes to the page cache and
// each sync is an fdatasync, from the first entry to the last.
type walFS struct{ fsys vfs.FS }

// preallocated is how many zeros are written ahead of the log's end. An fdatasync
// into blocks that were written before only writes data; into new blocks, of a
// sparse or an fallocated file, it also commits the file system's journal.
const preallocated = 256 << 10

var zeros [preallocated]byte

var _ waltypes.VFS = walFS{}

// ListDir implements waltypes.VFS.
func (w walFS) ListDir(dir string) ([]string, error) { return w.fsys.List(dir) }

// Create implements waltypes.VFS. The file gets its full size at once, so that an
// append does not change it.
func (w walFS) Create(dir, name string, size uint64) (waltypes.WritableFile, error) {
	f, err := w.fsys.Create(path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	size = min(size, math.MaxInt32)
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, err
	}
	return &walFile{File: f, fsys: w.fsys, dir: dir, size: int64(size)}, nil
}

// Delete implements waltypes.VFS.
func (w walFS) Delete(dir, name string) error {
	if err := w.fsys.Remove(path.Join(dir, name)); err != nil {
		return err
	}
	return w.fsys.SyncDir(dir)
}

// OpenReader implements waltypes.VFS.
func (w walFS) OpenReader(dir, name string) (waltypes.ReadableFile, error) {
	return w.fsys.OpenRead(path.Join(dir, name))
}

// OpenWriter implements waltypes.VFS. The file is synced at once: after a kill the
// page cache shows writes that are not on disk, and raft-wal takes what it reads
// for durable.
func (w walFS) OpenWriter(dir, name string) (waltypes.WritableFile, error) {
	f, err := w.fsys.OpenReadWrite(path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil, err
	}
	file := &walFile{File: f, fsys: w.fsys, dir: dir, size: size}
	if err := file.Sync(); err != nil {
		f.Close()
		return nil, err
	}
	return file, nil
}

// walFile is a segment that raft-wal appends to. Behind its end are only zeros:
// see repairLog.
type walFile struct {
	vfs.File
	fsys   vfs.FS
	dir    string
	size   int64
	named  bool  // the file's name is durable
	zeroed int64 // blocks up to this offset have been written, with entries or zeros
}

// WriteAt implements io.WriterAt. An append that reaches blocks which were never
// written takes zeros for the next ones along, and the same sync covers both.
func (f *walFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	end := off + int64(len(p))
	if err != nil || end <= f.zeroed {
		return n, err
	}
	f.zeroed = max(end, min(end+preallocated, f.size))
	// Only an optimization: where it fails, the file has holes.
	_, _ = f.File.WriteAt(zeros[:f.zeroed-end], end)
	return n, nil
}

// Sync makes the written bytes and the file's name durable.
func (f *walFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	if f.named {
		return nil
	}
	f.named = true
	return f.fsys.SyncDir(f.dir)
}

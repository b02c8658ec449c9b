package raft

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"

	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/internal/vfs"
)

// walFS gives raft-wal its files from internal/vfs, so that a crash test can
// walk through every write and sync of it.
type walFS struct {
	fsys  vfs.FS
	spare *spare // nil: none is kept
}

var _ waltypes.VFS = walFS{}

func (w walFS) ListDir(dir string) ([]string, error) { return w.fsys.List(dir) }

func (w walFS) Create(dir, name string, size uint64) (waltypes.WritableFile, error) {
	if w.spare != nil {
		taken, err := w.spare.take(name, size)
		if err != nil {
			return nil, err
		}
		if taken {
			f, err := w.fsys.OpenReadWrite(join(dir, name))
			if err != nil {
				return nil, err
			}
			wf := w.file(f, dir, name)
			wf.named.Store(true)
			wf.goDirect(int64(size))
			return wf, nil
		}
	}
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
	wf := w.file(f, dir, name)
	if w.spare != nil && w.spare.spares() {
		wf.goDirect(int64(size))
	}
	return wf, nil
}

func (w walFS) file(f vfs.File, dir, name string) *walFile {
	return &walFile{File: f, fsys: w.fsys, dir: dir, name: name, spare: w.spare}
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
	wf := w.file(f, dir, name)
	wf.end, wf.loose = unknown, true
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
	name  string
	named atomic.Bool
	spare *spare
	syncs atomic.Int64

	// direct writes past the page cache; nil: not, or not yet.
	direct atomic.Pointer[direct]
	// loose: something was written that only a sync makes durable.
	loose  bool
	behind vfs.Behind

	mu  sync.Mutex
	end int64 // of all that was written, or is being written
}

// unknown is the end of a file that was not written since it was opened, or is
// closed. raft-wal opens one for writing at its end.
const unknown = -1

// WriteAt implements io.WriterAt.
func (f *walFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	f.end = max(f.end, off+int64(len(p)))
	f.mu.Unlock()
	if d := f.direct.Load(); d != nil {
		done, err := d.write(p, off)
		if err != nil {
			return 0, err // not len(p): with that raft-wal takes io.EOF for a success
		}
		if done {
			return len(p), nil
		}
	}
	f.loose = true
	return f.File.WriteAt(p, off)
}

// Close implements io.Closer.
func (f *walFile) Close() error {
	f.mu.Lock()
	f.end = unknown
	f.mu.Unlock()
	err := f.File.Close()
	if d := f.direct.Load(); d != nil {
		err = errors.Join(err, d.close())
	}
	return err
}

// goDirect has the file written past the page cache from its next write on, if
// the file system can. All of it behind what was written must be a hole, or zeros
// that were written and synced: the page cache may hold nothing of it that is not
// on disk, or the kernel reports a failure.
func (f *walFile) goDirect(size int64) {
	d := openDirect(f, size)
	if d == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == unknown || f.direct.Load() != nil { // closed meanwhile, or done
		_ = d.close() // nothing was written through it
		return
	}
	f.direct.Store(d)
}

// Sync makes durable what was written, and the file's name.
func (f *walFile) Sync() error {
	if f.loose || !f.named.Load() {
		if err := f.File.Sync(); err != nil {
			return err
		}
		f.loose = false
		f.mu.Lock()
		end := f.end
		f.mu.Unlock()
		f.behind.Synced(f.File, end)
	}
	if !f.named.Load() {
		if err := f.fsys.SyncDir(f.dir); err != nil {
			return err
		}
		f.named.Store(true)
	}
	if f.spare != nil && f.spare.pays(f.syncs.Add(1)) {
		f.spare.want(f)
	}
	return nil
}

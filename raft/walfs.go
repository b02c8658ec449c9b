package raft

import (
	"errors"
	"math"

	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/internal/vfs"
)

// walFS gives raft-wal its files from internal/vfs, so that a crash test can
// walk through every write and sync of it.
type walFS struct {
	fsys vfs.FS
	life *walLife
}

// walLife is what the segments of one log have in common, while it is open.
type walLife struct {
	work        int64  // of all segments, as directAfter counts it; the writer's, as is what follows
	directAfter int64  // directAfter; another in tests
	mean        int64  // bytes of a write, of late
	scratch     []byte // what direct writes are made of
}

// directAfter is how much of a log's work is done with the usual write and sync
// calls before it goes on past the page cache (direct): a sync counts one, and so
// do 16 KiB. A busy node is there within seconds, and with one that is not there is
// nothing to gain. Whoever traces, delays or fails the syncs of a process, to see
// how it takes that, finds them.
const directAfter = 1000

// zerosAhead is how many zeros are written ahead of the log's end, with the entry
// that gets there, and synced with it. An fdatasync into blocks that were written
// before has only data to write. Into new blocks (of a sparse or an fallocated
// file) it also commits the file system's journal, which takes twice the time and
// twice the CPU (measured on ext4: for small entries, 64 KiB of zeros at a time gain
// nearly as much as a file full of them). Where entries are longer than this on
// average there are none: they would cost as much as they save.
const zerosAhead = 256 << 10

var zeros [zerosAhead]byte

func newWalFS(fsys vfs.FS) walFS { return walFS{fsys, &walLife{directAfter: directAfter}} }

var _ waltypes.VFS = walFS{}

func (w walFS) ListDir(dir string) ([]string, error) { return w.fsys.List(dir) }

func (w walFS) Create(dir, name string, size uint64) (waltypes.WritableFile, error) {
	f, err := w.fsys.Create(join(dir, name))
	if err != nil {
		return nil, err
	}
	if size > math.MaxInt32 {
		size = 0
	}
	// The size that the segment will have, so that an append does not change it.
	if size > 0 {
		if err := f.Truncate(int64(size)); err != nil {
			f.Close()
			return nil, err
		}
	}
	wf := w.file(f, dir, name, int64(size))
	wf.goDirect()
	return wf, nil
}

func (w walFS) file(f vfs.File, dir, name string, size int64) *walFile {
	return &walFile{File: f, fsys: w.fsys, dir: dir, name: name, size: size, life: w.life}
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
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil, err
	}
	wf := w.file(f, dir, name, size)
	wf.loose = true
	if err := wf.Sync(); err != nil {
		f.Close()
		return nil, err
	}
	return wf, nil
}

// walFile is a segment. raft-wal writes one by appending, and behind the end of
// one that it writes there are only zeros (mendLog). It has one writer, and many
// readers.
type walFile struct {
	vfs.File
	fsys vfs.FS
	dir  string
	name string
	size int64
	life *walLife

	named bool // the name is durable, too
	// direct writes past the page cache; nil: not, or not yet.
	direct *direct
	// loose: something was written that only a sync makes durable.
	loose  bool
	behind vfs.Behind
	end    int64 // of what was written; 0 before that
	zeroed int64 // up to here blocks were written, with entries or zeros
}

// WriteAt implements io.WriterAt.
func (f *walFile) WriteAt(p []byte, off int64) (int, error) {
	appends := off >= f.end
	f.end = max(f.end, off+int64(len(p)))
	var zeroed int64 // up to where zeros go with it; 0 none
	f.life.mean += (int64(len(p)) - f.life.mean) / 8
	f.life.work += int64(len(p)) / (16 << 10)
	if appends && f.life.mean <= zerosAhead && f.zeroed < f.end && f.end < f.size {
		zeroed = min(f.end+zerosAhead, f.size)
	}
	if f.direct != nil {
		done, err := f.direct.write(p, off, zeroed)
		if err != nil {
			return 0, err // not len(p): with that raft-wal takes io.EOF for a success
		}
		if done {
			f.zeroed = max(f.zeroed, zeroed)
			return len(p), nil
		}
	}
	f.loose = true
	n, err := f.File.WriteAt(p, off)
	if err == nil && zeroed > 0 {
		f.zeroed = zeroed
		_, _ = f.File.WriteAt(zeros[:zeroed-f.end], f.end) // an aid: where it fails, holes are left
	}
	return n, err
}

// Close implements io.Closer.
func (f *walFile) Close() error {
	err := f.File.Close()
	if f.direct != nil {
		err = errors.Join(err, f.direct.close())
	}
	return err
}

// goDirect has the segment written past the page cache from its next write on, if
// it is time for that and the file system can. The page cache may hold nothing of
// it that is not on disk, or the kernel reports a failure: so it is for a new
// segment, or behind a sync.
func (f *walFile) goDirect() {
	if f.direct != nil || f.life.work < f.life.directAfter {
		return
	}
	if f.direct = openDirect(f); f.direct == nil {
		f.life.directAfter = math.MaxInt64 // not asked again at each sync
	}
}

// Sync makes durable what was written, and the file's name.
func (f *walFile) Sync() error {
	f.life.work++
	if f.loose || !f.named {
		if err := f.File.Sync(); err != nil {
			return err
		}
		f.loose = false
		f.behind.Synced(f.File, f.end)
		if f.end > 0 {
			f.goDirect()
		}
	}
	if !f.named {
		if err := f.fsys.SyncDir(f.dir); err != nil {
			return err
		}
		f.named = true
	}
	return nil
}

package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"github.com/qlogd/qlogd/internal/datadir"
	"github.com/qlogd/qlogd/internal/vfs"
	"github.com/qlogd/qlogd/log"
)

// FS is a data directory in which, besides its own files, those of an archive
// lie: for reading only. What both have is read from the directory, but for a
// segment that the directory has only begun.
type FS struct {
	ctx     context.Context
	archive *Archive
	base    vfs.FS // nil: there is only the archive
	dir     string
	files   map[string]*bytesOf // by path, those that the archive serves
	names   map[string][]string // by directory

	// Missing tells of what lies in the archive and can't be used: history in
	// between is missing. "" where there is none.
	Missing string

	cacheMu sync.RWMutex
	cache   string // directory of objects that were fetched; "" none yet
	fetched []*fetchedFile
}

// fetchedFile is an object that was fetched whole.
type fetchedFile struct {
	object string
	*os.File
}

var _ vfs.FS = (*FS)(nil)

// Mount shows an archive as a data directory at dir, together with the one that
// base has there; base may be nil. The caller must Close it.
func (a *Archive) Mount(ctx context.Context, base vfs.FS, dir string) (*FS, error) {
	f := &FS{ctx: ctx, archive: a, base: base, dir: dir, files: map[string]*bytesOf{}, names: map[string][]string{}}
	logDir, ckptDir := datadir.Path(dir, datadir.LogDir), datadir.Path(dir, datadir.CheckpointDir)
	if err := f.mountLog(logDir); err != nil {
		return nil, err
	}
	return f, f.mountCheckpoints(ckptDir)
}

func (f *FS) baseNames(dir string) ([]string, error) {
	if f.base == nil {
		return nil, nil
	}
	names, err := f.base.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

func (f *FS) mountLog(dir string) error {
	// The directory first: what retention deletes afterwards was archived before.
	names, err := f.baseNames(dir)
	if err != nil {
		return err
	}
	cards, err := f.archive.segments(f.ctx)
	if err != nil {
		return err
	}
	var own []uint64
	for _, name := range names {
		if first, ok := log.ParseSegmentName(name); ok {
			own = append(own, first)
		}
	}
	// From the newest one back, for as long as each continues the one before.
	next := uint64(0) // first index that the row begins with; 0: nothing yet
	prev := uint64(0) // the block that it continues
	if len(own) > 0 {
		// Only its header is wanted: that it has no block is no matter.
		s, err := log.ScanSegment(f.ctx, f.base, dir, log.SegmentName(own[0]), log.SegmentHeaderSize, nil)
		if s.First != own[0] {
			return err // retention was faster, or it is damaged
		}
		next, prev = own[0], s.PrevIndex
		if prev == 0 {
			cards = slices.DeleteFunc(slices.Clone(cards), func(c *card) bool { return c.First < own[0] }) // it is the log's beginning
		}
	}
	for i := len(cards) - 1; i >= 0; i-- {
		c := cards[i]
		switch {
		case slices.Contains(own, c.First) && c.First != own[len(own)-1]:
			continue // the directory has it, whole
		case len(own) > 0 && c.First >= own[0]:
			// Its newest one, which it may have only begun, or what came after.
		case prev > 0 && c.Last != prev:
			f.Missing = fmt.Sprintf("archive %s: between index %d, where segment %s ends, and index %d history is missing; what lies before is left out", f.archive, c.Last, c.Name, next)
			f.merge(dir, names)
			return nil
		default:
			next, prev = c.First, c.PrevIndex
		}
		f.add(dir, c.Name, &c.bytesOf)
		if c.Side != nil {
			f.add(dir, log.SideFileName(c.First), c.Side)
		}
	}
	f.merge(dir, names)
	return nil
}

func (f *FS) mountCheckpoints(dir string) error {
	names, err := f.baseNames(dir)
	if err != nil {
		return err
	}
	cards, err := f.archive.list(f.ctx, checkpointFolder)
	if err != nil {
		return err
	}
	for _, c := range cards {
		if !slices.Contains(names, c.Name) {
			f.add(dir, c.Name, &c.bytesOf)
		}
	}
	f.merge(dir, names)
	return nil
}

func (f *FS) add(dir, name string, b *bytesOf) {
	f.files[path.Join(dir, name)] = b
	f.names[dir] = append(f.names[dir], name)
}

func (f *FS) merge(dir string, names []string) {
	all := append(f.names[dir], names...)
	slices.Sort(all)
	f.names[dir] = slices.Compact(all)
}

// Close removes what was fetched.
func (f *FS) Close() error {
	f.cacheMu.Lock()
	defer f.cacheMu.Unlock()
	var errs []error
	for _, c := range f.fetched {
		errs = append(errs, c.Close())
	}
	f.fetched = nil
	if f.cache != "" {
		errs = append(errs, os.RemoveAll(f.cache))
		f.cache = ""
	}
	return errors.Join(errs...)
}

func denied(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrPermission} }

// Create implements vfs.FS: never.
func (f *FS) Create(name string) (vfs.File, error) { return nil, denied("create", name) }

// OpenReadWrite implements vfs.FS: never.
func (f *FS) OpenReadWrite(name string) (vfs.File, error) { return nil, denied("open", name) }

// Remove implements vfs.FS: never.
func (f *FS) Remove(name string) error { return denied("remove", name) }

// Rename implements vfs.FS: never.
func (f *FS) Rename(name, _ string) error { return denied("rename", name) }

// MkdirAll implements vfs.FS: never.
func (f *FS) MkdirAll(name string) error { return denied("mkdir", name) }

// SyncDir implements vfs.FS: never.
func (f *FS) SyncDir(name string) error { return denied("sync", name) }

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	names, ok := f.names[dir]
	if ok && f.base != nil {
		// A live node goes on.
		own, err := f.base.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		var archived []string
		for _, name := range names {
			if f.files[path.Join(dir, name)] != nil {
				archived = append(archived, name)
			}
		}
		own = append(own, archived...)
		slices.Sort(own)
		return slices.Compact(own), nil
	}
	if ok {
		return names, nil
	}
	if f.base != nil {
		return f.base.List(dir)
	}
	return nil, &fs.PathError{Op: "list", Path: dir, Err: fs.ErrNotExist}
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Info, error) {
	if b := f.files[name]; b != nil {
		return vfs.Info{Size: b.Bytes, Mode: 0o400}, nil
	}
	if _, ok := f.names[name]; ok {
		return vfs.Info{IsDir: true, Mode: fs.ModeDir | 0o500}, nil
	}
	if f.base != nil {
		return f.base.Stat(name)
	}
	return vfs.Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

// OpenRead implements vfs.FS.
func (f *FS) OpenRead(name string) (vfs.File, error) {
	b := f.files[name]
	switch {
	case b == nil && f.base == nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case b == nil:
		return f.base.OpenRead(name)
	}
	if local := f.archive.store.Local(b.Object); local != "" {
		file, err := vfs.OS{}.OpenRead(local)
		if err != nil {
			return nil, err
		}
		if size, err := file.Size(); err != nil || size != b.Bytes {
			return nil, errors.Join(err, file.Close(), &CorruptError{f.archive.String(), b.Object, fmt.Sprintf("it has %d bytes, its card says %d", size, b.Bytes)})
		}
		return archived{file}, nil
	}
	return &remote{fs: f, b: b}, nil
}

// archived is a file that nobody may write to.
type archived struct{ vfs.File }

func (archived) WriteAt([]byte, int64) (int, error) { return 0, denied("write", "archive") }
func (archived) Truncate(int64) error               { return denied("truncate", "archive") }
func (archived) Sync() error                        { return nil }

// remote is an object of a store that is not on this machine.
type remote struct {
	fs *FS
	b  *bytesOf

	headMu sync.Mutex
	head   []byte // its first bytes, once they were asked for
}

// headBytes are read by themselves: of most segments only the header is looked
// at, and it is not worth fetching all of one for that.
const headBytes = 4 << 10

// keepFetched is how many objects that were fetched whole are kept.
const keepFetched = 8

// ReadAt implements vfs.File.
func (r *remote) ReadAt(p []byte, off int64) (int, error) {
	switch {
	case off >= r.b.Bytes:
		return 0, io.EOF
	case off+int64(len(p)) <= headBytes && r.b.Bytes > headBytes:
		return r.readHead(p, off)
	}
	for {
		n, ok, err := r.fs.readFetched(r.b, p, off)
		if ok {
			return n, err
		}
		if err := r.fs.fetch(r.b); err != nil {
			return 0, err
		}
	}
}

func (r *remote) readHead(p []byte, off int64) (int, error) {
	r.headMu.Lock()
	defer r.headMu.Unlock()
	if r.head == nil {
		in, err := r.fs.archive.store.Get(r.fs.ctx, r.b.Object, 0, headBytes)
		if err != nil {
			return 0, err
		}
		head, err := io.ReadAll(in)
		if err = errors.Join(err, in.Close()); err != nil {
			return 0, err
		}
		if len(head) != headBytes {
			return 0, &CorruptError{r.fs.archive.String(), r.b.Object, "it is shorter than its card says"}
		}
		r.head = head
	}
	return copy(p, r.head[off:]), nil
}

func (f *FS) readFetched(b *bytesOf, p []byte, off int64) (n int, ok bool, err error) {
	f.cacheMu.RLock()
	defer f.cacheMu.RUnlock()
	for _, c := range f.fetched {
		if c.object == b.Object {
			n, err = c.ReadAt(p, off)
			return n, true, err
		}
	}
	return 0, false, nil
}

// fetch brings a whole object here and holds it against its card.
func (f *FS) fetch(b *bytesOf) (err error) {
	f.cacheMu.Lock()
	defer f.cacheMu.Unlock()
	if slices.ContainsFunc(f.fetched, func(c *fetchedFile) bool { return c.object == b.Object }) {
		return nil
	}
	if f.cache == "" {
		if f.cache, err = os.MkdirTemp("", "qlogd-archive-*"); err != nil {
			return err
		}
	}
	for len(f.fetched) >= keepFetched {
		old := f.fetched[0]
		f.fetched = f.fetched[1:]
		if err := errors.Join(old.Close(), os.Remove(old.Name())); err != nil {
			return err
		}
	}
	in, err := f.archive.store.Get(f.ctx, b.Object, 0, -1)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(f.cache, path.Base(b.Object)))
	if err != nil {
		return err
	}
	hash, n, err := sum(io.TeeReader(in, out))
	if err == nil && (n != b.Bytes || hash != b.SHA256) {
		err = &CorruptError{f.archive.String(), b.Object, fmt.Sprintf("it is %d bytes with SHA-256 %.16s…, its card says %d with %.16s…", n, hash, b.Bytes, b.SHA256)}
	}
	if err != nil {
		return errors.Join(err, out.Close(), os.Remove(out.Name()))
	}
	f.fetched = append(f.fetched, &fetchedFile{b.Object, out})
	return nil
}

// WriteAt implements vfs.File: never.
func (r *remote) WriteAt([]byte, int64) (int, error) { return 0, denied("write", r.b.Object) }

// Truncate implements vfs.File: never.
func (r *remote) Truncate(int64) error { return denied("truncate", r.b.Object) }

// Sync implements vfs.File.
func (r *remote) Sync() error { return nil }

// Close implements vfs.File.
func (r *remote) Close() error { return nil }

// Size implements vfs.File.
func (r *remote) Size() (int64, error) { return r.b.Bytes, nil }

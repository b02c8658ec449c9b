package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
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
}

var _ vfs.FS = (*FS)(nil)

// Mount shows an archive as a data directory at dir, together with the one that
// base has there; base may be nil.
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
	file, err := vfs.OS{}.OpenRead(f.archive.store.Local(b.Object))
	if err != nil {
		return nil, err
	}
	if size, err := file.Size(); err != nil || size != b.Bytes {
		return nil, errors.Join(err, file.Close(), &CorruptError{f.archive.String(), b.Object,
			fmt.Sprintf("it has %d bytes, its card says %d", size, b.Bytes)})
	}
	return archived{file}, nil
}

// archived is a file that nobody may write to.
type archived struct{ vfs.File }

func (archived) WriteAt([]byte, int64) (int, error) { return 0, denied("write", "archive") }
func (archived) Truncate(int64) error               { return denied("truncate", "archive") }
func (archived) Sync() error                        { return nil }

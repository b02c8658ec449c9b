package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// FS is a data directory together with the files of an archive, for reading only. What both have is
// read from the directory, except for a segment that the directory has only begun.
type FS struct {
	archive *Archive
	dir     string // where it is mounted
	base    vfs.FS
	files   map[string]string // by path: that of a file in the archive

	// Missing describes the archived history that cannot be used because some after it is missing;
	// "" if there is none.
	Missing string
}

var _ vfs.FS = (*FS)(nil)

// Mount shows an archive as a data directory at dir, together with the one that base has there;
// base may be nil.
func (a *Archive) Mount(ctx context.Context, base vfs.FS, dir string) (*FS, error) {
	if base == nil {
		base = vfs.NewMem()
	}
	f := &FS{archive: a, dir: dir, base: base, files: map[string]string{}}
	if err := f.mountLog(ctx, datadir.Path(dir, datadir.LogDir)); err != nil {
		return nil, err
	}
	checkpoints := datadir.Path(dir, datadir.CheckpointDir)
	own, err := f.own(checkpoints)
	if err != nil {
		return nil, err
	}
	there, _, err := checkpoint.List(a.fs, a.folder(checkpointFolder))
	if err != nil {
		return nil, err
	}
	for _, m := range there {
		if !slices.Contains(own, m.Name()) {
			f.add(checkpoints, checkpointFolder, m.Name())
		}
	}
	return f, nil
}

// own returns the names in a directory of base.
func (f *FS) own(dir string) ([]string, error) {
	names, err := f.base.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

func (f *FS) mountLog(ctx context.Context, dir string) error {
	// The directory first: what retention deletes afterwards was archived before.
	names, err := f.own(dir)
	if err != nil {
		return err
	}
	there, err := f.archive.Segments()
	if err != nil {
		return err
	}
	var own []uint64
	for _, name := range names {
		if first, ok := log.ParseSegmentName(name); ok {
			own = append(own, first)
		}
	}
	// From the newest one back, while each continues the one before.
	var next, prev uint64 // the first index so far (0: none), and the one of the block before it
	if len(own) > 0 {
		// Only its header is read: an error about its blocks does not matter.
		s, err := log.ScanSegment(
			ctx, f.base, dir, log.SegmentName(own[0]), log.SegmentHeaderSize, nil)
		if s.First != own[0] {
			return err // retention has just deleted it, or it is damaged
		}
		next, prev = own[0], s.PrevIndex
	}
	for _, g := range slices.Backward(there) {
		switch {
		case slices.Contains(own, g.First) && g.First != own[len(own)-1]:
			continue // the directory has it, whole
		case len(own) > 0 && g.First >= own[0]:
			// The directory's newest one, which it may have only begun, or one after that.
		case len(own) > 0 && prev == 0:
			return nil // the directory has the log's beginning
		case prev > 0 && g.Last != prev:
			f.Missing = fmt.Sprintf("archive %s: between index %d, where segment %s ends, and "+
				"index %d history is missing; what lies before is left out",
				f.archive, g.Last, g.Name, next)
			return nil
		default:
			next, prev = g.First, g.PrevIndex
		}
		f.add(dir, logFolder, g.Name)
		f.add(dir, logFolder, g.SideFile)
	}
	return nil
}

// add shows a file of the archive in a directory.
func (f *FS) add(dir, folder, name string) {
	f.files[path.Join(dir, name)] = path.Join(f.archive.folder(folder), name)
}

// List implements vfs.FS. A live node goes on, so base is asked again.
func (f *FS) List(dir string) ([]string, error) {
	names, err := f.own(dir)
	if err != nil {
		return nil, err
	}
	for name := range f.files {
		if path.Dir(name) == path.Clean(dir) {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// at returns where a file is read.
func (f *FS) at(name string) (vfs.FS, string) {
	if archived, ok := f.files[path.Clean(name)]; ok {
		return f.archive.fs, archived
	}
	return f.base, name
}

// Stat implements vfs.FS. An archive has a log, even before a segment was archived.
func (f *FS) Stat(name string) (int64, error) {
	if name == datadir.Path(f.dir, datadir.LogDir) {
		return 0, nil
	}
	fsys, at := f.at(name)
	return fsys.Stat(at)
}

// OpenRead implements vfs.FS.
func (f *FS) OpenRead(name string) (vfs.File, error) {
	fsys, at := f.at(name)
	return fsys.OpenRead(at)
}

func denied(name string) error {
	return &fs.PathError{Op: "write", Path: name, Err: fs.ErrPermission}
}

// The other methods of vfs.FS write, and are refused.

func (f *FS) Create(name string) (vfs.File, error)        { return nil, denied(name) }
func (f *FS) OpenReadWrite(name string) (vfs.File, error) { return nil, denied(name) }
func (f *FS) Remove(name string) error                    { return denied(name) }
func (f *FS) Rename(name, _ string) error                 { return denied(name) }
func (f *FS) MkdirAll(name string) error                  { return denied(name) }
func (f *FS) SyncDir(name string) error                   { return denied(name) }

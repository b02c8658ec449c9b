package archive

import (
	"context"
	"fmt"
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
	vfs.FS
	dir   string
	alone bool              // nothing but the archive is shown
	files map[string]string // those of the archive, by the path at which they are shown

	// Missing describes the archived history that cannot be used because some after it is missing;
	// "" if there is none.
	Missing string
}

// Mount shows the archive's files in the data directory at dir. In the archive's own directory,
// which has the same folders, it shows the archive alone.
func (a *Archive) Mount(ctx context.Context, dir string) (*FS, error) {
	f := &FS{FS: a.fs, dir: dir, alone: dir == a.dir, files: map[string]string{}}
	if err := f.mountLog(ctx, a); err != nil {
		return nil, err
	}
	checkpoints := datadir.Path(dir, datadir.CheckpointDir)
	own, err := f.own(checkpoints)
	if err != nil {
		return nil, err
	}
	there, _, err := checkpoint.List(a.fs, a.folder(checkpointFolder))
	for _, m := range there {
		if !slices.Contains(own, m.Name()) {
			f.add(checkpoints, m.Name(), a.folder(checkpointFolder))
		}
	}
	return f, err
}

// add shows a file of a folder of the archive in a directory.
func (f *FS) add(dir, name, folder string) {
	f.files[path.Join(dir, name)] = path.Join(folder, name)
}

// own returns the names in a folder of the directory itself.
func (f *FS) own(folder string) ([]string, error) {
	if f.alone {
		return nil, nil
	}
	return vfs.List(f.FS, folder)
}

func (f *FS) mountLog(ctx context.Context, a *Archive) error {
	dir := datadir.Path(f.dir, datadir.LogDir)
	// The directory first: what retention deletes afterwards was archived before.
	names, err := f.own(dir)
	if err != nil {
		return err
	}
	there, err := a.Segments()
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
			ctx, f.FS, dir, log.SegmentName(own[0]), log.SegmentHeaderSize, nil)
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
				a, g.Last, g.Name, next)
			return nil
		default:
			next, prev = g.First, g.PrevIndex
		}
		f.add(dir, g.Name, a.folder(logFolder))
		f.add(dir, g.SideFile, a.folder(logFolder))
	}
	return nil
}

// List implements vfs.FS. A live node goes on, so the directory is listed again.
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
func (f *FS) at(name string) string {
	if archived, ok := f.files[path.Clean(name)]; ok {
		return archived
	}
	return name
}

// Stat implements vfs.FS. An archive has a log, even before a segment was archived.
func (f *FS) Stat(name string) (int64, error) {
	if name == datadir.Path(f.dir, datadir.LogDir) {
		return 0, nil
	}
	return f.FS.Stat(f.at(name))
}

// OpenRead implements vfs.FS.
func (f *FS) OpenRead(name string) (vfs.File, error) { return f.FS.OpenRead(f.at(name)) }

package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"slices"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Install moves what Fetch has transferred in place and reports whether it did. It must be
// called at each opening of a data directory, under its lock, before anything in it is opened,
// with no plan: an installation that a crash interrupted leaves neither the old directory nor
// the new one until Install has finished it.
//
// If the event log has changed since the plan was made, or the files were discarded, nothing is
// installed. The files in incoming/ may be of use to the next Fetch.
func Install(fsys vfs.FS, dataDir string, p *Plan, logger *slog.Logger) (done bool, err error) {
	i := &installer{
		FS: fsys, dataDir: dataDir, dir: path.Join(dataDir, datadir.IncomingDir),
		log:         path.Join(dataDir, datadir.LogDir),
		checkpoints: path.Join(dataDir, datadir.CheckpointDir),
	}
	b, err := vfs.ReadFile(fsys, path.Join(i.dir, installFile))
	switch {
	case err == nil:
		if p, err = decodePlan(b); err == nil {
			err = i.SyncDir(i.dir) // a rename that was seen need not be on disk yet
		}
	case !errors.Is(err, fs.ErrNotExist):
	case p == nil:
		return false, nil
	default:
		var why string
		if why, err = i.outdated(p); err == nil && why != "" {
			logger.Warn("fetched files are not installed", "why", why)
			return false, nil
		}
		if err == nil {
			// The point of no return: the next step changes the log.
			err = vfs.WriteFile(fsys, path.Join(i.dir, installFile), p.encode())
		}
	}
	if err == nil {
		err = i.install(p)
	}
	if err != nil {
		return false, fmt.Errorf("install fetched files: %w", err)
	}
	logger.Info("installed checkpoint and missing log segments", "checkpoint", p.Checkpoint.Name,
		"head", p.Checkpoint.HeadIndex, "segments", len(p.Segments), "replaced", p.Replace)
	return true, nil
}

type installer struct {
	vfs.FS
	dataDir, dir     string
	log, checkpoints string
}

// outdated returns why a plan cannot be carried out, or "": the event log does not end where it
// did when the plan was made, or the files were discarded since.
func (i *installer) outdated(p *Plan) (why string, err error) {
	for name, size := range p.files() {
		if ok, err := i.hasSize(path.Join(i.dir, name), size); err != nil || !ok {
			return "files are missing", err
		}
	}
	_, head, _, err := local(i.FS, i.dataDir, math.MaxUint64)
	switch {
	case err != nil:
		return "", err
	case head.Last != p.head:
		return "the event log has changed", nil
	case len(p.Segments) == 0 && head.Last > 0:
		// Its end may not have been synced by the process that wrote it.
		f, err := i.OpenReadWrite(path.Join(i.log, head.Name))
		if err != nil {
			return "", err
		}
		return "", errors.Join(f.Sync(), f.Close())
	}
	return "", nil
}

// install carries out a plan. Each step may have been done before, by an Install that was
// interrupted, and then does nothing.
func (i *installer) install(p *Plan) error {
	err := errors.Join(i.MkdirAll(i.log), i.MkdirAll(i.checkpoints))
	if err == nil && len(p.Segments) > 0 {
		err = i.installSegments(p)
	}
	if err == nil && p.Replace {
		err = i.dropStale(p.PrevIndex)
	}
	// Last of the data: a checkpoint needs the log up to it.
	if err == nil {
		err = i.move(p.Checkpoint.Name, i.checkpoints, p.Checkpoint.Size)
	}
	// Both directories that files were moved between are on disk before INSTALL, the last
	// file in its directory, is removed.
	for _, dir := range []string{i.checkpoints, i.dir} {
		if err == nil {
			err = i.SyncDir(dir)
		}
	}
	if err == nil {
		err = vfs.Remove(i.FS, i.dir, installFile)
	}
	if err != nil {
		return err
	}
	return Discard(i.FS, i.dataDir)
}

// installSegments replaces the end of the event log, or all of it.
func (i *installer) installSegments(p *Plan) error {
	// The node that sent the segments may not have carried out the erasures that this one has
	// (I22). Before the first of them is in place, so that a crash leaves no broken promise.
	first := p.Segments[0].First
	upTo, err := datadir.ReadErased(i.FS, i.dataDir)
	if err == nil && upTo >= first {
		err = datadir.WriteErased(i.FS, i.dataDir, first-1)
	}
	if err != nil {
		return err
	}
	names, err := i.List(i.log)
	if err != nil {
		return err
	}
	// What does not stay, but for segments of the same names: the move replaces those, or has.
	// A side file that goes is computed again when the log is opened.
	stays := p.files()
	if err := vfs.Remove(i.FS, i.log, slices.DeleteFunc(names, func(name string) bool {
		index, ok := log.ParseSegmentName(name)
		if !ok {
			index, ok = log.ParseSideFileName(name)
		}
		_, moved := stays[name]
		return !ok || moved || !p.Replace && index < first
	})...); err != nil {
		return fmt.Errorf("remove the old log: %w", err)
	}
	for _, s := range p.Segments { // the oldest first, each with its side file before it
		side := log.SideFileName(s.First)
		err := i.Rename(path.Join(i.dir, side), path.Join(i.log, side))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := i.move(s.Name, i.log, s.Size); err != nil {
			return err
		}
	}
	return i.SyncDir(i.log)
}

// dropStale removes what a log that begins after an index cannot be used with: checkpoints
// before it, and read models, which cannot continue over a gap.
func (i *installer) dropStale(index uint64) error {
	metas, _, err := checkpoint.List(i.FS, i.checkpoints)
	if err != nil {
		return err
	}
	var old []string
	for _, m := range metas {
		if m.HeadIndex < index {
			old = append(old, m.Name())
		}
	}
	err = vfs.Remove(i.FS, i.checkpoints, old...)
	return errors.Join(err, vfs.Remove(i.FS, i.dataDir, datadir.ProjectionFile))
}

// move moves a file of incoming/ to its directory, replacing an older one. It is there, with
// its size, or has been moved.
func (i *installer) move(name, to string, size int64) error {
	err := i.Rename(path.Join(i.dir, name), path.Join(to, name))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ok, err := i.hasSize(path.Join(to, name), size)
	if err == nil && !ok {
		err = fmt.Errorf("%s is neither in %s nor, with %d bytes, in %s", name, i.dir, size, to)
	}
	return err
}

func (i *installer) hasSize(name string, size int64) (bool, error) {
	have, err := i.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && have == size, err
}

// Discard removes fetched files that are not installed: an aid for the next Fetch, which may
// hold contents that were erased since (I22). Neither Fetch nor Install may run beside it.
func Discard(fsys vfs.FS, dataDir string) error {
	dir := path.Join(dataDir, datadir.IncomingDir)
	names, err := vfs.List(fsys, dir)
	switch {
	case err != nil:
	case slices.Contains(names, installFile):
		err = errors.New("an installation is in progress")
	default:
		if err = vfs.Remove(fsys, dir, names...); err == nil {
			err = vfs.Remove(fsys, dataDir, datadir.IncomingDir)
		}
	}
	if err != nil {
		return fmt.Errorf("discard fetched files: %w", err)
	}
	return nil
}

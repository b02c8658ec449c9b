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
func Install(fsys vfs.FS, dataDir string, p *Plan, logger *slog.Logger) (bool, error) {
	i := &installer{
		FS: fsys, dataDir: dataDir, dir: path.Join(dataDir, datadir.IncomingDir),
		log:         path.Join(dataDir, datadir.LogDir),
		checkpoints: path.Join(dataDir, datadir.CheckpointDir),
	}
	b, err := vfs.ReadFile(fsys, path.Join(i.dir, installFile))
	switch {
	case err == nil:
		p, err = decodePlan(b)
		// Also of a rename that was seen but is not on disk yet.
		err = errors.Join(err, i.SyncDir(i.dir))
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
	files := map[string]int64{p.Checkpoint.Name: p.Checkpoint.Size}
	for _, s := range p.Segments {
		files[s.Name] = s.Size
	}
	for name, size := range files {
		if ok, err := i.hasSize(path.Join(i.dir, name), size); err != nil || !ok {
			return "files are missing", err
		}
	}
	have, _, err := local(i.FS, i.dataDir, math.MaxUint64)
	if err != nil {
		return "", err
	}
	head := newest(have)
	if head.Last != p.head {
		return "the event log has changed", nil
	}
	if len(p.Segments) == 0 && head.Last > 0 {
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
func (i *installer) install(r *Plan) error {
	if err := errors.Join(i.MkdirAll(i.log), i.MkdirAll(i.checkpoints)); err != nil {
		return err
	}
	if len(r.Segments) > 0 {
		if err := i.installSegments(r); err != nil {
			return err
		}
	}
	// Last of the data: a checkpoint needs the log up to it.
	if err := i.move(r.Checkpoint.Name, i.checkpoints, r.Checkpoint.Size); err != nil {
		return err
	}
	if err := i.SyncDir(i.checkpoints); err != nil {
		return err
	}
	// Both directories that files were moved between are on disk before INSTALL, the last
	// file in its directory, is removed.
	if err := i.SyncDir(i.dir); err != nil {
		return err
	}
	if err := vfs.Remove(i.FS, i.dir, installFile); err != nil {
		return err
	}
	return Discard(i.FS, i.dataDir)
}

func (i *installer) installSegments(r *Plan) error {
	// The node that sent the segments may not have carried out the erasures that this one has
	// (I22). Before the first of them is in place, so that a crash leaves no broken promise.
	first := r.Segments[0].First
	if upTo, known, err := datadir.ReadErased(i.FS, i.dataDir); err != nil {
		return err
	} else if known && upTo >= first {
		if err := datadir.WriteErased(i.FS, i.dataDir, first-1); err != nil {
			return err
		}
	}
	if err := i.clear(r); err != nil {
		return fmt.Errorf("remove the old log: %w", err)
	}
	for n, s := range r.Segments { // the oldest first, each with its side file before it
		if n < len(r.Segments)-1 {
			// One that is missing is computed when the log is opened.
			side := log.SideFileName(s.First)
			err := i.Rename(path.Join(i.dir, side), path.Join(i.log, side))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := i.move(s.Name, i.log, s.Size); err != nil {
			return err
		}
	}
	if err := i.SyncDir(i.log); err != nil || !r.Replace {
		return err
	}
	// Checkpoints from before the new log's beginning are of no use, and read models cannot
	// continue over a gap.
	metas, _, err := checkpoint.List(i.FS, i.checkpoints)
	if err != nil {
		return err
	}
	var old []string
	for n := range metas {
		if metas[n].HeadIndex < r.PrevIndex {
			old = append(old, metas[n].Name())
		}
	}
	err = vfs.Remove(i.FS, i.checkpoints, old...)
	return errors.Join(err, vfs.Remove(i.FS, i.dataDir, datadir.ProjectionFile))
}

// clear removes the files of the local log that do not stay: all of one that is replaced, else only
// those from the first new segment on. Those with the names of new ones are replaced by the move,
// or are new already; a wrong side file is computed again when the log is opened.
func (i *installer) clear(r *Plan) error {
	fresh := map[string]bool{}
	for n, s := range r.Segments {
		fresh[s.Name] = true
		fresh[log.SideFileName(s.First)] = n < len(r.Segments)-1
	}
	names, err := i.List(i.log)
	if err != nil {
		return err
	}
	var old []string
	for _, name := range names {
		first, ok := log.ParseSegmentName(name)
		if !ok {
			first, ok = log.ParseSideFileName(name)
		}
		if ok && !fresh[name] && (r.Replace || first >= r.Segments[0].First) {
			old = append(old, name)
		}
	}
	return vfs.Remove(i.FS, i.log, old...)
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
	names, err := fsys.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
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

package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Install moves what Fetch has transferred in place and reports whether it did. It must be
// called at each opening of a data directory, under its lock, before anything in it is
// opened: an installation that a crash interrupted leaves neither the old directory nor the
// new one until Install has finished it.
//
// Without a READY, or with one that the directory has since caught up with, nothing changes
// but in incoming/, where what the next Fetch can use stays.
func Install(fsys vfs.FS, dataDir string, logger *slog.Logger) (bool, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	i := &installer{
		FS: fsys, logger: logger, dataDir: dataDir, dir: path.Join(dataDir, datadir.IncomingDir),
		log: path.Join(dataDir, datadir.LogDir), checkpoints: path.Join(dataDir, datadir.CheckpointDir),
	}
	done, err := i.run()
	if err != nil {
		return done, fmt.Errorf("install fetched files: %w", err)
	}
	return done, nil
}

type installer struct {
	vfs.FS
	logger           *slog.Logger
	dataDir, dir     string
	log, checkpoints string
}

func (i *installer) run() (bool, error) {
	_, err := i.Stat(path.Join(i.dir, installFile))
	if errors.Is(err, fs.ErrNotExist) {
		why, err := i.judge()
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil // no READY
		} else if err != nil {
			return false, err
		}
		if why != "" {
			// The files that READY lists may be of use to the next Fetch; READY is not.
			i.logger.Warn("fetched files are not installed", "why", why)
			return false, drop(i.FS, i.dir, readyFile)
		}
		// The point of no return: the next step changes the log.
		err = i.Rename(path.Join(i.dir, readyFile), path.Join(i.dir, installFile))
		if err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	// Also of a rename that was seen but is not on disk yet.
	if err := i.SyncDir(i.dir); err != nil {
		return false, err
	}
	r, err := readReady(i.FS, i.dir, installFile)
	if err != nil {
		return false, err
	}
	if err := i.install(r); err != nil {
		return false, err
	}
	i.logger.Info("installed fetched files", "checkpoint", r.Checkpoint.Name,
		"head", r.Checkpoint.HeadIndex, "segments", len(r.Segments), "replaced", r.Replace)
	return true, nil
}

// judge returns why READY is not installed, or "": the node may have caught up otherwise in
// the meantime, or lost the segments that the fetched ones continue. It changes nothing.
func (i *installer) judge() (why string, err error) {
	r, err := readReady(i.FS, i.dir, readyFile)
	if errors.Is(err, errNotReady) {
		return err.Error(), nil
	} else if err != nil {
		return "", err
	}
	files := map[string]int64{r.Checkpoint.Name: r.Checkpoint.Size}
	for _, s := range r.Segments {
		files[s.Name] = s.Size
	}
	for name, size := range files {
		if ok, err := i.hasSize(path.Join(i.dir, name), size); err != nil {
			return "", err
		} else if !ok {
			return "some are missing", nil
		}
	}
	metas, _, err := checkpoint.List(i.FS, i.checkpoints)
	if err != nil {
		return "", err
	}
	if len(metas) > 0 && metas[0].Index >= r.Checkpoint.Index {
		return "there is a newer checkpoint", nil
	}
	local, err := openLocal(i.FS, i.dataDir)
	switch {
	case corrupt(err) && r.Replace:
		return "", nil // all of it is removed in any case
	case corrupt(err):
		// A power cut may have taken any part of its end that was not synced. Opening the log
		// for writing can distinguish that from corruption, and cuts it; the next Fetch then
		// uses the fetched files.
		return err.Error(), nil
	case err != nil:
		return "", err
	}
	var have []log.SegmentInfo
	if local != nil {
		defer local.Close()
		have = local.Segments()
	}
	n := len(have)
	continues := func(s log.SegmentInfo) bool {
		return s.Last == r.PrevIndex && checkpoint.Chain(s.Chain) == r.PrevChain
	}
	switch {
	case len(r.Segments) == 0 && (n == 0 || have[n-1].Last < r.PrevIndex):
		return "the event log has lost its end", nil
	case len(r.Segments) == 0:
		// Its end may not have been synced by the process that wrote it.
		return "", i.sync(path.Join(i.log, have[n-1].Name))
	case n > 0 && have[n-1].Last > r.Checkpoint.HeadIndex:
		return "the event log goes further", nil
	case r.PrevIndex > 0 && !r.Replace && (n == 0 || !slices.ContainsFunc(have[:n-1], continues)):
		return "the event log that they continue is not there", nil
	}
	return "", nil
}

func (i *installer) sync(name string) (err error) {
	f, err := i.OpenReadWrite(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// install does what INSTALL says. Each step may have been done before, by an Install that was
// interrupted, and then does nothing.
func (i *installer) install(r *ready) error {
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
	if err := drop(i.FS, i.dir, installFile); err != nil {
		return err
	}
	return Discard(i.FS, i.dataDir)
}

func (i *installer) installSegments(r *ready) error {
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
	return errors.Join(drop(i.FS, i.checkpoints, old...), drop(i.FS, i.dataDir, datadir.ProjectionFile))
}

// clear removes the files of the local log that do not stay: all of one that is replaced,
// else only those from the first new segment on. Those with the names of new ones are
// replaced by the move, or are new already; a wrong side file is computed again when the log
// is opened.
func (i *installer) clear(r *ready) error {
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
	return drop(i.FS, i.log, old...)
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
	info, err := i.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size == size, err
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
		err = ErrInstall
	default:
		// READY first: without it nothing else counts.
		if err = drop(fsys, dir, readyFile); err == nil {
			err = drop(fsys, dir, names...)
		}
		if err == nil {
			err = drop(fsys, dataDir, datadir.IncomingDir)
		}
	}
	if err != nil {
		return fmt.Errorf("discard fetched files: %w", err)
	}
	return nil
}

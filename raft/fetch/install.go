package fetch

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Install puts what Fetch has brought in place and reports whether it did. It
// must be called at each opening of a data directory, under its lock, before
// anything in it is opened: an installation that a crash broke off leaves
// neither the old directory nor the new one until Install has finished it.
//
// Without a READY, or with one that the directory has caught up with otherwise,
// nothing changes but in incoming/, where what the next Fetch can use stays.
func Install(fsys vfs.FS, dataDir string, logger *slog.Logger) (bool, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	i := &installer{FS: fsys, logger: logger, dataDir: dataDir, dir: path.Join(dataDir, datadir.IncomingDir),
		log: path.Join(dataDir, datadir.LogDir), ckpts: path.Join(dataDir, datadir.CheckpointDir)}
	done, err := i.run()
	if err != nil {
		return done, fmt.Errorf("install fetched files: %w", err)
	}
	return done, nil
}

type installer struct {
	vfs.FS
	logger       *slog.Logger
	dataDir, dir string
	log, ckpts   string
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
			// The files that READY lists may serve the next Fetch; READY does not.
			i.logger.Warn("fetched files are not put in place", "why", why)
			return false, drop(i.FS, i.dir, readyFile)
		}
		// From here on there is no way back: the next step changes the log.
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
	i.logger.Info("fetched files are in place", "checkpoint", r.Checkpoint.Name, "head", r.Checkpoint.HeadIndex, "segments", len(r.Segments), "replaced", r.Replace)
	return true, nil
}

// judge says why READY is not put in place, or "": the node may have caught up by
// itself in the meantime, or lost the segments that the fetched ones continue. It
// changes nothing.
func (i *installer) judge() (why string, err error) {
	r, err := readReady(i.FS, i.dir, readyFile)
	if errors.Is(err, errNotReady) {
		return err.Error(), nil
	} else if err != nil {
		return "", err
	}
	if ok, err := r.there(i.FS, i.dir); err != nil {
		return "", err
	} else if !ok {
		return "some are missing", nil
	}
	metas, _, err := checkpoint.List(i.FS, i.ckpts)
	if err != nil {
		return "", err
	}
	c := &r.Checkpoint
	if len(metas) > 0 && metas[0].Index >= c.Index {
		return "there is a newer checkpoint", nil
	}
	segments, err := localLog(i.FS, i.dataDir)
	switch {
	case damaged(err) && r.Replace:
		return "", nil // all of it goes in any case
	case damaged(err):
		// A power cut may have taken any part of its end that was not synced: the
		// opening of the log can tell that from corruption, and cuts it. The
		// fetched files are of use to the next Fetch.
		return err.Error(), nil
	case err != nil:
		return "", err
	}
	var kept *log.SegmentInfo // the newest that stays
	for n := range segments {
		if segments[n].Last > c.HeadIndex {
			return "the event log goes further", nil
		}
		if segments[n].First < r.Segments[0].First {
			kept = &segments[n]
		}
	}
	switch {
	case r.Replace:
		return "", nil
	case kept == nil && len(segments) == 0 && r.PrevIndex > 0:
		return "the event log that they continue is not there", nil
	case kept == nil: // the first of all, or the one with which the local log begins too
		return "", nil
	case kept.Last != r.PrevIndex || checkpoint.Chain(kept.Chain) != r.PrevChain:
		return "the event log does not end where they begin", nil
	}
	f, err := i.OpenReadWrite(path.Join(i.log, kept.Name))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if size, err := f.Size(); err != nil {
		return "", err
	} else if size != kept.Size {
		return "there is more in the event log's last segment than whole blocks", nil
	}
	// Its end may not have been synced by the process that wrote it; then a power
	// cut would take it from under the new segments.
	return "", f.Sync()
}

// install does what INSTALL says. Each step may have been done before, by an
// Install that did not come to its end, and is then nothing.
func (i *installer) install(r *ready) error {
	if err := errors.Join(i.MkdirAll(i.log), i.MkdirAll(i.ckpts)); err != nil {
		return err
	}
	// The node that sent the segments may not have carried out the erasures that
	// this one has. Before the first of them is in place, so that a crash leaves
	// no promise that is not kept.
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
			// One that is missing is made when the log is opened.
			side := log.SideFileName(s.First)
			if err := i.Rename(path.Join(i.dir, side), path.Join(i.log, side)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := i.move(s.Name, i.log, s.Size); err != nil {
			return err
		}
	}
	if err := i.SyncDir(i.log); err != nil {
		return err
	}
	if r.Replace {
		if err := i.forget(r); err != nil {
			return err
		}
	}
	// Last of the data: a checkpoint needs the log up to it.
	if err := i.move(r.Checkpoint.Name, i.ckpts, r.Checkpoint.Size); err != nil {
		return err
	}
	if err := i.SyncDir(i.ckpts); err != nil {
		return err
	}
	// Both directories that files were moved between are on disk before INSTALL,
	// the last file in its directory, goes.
	if err := i.SyncDir(i.dir); err != nil {
		return err
	}
	if err := drop(i.FS, i.dir, installFile); err != nil {
		return err
	}
	return Discard(i.FS, i.dataDir)
}

// clear removes the files of the local log that do not stay: of one that is
// replaced all, else only those that would follow the new end. Those that bear
// the names of new ones are replaced by the move, or are new already; a side file
// that is wrong is made again when the log is opened.
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

// forget removes what belonged to a log that was replaced: checkpoints from before
// its beginning, and read models, which can't count on over a gap.
func (i *installer) forget(r *ready) error {
	metas, _, err := checkpoint.List(i.FS, i.ckpts)
	if err != nil {
		return err
	}
	var old []string
	for n := range metas {
		if metas[n].HeadIndex < r.PrevIndex {
			old = append(old, metas[n].Name())
		}
	}
	return errors.Join(drop(i.FS, i.ckpts, old...), drop(i.FS, i.dataDir, datadir.ProjectionFile))
}

// move moves a file of incoming/ to where it belongs, in the place of an older
// one. It is there, with its size, or has been moved.
func (i *installer) move(name, to string, size int64) error {
	err := i.Rename(path.Join(i.dir, name), path.Join(to, name))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ok, err := hasSize(i.FS, path.Join(to, name), size)
	if err == nil && !ok {
		err = fmt.Errorf("%s is neither in %s nor, with %d bytes, in %s", name, i.dir, size, to)
	}
	return err
}

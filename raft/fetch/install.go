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
	r            *ready
}

func (i *installer) run() (bool, error) {
	names, err := i.List(i.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if !slices.Contains(names, installFile) {
		if !slices.Contains(names, readyFile) {
			return false, i.tidy(names)
		}
		ok, err := i.decide()
		if err != nil {
			return false, err
		}
		if !ok {
			// What READY lists may serve the next Fetch; READY itself does not.
			return false, drop(i.FS, i.dir, readyFile)
		}
		// From here on there is no way back: the next step changes what is there.
		if err := i.Rename(path.Join(i.dir, readyFile), path.Join(i.dir, installFile)); err != nil {
			return false, err
		}
	}
	// Also of a rename that was seen but is not on disk yet.
	if err := i.SyncDir(i.dir); err != nil {
		return false, err
	}
	if i.r, err = readReady(i.FS, i.dir, installFile); err != nil {
		return false, err
	}
	if err := i.install(); err != nil {
		return false, err
	}
	i.logger.Info("fetched files are in place", "checkpoint", i.r.Checkpoint.Name, "head", i.r.Checkpoint.HeadIndex, "segments", len(i.r.Segments), "replaced", i.r.Replace)
	return true, nil
}

// decide reads READY and tells whether it is to be put in place: it may be that
// the node caught up by itself in the meantime, or lost what the segments
// continue. It changes nothing.
func (i *installer) decide() (bool, error) {
	no := func(why string, args ...any) (bool, error) {
		i.logger.Warn("fetched files are not put in place: "+why, args...)
		return false, nil
	}
	var err error
	if i.r, err = readReady(i.FS, i.dir, readyFile); errors.Is(err, errNotReady) {
		return no(err.Error())
	} else if err != nil {
		return false, err
	}
	if ok, err := i.r.there(i.FS, i.dir); err != nil {
		return false, err
	} else if !ok {
		return no("some are missing")
	}
	metas, _, err := checkpoint.List(i.FS, i.ckpts)
	if err != nil {
		return false, err
	}
	c := &i.r.Checkpoint
	if len(metas) > 0 && metas[0].Index >= c.Index {
		return no("there is a newer checkpoint", "have", metas[0].Index, "fetched", c.Index)
	}
	segments, _, err := localLog(i.FS, i.dataDir)
	if damaged(err) && i.r.Replace {
		// All of it goes in any case.
		return true, nil
	} else if damaged(err) {
		// A power cut may have taken any part of its end that was not synced: who
		// opens it next can tell that from corruption, and cuts it. What was
		// fetched is of use to the next Fetch.
		return no("the event log is damaged", "error", err)
	} else if err != nil {
		return false, err
	}
	head := log.SegmentInfo{}
	if n := len(segments); n > 0 {
		head = segments[n-1]
	}
	switch {
	case head.Last > c.HeadIndex:
		return no("the event log goes further", "head", head.Last, "fetched", c.HeadIndex)
	case i.r.Replace:
		return true, nil
	}
	first := i.r.Segments[0].First
	n := slices.IndexFunc(segments, func(s log.SegmentInfo) bool { return s.First >= first })
	if n < 0 {
		n = len(segments)
	}
	if n == 0 {
		// The first of all, or the one with which the local log begins too.
		if len(segments) == 0 && i.r.PrevIndex > 0 {
			return no("the event log that they continue is not there")
		}
		return true, nil
	}
	kept := segments[n-1]
	if kept.Last != i.r.PrevIndex || checkpoint.Chain(kept.Chain) != i.r.PrevChain {
		return no("the event log does not end where they begin", "end", kept.Last, "begin", i.r.PrevIndex)
	}
	if ok, err := hasSize(i.FS, path.Join(i.log, kept.Name), kept.Size); err != nil {
		return false, err
	} else if !ok {
		return no("there is more in the event log's last segment than whole blocks", "segment", kept.Name)
	}
	// Nothing but its end may not have been synced by who wrote it; then a power
	// cut would take it from under the new segments.
	return true, i.syncFile(path.Join(i.log, kept.Name))
}

func (i *installer) syncFile(name string) error {
	f, err := i.OpenReadWrite(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// install does what INSTALL says. Each step may have been done before, by an
// Install that did not come to its end, and is then nothing.
func (i *installer) install() error {
	r := i.r
	if err := errors.Join(i.MkdirAll(i.log), i.MkdirAll(i.ckpts)); err != nil {
		return err
	}
	// Who sent the segments may not have carried out what this node has. Before
	// the first of them is in place, so that a crash leaves no promise that is not
	// kept.
	first := r.Segments[0].First
	if upTo, known, err := datadir.ReadErased(i.FS, i.dataDir); err != nil {
		return err
	} else if known && upTo >= first {
		if err := datadir.WriteErased(i.FS, i.dataDir, first-1); err != nil {
			return err
		}
	}
	if err := i.clear(); err != nil {
		return fmt.Errorf("remove the old log: %w", err)
	}
	// The oldest first, each with its side file before it.
	for n, s := range r.Segments {
		if n < len(r.Segments)-1 {
			// One that is missing is made when the log is opened.
			if err := i.move(log.SideFileName(s.First), i.log); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := i.moveWhole(s.Name, i.log, s.Size); err != nil {
			return err
		}
	}
	if err := i.SyncDir(i.log); err != nil {
		return err
	}
	if err := i.forget(); err != nil {
		return err
	}
	// Last of the data: what a checkpoint stands on is there before it.
	if err := i.moveWhole(r.Checkpoint.Name, i.ckpts, r.Checkpoint.Size); err != nil {
		return err
	}
	if err := i.SyncDir(i.ckpts); err != nil {
		return err
	}
	return i.end()
}

// clear removes of the local log what does not stay: in the place of an old log
// all that is not already new, else only what would follow the new end; and the
// side files of whatever is replaced.
func (i *installer) clear() error {
	fresh := map[string]bool{}
	for n, s := range i.r.Segments {
		fresh[s.Name] = true // or an older one of that name, which the move replaces
		if n == len(i.r.Segments)-1 {
			continue // it is not sealed: it has none
		}
		side := log.SideFileName(s.First)
		_, err := i.Stat(path.Join(i.dir, side))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		fresh[side] = err != nil // it has been moved already
	}
	names, err := i.List(i.log)
	if err != nil {
		return err
	}
	begin := i.r.Segments[0].First
	var old []string
	for _, name := range names {
		first, seg := log.ParseSegmentName(name)
		if !seg {
			var side bool
			if first, side = log.ParseSideFileName(name); !side {
				continue
			}
		}
		if !fresh[name] && (i.r.Replace || first >= begin) {
			old = append(old, name)
		}
	}
	return drop(i.FS, i.log, old...)
}

// forget removes what stood on a log that was replaced: checkpoints from before
// its beginning, and read models, which can't count on over a gap.
func (i *installer) forget() error {
	if !i.r.Replace {
		return nil
	}
	metas, _, err := checkpoint.List(i.FS, i.ckpts)
	if err != nil {
		return err
	}
	var old []string
	for n := range metas {
		if metas[n].HeadIndex < i.r.PrevIndex {
			old = append(old, metas[n].Name())
		}
	}
	if err := drop(i.FS, i.ckpts, old...); err != nil {
		return err
	}
	return drop(i.FS, i.dataDir, datadir.ProjectionFile)
}

// end removes incoming/, INSTALL last of what is in it.
func (i *installer) end() error {
	names, err := i.List(i.dir)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == installFile })
	if err := drop(i.FS, i.dir, names...); err != nil {
		return err
	}
	// Both directories that files were moved between, before nobody remembers.
	if err := i.SyncDir(i.dir); err != nil {
		return err
	}
	if err := drop(i.FS, i.dir, installFile); err != nil {
		return err
	}
	return drop(i.FS, i.dataDir, datadir.IncomingDir)
}

// move moves a file of incoming/ to where it belongs, in the place of an older one.
func (i *installer) move(name, to string) error {
	return i.Rename(path.Join(i.dir, name), path.Join(to, name))
}

// moveWhole is move for what must be there, here or where it belongs.
func (i *installer) moveWhole(name, to string, size int64) error {
	err := i.move(name, to)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ok, err := hasSize(i.FS, path.Join(to, name), size)
	if err == nil && !ok {
		err = fmt.Errorf("%s is neither in %s nor, with %d bytes, in %s", name, i.dir, size, to)
	}
	return err
}

// tidy removes from an incoming/ without READY what no Fetch can use.
func (i *installer) tidy(names []string) error {
	var useless []string
	for _, name := range names {
		_, seg := log.ParseSegmentName(name)
		_, side := log.ParseSideFileName(name)
		_, _, ckpt := checkpoint.ParseName(name)
		if !seg && !side && !ckpt {
			useless = append(useless, name)
		}
	}
	if err := drop(i.FS, i.dir, useless...); err != nil || len(useless) < len(names) {
		return err
	}
	return drop(i.FS, i.dataDir, datadir.IncomingDir)
}

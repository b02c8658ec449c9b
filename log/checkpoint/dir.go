package checkpoint

import (
	"errors"
	"io"
	"log/slog"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/qlogd/qlogd/log/vfs"
)

// Dir is the directory of a node's checkpoints, opened by the one that writes and removes them.
// Its methods may be called at the same time.
type Dir struct {
	fsys   vfs.FS
	name   string
	keep   int
	logger *slog.Logger

	// list is newest first. It is replaced, never changed, while changing is held, which takes as
	// long as files are removed.
	list     atomic.Pointer[[]Meta]
	changing sync.Mutex
}

// OpenDir opens a directory that keeps about keep checkpoints: see Thin. It removes files that a
// crash left unfinished. Unusable checkpoints are logged, and left for an operator to inspect.
func OpenDir(fsys vfs.FS, name string, keep int, logger *slog.Logger) (*Dir, error) {
	// After a kill a name may be seen that is not on disk yet.
	if err := errors.Join(Clean(fsys, name), fsys.SyncDir(name)); err != nil {
		return nil, err
	}
	metas, bad, err := List(fsys, name)
	if err != nil {
		return nil, err
	}
	for _, b := range bad {
		logger.Error("unusable checkpoint", "name", b.Name, "error", b.Err)
	}
	d := &Dir{fsys: fsys, name: name, keep: keep, logger: logger}
	d.list.Store(&metas)
	return d, nil
}

// Metas returns the checkpoints, newest first. The slice must not be changed.
func (d *Dir) Metas() []Meta { return *d.list.Load() }

// Newest returns the newest checkpoint; the zero Meta: there is none.
func (d *Dir) Newest() (newest Meta) {
	if metas := d.Metas(); len(metas) > 0 {
		newest = metas[0]
	}
	return newest
}

// Write writes a checkpoint of body, durably, sets meta's Size, and removes one that is too many.
func (d *Dir) Write(meta *Meta, body io.WriterTo) error {
	err := Write(d.fsys, d.name, *meta, body)
	if err == nil {
		meta.Size, err = d.fsys.Stat(path.Join(d.name, meta.Name()))
	}
	if err != nil {
		return err
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	if err := d.replace(Thin(append([]Meta{*meta}, d.Metas()...), d.keep)); err != nil {
		// Not worth the new one: the next start lists it again.
		d.logger.Warn("old checkpoints stay", "error", err)
	}
	return nil
}

// DropBefore removes the checkpoints below an index, but for the newest two.
func (d *Dir) DropBefore(index uint64) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	metas := d.Metas()
	older := metas[min(2, len(metas)):]
	for len(older) > 0 && older[0].Index >= index {
		older = older[1:]
	}
	return d.replace(metas[:len(metas)-len(older)], older)
}

// Remove removes a checkpoint, usable or not.
func (d *Dir) Remove(name string) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	left := slices.DeleteFunc(slices.Clone(d.Metas()), func(m Meta) bool { return m.Name() == name })
	d.list.Store(&left)
	return vfs.Remove(d.fsys, d.name, name)
}

// replace sets the list to left, and removes the files of gone.
func (d *Dir) replace(left, gone []Meta) error {
	d.list.Store(&left)
	var names []string
	for _, m := range gone {
		names = append(names, m.Name())
	}
	return vfs.Remove(d.fsys, d.name, names...)
}

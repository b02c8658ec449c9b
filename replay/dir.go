package replay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
)

// Dir is a data directory, opened without touching it: files are only opened
// for reading, nothing is locked.
type Dir struct {
	Source
	Path string
	Node *datadir.Node // nil where node.json is missing (a copy of log/ alone)
	// Metas are the checkpoints that were there before the log was opened, so
	// that none of a live node is newer than what the log holds.
	Metas []checkpoint.Meta
	Bad   []checkpoint.Bad
}

// Open opens the data directory at path. Damage in the log's last segment that
// is told only by reading it all is not looked for here: Verify does.
func Open(path string) (*Dir, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("data directory %s is not a directory", path)
	}
	node, err := datadir.ReadNode(path)
	if err != nil && !errors.Is(err, datadir.ErrNoNode) {
		return nil, err
	}
	return OpenOn(vfs.OS{}, path, node)
}

// OpenOn opens the data directory that any file system has at path, with its
// card, if there is one.
func OpenOn(fsys vfs.FS, path string, node *datadir.Node) (*Dir, error) {
	d := &Dir{Path: path, Node: node}
	d.FS = fsys
	d.Checkpoints = datadir.Path(path, datadir.CheckpointDir)
	if _, err := fsys.Stat(datadir.Path(path, datadir.LogDir)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no data directory: it has no %s/", path, datadir.LogDir)
	}
	var err error
	if d.Metas, d.Bad, err = checkpoint.List(d.FS, d.Checkpoints); err != nil {
		return nil, err
	}
	if d.Log, err = eventlog.OpenReadOnly(d.logOptions()); err != nil {
		return nil, err
	}
	return d, nil
}

// LogDir is where the log's files are.
func (d *Dir) LogDir() string { return datadir.Path(d.Path, datadir.LogDir) }

func (d *Dir) logOptions() log.Options {
	o := log.Options{FS: d.FS, Dir: d.LogDir()}
	if len(d.Metas) > 0 {
		o.Durable = d.Metas[0].HeadIndex
	}
	return o
}

// Close closes the files.
func (d *Dir) Close() error { return d.Log.Close() }

// Tail tells of a torn tail or a block that is still being written; nil where
// there is none.
func (d *Dir) Tail() *log.Tail { return d.Log.Tail() }

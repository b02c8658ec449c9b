package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/qlogd/qlogd/background/archive"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

// openLog is a log that is read without a server: a data directory's, an
// archive's, or an archive's before a data directory's.
type openLog struct {
	fs   vfs.FS
	path string
	name string        // as its user named it
	node *datadir.Node // nil: a copy without a card
}

// archiveAlone is where an archive without a data directory seems to lie.
const archiveAlone = "archive:"

// openLog opens what the flags name; one of them is not empty.
func (a *app) openLog(ctx context.Context, dataDir, archived string) (*openLog, error) {
	l := &openLog{fs: vfs.OS{}, path: dataDir, name: dataDir}
	if dataDir != "" {
		if info, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
			return nil, usagef("data directory: %w; name a node's data directory with --data-dir", err)
		} else if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("data directory %s is not a directory", dataDir)
		}
		var err error
		if l.node, err = datadir.ReadNode(dataDir); err != nil && !errors.Is(err, datadir.ErrNoNode) {
			return nil, err
		}
	}
	if archived == "" {
		return l, nil
	}
	store, err := archive.NewStore(archived)
	if err != nil {
		return nil, usagef("%w", err)
	}
	arch, err := archive.Open(ctx, store)
	if errors.Is(err, archive.ErrNone) {
		return nil, usagef("%w", err)
	}
	if err != nil {
		return nil, err
	}
	base := l.fs
	if dataDir == "" {
		base, l.path = nil, archiveAlone
		l.node = &datadir.Node{ClusterID: arch.ClusterID(), NodeID: "archive"}
		l.name = arch.String()
	} else {
		l.name += " behind " + arch.String()
		if l.node != nil && l.node.ClusterID != arch.ClusterID() && (l.node.Fork == nil || l.node.Fork.ClusterID != arch.ClusterID()) {
			return nil, usagef("the archive is of cluster %s, the data directory of cluster %s", arch.ClusterID(), l.node.ClusterID)
		}
	}
	mounted, err := arch.Mount(ctx, base, l.path)
	if err != nil {
		return nil, err
	}
	if mounted.Missing != "" {
		fmt.Fprintln(a.stderr, "qlogd:", mounted.Missing)
	}
	l.fs = mounted
	return l, nil
}

// dir opens the log for reading its events and states.
func (l *openLog) dir() (*replay.Dir, error) {
	d, err := replay.OpenOn(l.fs, l.path, l.node)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("%w; name a node's data directory with --data-dir", err)
	}
	return d, err
}

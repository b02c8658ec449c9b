package sim

import (
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
)

// The names on a node's disk are a data directory's, at its root.
const (
	logDir        = "/" + datadir.LogDir
	checkpointDir = "/" + datadir.CheckpointDir
	raftDir       = "/" + datadir.RaftDir
	cardFile      = "/" + datadir.NodeFile
	markFile      = "/" + witness.FileName
)

// readCard reads node.json; nil where the disk is empty.
func readCard(disk vfs.FS) (*datadir.Node, error) {
	b, err := vfs.ReadFile(disk, cardFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n := &datadir.Node{}
	return n, json.Unmarshal(b, n)
}

func writeCard(disk vfs.FS, n *datadir.Node) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return vfs.WriteFile(disk, cardFile, b)
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/log/datadir"
)

// openCard reads node.json, or makes it where the directory is new. It refuses
// a directory whose parts do not belong together.
func openCard(c *config, logger *slog.Logger) (*datadir.Node, error) {
	segments, err := datadir.HasSegments(c.DataDir)
	if err != nil {
		return nil, err
	}
	card, err := datadir.ReadNode(c.DataDir)
	if errors.Is(err, datadir.ErrNoNode) {
		if segments {
			return nil, fmt.Errorf("data directory %s has an event log but no node.json: whose it is can't be told; put it back from a backup", c.DataDir)
		}
		id := c.NodeID
		if id == "" {
			id = defaultNodeID()
		}
		// Of a node that is to form a cluster with others, or to find one, it is
		// not known yet which: but which directory this is, is from here on.
		card = datadir.NewBlank(id, c.LogSegmentBytes)
		if c.alone() {
			card = datadir.NewNode(id, c.LogSegmentBytes)
		}
		if err := card.Write(c.DataDir); err != nil {
			return nil, err
		}
		logger.Info("new data directory", "dir", c.DataDir, "node", card.NodeID, "cluster", card.ClusterID)
		return card, nil
	}
	if err != nil {
		return nil, err
	}
	if c.NodeID != "" && c.NodeID != card.NodeID {
		return nil, usagef("node-id is %s, but data directory %s belongs to node %s", c.NodeID, c.DataDir, card.NodeID)
	}
	if segments && !card.HasOthers() {
		// Without the Raft store nobody knows what was promised, and its first
		// index would be given out a second time. Told here, before the event
		// log is opened for writing.
		names, err := os.ReadDir(datadir.Path(c.DataDir, datadir.RaftDir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("data directory %s has an event log but its Raft store (%s/) is lost: put the whole directory back from a backup, "+
				"or continue from its log in a new one: qlogd replay --data-dir %s --into NEW_DIR", c.DataDir, datadir.RaftDir, c.DataDir)
		}
	}
	if f := card.Fork; f != nil && !f.Started {
		// The first start of a copy: from here on its clock runs as far behind
		// as the past that it continues. Durable before anything is stamped.
		card.ClockOffsetMS = f.At.UnixMilli() - time.Now().UnixMilli()
		f.Started = true
		if err := card.Write(c.DataDir); err != nil {
			return nil, err
		}
	}
	if card.Fork != nil {
		logger.Warn("this is a copy of another cluster's past: its clock goes on from there, and nothing is pushed",
			"of", card.Fork.ClusterID, "index", card.Fork.Index, "at", card.Fork.At)
	}
	return card, nil
}

// freeBytes is what is left of the disk for this user.
func freeBytes(dir string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}

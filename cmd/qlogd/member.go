package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/peer"
)

// openCard reads node.json, or makes it in a new directory. It refuses a directory whose parts do
// not belong together.
func openCard(c *config, logger *slog.Logger) (*datadir.Node, error) {
	segments, err := datadir.HasSegments(c.DataDir)
	if err != nil {
		return nil, err
	}
	card, err := datadir.ReadNode(c.DataDir)
	if errors.Is(err, datadir.ErrNoNode) {
		if segments {
			return nil, fmt.Errorf("data directory %s has an event log but no node.json: "+
				"its cluster is not known; put the file back from a backup", c.DataDir)
		}
		return newCard(c, logger)
	}
	if err != nil {
		return nil, err
	}
	if c.NodeID != "" && c.NodeID != card.NodeID {
		return nil, usagef("node-id is %s, but data directory %s belongs to node %s", c.NodeID, c.DataDir, card.NodeID)
	}
	if segments && !card.HasOthers() {
		// Without the Raft store nobody knows what was promised, and its first index would be used
		// twice. Found here, before the event log is opened for writing.
		names, err := os.ReadDir(datadir.Path(c.DataDir, datadir.RaftDir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("data directory %s has an event log but its Raft store (%s/) is lost: "+
				"put the whole directory back from a backup, or continue from its log in a new one: "+
				"qlogd replay --data-dir %s --into NEW_DIR", c.DataDir, datadir.RaftDir, c.DataDir)
		}
	}
	if f := card.Fork; f != nil {
		if !f.Started {
			// The first start of a copy: from here on its clock is as far behind as the past that it
			// continues. Durable before anything is stamped.
			card.ClockOffsetMS = f.At.UnixMilli() - time.Now().UnixMilli()
			f.Started = true
			if err := card.Write(c.DataDir); err != nil {
				return nil, err
			}
		}
		logger.Warn("continuing a copy of another cluster's past; nothing is pushed",
			"of", f.ClusterID, "index", f.Index, "at", f.At)
	}
	return card, nil
}

func newCard(c *config, logger *slog.Logger) (*datadir.Node, error) {
	id := c.NodeID
	if id == "" {
		id = defaultNodeID()
	}
	// The cluster of a node that forms one with others, or joins one, is not known yet. The identity
	// of the directory is.
	card := datadir.NewBlank(id, c.LogSegmentBytes)
	if c.alone() {
		card = datadir.NewNode(id, c.LogSegmentBytes)
	}
	if err := card.Write(c.DataDir); err != nil {
		return nil, err
	}
	logger.Info("new data directory", "dir", c.DataDir, "node", card.NodeID, "cluster", card.ClusterID)
	return card, nil
}

// freeBytes returns the free space of the disk for this user.
func freeBytes(dir string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// openPeers begins to listen for the other nodes.
func (n *node) openPeers(l net.Listener) (*peer.Net, error) {
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	o := peer.Options{Listener: l, Dial: dial, Logger: n.logger, Self: peer.Identity{
		Cluster: n.card.ClusterID, Node: n.card.NodeID, Incarnation: n.card.Incarnation,
		Raft: n.c.RaftAdvertise, HTTP: n.c.HTTPAdvertise,
	}}
	if o.Self.Raft == "" {
		o.Self.Raft = l.Addr().String()
	}
	if o.Self.HTTP == "" {
		o.Self.HTTP = n.httpLis.Addr().String()
	}
	if n.inside != nil {
		o.Server, o.Client = n.inside.Server(true), n.inside.Client
	}
	p, err := peer.New(o)
	if err != nil {
		return nil, fmt.Errorf("raft-addr: %w", err)
	}
	return p, nil
}

// A data directory of another cluster must not serve in the place of one of this one: its clients
// would write where nobody looks. So each join address is asked for its cluster until it has
// answered once. Only a cluster of one that met no member of its own ends for it: if others of its
// cluster answer, or are known, the directory at that address is the wrong one.
const (
	meetTime  = time.Second
	meetAgain = 2 * time.Second
)

// meet asks once, and returns the addresses that have not answered with this cluster.
func (n *node) meet(ctx context.Context, addrs []string) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, meetTime)
	defer cancel()
	self := n.peers.Self()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, addr := range addrs {
		wg.Go(func() {
			there, herr := n.peers.Hello(ctx, addr)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case herr != nil || there.Cluster == "": // not up yet, or in no cluster yet
				left = append(left, addr)
			case there.Cluster != self.Cluster:
				left = append(left, addr)
				err = fmt.Errorf("data directory %s is of cluster %s, but node %s at join address %s is of cluster %s",
					n.c.DataDir, self.Cluster, there.Node, addr, there.Cluster)
			case there.Incarnation != self.Incarnation:
				n.friends++
			}
		})
	}
	wg.Wait()
	// A node whose cluster has others acknowledges nothing without them.
	if e := n.engine(); err != nil && (n.friends > 0 || e == nil || len(e.replica.Members()) > 1) {
		n.stranger.Do(func() {
			n.logger.Error("join address belongs to a different cluster", "error", err)
		})
		err = nil
	}
	return left, err
}

// meetOthers goes on asking the addresses that are left.
func (n *node) meetOthers(left []string) {
	for len(left) > 0 {
		select {
		case <-time.After(meetAgain):
		case <-n.background.Done():
			return
		}
		var err error
		if left, err = n.meet(n.background, left); err != nil {
			n.fail(strangerError(err))
			return
		}
	}
}

func strangerError(err error) error {
	return outside("%w: it belongs elsewhere; start with the right data directory, or with an empty one", err)
}

// outside is why a directory has no place here. Starting again does not help.
func outside(format string, args ...any) error {
	return &exitError{exitDiverged, fmt.Errorf(format, args...)}
}

// outOfCluster is called when this directory is no member any more.
func (n *node) outOfCluster(why error) {
	if errors.Is(why, raft.ErrRolledBack) {
		n.ask(change{"the data directory was rolled back", n.reincarnate})
	} else {
		n.fail(outside("this data directory of node %s is no member of cluster %s any more: "+
			"the node was removed, or has come with a newer directory; "+
			"to bring it back, start it with an empty one and --join", n.card.NodeID, n.card.ClusterID))
	}
}

// reincarnate makes this directory another member of its cluster, one that has promised nothing.
func (n *node) reincarnate() error {
	n.logger.Warn("data directory is older than the others know it; " +
		"rejoining as a new member, without a vote until it has caught up")
	n.cardMu.Lock()
	defer n.cardMu.Unlock()
	n.card.NewIncarnation()
	if err := n.card.Write(n.c.DataDir); err != nil { // before anybody hears of it
		return err
	}
	self := n.peers.Self()
	self.Incarnation = n.card.Incarnation
	n.peers.SetSelf(self)
	return nil
}

// joined is called when the cluster's configuration has this directory: from here on one that is
// in none was removed.
func (n *node) joined() {
	n.cardMu.Lock()
	defer n.cardMu.Unlock()
	if n.card.Joined {
		return
	}
	n.card.Joined = true
	if err := n.card.Write(n.c.DataDir); err != nil {
		n.fail(err)
	}
}

// fetchLacking fetches what this node lacks when the leader says so, and has it installed.
func (e *engine) fetchLacking() {
	var differs sync.Once
	for {
		var offer raft.Offer
		select {
		case offer = <-e.lacking:
		case <-e.background.Done():
			return
		}
		from := e.replica.Sources(offer)
		e.fetching.Lock()
		err := fetch.Fetch(e.background, fetch.Options{
			Net: e.peers, From: from, Checkpoint: offer.Meta,
			FS: vfs.OS{}, DataDir: e.c.DataDir, Logger: e.logger,
			FreeBytes: func() (uint64, error) { return freeBytes(e.c.DataDir) },
		})
		e.fetching.Unlock()
		switch {
		case e.background.Err() != nil:
			return
		case errors.Is(err, fetch.ErrDiffers):
			// All that were asked agree. If they are a majority of the voters, and not only the
			// leader, this node is the one that differs.
			if asked, all := e.voters(from); asked > all/2 {
				e.fail(fmt.Errorf("%w: %w", raft.ErrDiverged, err))
				return
			}
			differs.Do(func() {
				e.logger.Error("event log differs from that of the node to fetch from", "error", err)
			})
		case err != nil:
			e.logger.Warn("fetch failed; waiting for the leader's next offer", "error", err)
		default:
			e.ask(change{why: "installing what was fetched"})
			return // the next engine goes on from there
		}
	}
}

// voters counts those of the configuration, and how many of them are among some nodes.
func (e *engine) voters(some []peer.Target) (among, all int) {
	for _, m := range e.replica.Members() {
		if !m.Votes {
			continue
		}
		all++
		if slices.ContainsFunc(some, func(t peer.Target) bool { return t.Node == m.ID }) {
			among++
		}
	}
	return among, all
}

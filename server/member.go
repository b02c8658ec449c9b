package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/peer"
)

// openCard reads node.json, or makes it in a new directory. It refuses a directory whose parts do
// not belong together.
func openCard(c *Config, logger *slog.Logger) (*datadir.Node, error) {
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
		return nil, settingsf("node-id is %s, but data directory %s belongs to node %s",
			c.NodeID, c.DataDir, card.NodeID)
	}
	if segments && !card.HasOthers() {
		// Without the Raft store nobody knows what was promised, and its first index would be used
		// twice. Found here, before the event log is opened for writing.
		names, err := vfs.List(vfs.OS{}, datadir.Path(c.DataDir, datadir.RaftDir))
		if err != nil {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("data directory %s has an event log but its Raft store (%s/) "+
				"is lost: put the whole directory back from a backup, or continue from its log in "+
				"a new one: qlogd replay --data-dir %s --into NEW_DIR",
				c.DataDir, datadir.RaftDir, c.DataDir)
		}
	}
	if f := card.Fork; f != nil {
		if !f.Started {
			// The first start of a copy: from here on its clock is as far behind as the past
			// that it continues. Durable before anything is stamped.
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

func newCard(c *Config, logger *slog.Logger) (*datadir.Node, error) {
	if _, err := os.Stat(c.witnessFile()); err == nil {
		return nil, directoryf("data directory %s is new, but witness file %s is of an "+
			"earlier one: is its disk mounted? To begin with an empty directory, remove the file",
			c.DataDir, c.witnessFile())
	}
	id := c.NodeID
	if id == "" {
		host, _ := os.Hostname()
		if id, _, _ = strings.Cut(host, "."); !event.ValidNode(id) {
			id = "n1"
		}
	}
	// The cluster of a node that forms one with others, or joins one, is not known yet. The
	// identity of the directory is.
	card := datadir.NewBlank(id, c.LogSegmentBytes)
	if c.alone() {
		card = datadir.NewNode(id, c.LogSegmentBytes)
	}
	if err := card.Write(c.DataDir); err != nil {
		return nil, err
	}
	logger.Info("new data directory", "dir", c.DataDir, "node", id, "cluster", card.ClusterID)
	return card, nil
}

// freeBytes returns the free space of the disk for this user.
func freeBytes(dir string) (uint64, error) {
	free, _, err := diskSpace(dir)
	return free, err
}

// diskSpace returns the bytes of the disk that are free for this user, and these with all that are
// used.
func diskSpace(dir string) (free, size uint64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	free = uint64(s.Bavail) // signed on FreeBSD
	return free * uint64(s.Bsize), (s.Blocks - s.Bfree + free) * uint64(s.Bsize), nil
}

// openPeers starts to listen for the other nodes.
func (n *Node) openPeers(l net.Listener) (*peer.Net, error) {
	self := peer.Identity{
		Cluster: n.card.ClusterID, Node: n.card.NodeID, Incarnation: n.card.Incarnation,
		Raft: cmp.Or(n.c.RaftAdvertise, l.Addr().String()),
		HTTP: cmp.Or(n.c.HTTPAdvertise, n.httpLis.Addr().String()),
	}
	o := peer.Options{
		Listener: l, TLS: n.peerCerts, Secret: n.shared, Self: self, Logger: n.logger,
		MaxConns: n.limits.peers,
	}
	if n.c.closed() {
		o.Closed = fmt.Sprintf("node %s has an auth file, so to connect to other nodes it needs %s",
			self.Node, nodeAuth)
	}
	p, err := peer.New(o)
	if err != nil {
		return nil, fmt.Errorf("raft-addr: %w", err)
	}
	return p, nil
}

const (
	joinCheckTimeout = time.Second
	joinCheckEvery   = 2 * time.Second
)

// checkJoin asks the join addresses for their cluster, and asks again later those that have not
// answered.
//
// A data directory of another cluster must not serve in the place of one of this one: its clients
// would write where nobody looks. So a node that is alone in its cluster ends if a join address
// belongs to another one, unless another node of its own answers too. A node with others
// acknowledges nothing without them.
func (n *Node) checkJoin(addrs []string) (err error) {
	ctx, cancel := context.WithTimeout(n.background, joinCheckTimeout)
	defer cancel()
	there := make([]peer.Identity, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { there[i], _ = n.peers.Hello(ctx, addr) }) // "": not up yet
	}
	wg.Wait()
	self := n.peers.Self()
	alone := true
	var left []string
	for i, is := range there {
		switch {
		case is.Cluster == "":
			left = append(left, addrs[i])
		case is.Cluster != self.Cluster:
			err = fmt.Errorf("data directory %s is of cluster %s, but node %s at join address %s "+
				"is of cluster %s", n.c.DataDir, self.Cluster, is.Node, addrs[i], is.Cluster)
		case is.Incarnation != self.Incarnation:
			alone = false
		}
	}
	e := n.engine()
	if err != nil && alone && e != nil && len(e.replica.Members()) == 1 {
		return directoryf("%w: it belongs elsewhere; "+
			"start with the right data directory, or with an empty one", err)
	}
	if err != nil {
		n.logger.Error("join address belongs to a different cluster", "error", err)
	}
	if len(left) > 0 {
		n.work.Go(func() {
			select {
			case <-time.After(joinCheckEvery):
			case <-n.background.Done():
				return
			}
			if err := n.checkJoin(left); err != nil {
				n.fail(err)
			}
		})
	}
	return nil
}

// replicaFailed is called when the replica cannot continue.
func (n *Node) replicaFailed(why error) {
	switch {
	case errors.Is(why, raft.ErrRolledBack):
		n.requestReopen(change{"the data directory was rolled back", n.reincarnate})
	case errors.Is(why, raft.ErrRemoved):
		n.fail(directoryf("this data directory of node %s is no member of cluster %s "+
			"any more: the node was removed, or has come with a newer directory; "+
			"to bring it back, start it with an empty one and --join",
			n.card.NodeID, n.card.ClusterID))
	default:
		n.fail(why)
	}
}

// changeCard changes this directory's identity, durably, before anybody hears of it.
func (n *Node) changeCard(change func(card *datadir.Node)) error {
	n.cardMu.Lock()
	defer n.cardMu.Unlock()
	change(n.card)
	return n.card.Write(n.c.DataDir)
}

// reincarnate makes this directory another member of its cluster, one that has promised nothing.
func (n *Node) reincarnate() error {
	n.logger.Warn("data directory is older than the others know it; " +
		"rejoining as a new member, without a vote until it has caught up")
	// First the mark, which a crash may lose: that of another incarnation would be refused.
	err := witness.Remove(vfs.OS{}, n.c.witnessFile())
	if err == nil {
		err = n.changeCard((*datadir.Node).NewIncarnation)
	}
	if err != nil {
		return err
	}
	self := n.peers.Self()
	self.Incarnation = n.card.Incarnation
	n.peers.SetSelf(self)
	return nil
}

// fetchLacking fetches what this node lacks when the leader offers it, and has it installed.
func (e *engine) fetchLacking(ctx context.Context) {
	for {
		select {
		case <-e.replica.Offers():
		case <-ctx.Done():
			return
		}
		offer := e.replica.Offer()
		if offer == nil {
			continue // it has what it lacked
		}
		from := e.replica.Sources(offer)
		e.fetching.Lock()
		plan, err := fetch.Fetch(ctx, e.fetchOptions(from, offer.Meta))
		e.fetching.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, fetch.ErrDiffers) && e.majority(from):
			e.fail(fmt.Errorf("%w: %w", raft.ErrDiverged, err)) // this node is the one that differs
			return
		case err != nil:
			e.logger.Warn("fetch failed; waiting for the leader's next offer", "error", err)
		default:
			e.requestReopen(change{"installing what was fetched", func() error {
				_, err := fetch.Install(vfs.OS{}, e.c.DataDir, plan, e.logger)
				return err
			}})
			return // the next engine continues from there
		}
	}
}

func (e *engine) fetchOptions(from []peer.Target, c checkpoint.Meta) fetch.Options {
	return fetch.Options{
		Net: e.peers, From: from, Checkpoint: c,
		FS: vfs.OS{}, DataDir: e.c.DataDir, Logger: e.logger,
		FreeBytes: func() (uint64, error) { return freeBytes(e.c.DataDir) },
	}
}

// replaceSegment replaces a damaged segment by a copy of another node's.
func (e *engine) replaceSegment(ctx context.Context, sealed log.SegmentInfo) error {
	e.fetching.Lock()
	defer e.fetching.Unlock()
	e.replica.RefreshMembers(ctx) // after a start nothing is known of them yet
	from := e.replica.Holders(sealed.Last)
	err := fetch.Segment(ctx, e.fetchOptions(from, checkpoint.Meta{}), sealed)
	if err == nil {
		incoming := datadir.Path(e.c.DataDir, datadir.IncomingDir)
		err = e.eraser.Replace(ctx, incoming, sealed)
	}
	return errors.Join(err, fetch.Discard(vfs.OS{}, e.c.DataDir))
}

// majority reports whether some nodes, and not only the leader, are most of the voters.
func (e *engine) majority(some []peer.Target) bool {
	among, all := 0, 0
	for _, m := range e.replica.Members() {
		if m.Votes {
			all++
			if slices.ContainsFunc(some, func(t peer.Target) bool { return t.Node == m.ID }) {
				among++
			}
		}
	}
	return among > all/2
}

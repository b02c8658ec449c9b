package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/fetch"
	"github.com/qlogd/qlogd/raft/forming"
	"github.com/qlogd/qlogd/raft/peer"
)

// A node's engine is opened when its cluster is known, and anew where its data
// directory is exchanged under it: when what it had missed has been fetched,
// and when it must go on as another member (see raft.WentBack).

// change is why the engine is opened anew, and what is done to the directory
// while it is closed.
type change struct {
	why string
	do  func() error
}

// serving is what answers requests, until it is retired.
type serving struct {
	*engine // nil: there is none
	handler http.Handler

	mu   sync.RWMutex // held for reading by requests in hand
	gone bool         // guarded by mu
}

func (s *serving) enter() bool {
	s.mu.RLock()
	if s.gone {
		s.mu.RUnlock()
	}
	return !s.gone
}

// retire waits until no request is in hand. Nobody enters any more.
func (s *serving) retire() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
}

func (n *node) serveHTTP(w http.ResponseWriter, r *http.Request) {
	for {
		if s := n.now.Load(); s.enter() {
			defer s.mu.RUnlock()
			s.handler.ServeHTTP(w, r)
			return
		}
	}
}

// engine returns the one that serves now, nil where there is none.
func (n *node) engine() *engine {
	if s := n.now.Load(); s != nil {
		return s.engine
	}
	return nil
}

// ready tells whether the node can serve, and if not, why.
func (n *node) ready() (bool, []string) {
	if e := n.engine(); e != nil {
		return e.replica.Ready()
	}
	return false, []string{"there is nothing to serve from yet"}
}

// serveNothing answers requests while there is no engine.
func (n *node) serveNothing(why string) *serving {
	return n.now.Swap(&serving{handler: api.Unready(func() []string { return []string{why} })})
}

// open installs what was fetched, opens an engine and lets it serve.
func (n *node) open() error {
	// Before anything is opened: a crash may have come between the end of a
	// transfer and its installation, or in the middle of that.
	installed, err := fetch.Install(vfs.OS{}, n.c.DataDir, n.logger)
	if err != nil {
		return fmt.Errorf("install what was fetched: %w", err)
	}
	if installed {
		n.logger.Info("what this node had missed is in place")
	}
	e, err := openEngine(n)
	if errors.Is(err, raft.ErrWentBack) {
		n.logger.Error("the Raft store has lost what this node had promised", "error", err)
		if err := n.reincarnate(); err != nil {
			return err
		}
		e, err = openEngine(n)
	}
	if err != nil {
		return err
	}
	n.now.Store(&serving{engine: e, handler: e.api.Handler()})
	return nil
}

// keep forms or finds the cluster where that is still to be done, and opens the
// engine anew when it is asked to.
func (n *node) keep(ctx context.Context) {
	if n.card.Blank() {
		err := n.form(ctx)
		if err == nil {
			err = n.open()
		}
		if err != nil {
			if ctx.Err() == nil {
				n.fail(err)
			}
			return
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-n.again:
			if err := n.reopen(c); err != nil {
				n.fail(fmt.Errorf("%s: %w", c.why, err))
				return
			}
		}
	}
}

// reopen exchanges the engine. Requests in hand end before; those that come
// meanwhile are told to try again.
func (n *node) reopen(c change) error {
	n.logger.Info("opening the data directory anew", "why", c.why)
	began := time.Now()
	old := n.serveNothing(c.why)
	old.api.Drain()
	old.retire()
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := old.stop(ctx); err != nil {
		// What could not be closed in order is as after a crash: the start
		// finds out.
		n.logger.Warn("the data directory was not closed in order", "error", err)
	}
	if c.do != nil {
		if err := c.do(); err != nil {
			return err
		}
	}
	if err := n.open(); err != nil {
		return err
	}
	n.logger.Info("opened anew", "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// ask lets keep open the engine anew. A second wish while one waits is the
// same one.
func (n *node) ask(c change) {
	select {
	case n.again <- c:
	default:
	}
}

// openPeers begins to listen for the other nodes.
func (n *node) openPeers(l net.Listener) (*peer.Net, error) {
	o := peer.Options{Listener: l, Dial: dialNode, Logger: n.logger}
	if n.inside != nil {
		o.Server, o.Client = n.inside.Server(true), n.inside.Client()
	}
	o.Self = n.identity(l.Addr())
	p, err := peer.New(o)
	if err != nil {
		return nil, fmt.Errorf("raft-addr: %w", err)
	}
	return p, nil
}

// dialNode opens a connection to another node, as long as ctx allows.
func dialNode(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// identity is who this node is to the others.
func (n *node) identity(raftLis net.Addr) peer.Identity {
	id := peer.Identity{
		Cluster: n.card.ClusterID, Node: n.card.NodeID, Incarnation: n.card.Incarnation,
		Raft: n.c.RaftAdvertise, HTTP: n.c.HTTPAdvertise,
	}
	if id.Raft == "" {
		id.Raft = raftLis.String()
	}
	if id.HTTP == "" {
		id.HTTP = n.httpLis.Addr().String()
	}
	return id
}

// form forms a cluster with the others, or finds one to join.
func (n *node) form(ctx context.Context) error {
	_, err := forming.Decide(ctx, forming.Options{
		Net: n.peers, Expect: n.c.BootstrapExpect, Join: n.c.Join, Logger: n.logger,
		Save: func(r forming.Result) error {
			n.card.ClusterID = r.Cluster
			for _, m := range r.Initial {
				n.card.Initial = append(n.card.Initial, datadir.Member(m))
			}
			return n.card.Write(n.c.DataDir)
		},
	})
	return err
}

// tellFormed answers nodes that still look for the cluster that this one is of.
func (n *node) tellFormed() {
	var initial []forming.Member
	for _, m := range n.card.Initial {
		initial = append(initial, forming.Member(m))
	}
	forming.Serve(n.peers, n.card.ClusterID, initial)
}

// A data directory of another cluster must not serve in the place of one of
// this one: its clients would write where nobody looks. So each join address is
// asked which cluster is there, until each has answered once. The one that ends
// is a cluster of one that stands alone: where others of the own cluster answer,
// or are known, the stranger is elsewhere.
const (
	meetTime  = time.Second
	meetAgain = 2 * time.Second
)

// meet asks once, and returns the addresses that have not told, or not what
// they should.
func (n *node) meet(ctx context.Context, addrs []string) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, meetTime)
	defer cancel()
	self := n.peers.Self()
	var mu sync.Mutex
	var wg sync.WaitGroup
	friends := 0
	for _, addr := range addrs {
		wg.Go(func() {
			who, herr := n.peers.Hello(ctx, addr)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case herr != nil || who.Cluster == "": // not there yet, or in no cluster yet
				left = append(left, addr)
			case who.Cluster != self.Cluster:
				left = append(left, addr)
				err = fmt.Errorf("data directory %s is of cluster %s, but node %s at join address %s is of cluster %s",
					n.c.DataDir, self.Cluster, who.Node, addr, who.Cluster)
			case who.Incarnation != self.Incarnation:
				friends++
			}
		})
	}
	wg.Wait()
	// One whose cluster has others acknowledges nothing without them.
	n.friends += friends
	if e := n.engine(); err != nil && (n.friends > 0 || e == nil || len(e.replica.Members()) > 1) {
		n.stranger.Do(func() { n.logger.Error("a stranger is among the join addresses", "error", err) })
		err = nil
	}
	return left, err
}

// meetOthers goes on asking those that have not told.
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

// outOfCluster is told that this directory is no member any more.
func (n *node) outOfCluster(o raft.Out) {
	switch o {
	case raft.WentBack:
		n.ask(change{"the data directory went back in time", n.reincarnate})
	case raft.Removed:
		n.fail(outside("this data directory of node %s is no member of cluster %s any more: the node was removed, or has come with a newer directory; "+
			"to bring it back, start it with an empty one and --join", n.card.NodeID, n.card.ClusterID))
	}
}

// outside is why a directory has no place here. Starting again does not help.
func outside(format string, args ...any) error {
	return &exitError{exitDiverged, fmt.Errorf(format, args...)}
}

// reincarnate makes this directory another member of its cluster, one that has
// promised nothing.
func (n *node) reincarnate() error {
	n.logger.Warn("this data directory is older than what the others know of it: it goes on as a new member, without a vote until it has caught up")
	n.cardMu.Lock()
	defer n.cardMu.Unlock()
	n.card.NewIncarnation()
	// Before anybody is told of it.
	if err := n.card.Write(n.c.DataDir); err != nil {
		return err
	}
	self := n.peers.Self()
	self.Incarnation = n.card.Incarnation
	n.peers.SetSelf(self)
	return nil
}

// joined is told that the cluster's configuration has this directory: from here
// on one that is in none was removed.
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

// fetchLacking brings what this node lacks when the leader says so, and has it
// installed.
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
			Net: e.peers, From: from, ClusterID: e.card.ClusterID,
			// Not an older one, although the leader's log reaches back further:
			// Raft goes on from the checkpoint that it has offered.
			MinIndex: offer.Meta.Index,
			FS:       vfs.OS{}, DataDir: e.c.DataDir, Logger: e.logger,
			FreeBytes: func() (uint64, error) { return freeBytes(e.c.DataDir) },
		})
		e.fetching.Unlock()
		switch {
		case e.background.Err() != nil:
			return
		case errors.Is(err, fetch.ErrNothingLacking):
			// It came by itself meanwhile.
		case errors.Is(err, fetch.ErrDiffers):
			// All that were asked say so. Where they are a majority of the voters,
			// and not only the one that leads, this node is the one that differs.
			if asked, all := e.voters(from); asked > all/2 {
				e.fail(fmt.Errorf("%w: %w", raft.ErrDiverged, err))
				return
			}
			differs.Do(func() {
				e.logger.Error("this node's event log is not that of the node it would fetch from", "error", err)
			})
		case err != nil:
			e.logger.Warn("what this node lacks was not fetched; the leader offers it again", "error", err)
		default:
			e.ask(change{why: "installing what was fetched"})
			return // the next engine goes on from there
		}
	}
}

// voters counts those of the configuration, and how many of them are among some
// nodes.
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

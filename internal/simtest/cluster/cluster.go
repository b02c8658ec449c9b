package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/ports"
)

// Cluster is some nodes that form one. Their addresses stay over restarts.
type Cluster struct {
	t     testing.TB
	opts  Options
	dir   string
	nodes []*Node
	net   *Network
	join  []string // the Raft addresses at which the others reach each node
}

// StartCluster starts a cluster with the product's own timing and returns once
// all nodes are ready.
func StartCluster(t testing.TB, opts Options) *Cluster {
	t.Helper()
	c := NewCluster(t, opts)
	c.LaunchAll()
	c.WaitReady()
	return c
}

// NewCluster prepares a cluster without starting it.
func NewCluster(t testing.TB, opts Options) *Cluster {
	t.Helper()
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	c := &Cluster{t: t, opts: opts, dir: t.TempDir()}
	var names, raft []string
	for i := range opts.Nodes {
		names, raft = append(names, nameOf(i)), append(raft, ports.Free(t))
	}
	c.join = raft
	if opts.Cuts {
		c.net = newNetwork(t, names, raft)
		c.join = c.net.addrs()
	}
	for i := range raft {
		if opts.Nodes == 1 {
			c.add(raft[i]) // a cluster of its own, which may grow
			continue
		}
		c.add(raft[i], "--bootstrap-expect", fmt.Sprint(opts.Nodes), "--join",
			strings.Join(c.join, ","))
	}
	t.Cleanup(c.finish)
	return c
}

func nameOf(i int) string { return fmt.Sprint("n", i+1) }

// add prepares one more node.
func (c *Cluster) add(raft string, flags ...string) *Node {
	i := len(c.nodes)
	o := c.opts
	if o.Dir == "" {
		o.Dir = filepath.Join(c.dir, nameOf(i))
	}
	o.Flags = append(slices.Clone(o.Flags), flags...)
	if c.net != nil {
		o.Flags = append(o.Flags, "--raft-advertise", c.join[i])
	}
	if o.PerNode != nil {
		o.Env = slices.Clone(o.Env)
		o.PerNode(i, &o)
	}
	n := newNode(c.t, nameOf(i), raft, o)
	c.nodes = append(c.nodes, n)
	return n
}

// Add prepares one more node, which asks the others to take it in when it is
// started. Only a cluster without Cuts grows.
func (c *Cluster) Add(flags ...string) *Node {
	c.t.Helper()
	if c.net != nil {
		c.t.Fatal("a cluster whose lines can be cut does not grow")
	}
	raft := ports.Free(c.t)
	c.join = append(c.join, raft)
	return c.add(raft, flags...)
}

// Join returns the Raft addresses at which the nodes reach one another.
func (c *Cluster) Join() []string { return c.join }

// Nodes returns all nodes.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Node returns one of them, the first being 0.
func (c *Cluster) Node(i int) *Node { return c.nodes[i] }

// Network cuts and mends the lines between the nodes; nil without Options.Cuts.
func (c *Cluster) Network() *Network { return c.net }

// Others returns the nodes but these.
func (c *Cluster) Others(not ...*Node) []*Node {
	return slices.DeleteFunc(slices.Clone(c.nodes),
		func(n *Node) bool { return slices.Contains(not, n) })
}

// each does something with some nodes at once.
func each(ns []*Node, do func(i int, n *Node)) {
	var wg sync.WaitGroup
	for i, n := range ns {
		wg.Go(func() { do(i, n) })
	}
	wg.Wait()
}

// LaunchAll starts every node that does not run, and waits for nothing.
func (c *Cluster) LaunchAll() {
	c.t.Helper()
	for _, n := range c.nodes {
		if !n.Running() {
			n.Launch()
		}
	}
}

// Kill9All kills all nodes at once.
func (c *Cluster) Kill9All() {
	c.t.Helper()
	each(c.running(), func(_ int, n *Node) { n.Kill9() })
}

// TermAll asks all nodes to stop at once, and expects exit code 0 of each.
func (c *Cluster) TermAll() {
	c.t.Helper()
	each(c.running(), func(_ int, n *Node) { n.Term() })
}

func (c *Cluster) running() []*Node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *Node) bool { return !n.Running() })
}

// WaitReady returns once all nodes that run are ready.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	running := c.running()
	errs := make([]error, len(running))
	each(running, func(i int, n *Node) { errs[i] = n.WaitReady() })
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
}

// HTTP returns an HTTP client that finds the nodes under their names: http://n1.
func (c *Cluster) HTTP() *http.Client { return &http.Client{Transport: byName{c}} }

// Client returns a client of all nodes that leaves one that fails for the next.
func (c *Cluster) Client(opts ...client.Option) *client.Client {
	c.t.Helper()
	return c.ClientFrom(c.nodes[0], opts...)
}

// ClientFrom is a Client whose first call goes to this node.
func (c *Cluster) ClientFrom(first *Node, opts ...client.Option) *client.Client {
	c.t.Helper()
	names := []string{"http://" + first.name}
	for _, n := range c.Others(first) {
		names = append(names, "http://"+n.name)
	}
	cl, err := client.New(strings.Join(names, ","),
		append([]client.Option{client.WithHTTPClient(c.HTTP())}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

type byName struct{ c *Cluster }

func (b byName) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, n := range b.c.nodes {
		if n.name == req.URL.Host {
			return recorder{n}.RoundTrip(req)
		}
	}
	return nil, fmt.Errorf("there is no node %s", req.URL.Host)
}

func (b byName) CloseIdleConnections() {
	for _, n := range b.c.nodes {
		n.transport.CloseIdleConnections()
	}
}

// pollEvery is how often a state is looked at that no event marks.
const pollEvery = 50 * time.Millisecond

// patience is how long anything may take: it only ends a test that hangs, so it is
// far more than a busy machine needs.
const patience = 5 * time.Minute

// Until polls until look returns nil, and fails the test with what it returned
// last if that takes too long.
func Until(t testing.TB, look func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Poll(ctx, look); err != nil {
		t.Fatalf("after %s: %v", patience, err)
	}
}

// Poll looks again and again until look returns nil or ctx ends, and returns what
// look returned last.
func Poll(ctx context.Context, look func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

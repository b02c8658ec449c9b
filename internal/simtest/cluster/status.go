package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// member returns the node of that name, and whether there is one.
func member(s *wire.Cluster, id string) (wire.Node, bool) {
	for _, m := range s.Nodes {
		if m.ID == id {
			return m, true
		}
	}
	return wire.Node{}, false
}

// askTimeout bounds a question to a node that may be paused or cut off.
const askTimeout = 10 * time.Second

// Status asks the node how it sees its cluster.
func (n *Node) Status(ctx context.Context) (*wire.Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := n.Client(client.WithToken(n.opts.Token),
		client.WithRetry(client.Retry{Attempts: 1})).Cluster(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.name, err)
	}
	return s, nil
}

// Get asks the node for a path, and returns status and body.
func (n *Node) Get(ctx context.Context, path string) (int, []byte, error) {
	h := http.Header{}
	if n.opts.Token != "" {
		h.Set("Authorization", "Bearer "+n.opts.Token)
	}
	resp, b, err := n.Client().Raw(ctx, http.MethodGet, path, h, nil)
	if err != nil {
		return 0, nil, err
	}
	return resp.StatusCode, b, nil
}

// Leader returns the node that leads, as itself says: nil while there is none.
// Of two that do, the one of the newer term does.
func (c *Cluster) Leader() *Node {
	live := slices.DeleteFunc(c.running(), (*Node).Paused)
	answers := make([]*wire.Cluster, len(live))
	each(live, func(i int, n *Node) { answers[i], _ = n.Status(context.Background()) })
	var found *Node
	var term uint64
	for i, s := range answers {
		if s != nil && s.LeaderID == live[i].name && s.NodeID == s.LeaderID && s.Term >= term {
			found, term = live[i], s.Term
		}
	}
	return found
}

// WaitLeader returns the leader once there is one that is none of not.
func (c *Cluster) WaitLeader(not ...*Node) *Node {
	c.t.Helper()
	var leader *Node
	c.wait(func(context.Context) error {
		leader = c.Leader()
		if leader == nil || slices.Contains(not, leader) {
			return errors.New("no (other) node leads")
		}
		return nil
	})
	return leader
}

// wait waits for a state, and fails the test if that takes too long.
func (c *Cluster) wait(look func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := Poll(ctx, func() error { return look(ctx) }); err != nil {
		c.t.Fatalf("after %s: %v\n%s", patience, err, c.describe())
	}
}

// Follower returns a ready node that does not lead.
func (c *Cluster) Follower() *Node {
	c.t.Helper()
	leader := c.WaitLeader()
	i := slices.IndexFunc(c.nodes, func(n *Node) bool {
		return n != leader && n.Running() &&
			!n.Paused()
	})
	if i < 0 {
		c.t.Fatal("there is no follower")
	}
	return c.nodes[i]
}

// WaitVoters returns once every node that runs counts all of the cluster's
// running nodes as voters that can be reached.
func (c *Cluster) WaitVoters() {
	c.t.Helper()
	c.wait(func(ctx context.Context) error {
		running := c.running()
		for _, n := range running {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			for _, m := range running {
				if got, ok := member(s, m.name); !ok || !got.Voter {
					return fmt.Errorf("%s does not count %s as a voter: %+v", n.name, m.name, s)
				}
			}
		}
		return nil
	})
}

// WaitEqual returns once every running node has applied all that any of them
// had when it was called, and all report the same chain at the same head.
func (c *Cluster) WaitEqual(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	own := func(n *Node) (wire.Node, error) {
		s, err := n.Status(ctx)
		if err != nil {
			return wire.Node{}, err
		}
		m, ok := member(s, n.name)
		if !ok {
			return m, fmt.Errorf("%s is no member of its own cluster: %+v", n.name, s)
		}
		return m, nil
	}
	var goal uint64
	chains := map[uint64]string{} // head → chain, of the first to report it
	teller := map[uint64]string{}
	err := Poll(ctx, func() error {
		for _, n := range c.running() {
			m, err := own(n)
			if err != nil {
				return err
			}
			goal = max(goal, m.AppliedIndex)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return Poll(ctx, func() error {
		for _, n := range c.running() {
			m, err := own(n)
			if err != nil {
				return err
			}
			if was, ok := chains[m.LogHead]; ok && was != m.ChainHash {
				c.t.Errorf("at head %d %s reports the chain %s and %s reported %s", m.LogHead,
					n.name,
					m.ChainHash, teller[m.LogHead], was)
			}
			chains[m.LogHead], teller[m.LogHead] = m.ChainHash, n.name
			if m.AppliedIndex < goal {
				return fmt.Errorf("%s has applied %d of %d", n.name, m.AppliedIndex, goal)
			}
		}
		return nil
	})
}

// describe returns the state of each node.
func (c *Cluster) describe() string {
	out := ""
	for _, n := range c.nodes {
		if !n.Running() {
			out += n.name + " does not run\n"
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		ready := n.ready(ctx)
		cancel()
		s, err := n.Status(context.Background())
		out += fmt.Sprintf("%s: ready: %v; status: %+v %v; its log ends with\n%s\n", n.name, ready,
			s, err, n.log.tail(8))
	}
	return out
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/replay"
)

var clusterCommands = group("cluster",
	remote("cluster list", func(c request, _ *none) error {
		v, err := c.Cluster(c.ctx)
		if err != nil || c.output == "json" {
			return c.table(v, err, "", nil)
		}
		fmt.Fprintf(c.stderr, "cluster %s, leader %s, term %d, asked %s\n",
			v.ClusterID, cmp.Or(v.LeaderID, "none known"), v.Term, v.NodeID)
		for _, n := range v.Nodes {
			if len(n.UnconfirmedBy) > 0 {
				fmt.Fprintf(c.stderr, "node %s started without %s, which may know of newer entries\n",
					n.ID, strings.Join(n.UnconfirmedBy, ", "))
			}
			for _, d := range n.Damaged {
				fmt.Fprintf(c.stderr, "node %s: %s is damaged since %s and not repaired: %s\n",
					n.ID, d.File, c.when(d.Since), d.Detail)
			}
		}
		return list(c.app, v.Nodes, nil, "node,role,reachable,version,raft,http,applied,head,chain,damaged",
			func(n *wire.Node) []any {
				role, reachable := "non-voter", "no"
				if n.Voter {
					role = "voter"
				}
				if n.Leader {
					role = "leader"
				}
				if n.Reachable || n.ID == v.NodeID {
					reachable = "yes"
				}
				r := []any{n.ID, role, reachable, cmp.Or(n.Version, "-"), n.RaftAddr,
					cmp.Or(n.HTTPAddr, "-"), "-", "-", "-", len(n.Damaged)}
				if n.LogHead > 0 { // else nothing is known of it yet
					r[6], r[7] = n.AppliedIndex, n.LogHead
					r[8] = n.ChainHash[:min(len(n.ChainHash), 12)]
				}
				return r
			})
	}),
	remote("cluster add", func(c request, f *struct {
		HTTPAddr        string
		NonVoter, Voter bool
	}) error {
		n := wire.NewNode{ID: c.args[0], RaftAddr: c.args[1], HTTPAddr: f.HTTPAddr}
		if f.NonVoter || f.Voter {
			n.Voter = &f.Voter
		}
		node, created, err := c.AddNode(c.ctx, n)
		what := "is in already; it gets its vote once it has caught up"
		switch {
		case created:
			what = "added"
		case f.NonVoter:
			what = "is in already, without a vote"
		case node.Voter:
			what = "is in already"
		}
		return c.answer(node, err, "%s %s", node.ID, what)
	}, exclusive("voter", "non-voter")),
	remote("cluster remove", func(c request, f *struct{ Force bool }) error {
		id := c.args[0]
		what := "remove node " + id + " from the cluster for ever"
		if c.dryRun {
			left, err := remaining(c, id)
			if err != nil {
				return err
			}
			what += "; " + left
		}
		return c.destroy(what, id+" removed",
			func() error { return c.RemoveNode(c.ctx, id, f.Force) })
	}, (*app).destroyFlags),
	remote("cluster verify", func(c request, f *struct{ Wait bool }) error {
		task, err := c.VerifyNode(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		return c.begun(task, f.Wait)
	}),
	remote("cluster transfer", func(c request, _ *none) error {
		leader, err := c.TransferLeadership(c.ctx, strings.Join(c.args, ""))
		return c.answer(wire.Transferred{LeaderID: leader}, err,
			"leader: %s", cmp.Or(leader, "not known yet"))
	}),
	remote("cluster snapshot", func(c request, _ *none) error {
		indexes, err := c.Snapshot(c.ctx)
		var rows [][]any
		for _, id := range sortedKeys(indexes) {
			rows = append(rows, []any{id, indexes[id]})
		}
		return c.table(wire.ClusterSnapshot{Indexes: indexes}, err, "node,checkpoint", rows)
	}),
)

// remaining describes the voters that a removal would leave.
func remaining(c request, id string) (string, error) {
	v, err := c.Cluster(c.ctx)
	if err != nil {
		return "", err
	}
	found, voters, reachable := false, 0, 0
	for _, n := range v.Nodes {
		switch {
		case n.ID == id:
			found = true
		case n.Voter:
			if voters++; n.Reachable || n.ID == v.NodeID {
				reachable++
			}
		}
	}
	if !found {
		return "", fmt.Errorf("there is no node %.64q in the cluster", id)
	}
	return fmt.Sprintf("%s left, %d within reach",
		plural(voters, "voter", "voters"), reachable), nil
}

// readyCommand serves places without curl: a container's health check, and scripts
// that wait for a node.
var readyCommand = plain("ready", func(c request, f *struct{ Wait time.Duration }) error {
	t, err := c.reached()
	if err != nil {
		return err
	}
	for addr := range strings.SplitSeq(t.Addr, ",") {
		t.Addr = addr
		node, err := t.connect()
		if err != nil {
			return err
		}
		err = askReady(c.ctx, node)
		for err != nil && c.ctx.Err() == nil && time.Since(c.started) < f.Wait {
			pause(c.ctx, 100*time.Millisecond)
			err = askReady(c.ctx, node)
		}
		if err != nil {
			return fmt.Errorf("%s is not ready: %w", node.Addr(), err)
		}
	}
	_, err = fmt.Fprintln(c.stdout, "ready")
	return err
}, (*app).addrFlag, (*app).caFlag, (*app).contextFlag)

func askReady(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, b, err := c.Raw(ctx, http.MethodGet, "/readyz", nil, nil)
	if err != nil || resp.StatusCode == http.StatusOK {
		return err
	}
	var h wire.Health
	if err := wire.Unmarshal(b, &h); err == nil && len(h.Reasons) > 0 {
		return errors.New(strings.Join(h.Reasons, "; "))
	}
	return fmt.Errorf("it answers %s", resp.Status)
}

var projectionsCommands = group("projections",
	local("projections rebuild", func(c request, f *struct{ DataDir string }) error {
		if c.reach.Addr == "" {
			return c.rebuildStopped(cmp.Or(f.DataDir, c.getenv("QLOGD_DATA_DIR"), defaultDataDir))
		}
		return c.ask(func(c request) error {
			p, err := c.RebuildProjections(c.ctx)
			bar := c.progress("rebuilding", true)
			for head := p.LogHead; err == nil && p.Index < head; {
				bar.set(int64(p.Index), int64(head))
				pause(c.ctx, 200*time.Millisecond)
				p, err = c.Projections(c.ctx)
			}
			bar.done()
			return c.projections(p, err)
		})
	}, (*app).addrFlag, exclusive("data-dir", "addr"), (*app).authFlags),
	remote("projections show", func(c request, _ *none) error {
		return c.projections(c.Projections(c.ctx))
	}),
)

func (a *app) projections(p *wire.Projections, err error) error {
	return a.show(p, err, "read models", "", [][]any{
		{"index", p.Index}, {"time", a.when(p.Time)}, {"log head", p.LogHead},
	})
}

// rebuildStopped rebuilds the read models in the data directory of a node that does not run.
func (c request) rebuildStopped(dataDir string) error {
	// Acquire would create a missing directory.
	if _, err := datadir.ReadNode(dataDir); errors.Is(err, datadir.ErrNoNode) {
		return usagef("%s is no node's data directory: it has no node.json", dataDir)
	} else if err != nil {
		return err
	}
	lock, err := datadir.Acquire(dataDir)
	if err != nil {
		return fmt.Errorf("%w; use --addr for a running server", err)
	}
	defer lock.Close() //nolint:errcheck // read only
	dir, err := replay.Open(dataDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	path := datadir.Path(dataDir, datadir.ProjectionFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	models, err := store.Open(path, dir.Node.ClusterID, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	head := dir.Log.Head()
	bar := c.progress("rebuilding", true)
	err = models.CatchUp(c.ctx, dir.Log, func(index uint64) { bar.set(int64(index), int64(head)) })
	bar.done()
	index, clock := models.Position()
	if err := errors.Join(err, models.Close()); err != nil {
		return fmt.Errorf("read models: %w", err)
	}
	return c.projections(&wire.Projections{
		Index: index, Time: wire.Time(clock), LogHead: head,
	}, nil)
}

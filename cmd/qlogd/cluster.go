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

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/replay"
)

func (a *app) clusterCmd() *cobra.Command {
	return group("cluster",
		a.clusterListCmd(), a.clusterAddCmd(), a.clusterRemoveCmd(), a.clusterTransferCmd(),
		a.clusterSnapshotCmd())
}

func (a *app) clusterListCmd() *cobra.Command {
	return a.remote("cluster list", func(c request) error {
		v, err := c.Cluster(c.ctx)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.wire(v)
		}
		fmt.Fprintf(a.stderr, "cluster %s, leader %s, term %d, asked %s\n",
			v.ClusterID, cmp.Or(v.LeaderID, "none known"), v.Term, v.NodeID)
		return list(a, v.Nodes, nil, "node,role,reachable,raft,http,applied,head,chain",
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
				return []any{n.ID, role, reachable, n.RaftAddr, cmp.Or(n.HTTPAddr, "-"),
					n.AppliedIndex, n.LogHead,
					cmp.Or(n.ChainHash[:min(len(n.ChainHash), 12)], "-")}
			})
	})
}

func (a *app) clusterAddCmd() *cobra.Command {
	var n wire.NewNode
	var nonVoter bool
	return a.remote("cluster add", func(c request) error {
		n.ID, n.RaftAddr = c.args[0], c.args[1]
		if nonVoter {
			n.Voter = new(bool)
		}
		node, created, err := c.AddNode(c.ctx, n)
		if err != nil {
			return err
		}
		what := "added"
		switch {
		case created:
		case nonVoter:
			what = "is in already, without a vote"
		case node.Voter:
			what = "is in already"
		default:
			what = "is in already; it gets its vote once it has caught up"
		}
		return a.say(node, "%s %s", node.ID, what)
	}, opt(&n.HTTPAddr, "http-addr"), opt(&nonVoter, "non-voter"))
}

func (a *app) clusterRemoveCmd() *cobra.Command {
	var force bool
	return a.remote("cluster remove", func(c request) error {
		id := c.args[0]
		what := "remove node " + id + " from the cluster for ever"
		if a.dryRun {
			left, err := remaining(c, id)
			if err != nil {
				return err
			}
			what += "; " + left
		}
		return a.destroy(what, id+" removed",
			func() error { return c.RemoveNode(c.ctx, id, force) })
	}, a.destroyFlags, opt(&force, "force"))
}

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

func (a *app) clusterTransferCmd() *cobra.Command {
	return a.remote("cluster transfer", func(c request) error {
		leader, err := c.TransferLeadership(c.ctx, strings.Join(c.args, ""))
		return a.answer(wire.Transferred{LeaderID: leader}, err,
			"leader: %s", cmp.Or(leader, "not known yet"))
	})
}

func (a *app) clusterSnapshotCmd() *cobra.Command {
	return a.remote("cluster snapshot", func(c request) error {
		indexes, err := c.Snapshot(c.ctx)
		if err == nil && a.output == "json" {
			return a.wire(wire.ClusterSnapshot{Indexes: indexes})
		}
		return list(a, sortedKeys(indexes), err, "node,checkpoint",
			func(id *string) []any { return []any{*id, indexes[*id]} })
	})
}

// readyCmd serves places without curl: a container's health check, and scripts
// that wait for a node.
func (a *app) readyCmd() *cobra.Command {
	var wait time.Duration
	return a.plain("ready", func(ctx context.Context, _ []string) error {
		for addr := range strings.SplitSeq(a.addr(), ",") {
			c, err := a.connect(addr)
			if err != nil {
				return err
			}
			err = askReady(ctx, c)
			for err != nil && ctx.Err() == nil && time.Since(a.started) < wait {
				pause(ctx, 100*time.Millisecond)
				err = askReady(ctx, c)
			}
			if err != nil {
				return fmt.Errorf("%s is not ready: %w", c.Addr(), err)
			}
		}
		_, err := fmt.Fprintln(a.stdout, "ready")
		return err
	}, opt(&wait, "wait"), a.addrFlag, a.caFlag)
}

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

func (a *app) projectionsCmd() *cobra.Command {
	return group("projections",
		a.projectionsRebuildCmd(),
		a.remote("projections show",
			func(c request) error { return a.projections(c.Projections(c.ctx)) }))
}

func (a *app) projections(p *wire.Projections, err error) error {
	return a.show(p, err, "read models", "", [][]any{
		{"index", p.Index}, {"time", a.when(p.Time)}, {"log head", p.LogHead},
	})
}

func (a *app) projectionsRebuildCmd() *cobra.Command {
	var dataDir string
	return a.local("projections rebuild", func(ctx context.Context, _ []string) error {
		if a.reach.addr == "" {
			a.fromEnv(&dataDir, "QLOGD_DATA_DIR", defaultDataDir)
			return a.rebuildStopped(ctx, dataDir)
		}
		return a.ask(func(c *client.Client) error { return a.rebuildRemote(ctx, c) })
	}, opt(&dataDir, "data-dir"), opt(&a.reach.addr, "addr"),
		exclusive("data-dir", "addr"), a.authFlags)
}

// rebuildRemote asks a server to rebuild its read models and waits for the end.
func (a *app) rebuildRemote(ctx context.Context, c *client.Client) error {
	p, err := c.RebuildProjections(ctx)
	if err != nil {
		return err
	}
	bar := a.progress("rebuilding", true)
	for head := p.LogHead; p.Index < head; {
		bar.set(int64(p.Index), int64(head))
		pause(ctx, 200*time.Millisecond)
		if p, err = c.Projections(ctx); err != nil {
			break
		}
	}
	bar.done()
	return a.projections(p, err)
}

// rebuildStopped rebuilds the read models in the data directory of a node that
// does not run.
func (a *app) rebuildStopped(ctx context.Context, dataDir string) error {
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
	defer lock.Release() //nolint:errcheck // read only
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
	src := dir.Log
	following, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stop(models.Follow(following, src)) // what has failed: the log, or the disk
	}()
	bar := a.progress("rebuilding", true)
	for done := false; !done && following.Err() == nil; {
		wait, cancel := context.WithTimeout(following, 100*time.Millisecond)
		done = models.WaitFor(wait, src.Head()) == nil
		cancel()
		index, _ := models.Position()
		bar.set(int64(index), int64(src.Head()))
	}
	bar.done()
	err = context.Cause(following)
	index, clock := models.Position()
	stop(nil)
	<-ended
	if err := errors.Join(err, models.Close()); err != nil {
		return err
	}
	return a.projections(&wire.Projections{
		Index: index, Time: wire.Time(clock), LogHead: src.Head(),
	}, nil)
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) clusterCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "cluster",
		Short: "Look at the cluster, and change it",
		Example: `  qlogd cluster list
  qlogd cluster add n4 10.0.0.4:7071
  qlogd cluster remove n2 --yes`,
	}, a.clusterListCmd(), a.clusterAddCmd(), a.clusterRemoveCmd(), a.clusterTransferCmd(), a.clusterSnapshotCmd())
}

func (a *app) clusterListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "show"},
		Short:   "List the nodes as the one that is asked knows them",
		Long: `Lists the nodes as the one that is asked knows them, also while there is no leader.
HEAD and CHAIN are the newest block of a node's event log: at the same head all
nodes have the same chain.`,
		Example: "  qlogd cluster list\n  qlogd cluster list -o json | jq -r .leader_id",
		Args:    args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			v, err := c.Cluster(ctx)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(v)
			}
			rows := make([][]any, 0, len(v.Nodes))
			for i := range v.Nodes {
				rows = append(rows, nodeRow(&v.Nodes[i], v.NodeID))
			}
			leader := v.LeaderID
			if leader == "" {
				leader = "none known"
			}
			fmt.Fprintf(a.stderr, "cluster %s, leader %s, term %d, asked %s\n", v.ClusterID, leader, v.Term, v.NodeID)
			return a.table(nodeHeader(), rows)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func nodeHeader() []string {
	return []string{"node", "role", "reachable", "raft", "http", "applied", "head", "chain"}
}

// nodeRow is a node in a table; asked is the one that answers.
func nodeRow(n *wire.Node, asked string) []any {
	role := "non-voter"
	switch {
	case n.Leader:
		role = "leader"
	case n.Voter:
		role = "voter"
	}
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	reachable := "no"
	if n.Reachable || n.ID == asked {
		reachable = "yes"
	}
	return []any{n.ID, role, reachable, n.RaftAddr, dash(n.HTTPAddr), n.AppliedIndex, n.LogHead, dash(n.ChainHash[:min(len(n.ChainHash), 12)])}
}

func (a *app) clusterAddCmd() *cobra.Command {
	var n wire.NewNode
	var nonVoter bool
	cmd := &cobra.Command{
		Use:   "add NODE RAFT_ADDR",
		Short: "Take a node in",
		Long: `Takes a node into the cluster: one with a data directory that belongs to no cluster
yet, started with --join and without --bootstrap-expect (without either it forms a
cluster of its own), whose --node-id is NODE and which the others reach at RAFT_ADDR
(HOST:PORT, its --raft-addr or --raft-advertise). If it does not run
yet it is announced, and taken in when it comes. It catches up in the background and then gets its vote. A node that
is in with the same data already stays in, and its vote is as told: a copy without
one gets it, with --non-voter a voter loses it.`,
		Example: `  qlogd cluster add n4 10.0.0.4:7071
  qlogd cluster add copy 10.0.0.9:7071 --http-addr 10.0.0.9:7070 --non-voter`,
		Args: args(cobra.ExactArgs(2)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			n.ID, n.RaftAddr = argv[0], argv[1]
			if nonVoter {
				no := false
				n.Voter = &no
			}
			node, created, err := c.AddNode(ctx, n)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(node)
			}
			what := " added"
			switch {
			case created:
			case nonVoter:
				what = " is in already, without a vote"
			case node.Voter:
				what = " is in already"
			default:
				what = " is in already; it gets its vote once it has caught up"
			}
			fmt.Fprintln(a.stdout, node.ID+what)
			return nil
		}),
	}
	cmd.Flags().StringVar(&n.HTTPAddr, "http-addr", "", "address of its HTTP API (default: what the node itself says)")
	cmd.Flags().BoolVar(&nonVoter, "non-voter", false, "a copy without a vote")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) clusterRemoveCmd() *cobra.Command {
	d := &destroyer{}
	var force bool
	cmd := &cobra.Command{
		Use:     "remove NODE",
		Aliases: []string{"rm"},
		Short:   "Take a node out, for ever",
		Long: `Takes a node out of the cluster. Its data directory can't come back: to take the
machine in again, start it with an empty one. Without --force a node is not removed
where the voters left would have no majority that can be reached; the last voter
never is.`,
		Example: "  qlogd cluster remove n2 --dry-run\n  qlogd cluster remove n2 --yes\n  qlogd cluster remove n2 --yes --force",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			what := "remove node " + argv[0] + " from the cluster for ever"
			if d.dryRun {
				return a.wouldRemove(ctx, c, argv[0], what)
			}
			if err := d.confirm(a, what); err != nil {
				return err
			}
			if err := c.RemoveNode(ctx, argv[0], force); err != nil {
				return err
			}
			if a.output != "json" {
				fmt.Fprintln(a.stdout, argv[0], "removed")
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also where the voters left are no majority that can be reached")
	d.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

// wouldRemove tells what a removal would leave.
func (a *app) wouldRemove(ctx context.Context, c *client.Client, id, what string) error {
	v, err := c.Cluster(ctx)
	if err != nil {
		return err
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
		return fmt.Errorf("there is no node %.64q in the cluster", id)
	}
	fmt.Fprintf(a.stdout, "would %s; %s left, %d within reach\n", what, plural(voters, "voter", "voters"), reachable)
	return nil
}

func (a *app) clusterTransferCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "transfer [NODE]",
		Short:   "Hand leadership over, to a voter or to the one that is furthest",
		Example: "  qlogd cluster transfer\n  qlogd cluster transfer n2",
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			to := ""
			if len(argv) > 0 {
				to = argv[0]
			}
			leader, err := c.TransferLeadership(ctx, to)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(wire.Transferred{LeaderID: leader})
			}
			if leader == "" {
				leader = "not known yet"
			}
			fmt.Fprintln(a.stdout, "leader:", leader)
			return nil
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) clusterSnapshotCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshot",
		Short:   "Let every node take a checkpoint",
		Example: "  qlogd cluster snapshot\n  qlogd cluster snapshot -o json",
		Args:    args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			indexes, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(wire.ClusterSnapshot{Indexes: indexes})
			}
			var rows [][]any
			for _, id := range slices.Sorted(maps.Keys(indexes)) {
				rows = append(rows, []any{id, indexes[id]})
			}
			return a.table([]string{"node", "checkpoint"}, rows)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

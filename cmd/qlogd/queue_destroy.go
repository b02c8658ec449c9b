package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// destroyer is what every command that destroys shares.
type destroyer struct{ yes, dryRun bool }

func (d *destroyer) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&d.yes, "yes", "y", false, "don't ask")
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "tell what would happen, and do nothing")
}

// confirm asks on a terminal. Without one, only --yes is a yes: a script must
// not destroy by forgetting something.
func (d *destroyer) confirm(a *app, what string) error {
	if d.yes {
		return nil
	}
	if !terminal(a.stdin) {
		return usagef("%s: say --yes, or --dry-run to look first", what)
	}
	fmt.Fprintf(a.stderr, "%s. Go on? [y/N] ", what)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n')
	if s := strings.ToLower(strings.TrimSpace(line)); s != "y" && s != "yes" {
		return &exitError{exitFailed, fmt.Errorf("nothing was done")}
	}
	return nil
}

func (a *app) queueDeleteCmd() *cobra.Command {
	d := &destroyer{}
	var force bool
	cmd := &cobra.Command{
		Use:     "delete QUEUE",
		Aliases: []string{"rm"},
		Short:   "Delete a queue",
		Long:    "Deletes an empty queue; with --force, also one that holds messages, which are discarded with it.",
		Example: "  qlogd queue delete jobs --dry-run\n  qlogd queue delete jobs --yes --force",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			q, err := c.Queue(ctx, argv[0])
			if err != nil {
				return err
			}
			n := q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight
			what := fmt.Sprintf("delete queue %s with %s", argv[0], plural(int(n), "message", "messages"))
			if d.dryRun {
				if n > 0 && !force {
					what += " (refused without --force)"
				}
				fmt.Fprintln(a.stdout, "would", what)
				return nil
			}
			if err := d.confirm(a, what); err != nil {
				return err
			}
			if err := c.DeleteQueue(ctx, argv[0], force); err != nil {
				return err
			}
			if a.output != "json" {
				fmt.Fprintf(a.stdout, "%s deleted\n", argv[0])
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "with all the messages that it holds")
	d.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) queuePurgeCmd() *cobra.Command {
	d := &destroyer{}
	cmd := &cobra.Command{
		Use:     "purge QUEUE",
		Short:   "Discard all messages of a queue but leased ones",
		Example: "  qlogd queue purge jobs --dry-run\n  qlogd queue purge jobs --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			q, err := c.Queue(ctx, argv[0])
			if err != nil {
				return err
			}
			what := fmt.Sprintf("purge %s from %s", plural(int(q.Stats.Depth+q.Stats.Scheduled), "message", "messages"), argv[0])
			if d.dryRun {
				fmt.Fprintln(a.stdout, "would", what)
				return nil
			}
			if err := d.confirm(a, what); err != nil {
				return err
			}
			n, err := c.PurgeQueue(ctx, argv[0])
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(wire.Purged{Purged: n})
			}
			fmt.Fprintf(a.stdout, "%s purged\n", plural(int(n), "message", "messages"))
			return nil
		}),
	}
	d.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

const eraseLong = `Overwrites what users wrote (payload, header values, error texts, results, edits) in
the event logs of all nodes and in the archive, and lets go of the Raft logs that hold it.
A message is erased with all that it was and became: in dead-letter queues, replayed,
resurrected. What is live is discarded. It can't be undone.

Ids, keys, kinds, names, sizes and times stay, and so does the reason, which is needed:
history tells who erased, when and why.

It goes on as a task, which is complete when every member of the cluster has done it.`

func (a *app) messageEraseCmd() *cobra.Command {
	d := &destroyer{}
	var reason string
	cmd := &cobra.Command{
		Use:     "erase ID",
		Short:   "Erase what users wrote in a message, everywhere and for good",
		Long:    eraseLong,
		Example: "  qlogd message erase 01J… --reason 'request 4711' --dry-run\n  qlogd message erase 01J… --reason 'request 4711' --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			return a.erase(d, reason, "message "+argv[0],
				func() (*wire.Erasable, error) { return c.ErasableMessage(ctx, argv[0]) },
				func() (*wire.Task, error) { return c.EraseMessage(ctx, argv[0], reason) })
		}),
	}
	a.eraseFlags(cmd, d, &reason)
	return cmd
}

func (a *app) queueEraseCmd() *cobra.Command {
	d := &destroyer{}
	var key, reason string
	cmd := &cobra.Command{
		Use:     "erase QUEUE --key KEY",
		Short:   "Erase what users wrote in all messages of a key, everywhere and for good",
		Long:    eraseLong + "\n\nWhat comes after the command was given is not erased.",
		Example: "  qlogd queue erase jobs --key customer-42 --reason 'request 4711' --dry-run\n  qlogd queue erase jobs --key customer-42 --reason 'request 4711' --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if key == "" {
				return usagef("--key is needed")
			}
			return a.erase(d, reason, fmt.Sprintf("all messages of key %q that were in queue %s", short(key, 64), argv[0]),
				func() (*wire.Erasable, error) { return c.ErasableKey(ctx, argv[0], key) },
				func() (*wire.Task, error) { return c.EraseKey(ctx, argv[0], key, reason) })
		}),
	}
	cmd.Flags().StringVar(&key, "key", "", "the key")
	a.eraseFlags(cmd, d, &reason)
	return cmd
}

func (a *app) eraseFlags(cmd *cobra.Command, d *destroyer, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why; it is kept")
	d.flags(cmd)
	a.remoteFlags(cmd)
}

// erase looks, asks, and begins.
func (a *app) erase(d *destroyer, reason, what string, look func() (*wire.Erasable, error), do func() (*wire.Task, error)) error {
	if reason == "" && !d.dryRun {
		return usagef("--reason is needed: it is kept, and tells later why something is not there")
	}
	if d.dryRun || !d.yes {
		is, err := look()
		if err != nil {
			return err
		}
		if d.dryRun && a.output == "json" {
			return a.wire(is)
		}
		what := fmt.Sprintf("erase %s: %s in %s, of which %d %s live and discarded", what, plural(int(is.Contents), "content", "contents"),
			plural(int(is.Messages), "message", "messages"), is.Live, map[bool]string{true: "is", false: "are"}[is.Live == 1])
		if d.dryRun {
			fmt.Fprintln(a.stdout, "would", what)
			return nil
		}
		if err := d.confirm(a, what); err != nil {
			return err
		}
	}
	t, err := do()
	if err != nil {
		return err
	}
	if a.output == "json" {
		return a.wire(t)
	}
	fmt.Fprintf(a.stdout, "erasing as task %s; qlogd task get %s tells on which nodes it is complete\n", t.ID, t.ID)
	return nil
}

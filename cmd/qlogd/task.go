package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) taskCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "task",
		Aliases: []string{"tasks"},
		Short:   "Watch, cancel and resume large replays, purges and erasures",
		Example: "  qlogd task list --status running\n  qlogd task watch 01J…",
	}, a.taskListCmd(), a.taskGetCmd(), a.taskWatchCmd(), a.taskCancelCmd(), a.taskResumeCmd())
}

func (a *app) taskListCmd() *cobra.Command {
	var status string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tasks, the newest first",
		Example: "  qlogd task list\n  qlogd task list --status running -o json | jq -r .id",
		Args:    args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			tasks, err := c.Tasks(ctx, status)
			if err != nil {
				return err
			}
			rows := make([][]any, 0, len(tasks))
			for _, t := range tasks {
				if a.output == "json" {
					if err := a.wire(t); err != nil {
						return err
					}
				}
				rows = append(rows, []any{t.ID, t.Type, t.Queue, t.Status, t.Done, t.Total, t.Skipped, a.when(t.CreatedAt), a.when(t.EndedAt)})
			}
			if a.output == "json" {
				return nil
			}
			return a.table([]string{"task", "type", "queue", "status", "done", "of", "skipped", "created", "ended"}, rows)
		}),
	}
	cmd.Flags().StringVar(&status, "status", "", "running, cancelled, completed or failed")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) task(t *wire.Task) error {
	if a.output == "json" {
		return a.wire(t)
	}
	rows := [][]any{
		{"type", t.Type}, {"queue", t.Queue}, {"status", t.Status}, {"done", fmt.Sprintf("%d of about %d", t.Done, t.Total)}, {"skipped", t.Skipped},
		{"actor", t.Actor}, {"created", a.when(t.CreatedAt)}, {"updated", a.when(t.UpdatedAt)}, {"ended", a.when(t.EndedAt)},
	}
	if t.RatePerSecond != nil {
		rows = append(rows, []any{"rate", fmt.Sprintf("%d a second", *t.RatePerSecond)})
	}
	if t.Error != "" {
		rows = append(rows, []any{"error", short(t.Error, 200)})
	}
	for _, n := range t.Nodes {
		if n.Complete {
			rows = append(rows, []any{"carried out by", n.Node + " " + a.when(n.At)})
		} else {
			rows = append(rows, []any{"waits for", n.Node})
		}
	}
	return a.pairs("task", t.ID, rows)
}

func (a *app) taskGetCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get ID",
		Aliases: []string{"show"},
		Short:   "Show a task",
		Example: "  qlogd task get 01J…\n  qlogd task get 01J… -o json | jq .status",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			t, err := c.Task(ctx, argv[0])
			if err != nil {
				return err
			}
			return a.task(t)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) taskWatchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "watch ID",
		Short:   "Wait for a task's end, and tell how far it is meanwhile",
		Long:    "Waits until a task has ended or was cancelled, and tells on stderr how far it is. Exit code 0 where it was completed, else 1. ctrl-C leaves the task at work.",
		Example: "  qlogd task watch 01J…",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			return a.watchTask(ctx, c, argv[0])
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

// watchedEvery is how often it is told how far a task is.
const watchedEvery = 2 * time.Second

func (a *app) watchTask(ctx context.Context, c *client.Client, id string) error {
	told := int64(-1)
	for {
		t, err := c.AwaitTask(ctx, id, watchedEvery)
		if err != nil {
			return err
		}
		if t.Status != wire.TaskRunning {
			if err := a.task(t); err != nil {
				return err
			}
			switch {
			case t.Status == wire.TaskCompleted:
				return nil
			case t.Error != "":
				return &exitError{exitFailed, errors.New("the task has failed: " + t.Error)}
			}
			return &exitError{exitFailed, errors.New("the task is " + t.Status)}
		}
		if t.Done != told {
			told = t.Done
			fmt.Fprintf(a.stderr, "%d of about %d\n", t.Done, t.Total)
		}
	}
}

func (a *app) taskCancelCmd() *cobra.Command {
	d := &destroyer{}
	cmd := &cobra.Command{
		Use:     "cancel ID",
		Short:   "Cancel a task; what it has done so far stays done",
		Example: "  qlogd task cancel 01J… --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			t, err := c.Task(ctx, argv[0])
			if err != nil {
				return err
			}
			what := fmt.Sprintf("cancel the %s of %s after %d of about %d", t.Type, t.Queue, t.Done, t.Total)
			if d.dryRun {
				fmt.Fprintln(a.stdout, "would", what)
				return nil
			}
			if err := d.confirm(a, what); err != nil {
				return err
			}
			if err := c.CancelTask(ctx, argv[0]); err != nil {
				return err
			}
			if a.output != "json" {
				fmt.Fprintln(a.stdout, argv[0], "cancelled")
			}
			return nil
		}),
	}
	d.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) taskResumeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "resume ID",
		Short:   "Let a cancelled task go on with what is left",
		Example: "  qlogd task resume 01J…",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			t, err := c.ResumeTask(ctx, argv[0])
			if err != nil {
				return err
			}
			return a.task(t)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

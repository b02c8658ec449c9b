package main

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) queueCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "queue",
		Aliases: []string{"queues"},
		Short:   "List, show and change queues",
		Example: "  qlogd queue list\n  qlogd queue create jobs --ordering per_key --dead-letter-queue auto",
	}, a.queueListCmd(), a.queueShowCmd(), a.queueStatsCmd(), a.queueCreateCmd(), a.queueUpdateCmd(), a.queueDeleteCmd(),
		a.queuePauseCmd(true), a.queuePauseCmd(false), a.queuePurgeCmd(), a.queueEraseCmd(), a.queueExplainCmd())
}

func (a *app) queueListCmd() *cobra.Command {
	var namespace, at string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List queues with what is in them",
		Example: "  qlogd queue list\n  qlogd queue list --at 15m\n  qlogd queue list -o json | jq .name",
		Args:    args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			queues, err := c.Queues(ctx, namespace, atOption(at)...)
			if err != nil {
				return err
			}
			rows := make([][]any, 0, len(queues))
			for _, q := range queues {
				if a.output == "json" {
					if err := a.wire(q); err != nil {
						return err
					}
				}
				state := "running"
				if q.Paused {
					state = "paused"
				}
				rows = append(rows, []any{q.Name, q.Ordering, state, q.Stats.Depth, q.Stats.Scheduled, q.Stats.InFlight, humanize.IBytes(uint64(q.Stats.Bytes)), q.Stats.EnqueuedTotal, q.Stats.AckedTotal, q.Stats.DeadLetteredTotal})
			}
			if a.output == "json" {
				return nil
			}
			return a.table([]string{"queue", "ordering", "state", "depth", "scheduled", "in flight", "bytes", "enqueued", "acked", "dead"}, rows)
		}),
	}
	cmd.Flags().StringVar(&namespace, "namespace", "", "only queues of this namespace")
	cmd.Flags().StringVar(&at, "at", "", "as it was then: an RFC 3339 time, an event's id, index:N, 15m, start")
	a.remoteFlags(cmd)
	return cmd
}

func atOption(at string) []client.CallOption {
	if at == "" {
		return nil
	}
	return []client.CallOption{client.At(at)}
}

func (a *app) queueShowCmd() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:     "show QUEUE",
		Short:   "Show a queue's policy and counts",
		Example: "  qlogd queue show jobs\n  qlogd queue show jobs --at 2026-01-31T12:00:00Z -o json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			q, err := c.Queue(ctx, argv[0], atOption(at)...)
			if err != nil {
				return err
			}
			return a.queue(q)
		}),
	}
	cmd.Flags().StringVar(&at, "at", "", "as it was then: an RFC 3339 time, an event's id, index:N, 15m, start")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) queue(q *wire.Queue) error {
	if a.output == "json" {
		return a.wire(q)
	}
	dlq, schema := "-", "none"
	if q.Delivery.DeadLetterQueue != nil {
		dlq = *q.Delivery.DeadLetterQueue
	}
	if len(q.MessageSchema) > 0 && string(q.MessageSchema) != "null" {
		schema = "set"
	}
	unlimited := func(n int64, unit string) string {
		if n == 0 {
			return "no limit"
		}
		return fmt.Sprint(n, unit)
	}
	s := q.Stats
	return a.pairs("queue", q.Name, [][]any{
		{"ordering", q.Ordering}, {"paused", q.Paused}, {"created", a.when(q.CreatedAt)}, {"updated", a.when(q.UpdatedAt)},
		{"depth", fmt.Sprintf("%d (%d held)", s.Depth, s.Held)}, {"scheduled", s.Scheduled}, {"in flight", s.InFlight},
		{"bytes", humanize.IBytes(uint64(s.Bytes))}, {"oldest", fmt.Sprintf("%d s", s.OldestMessageAgeSeconds)}, {"partitions", s.Partitions},
		{"enqueued", s.EnqueuedTotal}, {"acked", s.AckedTotal}, {"dead-lettered", s.DeadLetteredTotal},
		{"lease", fmt.Sprintf("%d ms", q.Delivery.LeaseMS)}, {"attempts", unlimited(q.Delivery.MaxAttempts, "")},
		{"on retry", q.Delivery.OnRetry}, {"on dead", q.Delivery.OnDead}, {"dead-letter queue", dlq},
		{"max age", unlimited(q.Retention.MaxAgeSeconds, " s")}, {"max depth", unlimited(q.Retention.MaxDepth, "")}, {"max bytes", unlimited(q.Retention.MaxBytes, "")},
		{"deduplication", fmt.Sprintf("%d s by %s", q.Deduplication.WindowSeconds, q.Deduplication.By)}, {"schema", schema},
		{"namespace", q.Namespace}, {"description", short(q.Description, 80)},
	})
}

func (a *app) queueCreateCmd() *cobra.Command {
	p := &policyFlags{}
	cmd := &cobra.Command{
		Use:   "create QUEUE",
		Short: "Make a queue, or replace its policy",
		Long:  "Makes a queue. Where it exists its policy is replaced: what no flag names has its default again (update changes single fields).",
		Example: `  qlogd queue create jobs
  qlogd queue create orders --ordering per_key --max-attempts 8 --dead-letter-queue auto
  qlogd queue create jobs --policy policy.json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			u, err := p.update(a)
			if err != nil {
				return err
			}
			q, _, err := c.PutQueue(ctx, argv[0], *u)
			if err != nil {
				return err
			}
			return a.queue(q)
		}),
	}
	p.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) queueUpdateCmd() *cobra.Command {
	p := &policyFlags{}
	cmd := &cobra.Command{
		Use:     "update QUEUE",
		Short:   "Change single fields of a queue's policy",
		Example: "  qlogd queue update jobs --lease-ms 60000\n  qlogd queue update jobs --dead-letter-queue ''",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			u, err := p.update(a)
			if err != nil {
				return err
			}
			q, err := c.UpdateQueue(ctx, argv[0], *u)
			if err != nil {
				return err
			}
			return a.queue(q)
		}),
	}
	p.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) queuePauseCmd(pause bool) *cobra.Command {
	verb, what := "resume", "Let leases go on"
	if pause {
		verb, what = "pause", "Stop leases; produce goes on"
	}
	cmd := &cobra.Command{
		Use:     verb + " QUEUE",
		Short:   what,
		Example: "  qlogd queue " + verb + " jobs",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			do := c.ResumeQueue
			if pause {
				do = c.PauseQueue
			}
			if err := do(ctx, argv[0]); err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(wire.Paused{Paused: pause})
			}
			fmt.Fprintf(a.stdout, "%s %sd\n", argv[0], verb)
			return nil
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

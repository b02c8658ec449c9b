package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/client"
)

func (a *app) queueStatsCmd() *cobra.Command {
	var minutes int
	cmd := &cobra.Command{
		Use:     "stats QUEUE",
		Short:   "Tell what was counted of a queue: totals, deaths by reason, the last minutes",
		Example: "  qlogd queue stats jobs\n  qlogd queue stats jobs --minutes 1440 -o json | jq .minutes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			s, err := c.QueueStats(ctx, argv[0], minutes)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(s)
			}
			rate := "not known"
			if s.MessagesPerMinute != nil {
				rate = fmt.Sprint(*s.MessagesPerMinute)
			}
			rows := [][]any{{"counted to index", s.Index}, {"messages a minute", rate}, {"oldest message, seconds", s.OldestMessageAgeSeconds}}
			for _, t := range sortedKeys(s.Totals) {
				rows = append(rows, []any{t, s.Totals[t]})
			}
			for _, r := range sortedKeys(s.DeadByReason) {
				rows = append(rows, []any{"dead: " + r, s.DeadByReason[r]})
			}
			if err := a.pairs("queue", s.Queue, rows); err != nil || len(s.Minutes) == 0 {
				return err
			}
			fmt.Fprintln(a.stdout)
			var table [][]any
			for _, m := range s.Minutes {
				table = append(table, []any{m.Start.String(), m.Enqueued, m.Leased, m.Acked, m.Retried, m.LeaseExpired, m.DeadLettered, m.Discarded, m.Replayed})
			}
			return a.table([]string{"minute", "enqueued", "leased", "acked", "retried", "lease expired", "dead", "discarded", "replayed"}, table)
		}),
	}
	cmd.Flags().IntVar(&minutes, "minutes", 0, "how many minutes back, up to 1440 (default 60)")
	a.remoteFlags(cmd)
	return cmd
}

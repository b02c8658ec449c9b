package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) messageCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "message",
		Aliases: []string{"messages"},
		Short:   "Look at single messages, or take one out",
		Example: "  qlogd message show 01J…\n  qlogd message history 01J…\n  qlogd message list jobs --state leased",
	}, a.messageShowCmd(), a.messageHistoryCmd(), a.messageListCmd(), a.messageDeleteCmd(), a.messageResurrectCmd(), a.messageEditsCmd(),
		a.messageEraseCmd())
}

func (a *app) messageShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a message with its payload and history",
		Example: "  qlogd message show 01J…\n  qlogd message show 01J… -o json | jq .payload",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			m, err := c.Message(ctx, argv[0])
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(m)
			}
			payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
			rows := [][]any{
				{"queue", m.Queue}, {"state", m.State}, {"held", m.Held}, {"key", short(m.Key, 80)}, {"kind", m.Kind},
				{"priority", m.Priority}, {"attempt", m.Attempt}, {"enqueued", a.when(m.EnqueuedAt)},
			}
			if m.AvailableAt != 0 {
				rows = append(rows, []any{"available", a.when(m.AvailableAt)})
			}
			if m.LeaseID != "" {
				rows = append(rows, []any{"lease", m.LeaseID}, []any{"until", a.when(m.LeaseExpiresAt)})
			}
			if m.MovedTo != nil {
				rows = append(rows, []any{"moved to", m.MovedTo.Queue + " as " + m.MovedTo.MessageID})
			}
			if m.Dead != nil {
				rows = append(rows, []any{"dead from", m.Dead.Queue + " (" + m.Dead.Reason + ")"}, []any{"error", short(m.Dead.Error, 80)})
			}
			for _, r := range m.ResurrectedAs {
				rows = append(rows, []any{"resurrected", "in " + r.Queue + " as " + r.MessageID})
			}
			if o := m.Origin; o != nil {
				rows = append(rows, []any{"came from", o.FromMessageID}, []any{"first", o.FirstMessageID}, []any{"replays", o.Replays})
			}
			if m.Erased {
				payload = "(erased, or deleted by retention)"
			}
			rows = append(rows, []any{"payload", short(payload, 200)})
			if err := a.pairs("message", m.ID, rows); err != nil {
				return err
			}
			fmt.Fprintln(a.stdout)
			if len(m.Attempts) > 0 {
				if err := a.attemptTable(m.Attempts); err != nil {
					return err
				}
				fmt.Fprintln(a.stdout)
			}
			return a.eventTable(m.History)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) messageHistoryCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "history ID",
		Short:   "Tell every event of a message, through dead-letter queues and replays",
		Example: "  qlogd message history 01J…\n  qlogd message history 01J… -o json | jq -r .type",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			events, err := c.History(ctx, argv[0])
			if err != nil {
				return err
			}
			if a.output != "json" {
				return a.eventTable(events)
			}
			for _, e := range events {
				if err := a.wire(e); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) messageListCmd() *cobra.Command {
	var (
		q     client.MessageQuery
		key   string
		at    string
		limit int
		byKey func() bool // the empty key is one too
	)
	cmd := &cobra.Command{
		Use:     "list QUEUE",
		Aliases: []string{"ls", "peek"},
		Short:   "Peek at the messages of a queue, without any effect on them",
		Example: "  qlogd message list jobs --state scheduled\n  qlogd message list jobs --key customer-42 --at 1h -o json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if byKey() {
				q.Key = &key
			}
			var rows [][]any
			for n := 0; n < limit; {
				q.Limit = min(limit-n, 100)
				page, err := c.Messages(ctx, argv[0], q, atOption(at)...)
				if err != nil {
					return err
				}
				for _, m := range page.Messages {
					if a.output == "json" {
						if err := a.wire(m); err != nil {
							return err
						}
					}
					state := m.State
					if m.Held {
						state += " (held)"
					}
					rows = append(rows, []any{m.ID, state, short(m.Key, 32), m.Priority, m.Attempt, a.when(m.EnqueuedAt), short(string(m.Payload), 60)})
				}
				n += len(page.Messages)
				if q.After = page.NextCursor; q.After == "" || len(page.Messages) == 0 {
					break
				}
			}
			if a.output == "json" {
				return nil
			}
			return a.table([]string{"message", "state", "key", "priority", "attempt", "enqueued", "payload"}, rows)
		}),
	}
	byKey = func() bool { return cmd.Flags().Changed("key") }
	cmd.Flags().StringVar(&q.State, "state", "", "scheduled, ready or leased")
	cmd.Flags().StringVar(&key, "key", "", "only messages with this key")
	cmd.Flags().StringVar(&at, "at", "", "as it was then: an RFC 3339 time, an event's id, index:N, 15m, start")
	cmd.Flags().IntVar(&limit, "limit", 100, "most messages")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) messageDeleteCmd() *cobra.Command {
	d := &destroyer{}
	cmd := &cobra.Command{
		Use:     "delete ID",
		Aliases: []string{"rm"},
		Short:   "Take a message out of its queue",
		Example: "  qlogd message delete 01J… --yes",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			m, err := c.Message(ctx, argv[0])
			if err != nil {
				return err
			}
			what := fmt.Sprintf("delete message %s (%s) from %s", m.ID, m.State, m.Queue)
			if d.dryRun {
				fmt.Fprintln(a.stdout, "would", what)
				return nil
			}
			if err := d.confirm(a, what); err != nil {
				return err
			}
			if err := c.DeleteMessage(ctx, argv[0]); err != nil {
				return err
			}
			if a.output != "json" {
				fmt.Fprintln(a.stdout, m.ID, "deleted")
			}
			return nil
		}),
	}
	d.flags(cmd)
	a.remoteFlags(cmd)
	return cmd
}

// attemptTable prints a message's attempts.
func (a *app) attemptTable(attempts []wire.Attempt) error {
	rows := make([][]any, 0, len(attempts))
	for i := range attempts {
		t := &attempts[i]
		took := ""
		if t.DurationMS != nil {
			took = (time.Duration(*t.DurationMS) * time.Millisecond).String()
		}
		outcome := t.Outcome
		if t.Reason != "" {
			outcome += " (" + t.Reason + ")"
		}
		text := short(t.Error, 80)
		if t.Erased {
			text = "(erased)"
		}
		rows = append(rows, []any{t.Attempt, t.Queue, t.LeasedAt.String(), took, t.Worker, outcome, text})
	}
	return a.table([]string{"attempt", "queue", "leased", "took", "worker", "outcome", "error"}, rows)
}

// eventTable prints events as a table.
func (a *app) eventTable(events []wire.Event) error {
	rows := make([][]any, 0, len(events))
	for i := range events {
		rows = append(rows, a.eventRow(&events[i]))
	}
	return a.table(eventHeader(), rows)
}

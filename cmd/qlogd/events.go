package main

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
)

func eventHeader() []string {
	return []string{"time", "index", "event", "type", "queue", "message", "what"}
}

func (a *app) eventRow(e *wire.Event) []any {
	return []any{e.Time.String(), e.Index, e.EventID, e.Type, e.Queue, e.MessageID, short(eventText(e), 100)}
}

// eventText is what matters of an event's fields, in a line.
func eventText(e *wire.Event) string {
	var s []string
	add := func(format string, v ...any) { s = append(s, fmt.Sprintf(format, v...)) }
	if e.Key != "" {
		add("key %s", e.Key)
	}
	if e.Attempt > 0 {
		add("attempt %d", e.Attempt)
	}
	if e.Worker != "" {
		add("by %s", e.Worker)
	}
	if e.LeaseExpiresAt != 0 {
		add("until %s", e.LeaseExpiresAt)
	}
	if e.DeliverAt != 0 {
		add("deliver at %s", e.DeliverAt)
	}
	if e.NextAt != 0 {
		add("next at %s", e.NextAt)
	}
	if e.Reason != "" {
		add("%s", e.Reason)
	}
	if e.ToQueue != "" {
		add("to %s as %s", e.ToQueue, e.NewMessageID)
	}
	if e.DiedIn != "" {
		add("died in %s", e.DiedIn)
	}
	if e.Order != "" {
		add("order %s", e.Order)
	}
	if e.Edited {
		add("edited")
	}
	if e.SourceID != "" {
		add("source id %q", e.SourceID)
	}
	if e.TaskID != "" {
		add("task %s", strings.TrimSpace(e.TaskKind+" "+e.TaskID))
	}
	if e.Node != "" {
		add("on node %s", e.Node)
	}
	if e.Failed {
		add("failed")
	}
	if e.Error != "" {
		add("%q", e.Error)
	}
	if e.Why != "" {
		add("because %q", e.Why)
	}
	switch {
	case e.Count > 0 && e.Type == event.Erased.String():
		add("%d contents", e.Count)
	case e.Count > 0:
		add("%d messages", e.Count)
	}
	if e.BeforeIndex > 0 {
		add("before index:%d", e.BeforeIndex)
	}
	if e.Rules > 0 {
		add("rules %d", e.Rules)
	}
	if e.Erased {
		add("content erased")
	}
	if e.Actor != "" {
		add("asked by %s", e.Actor)
	}
	return strings.Join(s, ", ")
}

func (a *app) eventsCmd() *cobra.Command {
	var (
		q      client.EventQuery
		follow bool
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Tell what happened, and what happens",
		Long: `Tells events from the server's log, oldest first. With --follow it goes on with
new ones as they commit, from now on or from where --from or --after say.`,
		Example: `  qlogd events --from 15m
  qlogd events --follow -o json | jq -c 'select(.type == "dead_lettered")'
  qlogd events --message 01J…
  qlogd events --queue jobs --type enqueued --from start`,
		Args: args(cobra.NoArgs),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, _ []string) error {
			var events iter.Seq2[wire.Event, error]
			if follow {
				events = c.Follow(ctx, q)
			} else {
				q.Limit = 1000
				if limit > 0 {
					q.Limit = min(limit, 1000)
				}
				events = c.AllEvents(ctx, q)
			}
			var rows [][]any
			n := 0
			for e, err := range events {
				switch {
				case err != nil:
					return err
				case a.output == "json":
					err = a.wire(e)
				case follow:
					// A stream has no widths to wait for.
					_, err = fmt.Fprintln(a.stdout, e.Time.String(), e.Index, e.Type, e.Queue, e.MessageID, short(eventText(&e), 160))
				default:
					rows = append(rows, a.eventRow(&e))
				}
				if err != nil {
					return err
				}
				if n++; limit > 0 && n == limit {
					break
				}
			}
			if a.output == "json" || follow {
				return nil
			}
			return a.table(eventHeader(), rows)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&follow, "follow", false, "stay, and tell new events as they commit")
	f.StringVar(&q.After, "after", "", "only events after this one")
	f.StringVar(&q.From, "from", "", "from this instant on: an RFC 3339 time, an event's id, index:N, 15m, start")
	f.StringVar(&q.To, "to", "", "up to this instant")
	f.StringVar(&q.Queue, "queue", "", "only of this queue")
	f.StringVar(&q.Type, "type", "", "only of this type, such as enqueued")
	f.StringVar(&q.MessageID, "message", "", "only of this message")
	f.IntVar(&limit, "limit", 0, "most events; 0 all there are")
	a.remoteFlags(cmd)
	return cmd
}

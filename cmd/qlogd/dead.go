package main

import (
	"context"
	"fmt"
	"os"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) deadCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "dead",
		Short: "See what died in a queue, and replay or purge it",
		Example: `  qlogd dead groups jobs
  qlogd dead list jobs --error timeout
  qlogd dead replay jobs --error timeout --dry-run`,
	}, a.deadListCmd(), a.deadGroupsCmd(), a.deadShowCmd(), a.deadReplayCmd(), a.deadPurgeCmd())
}

// deadFilter is what selects dead letters on the command line.
type deadFilter struct {
	reason, error, key, kind, from, to, fingerprint string
	cmd                                             *cobra.Command
}

func (f *deadFilter) flags(cmd *cobra.Command) {
	f.cmd = cmd
	fl := cmd.Flags()
	fl.StringVar(&f.reason, "reason", "", "why it died: max_attempts, expired, rejected, key_dead")
	fl.StringVar(&f.error, "error", "", "part of the error text, in any case")
	fl.StringVar(&f.key, "key", "", "its ordering key")
	fl.StringVar(&f.kind, "kind", "", "its kind")
	fl.StringVar(&f.from, "from", "", "it died at that instant or later: an RFC 3339 time, an event's id, index:N, 15m, start")
	fl.StringVar(&f.to, "to", "", "it died at that instant or earlier")
	fl.StringVar(&f.fingerprint, "fingerprint", "", "of a group of qlogd dead groups")
}

// wire returns the filter, and whether any flag of it was given.
func (f *deadFilter) wire() (out wire.DeadFilter, given bool) {
	out = wire.DeadFilter{Reason: f.reason, Error: f.error, From: f.from, To: f.to, Fingerprint: f.fingerprint}
	if f.cmd.Flags().Changed("key") {
		out.Key = &f.key
	}
	if f.cmd.Flags().Changed("kind") {
		out.Kind = &f.kind
	}
	return out, out != (wire.DeadFilter{})
}

func (a *app) deadListCmd() *cobra.Command {
	f := &deadFilter{}
	var (
		replayed bool
		limit    int
	)
	cmd := &cobra.Command{
		Use:     "list QUEUE",
		Aliases: []string{"ls"},
		Short:   "List what died in a queue",
		Long:    "Lists the messages that died in a queue, whatever dead-letter queue they are in, by the time of their death; with --replayed those that were replayed, and what became of them.",
		Example: "  qlogd dead list jobs --from 1h\n  qlogd dead list jobs --error 'connection refused' -o json | jq -r .id\n  qlogd dead list jobs --replayed",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			if limit < 1 {
				return usagef("--limit must be at least 1")
			}
			q := client.DeadQuery{Limit: min(limit, 500)}
			q.DeadFilter, _ = f.wire()
			if replayed {
				q.State = "replayed"
			}
			var rows [][]any
			n := 0
			for m, err := range c.AllDead(ctx, argv[0], q) {
				if err != nil {
					return err
				}
				if a.output == "json" {
					if err := a.wire(m); err != nil {
						return err
					}
				} else {
					rows = append(rows, a.deadRow(&m, replayed))
				}
				if n++; n == limit {
					break
				}
			}
			if a.output == "json" {
				return nil
			}
			header := []string{"message", "failed", "reason", "attempts", "replays", "key", "error"}
			if replayed {
				header = []string{"message", "failed", "replayed", "as", "result", "key", "error"}
			}
			return a.table(header, rows)
		}),
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&replayed, "replayed", false, "those that were replayed, as long as history keeps them")
	cmd.Flags().IntVar(&limit, "limit", 100, "most messages")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) deadRow(m *wire.Message, replayed bool) []any {
	d := m.Dead
	if d == nil {
		d = &wire.Dead{}
	}
	if replayed {
		return []any{m.ID, a.when(d.FailedAt), a.when(m.ReplayedAt), m.NewMessageID, m.ReplayResult, short(m.Key, 32), short(d.Error, 80)}
	}
	return []any{m.ID, a.when(d.FailedAt), d.Reason, d.Attempts, d.ReplayCount, short(m.Key, 32), short(d.Error, 80)}
}

func (a *app) deadGroupsCmd() *cobra.Command {
	f := &deadFilter{}
	var limit int
	cmd := &cobra.Command{
		Use:     "groups QUEUE",
		Short:   "Tell what went wrong in a queue, and how often",
		Long:    "Groups what died in a queue by its error without what differs from one failure to the next: numbers, ids, addresses, times, what is quoted. The largest group comes first.",
		Example: "  qlogd dead groups jobs\n  qlogd dead groups jobs --from 1h -o json | jq -r '.fingerprint + \" \" + .pattern'",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			q := client.DeadQuery{Limit: limit}
			q.DeadFilter, _ = f.wire()
			out, err := c.DeadGroups(ctx, argv[0], q)
			if err != nil {
				return err
			}
			var rows [][]any
			for _, g := range out.Groups {
				if a.output == "json" {
					if err := a.wire(g); err != nil {
						return err
					}
				}
				rows = append(rows, []any{g.Count, g.Fingerprint, g.Reason, a.when(g.FirstFailedAt), a.when(g.LastFailedAt), short(g.Error, 100)})
			}
			if a.output == "json" {
				return nil
			}
			return a.table([]string{"count", "fingerprint", "reason", "first", "last", "newest error"}, rows)
		}),
	}
	f.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "most groups")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) deadShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show QUEUE ID",
		Short:   "Show a dead message, by any id that it ever had",
		Example: "  qlogd dead show jobs 01J…\n  qlogd dead show jobs 01J… -o json | jq .payload",
		Args:    args(cobra.ExactArgs(2)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) error {
			m, err := c.DeadMessage(ctx, argv[0], argv[1])
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.wire(m)
			}
			d := m.Dead
			rows := [][]any{
				{"died in", d.Queue + " as " + d.MessageID}, {"failed", a.when(d.FailedAt)}, {"reason", d.Reason}, {"attempts", d.Attempts},
				{"first enqueued", a.when(d.FirstEnqueuedAt)}, {"replays", d.ReplayCount}, {"now in", m.Queue + ", " + m.State},
				{"key", short(m.Key, 80)}, {"kind", m.Kind},
			}
			if m.ReplayedAt != 0 {
				rows = append(rows, []any{"replayed", a.when(m.ReplayedAt) + " as " + m.NewMessageID}, []any{"which is", m.ReplayResult})
			}
			rows = append(rows, []any{"error", short(d.Error, 2000)}, []any{"payload", short(payloadText(m.Payload, m.PayloadBytes, m.ContentType), 2000)})
			return a.pairs("dead message", m.ID, rows)
		}),
	}
	a.remoteFlags(cmd)
	return cmd
}

// chosen is which dead letters a command is about.
type chosen struct {
	deadFilter
	all bool
	destroyer
}

func (f *chosen) flags(cmd *cobra.Command) {
	f.deadFilter.flags(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "all that died in the queue")
	f.destroyer.flags(cmd)
}

// read returns either ids or a filter: to select all has to be said.
func (f *chosen) read(ids []string) ([]string, *wire.DeadFilter, error) {
	filter, given := f.wire()
	switch {
	case len(ids) > 0 && (given || f.all):
		return nil, nil, usagef("either message ids or a filter, not both")
	case len(ids) > 0:
		return ids, nil, nil
	case given && f.all:
		return nil, nil, usagef("either --all or a filter, not both")
	case !given && !f.all:
		return nil, nil, usagef("which ones? Name message ids, give a filter such as --error TEXT, or say --all")
	}
	return nil, &filter, nil
}

func (a *app) deadReplayCmd() *cobra.Command {
	f := &chosen{}
	var (
		r          wire.ReplayRequest
		rate, most int64
		edit       string
		wait       bool
	)
	cmd := &cobra.Command{
		Use:   "replay QUEUE [ID…]",
		Short: "Move dead messages back to work",
		Long: `Moves messages that died in a queue back to work: those named, by any id that
they ever had, or those that a filter selects. More than 1000, or what takes longer
than a second by --rate, is done by a task: its id is printed, and --wait waits for
its end (ctrl-C leaves the task at work).`,
		Example: `  qlogd dead replay jobs --error timeout --dry-run
  qlogd dead replay jobs --fingerprint 1f0c2a9d4e7b --rate 50 --wait --yes
  qlogd dead replay jobs 01J… --payload '{"fixed":true}' --yes
  qlogd dead replay jobs --all --to jobs-again --yes`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) (err error) {
			queue := argv[0]
			if r.MessageIDs, r.Filter, err = f.read(argv[1:]); err != nil {
				return err
			}
			if f.cmd.Flags().Changed("rate") {
				r.RatePerSecond = &rate
			}
			if f.cmd.Flags().Changed("max-replays") {
				r.MaxReplays = &most
			}
			if f.cmd.Flags().Changed("payload") {
				if len(r.MessageIDs) != 1 {
					return usagef("--payload goes with one message id")
				}
				v, err := readValue("payload", edit)
				if err != nil {
					return err
				}
				r.Edit = map[string]wire.ReplayEdit{r.MessageIDs[0]: {Payload: v}}
			}
			dry := r
			dry.DryRun = true
			if f.dryRun || !f.yes && terminal(a.stdin) {
				would, _, err := c.Replay(ctx, queue, dry)
				if err != nil {
					return err
				}
				if f.dryRun {
					return a.dryReplay(would)
				}
				if err := f.confirm(a, "replay "+plural(int(would.Replayed), "message", "messages")+" that died in "+queue); err != nil {
					return err
				}
			} else if err := f.confirm(a, "replay dead messages of "+queue); err != nil {
				return err
			}
			done, task, err := c.Replay(ctx, queue, r)
			if err != nil {
				return err
			}
			if task != nil {
				return a.begun(ctx, c, task, wait)
			}
			if a.output == "json" {
				return a.wire(done)
			}
			rows := make([][]any, 0, len(done.Messages))
			for _, m := range done.Messages {
				rows = append(rows, []any{m.MessageID, m.NewMessageID})
			}
			if len(rows) > 0 {
				if err := a.table([]string{"message", "new message"}, rows); err != nil {
					return err
				}
			}
			fmt.Fprintln(a.stderr, plural(int(done.Replayed), "message", "messages")+" replayed")
			return a.passedOver(done.Skipped)
		}),
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&r.Order, "order", "", "original (the default of fifo and per_key), append, or head")
	fl.StringVar(&r.To, "to-queue", "", "into another queue than the one in which they died")
	fl.Int64Var(&rate, "rate", 0, "so many a second, 1 to 10000")
	fl.Int64Var(&most, "max-replays", 100, "pass over what was replayed so often; 0 is no limit")
	fl.StringVar(&edit, "payload", "", "JSON, or @FILE, in place of the message's own; that stays in the log")
	fl.BoolVar(&wait, "wait", false, "wait for the end of a task")
	a.remoteFlags(cmd)
	return cmd
}

func (a *app) dryReplay(would *wire.Replayed) error {
	if a.output == "json" {
		return a.wire(would)
	}
	fmt.Fprintln(a.stdout, "would replay", plural(int(would.Replayed), "message", "messages"))
	return a.drySample(would.Sample, would.Skipped)
}

// drySample prints what a dry run has found.
func (a *app) drySample(sample []wire.Message, skipped []wire.Skipped) error {
	var rows [][]any
	for i := range sample {
		rows = append(rows, a.deadRow(&sample[i], false))
	}
	if len(rows) > 0 {
		if err := a.table([]string{"message", "failed", "reason", "attempts", "replays", "key", "error"}, rows); err != nil {
			return err
		}
	}
	return a.passedOver(skipped)
}

// passedOver tells on stderr what was passed over, by reason.
func (a *app) passedOver(skipped []wire.Skipped) error {
	n, order := map[string]int{}, []string{}
	for _, s := range skipped {
		if n[s.Code]++; n[s.Code] == 1 {
			order = append(order, s.Code)
		}
	}
	for _, code := range order {
		fmt.Fprintf(a.stderr, "%s passed over: %s\n", plural(n[code], "message", "messages"), code)
	}
	return nil
}

func (a *app) deadPurgeCmd() *cobra.Command {
	f := &chosen{}
	wait := false
	cmd := &cobra.Command{
		Use:     "purge QUEUE [ID…]",
		Short:   "Discard dead messages",
		Example: "  qlogd dead purge jobs --to 7d --dry-run\n  qlogd dead purge jobs 01J… --yes\n  qlogd dead purge jobs --all --yes --wait",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: a.onServer(func(ctx context.Context, c *client.Client, argv []string) (err error) {
			queue := argv[0]
			var r wire.PurgeRequest
			if r.MessageIDs, r.Filter, err = f.read(argv[1:]); err != nil {
				return err
			}
			dry := r
			dry.DryRun = true
			would, _, err := c.PurgeDead(ctx, queue, dry)
			if err != nil {
				return err
			}
			what := "purge " + plural(int(would.Purged), "message", "messages") + " that died in " + queue
			if f.dryRun {
				if a.output == "json" {
					return a.wire(would)
				}
				fmt.Fprintln(a.stdout, "would", what)
				return a.drySample(would.Sample, would.Skipped)
			}
			if err := f.confirm(a, what); err != nil {
				return err
			}
			done, task, err := c.PurgeDead(ctx, queue, r)
			if err != nil {
				return err
			}
			if task != nil {
				return a.begun(ctx, c, task, wait)
			}
			if a.output == "json" {
				return a.wire(done)
			}
			fmt.Fprintln(a.stdout, plural(int(done.Purged), "message", "messages")+" purged")
			return a.passedOver(done.Skipped)
		}),
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the end of a task")
	a.remoteFlags(cmd)
	return cmd
}

// begun tells of a task that has begun, and waits for its end if asked to.
func (a *app) begun(ctx context.Context, c *client.Client, t *wire.Task, wait bool) error {
	if wait {
		return a.watchTask(ctx, c, t.ID)
	}
	if a.output == "json" {
		return a.wire(t)
	}
	fmt.Fprintf(a.stderr, "task %s does it: qlogd task watch %s\n", t.ID, t.ID)
	fmt.Fprintln(a.stdout, t.ID)
	return nil
}

// readValue returns a flag's JSON, or that of the file which @FILE names.
func readValue(flag, v string) (jsontext.Value, error) {
	if len(v) > 1 && v[0] == '@' {
		b, err := os.ReadFile(v[1:])
		if err != nil {
			return nil, usagef("--%s: %w", flag, err)
		}
		v = string(b)
	}
	if !jsontext.Value(v).IsValid() {
		return nil, usagef(`--%s is not JSON: %.64q (a text is written '"text"')`, flag, v)
	}
	return jsontext.Value(v), nil
}

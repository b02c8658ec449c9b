package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) queueCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "queue",
		Aliases: []string{"queues"},
		Short:   "List, show and change queues",
		Example: "  qlogd queue list\n  qlogd queue create jobs --ordering per_key --dead-letter-queue auto",
	}, a.queueListCmd(), a.queueShowCmd(), a.queueStatsCmd(), a.queueCreateCmd(), a.queueUpdateCmd(),
		a.queueDeleteCmd(), a.queuePauseCmd(true), a.queuePauseCmd(false), a.queuePurgeCmd(),
		a.queueEraseCmd(), a.queueExplainCmd())
}

func (a *app) queueListCmd() *cobra.Command {
	var namespace, at string
	cmd := a.remote("list", "List queues with their counts",
		"  qlogd queue list\n  qlogd queue list --at 15m\n  qlogd queue list -o json | jq .name", exactly(0),
		func(ctx context.Context, c *client.Client, _ []string) error {
			queues, err := c.Queues(ctx, namespace, atOption(at)...)
			if err != nil {
				return err
			}
			return list(a, queues, "queue,ordering,state,depth,scheduled,in flight,bytes,enqueued,acked,dead",
				func(q *wire.Queue) []any {
					state := "running"
					if q.Paused {
						state = "paused"
					}
					s := &q.Stats
					return []any{q.Name, q.Ordering, state, s.Depth, s.Scheduled, s.InFlight,
						humanize.IBytes(uint64(s.Bytes)), s.EnqueuedTotal, s.AckedTotal, s.DeadLetteredTotal}
				})
		})
	cmd.Aliases = []string{"ls"}
	cmd.Flags().StringVar(&namespace, "namespace", "", "only queues of this namespace")
	cmd.Flags().StringVar(&at, "at", "", "as it was then: "+instantHelp)
	return cmd
}

func (a *app) queueShowCmd() *cobra.Command {
	var at string
	cmd := a.remote("show QUEUE", "Show a queue's policy and counts",
		"  qlogd queue show jobs\n  qlogd queue show jobs --at 2026-01-31T12:00:00Z -o json", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			return a.queue(c.Queue(ctx, argv[0], atOption(at)...))
		})
	cmd.Flags().StringVar(&at, "at", "", "as it was then: "+instantHelp)
	return cmd
}

func (a *app) queue(q *wire.Queue, err error) error {
	if err != nil {
		return err
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
	return a.show(q, "queue", q.Name, [][]any{
		{"ordering", q.Ordering}, {"paused", q.Paused},
		{"created", a.when(q.CreatedAt)}, {"updated", a.when(q.UpdatedAt)},
		{"depth", fmt.Sprintf("%d (%d held)", s.Depth, s.Held)}, {"scheduled", s.Scheduled},
		{"in flight", s.InFlight}, {"bytes", humanize.IBytes(uint64(s.Bytes))},
		{"oldest", fmt.Sprintf("%d s", s.OldestMessageAgeSeconds)}, {"partitions", s.Partitions},
		{"enqueued", s.EnqueuedTotal}, {"acked", s.AckedTotal}, {"dead-lettered", s.DeadLetteredTotal},
		{"lease", fmt.Sprintf("%d ms", q.Delivery.LeaseMS)},
		{"attempts", unlimited(q.Delivery.MaxAttempts, "")},
		{"on retry", q.Delivery.OnRetry}, {"on dead", q.Delivery.OnDead}, {"dead-letter queue", dlq},
		{"max age", unlimited(q.Retention.MaxAgeSeconds, " s")},
		{"max depth", unlimited(q.Retention.MaxDepth, "")},
		{"max bytes", unlimited(q.Retention.MaxBytes, "")},
		{"deduplication", fmt.Sprintf("%d s by %s", q.Deduplication.WindowSeconds, q.Deduplication.By)},
		{"schema", schema}, {"namespace", q.Namespace}, {"description", short(q.Description, 80)},
	})
}

func (a *app) queueStatsCmd() *cobra.Command {
	var minutes int
	cmd := a.remote("stats QUEUE", "Show a queue's totals, deaths by reason, and the last minutes",
		"  qlogd queue stats jobs\n  qlogd queue stats jobs --minutes 1440 -o json | jq .minutes", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			s, err := c.QueueStats(ctx, argv[0], minutes)
			if err != nil {
				return err
			}
			rate := "not known"
			if s.MessagesPerMinute != nil {
				rate = fmt.Sprint(*s.MessagesPerMinute)
			}
			rows := [][]any{{"counted to index", s.Index}, {"messages a minute", rate},
				{"oldest message, seconds", s.OldestMessageAgeSeconds}}
			for _, t := range sortedKeys(s.Totals) {
				rows = append(rows, []any{t, s.Totals[t]})
			}
			for _, r := range sortedKeys(s.DeadByReason) {
				rows = append(rows, []any{"dead: " + r, s.DeadByReason[r]})
			}
			err = a.show(s, "queue", s.Queue, rows)
			if err != nil || a.output == "json" || len(s.Minutes) == 0 {
				return err
			}
			fmt.Fprintln(a.stdout)
			return list(a, s.Minutes,
				"minute,enqueued,leased,acked,retried,lease expired,dead,discarded,replayed",
				func(m *wire.Minute) []any {
					return []any{m.Start.String(), m.Enqueued, m.Leased, m.Acked, m.Retried,
						m.LeaseExpired, m.DeadLettered, m.Discarded, m.Replayed}
				})
		})
	cmd.Flags().IntVar(&minutes, "minutes", 0, "how many minutes back, up to 1440 (default 60)")
	return cmd
}

func (a *app) queueCreateCmd() *cobra.Command {
	p := &policyFlags{}
	cmd := a.remote("create QUEUE", "Make a queue, or replace its policy", `  qlogd queue create jobs
  qlogd queue create orders --ordering per_key --max-attempts 8 --dead-letter-queue auto
  qlogd queue create jobs --policy policy.json`, exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			u, err := p.update(a)
			if err != nil {
				return err
			}
			q, _, err := c.PutQueue(ctx, argv[0], u)
			return a.queue(q, err)
		})
	cmd.Long = "Makes a queue. If it exists, its policy is replaced: fields that no flag names get their\n" +
		"defaults again (update changes single fields)."
	p.flags(cmd)
	return cmd
}

func (a *app) queueUpdateCmd() *cobra.Command {
	p := &policyFlags{}
	cmd := a.remote("update QUEUE", "Change single fields of a queue's policy",
		"  qlogd queue update jobs --lease-ms 60000\n  qlogd queue update jobs --dead-letter-queue ''",
		exactly(1), func(ctx context.Context, c *client.Client, argv []string) error {
			u, err := p.update(a)
			if err != nil {
				return err
			}
			return a.queue(c.UpdateQueue(ctx, argv[0], u))
		})
	p.flags(cmd)
	return cmd
}

func (a *app) queuePauseCmd(pause bool) *cobra.Command {
	verb, what := "resume", "Let leases go on"
	if pause {
		verb, what = "pause", "Stop leases; produce goes on"
	}
	return a.remote(verb+" QUEUE", what, "  qlogd queue "+verb+" jobs", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			do := c.ResumeQueue
			if pause {
				do = c.PauseQueue
			}
			if err := do(ctx, argv[0]); err != nil {
				return err
			}
			return a.say(wire.Paused{Paused: pause}, "%s %sd", argv[0], verb)
		})
}

func (a *app) queueDeleteCmd() *cobra.Command {
	var force bool
	cmd := a.destroyFlags(a.remote("delete QUEUE", "Delete a queue",
		"  qlogd queue delete jobs --dry-run\n  qlogd queue delete jobs --yes --force", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			q, err := c.Queue(ctx, argv[0])
			if err != nil {
				return err
			}
			n := q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight
			what := fmt.Sprintf("delete queue %s with %s", argv[0], messages(n))
			if a.dryRun && n > 0 && !force {
				what += " (refused without --force)"
			}
			return a.destroy(what, func() error {
				if err := c.DeleteQueue(ctx, argv[0], force); err != nil {
					return err
				}
				return a.say(nil, "%s deleted", argv[0])
			})
		}))
	cmd.Aliases = []string{"rm"}
	cmd.Long = "Deletes a queue. With --force also one that holds messages, which are discarded with it."
	cmd.Flags().BoolVar(&force, "force", false, "with all the messages that it holds")
	return cmd
}

func (a *app) queuePurgeCmd() *cobra.Command {
	return a.destroyFlags(a.remote("purge QUEUE", "Discard all messages of a queue but leased ones",
		"  qlogd queue purge jobs --dry-run\n  qlogd queue purge jobs --yes", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			q, err := c.Queue(ctx, argv[0])
			if err != nil {
				return err
			}
			n := q.Stats.Depth + q.Stats.Scheduled
			return a.destroy(fmt.Sprintf("purge %s from %s", messages(n), argv[0]), func() error {
				n, err := c.PurgeQueue(ctx, argv[0])
				if err != nil {
					return err
				}
				return a.say(wire.Purged{Purged: n}, "%s purged", messages(n))
			})
		}))
}

func (a *app) queueExplainCmd() *cobra.Command {
	var key, message string
	var cmd *cobra.Command
	cmd = a.remote("explain QUEUE", "Explain why a message is, or is not, being delivered",
		"  qlogd queue explain jobs\n  qlogd queue explain jobs --key customer-42\n"+
			"  qlogd queue explain jobs --message 01J… -o json | jq -r '.reasons[].code'", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			var k *string
			if cmd.Flags().Changed("key") { // the empty key is one too
				k = &key
			}
			x, err := c.Explain(ctx, argv[0], message, k)
			if err != nil {
				return err
			}
			what, can := "nothing", "is not delivered now"
			if x.MessageID != nil {
				what = "message " + *x.MessageID
			}
			if x.Deliverable {
				can = "can be delivered now"
			}
			text := fmt.Sprintf("%s of %s %s:", what, x.Queue, can)
			for _, r := range x.Reasons {
				text += fmt.Sprintf("\n  %s: %s", r.Code, short(r.Text, 400))
			}
			return a.say(x, "%s", text)
		})
	cmd.Long = "Explains why a message is or is not being delivered: the named one, or the first that waits\n" +
		"under a key, or in the whole queue. Exit code 0 whatever the reason."
	cmd.Flags().StringVar(&key, "key", "", "an ordering key")
	cmd.Flags().StringVar(&message, "message", "", "a message's id")
	cmd.MarkFlagsMutuallyExclusive("key", "message")
	return cmd
}

// eraseLong is the common part of the help of both erase commands.
const eraseLong = `Overwrites what users wrote (payload, header values, error texts, results, edits) in
the event logs of all nodes and in the archive, and discards the Raft logs that hold it.
A message is erased with all its copies: in dead-letter queues, replayed, resurrected.
Live messages are discarded. Erasing can't be undone.

Ids, keys, kinds, names, sizes and times stay, and so does the reason, which is needed:
history shows who erased, when and why.

It goes on as a task, which is complete when every member of the cluster has done it.`

func (a *app) messageEraseCmd() *cobra.Command {
	var reason string
	cmd := a.destroyFlags(a.remote("erase ID", "Erase the content of a message everywhere and for good",
		"  qlogd message erase 01J… --reason 'request 4711' --dry-run\n"+
			"  qlogd message erase 01J… --reason 'request 4711' --yes", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			return a.erase(reason, "message "+argv[0],
				func() (*wire.Erasable, error) { return c.ErasableMessage(ctx, argv[0]) },
				func() (*wire.Task, error) { return c.EraseMessage(ctx, argv[0], reason) })
		}))
	cmd.Long = eraseLong
	cmd.Flags().StringVar(&reason, "reason", "", "why; it is kept")
	return cmd
}

func (a *app) queueEraseCmd() *cobra.Command {
	var key, reason string
	cmd := a.destroyFlags(a.remote("erase QUEUE --key KEY",
		"Erase the content of all messages of a key, everywhere and for good",
		"  qlogd queue erase jobs --key customer-42 --reason 'request 4711' --dry-run\n"+
			"  qlogd queue erase jobs --key customer-42 --reason 'request 4711' --yes", exactly(1),
		func(ctx context.Context, c *client.Client, argv []string) error {
			if key == "" {
				return usagef("--key is needed")
			}
			what := fmt.Sprintf("all messages of key %q that were in queue %s", short(key, 64), argv[0])
			return a.erase(reason, what,
				func() (*wire.Erasable, error) { return c.ErasableKey(ctx, argv[0], key) },
				func() (*wire.Task, error) { return c.EraseKey(ctx, argv[0], key, reason) })
		}))
	cmd.Long = eraseLong + "\n\nMessages that are enqueued after the command was given are not erased."
	cmd.Flags().StringVar(&key, "key", "", "the key")
	cmd.Flags().StringVar(&reason, "reason", "", "why; it is kept")
	return cmd
}

// erase counts what would be erased, asks, and begins the task.
func (a *app) erase(reason, what string, look func() (*wire.Erasable, error), do func() (*wire.Task, error)) error {
	if reason == "" && !a.dryRun {
		return usagef("--reason is needed: it is kept, and explains later why something is not there")
	}
	if a.dryRun || !a.yes {
		is, err := look()
		if err != nil {
			return err
		}
		if a.dryRun && a.output == "json" {
			return a.wire(is)
		}
		are := "are"
		if is.Live == 1 {
			are = "is"
		}
		what = fmt.Sprintf("erase %s: %s in %s, of which %d %s live and discarded", what,
			plural(is.Contents, "content", "contents"), messages(is.Messages), is.Live, are)
	}
	return a.destroy(what, func() error {
		t, err := do()
		if err != nil {
			return err
		}
		return a.say(t, "erasing as task %s; qlogd task get %s shows on which nodes it is complete", t.ID, t.ID)
	})
}

// policyFlags are a policy on the command line: a JSON file, and flags that
// change single fields of it.
type policyFlags struct {
	*pflag.FlagSet
	file, schema, dlq, schedule string
}

// policyPaths are the fields of a policy that flags set.
var policyPaths = map[string]string{
	"ordering": "ordering", "namespace": "namespace", "description": "description",
	"max-age-seconds": "retention.max_age_seconds", "max-depth": "retention.max_depth",
	"max-bytes": "retention.max_bytes", "lease-ms": "delivery.lease_ms",
	"max-attempts": "delivery.max_attempts", "initial-backoff-ms": "delivery.initial_backoff_ms",
	"backoff-multiplier": "delivery.backoff_multiplier", "max-backoff-ms": "delivery.max_backoff_ms",
	"backoff-jitter": "delivery.backoff_jitter", "on-retry": "delivery.on_retry",
	"on-dead": "delivery.on_dead", "deduplication-window-seconds": "deduplication.window_seconds",
	"deduplication-by": "deduplication.by",
}

func (p *policyFlags) flags(cmd *cobra.Command) {
	p.FlagSet = cmd.Flags()
	p.String("ordering", "", "unordered, fifo or per_key")
	p.Int64("max-age-seconds", 0, "messages not acked by then leave; 0 no limit")
	p.Int64("max-depth", 0, "most messages in the queue; 0 no limit")
	p.Int64("max-bytes", 0, "most bytes in the queue; 0 no limit")
	p.Int64("lease-ms", 0, "how long a lease is by default")
	p.Int64("max-attempts", 0, "deliveries in all; 0 no limit")
	p.Int64("initial-backoff-ms", 0, "wait after the first failure")
	p.Float64("backoff-multiplier", 0, "how much longer each wait is than the one before")
	p.Int64("max-backoff-ms", 0, "longest wait")
	p.Float64("backoff-jitter", 0, "share by which waits are spread, 0 to 1")
	p.StringVar(&p.schedule, "backoff-schedule-ms", "", "waits in place of a computed backoff: 1000,5000,60000")
	p.String("on-retry", "", "block, head or tail (fifo, per_key)")
	p.String("on-dead", "", "skip, hold_key or dead_letter_key (fifo, per_key)")
	p.StringVar(&p.dlq, "dead-letter-queue", "", "where dead messages go; auto makes QUEUE.dlq, '' is none")
	p.Int64("deduplication-window-seconds", 0, "how long a message's idempotency key is known")
	p.String("deduplication-by", "", "key or content")
	p.String("namespace", "", "the queue's namespace")
	p.String("description", "", "for people")
	p.StringVar(&p.file, "policy", "", "a JSON file with the policy (- is stdin)")
	p.StringVar(&p.schema, "message-schema", "", "a file with a JSON Schema that messages must fit; '' removes it")
}

// update builds the request: the file's fields, then the flags'.
func (p *policyFlags) update(a *app) (u wire.PolicyUpdate, err error) {
	d, err := readDocument[wire.PolicyUpdate](a, p.file)
	if err == nil {
		err = d.setFlags(p.FlagSet, policyPaths)
	}
	if p.Changed("dead-letter-queue") && err == nil {
		err = d.set(orNull(p.dlq, p.dlq), "delivery", "dead_letter_queue")
	}
	if p.Changed("backoff-schedule-ms") && err == nil {
		list := jsontext.Value("[" + strings.Trim(p.schedule, ", ") + "]")
		if !list.IsValid() {
			return u, usagef("--backoff-schedule-ms: %.64q is no list of whole numbers", p.schedule)
		}
		err = d.set(orNull(p.schedule, list), "delivery", "backoff_schedule_ms")
	}
	switch {
	case err != nil:
	case p.schema != "":
		err = a.setFile(d, "message_schema", p.schema)
	case p.Changed("message-schema"):
		err = d.set(nil, "message_schema")
	}
	if err == nil {
		err = d.decode(&u)
	}
	return u, err
}

// orNull returns v, or null if text is empty.
func orNull(text string, v any) any {
	if text == "" {
		return nil
	}
	return v
}

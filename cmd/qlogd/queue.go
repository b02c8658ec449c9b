package main

import (
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) queueCmd() *cobra.Command {
	return group("queue",
		a.queueListCmd(), a.queueShowCmd(), a.queueStatsCmd(),
		a.policyCmd("queue create", func(c request, u wire.PolicyUpdate) (*wire.Queue, error) {
			q, _, err := c.PutQueue(c.ctx, c.args[0], u)
			return q, err
		}),
		a.policyCmd("queue update", func(c request, u wire.PolicyUpdate) (*wire.Queue, error) {
			return c.UpdateQueue(c.ctx, c.args[0], u)
		}),
		a.queueDeleteCmd(),
		a.remote("queue pause", func(c request) error {
			return a.answer(wire.Paused{Paused: true}, c.PauseQueue(c.ctx, c.args[0]),
				"%s paused", c.args[0])
		}),
		a.remote("queue resume", func(c request) error {
			return a.answer(wire.Paused{}, c.ResumeQueue(c.ctx, c.args[0]),
				"%s resumed", c.args[0])
		}),
		a.queuePurgeCmd(), a.queueEraseCmd(), a.queueExplainCmd())
}

func (a *app) queueListCmd() *cobra.Command {
	var namespace, at string
	return a.remote("queue list", func(c request) error {
		queues, err := c.Queues(c.ctx, namespace, client.At(at))
		return list(a, queues, err,
			"queue,ordering,state,depth,scheduled,in flight,bytes,enqueued,acked,dead",
			func(q *wire.Queue) []any {
				state := "running"
				if q.Paused {
					state = "paused"
				}
				s := &q.Stats
				return []any{q.Name, q.Ordering, state, s.Depth, s.Scheduled, s.InFlight,
					humanize.IBytes(uint64(s.Bytes)), s.EnqueuedTotal, s.AckedTotal,
					s.DeadLetteredTotal}
			})
	}, opt(&namespace, "namespace"), opt(&at, "at"))
}

func (a *app) queueShowCmd() *cobra.Command {
	var at string
	return a.remote("queue show",
		func(c request) error { return a.queue(c.Queue(c.ctx, c.args[0], client.At(at))) },
		opt(&at, "at"))
}

func (a *app) queue(q *wire.Queue, err error) error {
	dlq, schema := "-", "none"
	if q.Delivery.DeadLetterQueue != nil {
		dlq = *q.Delivery.DeadLetterQueue
	}
	if len(q.MessageSchema) > 0 && string(q.MessageSchema) != "null" {
		schema = "set"
	}
	limit := func(n int64, unit string) string {
		if n == 0 {
			return "no limit"
		}
		return fmt.Sprint(n, unit)
	}
	s := q.Stats
	return a.show(q, err, "queue", q.Name, [][]any{
		{"ordering", q.Ordering}, {"paused", q.Paused},
		{"created", a.when(q.CreatedAt)}, {"updated", a.when(q.UpdatedAt)},
		{"depth", fmt.Sprintf("%d (%d held)", s.Depth, s.Held)}, {"scheduled", s.Scheduled},
		{"in flight", s.InFlight}, {"bytes", humanize.IBytes(uint64(s.Bytes))},
		{"oldest", fmt.Sprintf("%d s", s.OldestMessageAgeSeconds)}, {"partitions", s.Partitions},
		{"enqueued", s.EnqueuedTotal}, {"acked", s.AckedTotal},
		{"dead-lettered", s.DeadLetteredTotal},
		{"lease", fmt.Sprintf("%d ms", q.Delivery.LeaseMS)},
		{"attempts", limit(q.Delivery.MaxAttempts, "")},
		{"on retry", q.Delivery.OnRetry}, {"on dead", q.Delivery.OnDead},
		{"dead-letter queue", dlq},
		{"max age", limit(q.Retention.MaxAgeSeconds, " s")},
		{"max depth", limit(q.Retention.MaxDepth, "")},
		{"max bytes", limit(q.Retention.MaxBytes, "")},
		{"deduplication",
			fmt.Sprintf("%d s by %s", q.Deduplication.WindowSeconds, q.Deduplication.By)},
		{"schema", schema}, {"namespace", q.Namespace}, {"description", short(q.Description, 80)},
	})
}

func (a *app) queueStatsCmd() *cobra.Command {
	var minutes int
	return a.remote("queue stats", func(c request) error {
		s, err := c.QueueStats(c.ctx, c.args[0], minutes)
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
		err = a.show(s, err, "queue", s.Queue, rows)
		if err != nil || a.output == "json" || len(s.Minutes) == 0 {
			return err
		}
		fmt.Fprintln(a.stdout)
		return list(a, s.Minutes, nil,
			"minute,enqueued,leased,acked,retried,lease expired,dead,discarded,replayed",
			func(m *wire.Minute) []any {
				return []any{m.Start.String(), m.Enqueued, m.Leased, m.Acked, m.Retried,
					m.LeaseExpired, m.DeadLettered, m.Discarded, m.Replayed}
			})
	}, opt(&minutes, "minutes"))
}

// policyCmd returns a command that changes the policy of a queue.
func (a *app) policyCmd(name string,
	do func(request, wire.PolicyUpdate) (*wire.Queue, error)) *cobra.Command {
	var policy body
	return a.remote(name, func(c request) error {
		var u wire.PolicyUpdate
		if err := policy.decode(a, &u); err != nil {
			return err
		}
		return a.queue(do(c, u))
	}, opt(&policy.file, "policy"),
		policy.flags(a.policyMembers()))
}

// policyMembers are the members of a wire.PolicyUpdate.
func (a *app) policyMembers() []member {
	return []member{
		{"ordering", "ordering", "string", asText},
		{"max-age-seconds", "retention.max_age_seconds", "int", asWholeNumber},
		{"max-depth", "retention.max_depth", "int", asWholeNumber},
		{"max-bytes", "retention.max_bytes", "int", asWholeNumber},
		{"lease-ms", "delivery.lease_ms", "int", asWholeNumber},
		{"max-attempts", "delivery.max_attempts", "int", asWholeNumber},
		{"initial-backoff-ms", "delivery.initial_backoff_ms", "int", asWholeNumber},
		{"backoff-multiplier", "delivery.backoff_multiplier", "float", asNumber},
		{"max-backoff-ms", "delivery.max_backoff_ms", "int", asWholeNumber},
		{"backoff-jitter", "delivery.backoff_jitter", "float", asNumber},
		{"backoff-schedule-ms", "delivery.backoff_schedule_ms", "string", asNumbers},
		{"on-retry", "delivery.on_retry", "string", asText},
		{"on-dead", "delivery.on_dead", "string", asText},
		{"dead-letter-queue", "delivery.dead_letter_queue", "string", asTextOrNull},
		{"deduplication-window-seconds", "deduplication.window_seconds", "int", asWholeNumber},
		{"deduplication-by", "deduplication.by", "string", asText},
		{"namespace", "namespace", "string", asText},
		{"description", "description", "string", asText},
		{"message-schema", "message_schema", "string", a.asFile},
	}
}

func (a *app) queueDeleteCmd() *cobra.Command {
	var force bool
	return a.remote("queue delete", func(c request) error {
		name := c.args[0]
		q, err := c.Queue(c.ctx, name)
		if err != nil {
			return err
		}
		n := q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight
		what := fmt.Sprintf("delete queue %s with %s", name, messages(n))
		if a.dryRun && n > 0 && !force {
			what += " (refused without --force)"
		}
		return a.destroy(what, name+" deleted",
			func() error { return c.DeleteQueue(c.ctx, name, force) })
	}, a.destroyFlags, opt(&force, "force"))
}

func (a *app) queuePurgeCmd() *cobra.Command {
	return a.remote("queue purge", func(c request) error {
		q, err := c.Queue(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		what := fmt.Sprintf("purge %s from %s",
			messages(q.Stats.Depth+q.Stats.Scheduled), c.args[0])
		return a.destroy(what, "", func() error {
			n, err := c.PurgeQueue(c.ctx, c.args[0])
			return a.answer(wire.Purged{Purged: n}, err, "%s purged", messages(n))
		})
	}, a.destroyFlags)
}

func (a *app) queueExplainCmd() *cobra.Command {
	var message string
	var key *string
	return a.remote("queue explain", func(c request) error {
		x, err := c.Explain(c.ctx, c.args[0], message, key)
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
		return a.answer(x, err, "%s", text)
	}, opt(&key, "key"), opt(&message, "message"), exclusive("key", "message"))
}

func (a *app) messageEraseCmd() *cobra.Command {
	var r wire.EraseRequest
	return a.remote("message erase", func(c request) error {
		what := "erase message " + c.args[0]
		return a.erase(what, r.Reason, func(dry bool) (*wire.Erasable, *wire.Task, error) {
			r.DryRun = dry
			return c.EraseMessage(c.ctx, c.args[0], r)
		})
	}, a.destroyFlags, opt(&r.Reason, "reason"))
}

func (a *app) queueEraseCmd() *cobra.Command {
	var r wire.EraseKeyRequest
	return a.remote("queue erase", func(c request) error {
		if r.Key == "" {
			return usagef("--key is needed")
		}
		what := fmt.Sprintf("erase all messages of key %q that were in queue %s",
			short(r.Key, 64), c.args[0])
		return a.erase(what, r.Reason, func(dry bool) (*wire.Erasable, *wire.Task, error) {
			r.DryRun = dry
			return c.EraseKey(c.ctx, c.args[0], r)
		})
	}, a.destroyFlags, opt(&r.Key, "key"), opt(&r.Reason, "reason"))
}

// erase counts what would be erased, asks, and starts the task.
func (a *app) erase(what, reason string,
	do func(dry bool) (*wire.Erasable, *wire.Task, error)) error {
	if reason == "" && !a.dryRun {
		return usagef("--reason is needed: it is kept, " +
			"and explains later why something is not there")
	}
	if a.dryRun || !a.yes {
		would, _, err := do(true)
		if err != nil {
			return err
		}
		if a.dryRun && a.output == "json" {
			return a.wire(would)
		}
		are := "are"
		if would.Live == 1 {
			are = "is"
		}
		what = fmt.Sprintf("%s: %s in %s, of which %d %s live and discarded", what,
			plural(would.Contents, "content", "contents"), messages(would.Messages),
			would.Live, are)
	}
	return a.destroy(what, "", func() error {
		_, t, err := do(false)
		if err != nil {
			return err
		}
		return a.say(t,
			"erasing as task %s; qlogd task get %[1]s shows on which nodes it is complete", t.ID)
	})
}

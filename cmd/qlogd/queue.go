package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var queueCommands = group("queue",
	remote("queue list", func(c request, f *struct{ Namespace, At string }) error {
		queues, err := c.Queues(c.ctx, f.Namespace, client.At(f.At))
		return list(c.app, queues, err,
			"queue,ordering,state,depth,scheduled,in flight,bytes,enqueued,acked,dead",
			func(q *wire.Queue) []any {
				s := &q.Stats
				return []any{q.Name, q.Ordering, stateOf(q.Paused), s.Depth, s.Scheduled, s.InFlight,
					humanize.IBytes(uint64(s.Bytes)), s.EnqueuedTotal, s.AckedTotal,
					s.DeadLetteredTotal}
			})
	}),
	remote("queue show", func(c request, f *struct{ At string }) error {
		return c.queue(c.Queue(c.ctx, c.args[0], client.At(f.At)))
	}),
	remote("queue stats", func(c request, f *struct{ Minutes int }) error {
		return c.queueStats(c.QueueStats(c.ctx, c.args[0], f.Minutes))
	}),
	remote("queue create", func(c request, f *struct {
		policy
		Replace bool
	}) error {
		var u wire.PolicyUpdate
		if err := c.decode(f.Policy, f, &u); err != nil {
			return err
		}
		if !f.Replace {
			if err := c.unlessDifferent(c.args[0], u); err != nil {
				return err
			}
		}
		q, _, err := c.PutQueue(c.ctx, c.args[0], u)
		return c.queue(q, err)
	}),
	remote("queue update", func(c request, f *policy) error {
		var u wire.PolicyUpdate
		if err := c.decode(f.Policy, f, &u); err != nil {
			return err
		}
		return c.queue(c.UpdateQueue(c.ctx, c.args[0], u))
	}),
	remote("queue delete", func(c request, f *struct {
		Force  bool
		Reason string
	}) error {
		name := c.args[0]
		q, err := c.Queue(c.ctx, name)
		if err != nil {
			return err
		}
		n := q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight
		what := fmt.Sprintf("delete queue %s with %s", name, messages(n))
		if c.dryRun && n > 0 && !f.Force {
			what += " (refused without --force)"
		}
		return c.destroy(what, name+" deleted",
			func() error { return c.DeleteQueue(c.ctx, name, f.Force, client.Reason(f.Reason)) })
	}, (*app).destroyFlags),
	remote("queue pause", func(c request, f *pauseFlags) error {
		return c.pause(f, c.PauseQueue, c.PauseKey, wire.Paused{Paused: true}, "paused")
	}),
	remote("queue resume", func(c request, f *pauseFlags) error {
		return c.pause(f, c.ResumeQueue, c.ResumeKey, wire.Paused{}, "resumed")
	}),
	remote("queue purge", func(c request, f *struct{ Reason string }) error {
		q, err := c.Queue(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		what := fmt.Sprintf("purge %s from %s",
			messages(q.Stats.Depth+q.Stats.Scheduled), c.args[0])
		return c.destroy(what, "", func() error {
			n, err := c.PurgeQueue(c.ctx, c.args[0], client.Reason(f.Reason))
			return c.answer(wire.Purged{Purged: n}, err, "%s purged", messages(n))
		})
	}, (*app).destroyFlags),
	remote("queue erase", func(c request, f *struct{ Key, Reason string }) error {
		if f.Key == "" {
			return usagef("--key is needed")
		}
		what := fmt.Sprintf("erase all messages of key %q that were in queue %s",
			short(f.Key, 64), c.args[0])
		return c.erase(what, f.Reason, func(dry bool) (*wire.Erasable, *wire.Task, error) {
			r := wire.EraseKeyRequest{Key: f.Key, Reason: f.Reason, DryRun: dry}
			return c.EraseKey(c.ctx, c.args[0], r)
		})
	}, (*app).destroyFlags),
	remote("queue explain", func(c request, f *struct {
		Key         *string
		Message, At string
	}) error {
		x, err := c.Explain(c.ctx, c.args[0], f.Message, f.Key, client.At(f.At))
		what, can, now := "nothing", "is not", "now"
		if x.MessageID != nil {
			what = "message " + *x.MessageID
		}
		if x.Deliverable {
			can = "can be"
		}
		if f.At != "" {
			now = "at " + f.At
		}
		text := fmt.Sprintf("%s of %s %s delivered %s:", what, x.Queue, can, now)
		call, command := "POST /v1/queues/"+x.Queue+"/resume", "`qlogd queue resume "+x.Queue
		terms := strings.NewReplacer(call+" names it", command+" --key KEY`", call, command+"`")
		for _, r := range x.Reasons {
			text += fmt.Sprintf("\n  %s: %s", r.Code, short(terms.Replace(r.Text), 400))
		}
		return c.answer(x, err, "%s", text)
	}, exclusive("key", "message")),
)

// stateOf is a queue's state in a table.
func stateOf(paused bool) string {
	if paused {
		return "paused"
	}
	return "running"
}

// unlessDifferent refuses to replace the policy of a queue that exists with another one.
func (c request) unlessDifferent(name string, u wire.PolicyUpdate) error {
	_, err := c.Queue(c.ctx, name)
	if errors.Is(err, client.ErrQueueNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	def, err := wire.Marshal(wire.QueueDefinition{Name: name, PolicyUpdate: u})
	if err != nil {
		return err
	}
	changes, err := c.Define(c.ctx, wire.DefinitionsRequest{Queues: []jsontext.Value{def}}, true)
	if err != nil {
		if e, ok := errors.AsType[*client.Error](err); ok {
			e.Problem.Field = strings.TrimPrefix(e.Problem.Field, "queues[0].")
		}
		return err
	}
	text := ""
	for _, change := range changes {
		for _, d := range change.Diff {
			if change.Action == wire.ActionUpdate && change.Name == name {
				text += fmt.Sprintf("\n  %s is %s, not %s", d.Path, shown(d.Before), shown(d.After))
			}
		}
	}
	if text == "" {
		return nil
	}
	return fmt.Errorf("queue %q exists with another policy; --replace replaces it, "+
		"`qlogd queue update` changes single fields:%s", name, text)
}

// pauseFlags are those of pause and resume.
type pauseFlags struct {
	Key    *string
	Reason string
}

// pause pauses or resumes a queue, or a key of it.
func (c request) pause(f *pauseFlags,
	queue func(context.Context, string, ...client.CallOption) error,
	ofKey func(context.Context, string, string, ...client.CallOption) error,
	done wire.Paused, verb string) error {
	name, why := c.args[0], client.Reason(f.Reason)
	if f.Key == nil {
		return c.answer(done, queue(c.ctx, name, why), "%s %s", name, verb)
	}
	return c.answer(done, ofKey(c.ctx, name, *f.Key, why), "key %s of %s %s", *f.Key, name, verb)
}

func (a *app) queue(q *wire.Queue, err error) error {
	dlq, schema := *cmp.Or(q.Delivery.DeadLetterQueue, new("-")), "none"
	if len(q.MessageSchema) > 0 && string(q.MessageSchema) != "null" {
		schema = "set"
	}
	keys := cmp.Or(short(strings.Join(q.PausedKeys, ", "), 200), "none")
	limit := func(n int64, text string) string {
		if n == 0 {
			return "no limit"
		}
		return text
	}
	number := func(n int64) string { return limit(n, fmt.Sprint(n)) }
	ms, seconds := span(time.Millisecond), span(time.Second)
	s, d := q.Stats, q.Delivery
	rows := [][]any{
		{"ordering", q.Ordering}, {"paused", q.Paused},
		{"paused keys", keys},
		{"created", a.when(q.CreatedAt)}, {"updated", a.when(q.UpdatedAt)},
		{"depth", fmt.Sprintf("%d (%d held)", s.Depth, s.Held)}, {"scheduled", s.Scheduled},
		{"in flight", s.InFlight}, {"bytes", humanize.IBytes(uint64(s.Bytes))},
		{"oldest", seconds(s.OldestMessageAgeSeconds)}, {"partitions", s.Partitions},
		{"enqueued", s.EnqueuedTotal}, {"acked", s.AckedTotal},
		{"dead-lettered", s.DeadLetteredTotal},
		{"lease", ms(d.LeaseMS)}, {"attempts", number(d.MaxAttempts)},
		{"on retry", d.OnRetry}, {"on dead", d.OnDead},
		{"dead-letter queue", dlq}, {"lane batch", d.LaneBatch},
	}
	add := func(set bool, name, format string, args ...any) {
		if set {
			rows = append(rows, []any{name, fmt.Sprintf(format, args...)})
		}
	}
	add(d.DefaultDelayMS > 0, "default delay", "%s", ms(d.DefaultDelayMS))
	add(d.MaxInFlight > 0, "max in flight", "%d", d.MaxInFlight)
	add(d.RateLimit.Count > 0, "rate limit", "%d per %s", d.RateLimit.Count,
		ms(d.RateLimit.PerMS))
	return a.show(q, err, "queue", q.Name, append(rows, [][]any{
		{"max age", limit(q.Retention.MaxAgeSeconds, seconds(q.Retention.MaxAgeSeconds))},
		{"on expired", q.Retention.OnExpired},
		{"max depth", number(q.Retention.MaxDepth)},
		{"max bytes", number(q.Retention.MaxBytes)},
		{"deduplication", deduplication(&q.Deduplication)},
		{"schema", schema}, {"namespace", q.Namespace}, {"description", short(q.Description, 80)},
	}...))
}

func deduplication(d *wire.Deduplication) string {
	if d.Until == "left" {
		return "while in the queue, by " + d.By
	}
	return fmt.Sprintf("%s by %s", span(time.Second)(d.WindowSeconds), d.By)
}

func (a *app) queueStats(s *wire.QueueStats, err error) error {
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
}

// policy is a wire.PolicyUpdate, of a file and flags.
type policy struct {
	Policy              string
	Ordering            string `sets:"ordering"`
	MaxAge              string `sets:"retention.max_age_seconds" as:"s"`
	MaxDepth            string `sets:"retention.max_depth" as:"int"`
	MaxBytes            string `sets:"retention.max_bytes" as:"int"`
	OnExpired           string `sets:"retention.on_expired"`
	Lease               string `sets:"delivery.lease_ms" as:"ms"`
	MaxAttempts         string `sets:"delivery.max_attempts" as:"int"`
	InitialBackoff      string `sets:"delivery.initial_backoff_ms" as:"ms"`
	BackoffMultiplier   string `sets:"delivery.backoff_multiplier" as:"float"`
	MaxBackoff          string `sets:"delivery.max_backoff_ms" as:"ms"`
	BackoffJitter       string `sets:"delivery.backoff_jitter" as:"float"`
	BackoffSchedule     string `sets:"delivery.backoff_schedule_ms" as:"ms list"`
	OnRetry             string `sets:"delivery.on_retry"`
	OnDead              string `sets:"delivery.on_dead"`
	DeadLetterQueue     string `sets:"delivery.dead_letter_queue" as:"text or null"`
	LaneBatch           string `sets:"delivery.lane_batch" as:"int"`
	DefaultDelay        string `sets:"delivery.default_delay_ms" as:"ms"`
	MaxInFlight         string `sets:"delivery.max_in_flight" as:"int"`
	RateLimitCount      string `sets:"delivery.rate_limit.count" as:"int"`
	RateLimitPer        string `sets:"delivery.rate_limit.per_ms" as:"ms"`
	MaxInFlightPerKey   string `sets:"delivery.max_in_flight_per_key" as:"int"`
	PriorityAging       string `sets:"delivery.priority_aging_ms" as:"ms"`
	DeduplicationWindow string `sets:"deduplication.window_seconds" as:"s"`
	DeduplicationBy     string `sets:"deduplication.by"`
	DeduplicationUntil  string `sets:"deduplication.until"`
	Namespace           string `sets:"namespace"`
	Description         string `sets:"description"`
	MessageSchema       string `sets:"message_schema" as:"file"`
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

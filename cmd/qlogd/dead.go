package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

func (a *app) deadCmd() *cobra.Command {
	return group("dead",
		a.deadListCmd(), a.deadGroupsCmd(), a.deadShowCmd(), a.deadReplayCmd(), a.deadPurgeCmd())
}

// deadFilter selects dead letters on the command line.
type deadFilter struct {
	wire.DeadFilter
	all bool // of a command that moves them: no filter at all
}

// chosen returns either ids or a filter. Selecting all needs --all.
func (f *deadFilter) chosen(ids []string) ([]string, *wire.DeadFilter, error) {
	given := f.DeadFilter != (wire.DeadFilter{})
	switch {
	case len(ids) > 0 && (given || f.all):
		return nil, nil, usagef("either message ids or a filter, not both")
	case len(ids) > 0:
		return ids, nil, nil
	case given && f.all:
		return nil, nil, usagef("either --all or a filter, not both")
	case !given && !f.all:
		return nil, nil, usagef("give message ids, a filter such as --error TEXT, or say --all")
	}
	return nil, &f.DeadFilter, nil
}

const deadHeader = "message,failed,reason,attempts,replays,key,error"

func (a *app) deadRow(m *wire.Message) []any {
	d := deadOf(m)
	return []any{m.ID, a.when(d.FailedAt), d.Reason, d.Attempts, d.ReplayCount,
		short(m.Key, 32), short(d.Error, 80)}
}

func (a *app) replayedRow(m *wire.Message) []any {
	d := deadOf(m)
	return []any{m.ID, a.when(d.FailedAt), a.when(m.ReplayedAt), m.NewMessageID, m.ReplayResult,
		short(m.Key, 32), short(d.Error, 80)}
}

func deadOf(m *wire.Message) *wire.Dead {
	return cmp.Or(m.Dead, &wire.Dead{})
}

func (a *app) deadListCmd() *cobra.Command {
	var d deadFilter
	var replayed bool
	limit := 100
	return a.remote("dead list", func(c request) error {
		if limit < 1 {
			return usagef("--limit must be at least 1")
		}
		q := client.DeadQuery{DeadFilter: d.DeadFilter, Limit: min(limit, 500)}
		header, row := deadHeader, a.deadRow
		if replayed {
			q.State = "replayed"
			header, row = "message,failed,replayed,as,result,key,error", a.replayedRow
		}
		var dead []wire.Message
		for m, err := range c.AllDead(c.ctx, c.args[0], q) {
			if err != nil {
				return err
			}
			if dead = append(dead, m); len(dead) == limit {
				break
			}
		}
		return list(a, dead, nil, header, row)
	}, fields(&d.DeadFilter), opt(&replayed, "replayed"), opt(&limit, "limit"))
}

func (a *app) deadGroupsCmd() *cobra.Command {
	var d deadFilter
	limit := 100
	return a.remote("dead groups", func(c request) error {
		out, err := c.DeadGroups(c.ctx, c.args[0],
			client.DeadQuery{DeadFilter: d.DeadFilter, Limit: limit})
		return list(a, out.Groups, err, "count,fingerprint,reason,first,last,newest error",
			func(g *wire.DeadGroup) []any {
				return []any{g.Count, g.Fingerprint, g.Reason, a.when(g.FirstFailedAt),
					a.when(g.LastFailedAt), short(g.Error, 100)}
			})
	}, fields(&d.DeadFilter), opt(&limit, "limit"))
}

func (a *app) deadShowCmd() *cobra.Command {
	return a.remote("dead show", func(c request) error {
		m, err := c.DeadMessage(c.ctx, c.args[0], c.args[1])
		d := deadOf(m)
		var replayed, result any
		if m.ReplayedAt != 0 {
			replayed, result = a.when(m.ReplayedAt)+" as "+m.NewMessageID, m.ReplayResult
		}
		payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
		return a.show(m, err, "dead message", m.ID, [][]any{
			{"died in", d.Queue + " as " + d.MessageID}, {"failed", a.when(d.FailedAt)},
			{"reason", d.Reason}, {"attempts", d.Attempts},
			{"first enqueued", a.when(d.FirstEnqueuedAt)}, {"replays", d.ReplayCount},
			{"now in", m.Queue + ", " + m.State}, {"key", short(m.Key, 80)}, {"kind", m.Kind},
			{"replayed", replayed}, {"which is", result},
			{"error", short(d.Error, 2000)}, {"payload", short(payload, 2000)},
		})
	})
}

func (a *app) deadReplayCmd() *cobra.Command {
	var d deadFilter
	var r wire.ReplayRequest
	var payload *string
	var wait bool
	return a.remote("dead replay", func(c request) (err error) {
		if r.MessageIDs, r.Filter, err = d.chosen(c.args[1:]); err != nil {
			return err
		}
		if payload != nil {
			if len(r.MessageIDs) != 1 {
				return usagef("--payload goes with one message id")
			}
			v, err := readValue("payload", *payload)
			if err != nil {
				return err
			}
			r.Edit = map[string]wire.ReplayEdit{r.MessageIDs[0]: {Payload: v}}
		}
		return a.move(c, "replay", c.args[0], wait, func(dryRun bool) (moved, error) {
			r.DryRun = dryRun
			done, task, err := c.Replay(c.ctx, c.args[0], r)
			if err != nil || task != nil {
				return moved{task: task}, err
			}
			return moved{done, done.Replayed, done.Messages, done.Sample, done.Skipped, nil},
				nil
		})
	}, fields(&d.DeadFilter), opt(&d.all, "all"), a.destroyFlags, opt(&r.Order, "order"),
		opt(&r.To, "to-queue"), opt(&r.RatePerSecond, "rate"), opt(&r.MaxReplays, "max-replays"),
		opt(&payload, "payload"), opt(&wait, "wait"))
}

// moved is what a replay or a purge has done, or would do.
type moved struct {
	answer   any // as JSON
	n        int64
	messages []wire.ReplayedMessage
	sample   []wire.Message
	skipped  []wire.Skipped
	task     *wire.Task // does it, and the rest is empty
}

// move replays or purges dead messages of a queue, once that is confirmed.
func (a *app) move(c request, verb, queue string, wait bool,
	do func(dryRun bool) (moved, error)) error {
	what := verb + " dead messages of " + queue
	if a.dryRun || !a.yes && terminal(a.stdin) {
		would, err := do(true)
		if err != nil {
			return err
		}
		what = verb + " " + messages(would.n) + " that died in " + queue
		if a.dryRun {
			err := a.say(would.answer, "would %s", what)
			if err == nil && a.output != "json" && len(would.sample) > 0 {
				err = list(a, would.sample, nil, deadHeader, a.deadRow)
			}
			a.skipped(would.skipped)
			return err
		}
	}
	if err := a.confirmed(what); err != nil {
		return err
	}
	done, err := do(false)
	switch {
	case err != nil:
		return err
	case done.task != nil && wait:
		return a.watchTask(c, done.task.ID)
	case done.task != nil:
		if a.output != "json" {
			fmt.Fprintf(a.stderr, "task %s does it: qlogd task watch %[1]s\n", done.task.ID)
		}
		return a.say(done.task, "%s", done.task.ID)
	case a.output == "json":
		return a.wire(done.answer)
	case verb == "purge":
		err = a.say(nil, "%s purged", messages(done.n))
	default:
		fmt.Fprintln(a.stderr, messages(done.n)+" replayed")
		if len(done.messages) == 0 {
			break
		}
		err = list(a, done.messages, nil, "message,new message",
			func(m *wire.ReplayedMessage) []any { return []any{m.MessageID, m.NewMessageID} })
	}
	a.skipped(done.skipped)
	return err
}

// skipped prints on stderr how many messages were passed over, by reason.
func (a *app) skipped(skipped []wire.Skipped) {
	if a.output == "json" {
		return
	}
	n := map[string]int{}
	for _, s := range skipped {
		n[s.Code]++
	}
	for _, code := range sortedKeys(n) {
		fmt.Fprintf(a.stderr, "%s passed over: %s\n", messages(n[code]), code)
	}
}

func (a *app) deadPurgeCmd() *cobra.Command {
	var d deadFilter
	var r wire.PurgeRequest
	var wait bool
	return a.remote("dead purge", func(c request) (err error) {
		if r.MessageIDs, r.Filter, err = d.chosen(c.args[1:]); err != nil {
			return err
		}
		return a.move(c, "purge", c.args[0], wait, func(dryRun bool) (moved, error) {
			r.DryRun = dryRun
			done, task, err := c.PurgeDead(c.ctx, c.args[0], r)
			if err != nil || task != nil {
				return moved{task: task}, err
			}
			return moved{done, done.Purged, nil, done.Sample, done.Skipped, nil}, nil
		})
	}, fields(&d.DeadFilter), opt(&d.all, "all"), a.destroyFlags, opt(&wait, "wait"))
}

func (a *app) taskCmd() *cobra.Command {
	return group("task",
		a.taskListCmd(),
		a.remote("task get",
			func(c request) error { return a.task(c.Task(c.ctx, c.args[0])) }),
		a.remote("task watch",
			func(c request) error { return a.watchTask(c, c.args[0]) }),
		a.taskCancelCmd(),
		a.remote("task resume",
			func(c request) error { return a.task(c.ResumeTask(c.ctx, c.args[0])) }))
}

func (a *app) taskListCmd() *cobra.Command {
	var status string
	return a.remote("task list", func(c request) error {
		tasks, err := c.Tasks(c.ctx, status)
		return list(a, tasks, err, "task,type,queue,status,done,of,skipped,created,ended",
			func(t *wire.Task) []any {
				return []any{t.ID, t.Type, t.Queue, t.Status, t.Done, t.Total, t.Skipped,
					a.when(t.CreatedAt), a.when(t.EndedAt)}
			})
	}, opt(&status, "status"))
}

func (a *app) task(t *wire.Task, err error) error {
	rows := [][]any{
		{"type", t.Type}, {"queue", t.Queue}, {"status", t.Status},
		{"done", fmt.Sprintf("%d of about %d", t.Done, t.Total)}, {"skipped", t.Skipped},
		{"actor", t.Actor}, {"created", a.when(t.CreatedAt)}, {"updated", a.when(t.UpdatedAt)},
		{"ended", a.when(t.EndedAt)},
	}
	if t.RatePerSecond != nil {
		rows = append(rows, []any{"rate", fmt.Sprintf("%d a second", *t.RatePerSecond)})
	}
	rows = append(rows, []any{"error", optional(short(t.Error, 200))})
	for _, n := range t.Nodes {
		if n.Complete {
			rows = append(rows, []any{"carried out by", n.Node + " " + a.when(n.At)})
		} else {
			rows = append(rows, []any{"waits for", n.Node})
		}
	}
	return a.show(t, err, "task", t.ID, rows)
}

func (a *app) watchTask(c request, id string) error {
	printed := int64(-1)
	for {
		t, err := c.AwaitTask(c.ctx, id, 2*time.Second)
		if err != nil {
			return err
		}
		if t.Status == wire.TaskRunning {
			if t.Done != printed {
				printed = t.Done
				fmt.Fprintf(a.stderr, "%d of about %d\n", t.Done, t.Total)
			}
			continue
		}
		switch err := a.task(t, nil); {
		case err != nil || t.Status == wire.TaskCompleted:
			return err
		case t.Error != "":
			return errors.New("the task has failed: " + t.Error)
		}
		return errors.New("the task is " + t.Status)
	}
}

func (a *app) taskCancelCmd() *cobra.Command {
	return a.remote("task cancel", func(c request) error {
		id := c.args[0]
		t, err := c.Task(c.ctx, id)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("cancel the %s of %s after %d of about %d",
			t.Type, t.Queue, t.Done, t.Total)
		return a.destroy(what, id+" cancelled",
			func() error { return c.CancelTask(c.ctx, id) })
	}, a.destroyFlags)
}

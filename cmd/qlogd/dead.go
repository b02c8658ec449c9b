package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var deadCommands = group("dead",
	remote("dead list", func(c request, f *struct {
		wire.DeadFilter
		At       string
		Replayed bool
		Limit    int `default:"100"`
	}) error {
		if f.Limit < 1 {
			return usagef("--limit must be at least 1")
		}
		q := client.DeadQuery{DeadFilter: f.DeadFilter, Limit: min(f.Limit, 500)}
		header, row := deadHeader, c.deadRow
		if f.Replayed {
			q.State, header = "replayed", "message,failed,replayed,as,result,key,error"
			row = func(m *wire.Message) []any {
				d := deadOf(m)
				return []any{m.ID, c.when(d.FailedAt), c.when(m.ReplayedAt), m.NewMessageID,
					m.ReplayResult, short(m.Key, 32), short(d.Error, 80)}
			}
		}
		dead, err := first(f.Limit, c.AllDead(c.ctx, c.args[0], q, client.At(f.At)))
		return list(c.app, dead, err, header, row)
	}),
	remote("dead groups", func(c request, f *struct {
		wire.DeadFilter
		At    string
		Step  time.Duration
		Limit int `default:"100"`
	}) error {
		out, err := c.DeadGroups(c.ctx, c.args[0], client.DeadQuery{
			DeadFilter: f.DeadFilter, Limit: f.Limit, Step: f.Step,
		}, client.At(f.At))
		header := "count,fingerprint,reason,first,last,newest error"
		if f.Step > 0 {
			header += ",over time"
		}
		return list(c.app, out.Groups, err, header, func(g *wire.DeadGroup) []any {
			row := []any{g.Count, g.Fingerprint, g.Reason, c.when(g.FirstFailedAt),
				c.when(g.LastFailedAt), short(g.Error, 100)}
			if f.Step > 0 {
				counts := make([]string, len(g.Counts))
				for i, n := range g.Counts {
					counts[i] = fmt.Sprintf("%s: %d", c.when(n.Start), n.Count)
				}
				row = append(row, strings.Join(counts, ", "))
			}
			return row
		})
	}),
	remote("dead show", func(c request, f *struct{ At string }) error {
		m, err := c.DeadMessage(c.ctx, c.args[0], c.args[1], client.At(f.At))
		d := deadOf(m)
		payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
		return c.show(m, err, "dead message", m.ID, [][]any{
			{"died in", d.Queue + " as " + d.MessageID}, {"failed", c.when(d.FailedAt)},
			{"reason", d.Reason}, {"attempts", d.Attempts},
			{"first enqueued", c.when(d.FirstEnqueuedAt)}, {"replays", d.ReplayCount},
			{"now in", m.Queue + ", " + m.State}, {"key", short(m.Key, 80)}, {"kind", m.Kind},
			{"replayed", onlyIf(m.ReplayedAt != 0, c.when(m.ReplayedAt)+" as "+m.NewMessageID)},
			{"which is", onlyIf(m.ReplayedAt != 0, m.ReplayResult)},
			{"error", short(d.Error, 2000)}, {"payload", short(payload, 2000)},
		})
	}),
	remote("dead replay", func(c request, f *struct {
		deadChoice
		Order, ToQueue   string
		Rate, MaxReplays *int64
		Payload          *string
	}) error {
		ids, filter, err := f.chosen(c.args[1:])
		if err != nil {
			return err
		}
		r := wire.ReplayRequest{MessageIDs: ids, Filter: filter, Order: f.Order, To: f.ToQueue,
			RatePerSecond: f.Rate, MaxReplays: f.MaxReplays, Reason: f.Why}
		if f.Payload != nil {
			if len(ids) != 1 {
				return usagef("--payload goes with one message id")
			}
			v, err := readValue("payload", *f.Payload)
			if err != nil {
				return err
			}
			r.Edit = map[string]wire.ReplayEdit{ids[0]: {Payload: v}}
		}
		return c.move("replay", f.Wait, func(dryRun bool) (*wire.DeadMoved, *wire.Task, error) {
			r.DryRun = dryRun
			return c.Replay(c.ctx, c.args[0], r)
		})
	}, (*app).destroyFlags),
	remote("dead purge", func(c request, f *deadChoice) error {
		ids, filter, err := f.chosen(c.args[1:])
		if err != nil {
			return err
		}
		r := wire.PurgeRequest{MessageIDs: ids, Filter: filter, Reason: f.Why}
		return c.move("purge", f.Wait, func(dryRun bool) (*wire.DeadMoved, *wire.Task, error) {
			r.DryRun = dryRun
			return c.PurgeDead(c.ctx, c.args[0], r)
		})
	}, (*app).destroyFlags),
)

var undoCommand = remote("undo", func(c request, f *struct {
	wire.UndoFilter
	Order, ToQueue, Why string
	Rate                int64
	Wait                bool
}) error {
	r := wire.UndoRequest{Filter: &f.UndoFilter, Order: f.Order, To: f.ToQueue,
		RatePerSecond: f.Rate, Reason: f.Why}
	return many(c, f.Wait, "undo what left "+c.args[0],
		func(dryRun bool) (*wire.Undone, *wire.Task, error) {
			r.DryRun = dryRun
			return c.Undo(c.ctx, c.args[0], r)
		},
		func(d *wire.Undone) string {
			return fmt.Sprintf("bring back %s of %d that left %s", messages(d.BroughtBack), d.Matched,
				c.args[0])
		},
		func(d *wire.Undone, would string) error {
			err := c.say(d, "%s", cmp.Or(would, messages(d.BroughtBack)+" brought back"))
			c.passedOver(d.Skipped)
			if d.HistoryBeginsAt != nil && c.output != "json" {
				c.historyBegins(*d.HistoryBeginsAt)
			}
			return err
		})
}, (*app).destroyFlags)

// many changes many messages, once what it would do is confirmed; with --dry-run it prints only
// that. Where the server begins a task, it reports that; print gets what was done or, with a text,
// what would be.
func many[T any](c request, wait bool, what string,
	do func(dryRun bool) (*T, *wire.Task, error), would func(*T) string,
	print func(done *T, would string) error) error {
	if c.dryRun || !c.yes && terminal(c.stdin) {
		d, _, err := do(true)
		if err != nil {
			return err
		}
		if what = would(d); c.dryRun {
			return print(d, "would "+what)
		}
	}
	if err := c.confirmed(what); err != nil {
		return err
	}
	done, task, err := do(false)
	switch {
	case err != nil:
		return err
	case task != nil:
		return c.begun(task, wait)
	}
	return print(done, "")
}

// passedOver prints on stderr how many messages were left out, by reason.
func (a *app) passedOver(byReason map[string]int64) {
	for _, code := range sortedKeys(byReason) {
		a.note("%s passed over: %s", messages(byReason[code]), code)
	}
}

// historyBegins prints on stderr where history begins, of which something is missing.
func (a *app) historyBegins(at wire.Time) {
	fmt.Fprintf(a.stderr, "history begins at %s\n", a.when(at))
}

// begun reports a task that was begun, once it has ended if that is wanted.
func (c request) begun(task *wire.Task, wait bool) error {
	if wait {
		return c.watchTask(task.ID)
	}
	c.note("task %s does it: qlogd task watch %[1]s", task.ID)
	return c.say(task, "%s", task.ID)
}

// deadChoice selects dead letters for a command that moves them.
type deadChoice struct {
	wire.DeadFilter
	All  bool // no filter at all
	Wait bool // for the task that moves them
	Why  string
}

// chosen returns either ids or a filter. Selecting all needs --all.
func (f *deadChoice) chosen(ids []string) ([]string, *wire.DeadFilter, error) {
	given := f.DeadFilter != (wire.DeadFilter{})
	switch {
	case len(ids) > 0 && (given || f.All):
		return nil, nil, usagef("either message ids or a filter, not both")
	case len(ids) > 0:
		return ids, nil, nil
	case given && f.All:
		return nil, nil, usagef("either --all or a filter, not both")
	case !given && !f.All:
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

func deadOf(m *wire.Message) *wire.Dead {
	return cmp.Or(m.Dead, &wire.Dead{})
}

func moved(d *wire.DeadMoved) string {
	return messages(*cmp.Or(d.Replayed, d.Purged, new(int64)))
}

// move replays or purges dead messages of the queue.
func (c request) move(verb string, wait bool,
	do func(dryRun bool) (*wire.DeadMoved, *wire.Task, error)) error {
	queue := c.args[0]
	return many(c, wait, verb+" dead messages of "+queue, do,
		func(d *wire.DeadMoved) string { return verb + " " + moved(d) + " that died in " + queue },
		func(d *wire.DeadMoved, would string) (err error) {
			switch {
			case c.output == "json":
				return c.wire(d)
			case would != "":
				err = c.say(nil, "%s", would)
				if err == nil && len(d.Sample) > 0 {
					err = list(c.app, d.Sample, nil, deadHeader, c.deadRow)
				}
			case verb == "purge":
				err = c.say(nil, "%s purged", moved(d))
			default:
				c.note("%s replayed", moved(d))
				if len(d.Messages) == 0 {
					break
				}
				err = list(c.app, d.Messages, nil, "message,new message",
					func(m *wire.ReplayedMessage) []any { return []any{m.MessageID, m.NewMessageID} })
			}
			n := map[string]int64{}
			for _, s := range d.Skipped {
				n[s.Code]++
			}
			c.passedOver(n)
			return err
		})
}

var taskCommands = group("task",
	remote("task list", func(c request, f *struct{ Status string }) error {
		tasks, err := c.Tasks(c.ctx, f.Status)
		return list(c.app, tasks, err, "task,type,queue,status,done,of,skipped,created,ended",
			func(t *wire.Task) []any {
				return []any{t.ID, t.Type, t.Queue, t.Status, t.Done, t.Total, t.Skipped,
					c.when(t.CreatedAt), c.when(t.EndedAt)}
			})
	}),
	remote("task get", func(c request, _ *none) error {
		return c.task(c.Task(c.ctx, c.args[0]))
	}),
	remote("task watch", func(c request, _ *none) error { return c.watchTask(c.args[0]) }),
	remote("task cancel", func(c request, _ *none) error {
		id := c.args[0]
		t, err := c.Task(c.ctx, id)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("cancel the %s of %s after %s", t.Type, t.Queue, progressOf(t))
		if t.Type == taskVerify {
			what = fmt.Sprintf("cancel the verification of node %s after %s",
				t.Nodes[0].Node, progressOf(t))
		}
		return c.destroy(what, id+" cancelled", func() error { return c.CancelTask(c.ctx, id) })
	}, (*app).destroyFlags),
	remote("task resume", func(c request, _ *none) error {
		return c.task(c.ResumeTask(c.ctx, c.args[0]))
	}),
)

func (a *app) task(t *wire.Task, err error) error {
	rows := [][]any{
		{"type", t.Type}, {"queue", t.Queue}, {"status", t.Status},
		{"done", progressOf(t)}, {"skipped", t.Skipped},
		{"actor", t.Actor}, {"created", a.when(t.CreatedAt)}, {"updated", a.when(t.UpdatedAt)},
		{"ended", a.when(t.EndedAt)},
		{"rate", onlyIf(t.RatePerSecond != nil,
			fmt.Sprintf("%d a second", *cmp.Or(t.RatePerSecond, new(int64))))},
		{"error", optional(short(t.Error, 200))}, {"waits", optional(t.Waiting)},
	}
	if r := t.Result; r != nil {
		rows = append(rows, []any{"brought back", fmt.Sprintf("%d of %d", r.BroughtBack, r.Matched)})
		for _, code := range sortedKeys(r.Skipped) {
			rows = append(rows, []any{"passed over", fmt.Sprintf("%d: %s", r.Skipped[code], code)})
		}
	}
	if t.Verified != nil {
		rows = append(rows, verifiedRows(t.Verified)...)
	}
	for _, n := range t.Nodes {
		if t.Type == taskVerify {
			rows = append(rows, []any{"node", n.Node})
		} else if n.Complete {
			rows = append(rows, []any{"carried out by", n.Node + " " + a.when(n.At)})
		} else {
			rows = append(rows, []any{"waits for", n.Node})
		}
	}
	return a.show(t, err, "task", t.ID, rows)
}

// taskVerify is the type of a task that verifies a node's files.
const taskVerify = "verify"

// progressOf says how far a task is.
func progressOf(t *wire.Task) string {
	if t.Type == taskVerify {
		return fmt.Sprintf("%s of %s", humanize.IBytes(uint64(t.Done)),
			humanize.IBytes(uint64(t.Total)))
	}
	return fmt.Sprintf("%d of about %d", t.Done, t.Total)
}

func (c request) watchTask(id string) error {
	printed := ""
	for {
		t, err := c.AwaitTask(c.ctx, id, 2*time.Second)
		if err != nil {
			return err
		}
		if t.Status == wire.TaskRunning {
			text := progressOf(t)
			if t.Waiting != "" {
				text += ", waits " + t.Waiting
			}
			if text != printed {
				printed = text
				fmt.Fprintln(c.stderr, text)
			}
			continue
		}
		switch err := c.task(t, nil); {
		case err != nil:
			return err
		case t.Status == wire.TaskCompleted:
			return differs(t.Verified)
		case t.Error != "":
			return errors.New("the task has failed: " + t.Error)
		}
		return errors.New("the task is " + t.Status)
	}
}

package main

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

var messageCommands = group("message",
	remote("message show", func(c request, f *struct{ At string }) error {
		return c.message(c.Message(c.ctx, c.args[0], client.At(f.At)))
	}),
	remote("message history", func(c request, f *struct{ At string }) error {
		events, err := c.History(c.ctx, c.args[0], client.At(f.At))
		return list(c.app, events, err, eventHeader, eventRow)
	}),
	remote("message lineage", func(c request, f *struct{ At string }) error {
		l, err := c.Lineage(c.ctx, c.args[0], client.At(f.At))
		if err != nil || c.output == "json" {
			return c.answer(l, err, "")
		}
		return c.lineage(l)
	}),
	remote("message list", func(c request, f *struct {
		State, At string
		Key, Kind *string
		Header    map[string]string
		Limit     int `default:"100"`
	}) error {
		q := client.MessageQuery{
			State: f.State, Key: f.Key, Kind: f.Kind, Headers: f.Header,
			Limit: min(f.Limit, 100),
		}
		var all []wire.Message
		var err error
		if f.Limit > 0 {
			all, err = first(f.Limit, c.AllMessages(c.ctx, c.args[0], q, client.At(f.At)))
		}
		return list(c.app, all, err, "message,state,key,priority,attempt,enqueued,payload",
			func(m *wire.Message) []any {
				state := m.State
				if m.Held {
					state += " (held)"
				}
				return []any{m.ID, state, short(m.Key, 32), m.Priority, m.Attempt,
					c.when(m.EnqueuedAt), short(string(m.Payload), 60)}
			})
	}),
	remote("message reschedule", func(c request, f *struct {
		At       string
		Delay    *time.Duration
		Priority *int64
	}) (err error) {
		r := wire.Reschedule{Priority: f.Priority}
		if r.DeliverAt, err = timeFlag("at", f.At); err != nil {
			return err
		}
		if f.Delay != nil {
			r.DelayMS = new(f.Delay.Milliseconds())
		}
		if r == (wire.Reschedule{}) {
			return usagef("one of --at, --delay and --priority is needed")
		}
		return c.message(c.Reschedule(c.ctx, c.args[0], r))
	}),
	remote("message delete", func(c request, f *struct{ Reason string }) error {
		m, err := c.Message(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		what := fmt.Sprintf("delete message %s (%s) from %s", m.ID, m.State, m.Queue)
		return c.destroy(what, m.ID+" deleted",
			func() error { return c.DeleteMessage(c.ctx, c.args[0], client.Reason(f.Reason)) })
	}, (*app).destroyFlags),
	remote("message resurrect", func(c request, f *struct {
		Queue, Reason string
		Payload       *string
	}) error {
		r := wire.ResurrectRequest{Queue: f.Queue, Reason: f.Reason}
		if f.Payload != nil {
			v, err := readValue("payload", *f.Payload)
			if err != nil {
				return err
			}
			r.Edit = &wire.ReplayEdit{Payload: v}
		}
		out, err := c.Resurrect(c.ctx, c.args[0], r)
		return c.answer(out, err, "%s is in %s as %s", out.MessageID, out.Queue, out.NewMessageID)
	}),
	remote("message edits", func(c request, _ *none) error {
		edits, err := c.Edits(c.ctx, c.args[0])
		if err != nil || c.output == "json" {
			return list(c.app, edits, err, "", nil)
		}
		var rows [][]any
		for _, e := range edits {
			about := []any{c.when(e.Time), e.Type, e.NewMessageID}
			if e.Note != "" {
				rows = append(rows, append(about[:3:3], "-", "", "", e.Note))
			}
			for _, c := range e.Changes {
				rows = append(rows, append(about[:3:3],
					c.Op, c.Path, short(string(c.Old), 60), short(string(c.Value), 60)))
			}
		}
		return c.table(nil, nil, "time,by,new message,op,path,before,after", rows)
	}),
	remote("message erase", func(c request, f *struct{ Reason string }) error {
		what := "erase message " + c.args[0]
		return c.erase(what, f.Reason, func(dry bool) (*wire.Erasable, *wire.Task, error) {
			return c.EraseMessage(c.ctx, c.args[0],
				wire.EraseRequest{Reason: f.Reason, DryRun: dry})
		})
	}, (*app).destroyFlags),
)

// lineage draws each message below what it came from.
func (a *app) lineage(l *wire.Lineage) error {
	for _, m := range l.Tree() {
		by := ""
		if m.By != "" {
			by = m.By + " "
		}
		rest := "  " + short(m.Key, 32)
		if m.Again { // it came from several
			rest = "  (see above)"
		}
		fmt.Fprintf(a.stdout, "%s%s%s  %s  %s%s\n", strings.Repeat("  ", m.Depth), by, m.ID, m.Queue,
			m.State, rest)
	}
	if l.Truncated {
		fmt.Fprintf(a.stderr, "there are more than %d messages\n", len(l.Nodes))
	}
	return nil
}

func (a *app) message(m *wire.Message, err error) error {
	payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
	if m.Erased {
		payload = "(erased)"
	}
	if m.HistoryTruncated && payload == "null" {
		payload = "(deleted with the history)"
	}
	if m.Damaged {
		payload = "(damaged)"
	}
	to, d := cmp.Or(m.MovedTo, &wire.Moved{}), deadOf(m)
	rows := [][]any{
		{"queue", m.Queue}, {"state", m.State}, {"held", m.Held}, {"key", short(m.Key, 80)},
		{"kind", m.Kind}, {"priority", m.Priority}, {"attempt", m.Attempt},
		{"enqueued", a.when(m.EnqueuedAt)},
		{"available", onlyIf(m.AvailableAt != 0, a.when(m.AvailableAt))},
		{"lease", optional(m.LeaseID)},
		{"until", onlyIf(m.LeaseID != "", a.when(m.LeaseExpiresAt))},
		{"moved to", onlyIf(m.MovedTo != nil, to.Queue+" as "+to.MessageID)},
		{"dead from", onlyIf(m.Dead != nil, d.Queue+" ("+d.Reason+")")},
		{"error", onlyIf(m.Dead != nil, short(d.Error, 80))}, {"worker", optional(d.Worker)},
	}
	for _, r := range m.ResurrectedAs {
		rows = append(rows, []any{"resurrected", "in " + r.Queue + " as " + r.MessageID})
	}
	if o := m.Origin; o != nil {
		rows = append(rows, []any{"came from", o.FromMessageID}, []any{"first", o.FirstMessageID},
			[]any{"replays", o.Replays})
	}
	rows = append(rows, []any{"payload", short(payload, 200)})
	if err := a.show(m, err, "message", m.ID, rows); err != nil || a.output == "json" {
		return err
	}
	fmt.Fprintln(a.stdout)
	if len(m.Attempts) > 0 {
		header := "attempt,queue,leased,took,worker,outcome,error"
		if err := list(a, m.Attempts, nil, header, attemptRow); err != nil {
			return err
		}
		fmt.Fprintln(a.stdout)
	}
	return list(a, m.History, nil, eventHeader, eventRow)
}

func attemptRow(t *wire.Attempt) []any {
	took, outcome, text := "", t.Outcome, short(t.Error, 80)
	if t.DurationMS != nil {
		took = (time.Duration(*t.DurationMS) * time.Millisecond).String()
	}
	if t.Reason != "" {
		outcome += " (" + t.Reason + ")"
	}
	if t.Erased {
		text = "(erased)"
	}
	if t.Damaged {
		text = "(damaged)"
	}
	return []any{t.Attempt, t.Queue, t.LeasedAt.String(), took, t.Worker, outcome, text}
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

// payloadText is a payload as it is printed.
func payloadText(v jsontext.Value, b wire.Bytes, contentType string) string {
	if b != nil {
		return "(" + contentType + ") " + base64.StdEncoding.EncodeToString(b)
	}
	return string(v)
}

const eventHeader = "time,index,event,type,queue,message,what"

func eventRow(e *wire.Event) []any {
	return []any{e.Time.String(), e.Index, e.EventID, e.Type, e.Queue, e.MessageID,
		short(eventText(e), 100)}
}

// eventText is a summary of an event's fields in a line.
func eventText(e *wire.Event) string {
	var s []string
	add := func(set bool, format string, v ...any) {
		if set {
			s = append(s, fmt.Sprintf(format, v...))
		}
	}
	add(e.Key != "", "key %s", e.Key)
	add(e.CorrelationID != "", "correlation id %s", e.CorrelationID)
	add(e.Attempt > 0, "attempt %d", e.Attempt)
	add(e.Worker != "", "by %s", e.Worker)
	add(e.LeaseExpiresAt != 0, "until %s", e.LeaseExpiresAt)
	add(e.Type == event.Rescheduled.String(), "priority %d", e.Priority)
	add(e.DeliverAt != 0, "deliver at %s", e.DeliverAt)
	add(e.NextAt != 0, "next at %s", e.NextAt)
	left := e.Type == event.DeadLettered.String() || e.Type == event.Discarded.String()
	add(left, "%s", e.Reason)
	add(e.ToQueue != "", "to %s as %s", e.ToQueue, e.NewMessageID)
	add(e.DiedIn != "", "died in %s", e.DiedIn)
	add(e.Order != "", "order %s", e.Order)
	add(e.Edited, "edited")
	add(e.SourceID != "", "source id %q", e.SourceID)
	add(e.TaskID != "", "task %s", strings.TrimSpace(e.TaskKind+" "+e.TaskID))
	add(e.Node != "", "on node %s", e.Node)
	add(e.Failed, "failed")
	add(e.Error != "", "%q", e.Error)
	why := e.Why
	if !left {
		why = e.Reason
	}
	add(why != "", "because %q", why)
	erased := e.Type == event.Erased.String()
	add(e.Count > 0 && erased, "%d contents", e.Count)
	add(e.Count > 0 && !erased, "%d messages", e.Count)
	add(e.BeforeIndex > 0, "before index:%d", e.BeforeIndex)
	add(e.Rules > 0, "rules %d", e.Rules)
	add(e.Erased, "content erased")
	add(e.Damaged, "content damaged")
	add(e.Actor != "", "asked by %s", e.Actor)
	return strings.Join(s, ", ")
}

// eventLabels are the flags that select events.
type eventLabels struct {
	Queue, Actor, Worker     string
	Type                     []string
	Key, Kind, CorrelationID string
}

func (f *eventLabels) query() client.EventQuery {
	return client.EventQuery{Queue: f.Queue, Types: f.Type, Actor: f.Actor, Worker: f.Worker,
		Key: f.Key, Kind: f.Kind, CorrelationID: f.CorrelationID}
}

// labelled reports whether any but the queue is given.
func (f *eventLabels) labelled() bool {
	return len(f.Type) > 0 || f.Actor+f.Worker+f.Key+f.Kind+f.CorrelationID != ""
}

// filter returns the filter of a log that is read here.
func (f *eventLabels) filter() (log.Filter, error) {
	out := log.Filter{Queue: f.Queue, Actor: f.Actor, Worker: f.Worker, Key: f.Key, Kind: f.Kind,
		CorrelationID: f.CorrelationID}
	for _, name := range f.Type {
		t, ok := event.Parse[event.Type](name)
		if !ok || t == event.TypeNone {
			return out, usagef("--type: %.64q is no type of event, such as enqueued", name)
		}
		out.Types = append(out.Types, t)
	}
	return out, nil
}

var eventsCommand = remote("events", func(c request, f *struct {
	Follow          bool
	After, From, To string
	Message         string
	Limit           int
	eventLabels
}) error {
	q := f.query()
	q.After, q.From, q.To, q.MessageID = f.After, f.From, f.To, f.Message
	events := c.Follow(c.ctx, q)
	if !f.Follow {
		q.Limit = 1000
		if f.Limit > 0 {
			q.Limit = min(f.Limit, 1000)
		}
		q.OnHistoryBegins = c.historyBegins
		events = c.AllEvents(c.ctx, q)
		if c.output != "json" {
			rows, err := first(f.Limit, events)
			return list(c.app, rows, err, eventHeader, eventRow)
		}
	}
	n := 0
	for e, err := range events {
		switch {
		case err != nil:
			return err
		case c.output == "json":
			err = c.wire(e)
		default: // a stream has no columns
			_, err = fmt.Fprintln(c.stdout, e.Time.String(), e.Index, e.Type, e.Queue,
				e.MessageID, short(eventText(&e), 160))
		}
		if n++; err != nil || n == f.Limit {
			return err
		}
	}
	return nil
})

package main

import (
	"encoding/base64"
	"fmt"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
)

func (a *app) messageCmd() *cobra.Command {
	return group("message",
		a.messageShowCmd(), a.messageHistoryCmd(), a.messageListCmd(), a.messageDeleteCmd(),
		a.messageResurrectCmd(), a.messageEditsCmd(), a.messageEraseCmd())
}

func (a *app) messageShowCmd() *cobra.Command {
	return a.remote("message show", func(c request) error {
		m, err := c.Message(c.ctx, c.args[0])
		payload := payloadText(m.Payload, m.PayloadBytes, m.ContentType)
		if m.Erased {
			payload = "(erased, or deleted by retention)"
		}
		rows := [][]any{
			{"queue", m.Queue}, {"state", m.State}, {"held", m.Held}, {"key", short(m.Key, 80)},
			{"kind", m.Kind}, {"priority", m.Priority}, {"attempt", m.Attempt},
			{"enqueued", a.when(m.EnqueuedAt)},
		}
		add := func(set bool, row ...any) {
			if set {
				rows = append(rows, row)
			}
		}
		add(m.AvailableAt != 0, "available", a.when(m.AvailableAt))
		add(m.LeaseID != "", "lease", m.LeaseID)
		add(m.LeaseID != "", "until", a.when(m.LeaseExpiresAt))
		if to := m.MovedTo; to != nil {
			add(true, "moved to", to.Queue+" as "+to.MessageID)
		}
		if d := m.Dead; d != nil {
			add(true, "dead from", d.Queue+" ("+d.Reason+")")
			add(true, "error", short(d.Error, 80))
		}
		for _, r := range m.ResurrectedAs {
			add(true, "resurrected", "in "+r.Queue+" as "+r.MessageID)
		}
		if o := m.Origin; o != nil {
			add(true, "came from", o.FromMessageID)
			add(true, "first", o.FirstMessageID)
			add(true, "replays", o.Replays)
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
	})
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
	return []any{t.Attempt, t.Queue, t.LeasedAt.String(), took, t.Worker, outcome, text}
}

func (a *app) messageHistoryCmd() *cobra.Command {
	return a.remote("message history", func(c request) error {
		events, err := c.History(c.ctx, c.args[0])
		return list(a, events, err, eventHeader, eventRow)
	})
}

func (a *app) messageListCmd() *cobra.Command {
	var q client.MessageQuery
	var at string
	limit := 100
	return a.remote("message list", func(c request) error {
		var all []wire.Message
		for len(all) < limit {
			q.Limit = min(limit-len(all), 100)
			page, err := c.Messages(c.ctx, c.args[0], q, client.At(at))
			if err != nil {
				return err
			}
			all = append(all, page.Messages...)
			if q.After = page.NextCursor; q.After == "" || len(page.Messages) == 0 {
				break
			}
		}
		return list(a, all, nil, "message,state,key,priority,attempt,enqueued,payload",
			func(m *wire.Message) []any {
				state := m.State
				if m.Held {
					state += " (held)"
				}
				return []any{m.ID, state, short(m.Key, 32), m.Priority, m.Attempt,
					a.when(m.EnqueuedAt), short(string(m.Payload), 60)}
			})
	}, opt(&q.State, "state"), opt(&q.Key, "key"), opt(&at, "at"), opt(&limit, "limit"))
}

func (a *app) messageDeleteCmd() *cobra.Command {
	return a.remote("message delete", func(c request) error {
		m, err := c.Message(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		what := fmt.Sprintf("delete message %s (%s) from %s", m.ID, m.State, m.Queue)
		return a.destroy(what, m.ID+" deleted",
			func() error { return c.DeleteMessage(c.ctx, c.args[0]) })
	}, a.destroyFlags)
}

func (a *app) messageResurrectCmd() *cobra.Command {
	var r wire.ResurrectRequest
	var payload *string
	return a.remote("message resurrect", func(c request) error {
		if payload != nil {
			v, err := readValue("payload", *payload)
			if err != nil {
				return err
			}
			r.Edit = &wire.ReplayEdit{Payload: v}
		}
		out, err := c.Resurrect(c.ctx, c.args[0], r)
		return a.answer(out, err, "%s is in %s as %s",
			out.MessageID, out.Queue, out.NewMessageID)
	}, opt(&r.Queue, "queue"), opt(&payload, "payload"))
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

func (a *app) messageEditsCmd() *cobra.Command {
	return a.remote("message edits", func(c request) error {
		edits, err := c.Edits(c.ctx, c.args[0])
		if err != nil || a.output == "json" {
			return list(a, edits, err, "", nil)
		}
		var rows [][]any
		for _, e := range edits {
			if e.Note != "" {
				rows = append(rows, []any{a.when(e.Time), e.Type, e.NewMessageID,
					"-", "", "", e.Note})
			}
			for _, c := range e.Changes {
				rows = append(rows, []any{a.when(e.Time), e.Type, e.NewMessageID,
					c.Op, c.Path, short(string(c.Old), 60), short(string(c.Value), 60)})
			}
		}
		return a.table("time,by,new message,op,path,before,after", rows)
	})
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
	add(e.Attempt > 0, "attempt %d", e.Attempt)
	add(e.Worker != "", "by %s", e.Worker)
	add(e.LeaseExpiresAt != 0, "until %s", e.LeaseExpiresAt)
	add(e.DeliverAt != 0, "deliver at %s", e.DeliverAt)
	add(e.NextAt != 0, "next at %s", e.NextAt)
	add(e.Reason != "", "%s", e.Reason)
	add(e.ToQueue != "", "to %s as %s", e.ToQueue, e.NewMessageID)
	add(e.DiedIn != "", "died in %s", e.DiedIn)
	add(e.Order != "", "order %s", e.Order)
	add(e.Edited, "edited")
	add(e.SourceID != "", "source id %q", e.SourceID)
	add(e.TaskID != "", "task %s", strings.TrimSpace(e.TaskKind+" "+e.TaskID))
	add(e.Node != "", "on node %s", e.Node)
	add(e.Failed, "failed")
	add(e.Error != "", "%q", e.Error)
	add(e.Why != "", "because %q", e.Why)
	erased := e.Type == event.Erased.String()
	add(e.Count > 0 && erased, "%d contents", e.Count)
	add(e.Count > 0 && !erased, "%d messages", e.Count)
	add(e.BeforeIndex > 0, "before index:%d", e.BeforeIndex)
	add(e.Rules > 0, "rules %d", e.Rules)
	add(e.Erased, "content erased")
	add(e.Actor != "", "asked by %s", e.Actor)
	return strings.Join(s, ", ")
}

func (a *app) eventsCmd() *cobra.Command {
	var q client.EventQuery
	var follow bool
	var limit int
	return a.remote("events", func(c request) error {
		var events iter.Seq2[wire.Event, error]
		if follow {
			events = c.Follow(c.ctx, q)
		} else {
			q.Limit = 1000
			if limit > 0 {
				q.Limit = min(limit, 1000)
			}
			events = c.AllEvents(c.ctx, q)
		}
		var rows [][]any
		n := 0
		for e, err := range events {
			switch {
			case err != nil:
				return err
			case a.output == "json":
				err = a.wire(e)
			case follow: // a stream has no columns
				_, err = fmt.Fprintln(a.stdout, e.Time.String(), e.Index, e.Type, e.Queue,
					e.MessageID, short(eventText(&e), 160))
			default:
				rows = append(rows, eventRow(&e))
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
		return a.table(eventHeader, rows)
	}, opt(&follow, "follow"), opt(&q.After, "after"), opt(&q.From, "from"), opt(&q.To, "to"),
		opt(&q.Queue, "queue"), opt(&q.Type, "type"), opt(&q.MessageID, "message"),
		opt(&limit, "limit"))
}

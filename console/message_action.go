package console

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/durations"
)

// messageForm returns the message in the path, and a form that changes it.
func (p *page) messageForm(verb, submit string, fields ...field) (*wire.Message, *form, error) {
	m, err := p.message(p.r.PathValue("id"))
	if err != nil {
		return nil, nil, err
	}
	for i := range fields {
		if fields[i].Name == "payload" {
			fields[i] = editable(m)
		}
	}
	title := verb + " message " + short(m.ID) + " of " + m.Queue
	return m, p.newForm(title, submit, p.LinkNow("messages", m.ID), fields...), nil
}

// deleteMessage discards a message.
func (p *page) deleteMessage() error {
	m, f, err := p.messageForm("Delete", "Delete 1 message", reason)
	if err != nil {
		return err
	}
	lease := ""
	if m.State == "leased" {
		lease = ": the worker loses its lease"
	}
	f.Danger, f.Text = true, "Discards 1 message of "+m.Queue+", which is "+words(m.State)+" now"+
		lease+". Undo brings it back for as long as history keeps it."
	why := f.get("reason")
	f.As = p.as("DELETE", v1("messages", m.ID)+query("reason", why), nil,
		[]string{"message", "delete", m.ID, "--yes"}, "reason", why)
	return p.send(f, func() error {
		err := p.api.DeleteMessage(p.ctx, m.ID, client.Reason(why), p.once())
		return p.done(err, "Deleted the message from "+m.Queue+".", "messages", m.ID)
	})
}

// resurrect enqueues a message that has left once more.
func (p *page) resurrect() error {
	to := field{Name: "queue", Label: "Queue", Hint: "empty: where it was, or had died", Wide: true}
	m, f, err := p.messageForm("Resurrect", "Resurrect 1 message", to, field{Name: "payload"}, reason)
	if err != nil {
		return err
	}
	f.Text = "Enqueues 1 message again that was " + words(m.State) + ". It gets a new id, keeps its " +
		"history, and its attempts start over."
	r := wire.ResurrectRequest{Queue: f.get("queue"), Reason: f.get("reason")}
	edit, wrong := p.edit(m)
	cli, payload := []string{"message", "resurrect", m.ID}, ""
	if r.Edit = edit; edit != nil {
		if payload = string(edit.Payload); payload == "" {
			cli = nil // qlogd takes JSON
		}
	}
	f.As = p.as("POST", v1("messages", m.ID, "resurrect"), r, cli,
		"queue", r.Queue, "payload", payload, "reason", r.Reason)
	return p.send(f, func() error {
		if wrong != nil {
			return wrong
		}
		to, err := p.api.Resurrect(p.ctx, m.ID, r, p.once())
		if err != nil {
			return err
		}
		return p.done(nil, "Resurrected in "+to.Queue+" as "+to.NewMessageID+".",
			"messages", to.NewMessageID)
	})
}

// reschedule gives a message another time or priority.
func (p *page) reschedule() error {
	m, f, err := p.messageForm("Reschedule", "Reschedule 1 message",
		field{Name: "delay", Label: "After a delay", Hint: "0s is at once", Placeholder: "10m"},
		field{Name: "when", Label: "Or not before", Hint: "UTC", Placeholder: "2027-01-31T06:00:00Z"},
		field{Name: "priority", Label: "Priority", Hint: "1 goes first", Kind: "number"})
	if err != nil {
		return err
	}
	f.Text = "Gives 1 message of " + m.Queue + " another time or priority. It is " + words(m.State) +
		" now, with priority " + humanize.Comma(m.Priority) + "."
	r, wrong := rescheduled(f)
	if wrong == nil {
		f.As = p.as("PATCH", v1("messages", m.ID), r, []string{"message", "reschedule", m.ID},
			"delay", f.get("delay"), "at", f.get("when"), "priority", f.get("priority"))
	}
	return p.send(f, func() error {
		if wrong != nil {
			return wrong
		}
		m, err := p.api.Reschedule(p.ctx, m.ID, r, p.once())
		if err != nil {
			return err
		}
		text := "Rescheduled: it can be delivered at once."
		if m.AvailableAt != 0 {
			text = "Rescheduled: it is delivered from " + m.AvailableAt.String() + " on."
		}
		return p.done(nil, text, "messages", m.ID)
	})
}

// rescheduled is what the form asks for.
func rescheduled(f *form) (r wire.Reschedule, err error) {
	if when := strings.TrimSpace(f.get("when")); when != "" {
		at, err := time.Parse(time.RFC3339, when)
		if err != nil {
			return r, mistake("The time must be like 2027-01-31T06:00:00Z.")
		}
		r.DeliverAt = new(wire.TimeOf(at))
	}
	if r.DelayMS, err = f.delay(); err != nil {
		return r, err
	}
	if r.Priority, err = f.number("priority"); err == nil && r == (wire.Reschedule{}) {
		err = mistake("Give another time, a delay or another priority.")
	}
	return r, err
}

// delay returns the milliseconds in the field of that name, nil if it is empty.
func (f *form) delay() (*int64, error) {
	text := strings.ReplaceAll(f.get("delay"), " ", "")
	if text == "" {
		return nil, nil
	}
	d, err := durations.Parse(text)
	if err != nil {
		return nil, mistake("The delay must be a duration such as 0s, 90s, 10m, 2h or 3d.")
	}
	return new(d.Milliseconds()), nil
}

// erase overwrites what users wrote in a message. The end of its id is typed to confirm.
func (p *page) erase() error {
	m, f, err := p.messageForm("Erase", "Erase for good", reason)
	if err != nil {
		return err
	}
	would, _, err := p.api.EraseMessage(p.ctx, m.ID, wire.EraseRequest{DryRun: true})
	if err != nil {
		return err
	}
	f.Danger, f.Type = true, m.ID[len(m.ID)-6:]
	f.Warning = "This cannot be undone. Payload, header values, errors and results are overwritten " +
		"in the logs of all nodes and in the archive."
	f.Facts = [][2]string{
		{"Contents overwritten", humanize.Comma(would.Contents)},
		{"Messages", humanize.Comma(would.Messages) + ", each with all ids that it had"},
		{"Discarded from queues", humanize.Comma(would.Live)},
		{"Not erased", words(strings.Join(would.NotErased, ", "))},
	}
	r := wire.EraseRequest{Reason: f.get("reason")}
	f.As = p.as("POST", v1("messages", m.ID, "erase"), r, []string{"message", "erase", m.ID, "--yes"},
		"reason", r.Reason)
	return p.send(f, func() error {
		if r.Reason == "" {
			return mistake("A reason is needed: it is kept when the content is gone.")
		}
		_, task, err := p.api.EraseMessage(p.ctx, m.ID, r, p.once())
		if err != nil {
			return err
		}
		return p.done(nil, "Erasing the message on all nodes.", "tasks", task.ID)
	})
}

// maxEditable is how long a payload may be to be edited in a form.
const maxEditable = 256 << 10

// editable returns the payload of a message as a field, or a note why it cannot be edited.
func editable(m *wire.Message) field {
	b, _ := bytesOf(m)
	f := field{Name: "payload", Label: "Payload", Rows: 10, Wide: true,
		Hint: "unchanged it stays as it was, byte for byte; the old one stays in the log"}
	switch {
	case m.Erased || m.Damaged:
	case len(b) > maxEditable:
		return field{Kind: "note", Value: "The payload is too long to be edited here."}
	case m.PayloadBytes == nil:
		if f.Value = indented(b); len(f.Value) >= 2*maxEditable {
			f.Value = string(b)
		}
	case utf8.Valid(b) && !strings.ContainsFunc(string(b), hidden):
		f.Value = string(b)
	default:
		return field{Kind: "note", Value: "The payload is binary: it cannot be edited here."}
	}
	return f
}

// edit returns how a form that was sent changes the payload of a message, nil for not at all.
func (p *page) edit(m *wire.Message) (*wire.ReplayEdit, error) {
	if m == nil || !p.r.PostForm.Has("payload") {
		return nil, nil
	}
	was := editable(m)
	text := strings.ReplaceAll(p.r.PostForm.Get("payload"), "\r\n", "\n") // forms send lines so
	switch {
	case was.Kind != "" || text == strings.ReplaceAll(was.Value, "\r\n", "\n"):
		return nil, nil
	case m.PayloadBytes != nil && !m.Erased && !m.Damaged:
		return &wire.ReplayEdit{PayloadBytes: []byte(text), ContentType: m.ContentType}, nil
	}
	v := jsontext.Value(text)
	if v.Compact() != nil {
		return nil, mistake("The payload is not JSON.")
	}
	return &wire.ReplayEdit{Payload: v}, nil
}

package console

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// actionData is a form that changes one message, as it was filled in.
type actionData struct {
	*wire.Message
	Reason, Error string
	As            *as

	// Of a resurrection.
	Queue   string // the target; "" is where it was
	Content editable

	// Of another time.
	When, Delay, NewPriority string

	// Of an erasure.
	Would         *wire.Erasable
	Typed, Wanted string
}

// action returns the form of an action on the message in the path.
func (p *page) action() (*actionData, error) {
	m, err := p.message(p.r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	f := p.r.PostForm
	return &actionData{Message: m, Reason: f.Get("reason"), Queue: f.Get("queue")}, nil
}

// sent reads what was sent for one action, carries it out, and goes back to a page or shows the
// form again.
func (p *page) sent(
	show func(status int, d *actionData) error, carryOut func(d *actionData) error,
) error {
	d, err := p.action()
	if err != nil {
		return err
	}
	if err = carryOut(d); err == nil || errors.Is(err, errAnswered) {
		return err
	}
	return p.wrong(err, func(status int, text string) error {
		d.Error = text
		return show(status, d)
	})
}

// wrong shows a form again after a mistake in it: one that is found here, a queue named in it that
// does not exist, or what the API refuses. Other errors are returned.
func (p *page) wrong(err error, show func(status int, text string) error) error {
	if m, ok := errors.AsType[mistake](err); ok {
		return show(http.StatusBadRequest, string(m))
	}
	e, ok := errors.AsType[*client.Error](err)
	if ok && e.Problem.Status == http.StatusNotFound &&
		(e.Problem.Field == "to" || e.Problem.Field == "queue") {
		return show(http.StatusNotFound, errText(err))
	}
	return p.again(err, func(status int) error { return show(status, errText(err)) })
}

// mistake is what is wrong in a form, before the API is asked.
type mistake string

func (m mistake) Error() string { return string(m) }

// form shows the form of an action.
func (p *page) form(show func(status int, d *actionData) error) error {
	d, err := p.action()
	if err != nil {
		return err
	}
	return show(http.StatusOK, d)
}

// LeaseNote says what a deletion means to the worker that has the message.
func (d *actionData) LeaseNote() string {
	if d.State == "leased" {
		return ": the worker loses its lease"
	}
	return ""
}

func (p *page) deleteForm() error { return p.form(p.showDelete) }

func (p *page) showDelete(status int, d *actionData) error {
	d.As = p.as("DELETE", "/v1/messages/"+d.ID, "", "message", "delete", d.ID, "--yes")
	return p.render(status, "message-delete", "Delete "+about(d.Message), d)
}

func (p *page) deleteMessage() error {
	return p.sent(p.showDelete, func(d *actionData) error {
		if err := p.api.DeleteMessage(p.ctx, d.ID, client.Reason(d.Reason)); err != nil {
			return err
		}
		return p.done("Deleted the message from "+d.Message.Queue+".", "messages", d.ID)
	})
}

func (p *page) resurrectForm() error {
	return p.form(func(status int, d *actionData) error {
		d.Content = editableOf(d.Message)
		return p.showResurrect(status, d)
	})
}

func (p *page) showResurrect(status int, d *actionData) error {
	d.As = p.as("POST", "/v1/messages/"+d.ID+"/resurrect", "", "message", "resurrect", d.ID)
	return p.render(status, "message-resurrect", "Resurrect "+about(d.Message), d)
}

func (p *page) resurrect() error {
	return p.sent(p.showResurrect, func(d *actionData) (err error) {
		r := wire.ResurrectRequest{Queue: d.Queue, Reason: d.Reason}
		d.Content = editableOf(d.Message)
		if r.Edit, err = d.Content.edit(p.r.PostForm); err != nil {
			return err
		}
		to, err := p.api.Resurrect(p.ctx, d.ID, r)
		if err != nil {
			return err
		}
		return p.done("Resurrected in "+to.Queue+" as "+to.NewMessageID+".",
			"messages", to.NewMessageID)
	})
}

func (p *page) rescheduleForm() error { return p.form(p.showReschedule) }

func (p *page) showReschedule(status int, d *actionData) error {
	d.As = p.as("PATCH", "/v1/messages/"+d.ID, `{"delay_ms":0}`,
		"message", "reschedule", d.ID, "--delay", "0s")
	if d.NewPriority == "" {
		d.NewPriority = strconv.FormatInt(d.Priority, 10)
	}
	return p.render(status, "message-reschedule", "Reschedule "+about(d.Message), d)
}

func (p *page) reschedule() error {
	return p.sent(p.showReschedule, func(d *actionData) error {
		f := p.r.PostForm
		d.When, d.Delay, d.NewPriority = f.Get("when"), f.Get("delay"), f.Get("priority")
		r, err := d.rescheduled()
		if err != nil {
			return err
		}
		m, err := p.api.Reschedule(p.ctx, d.ID, r)
		if err != nil {
			return err
		}
		text := "Rescheduled: it can be delivered at once."
		if m.AvailableAt != 0 {
			text = "Rescheduled: it is delivered from " + m.AvailableAt.String() + " on."
		}
		return p.done(text, "messages", d.ID)
	})
}

// rescheduled is what the form asks for.
func (d *actionData) rescheduled() (r wire.Reschedule, err error) {
	if d.Delay != "" {
		after, err := time.ParseDuration(strings.ReplaceAll(d.Delay, " ", ""))
		if err != nil {
			return r, mistake("The delay must be a duration such as 0s, 90s, 10m or 2h.")
		}
		r.DelayMS = new(after.Milliseconds())
	}
	if d.When != "" {
		at, err := time.Parse(time.RFC3339, d.When)
		if err != nil {
			return r, mistake("The time must be like 2027-01-31T06:00:00Z.")
		}
		r.DeliverAt = new(wire.TimeOf(at))
	}
	n, err := strconv.ParseInt(d.NewPriority, 10, 64)
	if err != nil {
		return r, mistake("The priority must be a number from 1 to 10.")
	}
	if n != d.Priority {
		r.Priority = &n
	}
	if r == (wire.Reschedule{}) {
		return r, mistake("Give another time, a delay or another priority.")
	}
	return r, nil
}

func (p *page) eraseForm() error { return p.form(p.showErase) }

// showErase shows what an erasure is about, and asks to type the end of the id.
func (p *page) showErase(status int, d *actionData) (err error) {
	d.Would, _, err = p.api.EraseMessage(p.ctx, d.ID, wire.EraseRequest{DryRun: true})
	if err != nil {
		return err
	}
	d.Wanted = wanted(d.Message)
	d.As = p.as("POST", "/v1/messages/"+d.ID+"/erase", `{"reason":"request 4711"}`,
		"message", "erase", d.ID, "--reason", "request 4711", "--yes")
	return p.render(status, "message-erase", "Erase "+about(d.Message), d)
}

// wanted is what must be typed to confirm what cannot be undone.
func wanted(m *wire.Message) string { return m.ID[len(m.ID)-6:] }

func (p *page) erase() error {
	return p.sent(p.showErase, func(d *actionData) error {
		d.Typed = strings.TrimSpace(p.r.PostForm.Get("typed"))
		switch {
		case !strings.EqualFold(d.Typed, wanted(d.Message)):
			return mistake("Type " + wanted(d.Message) + ", the end of the id, to confirm.")
		case d.Reason == "":
			return mistake("A reason is needed: it is kept when the content is gone.")
		}
		_, task, err := p.api.EraseMessage(p.ctx, d.ID, wire.EraseRequest{Reason: d.Reason})
		if err != nil {
			return err
		}
		return p.done("Erasing the message on all nodes.", "tasks", task.ID)
	})
}

// editable is a payload that can be edited in a form.
type editable struct {
	Text string // as it is in the form
	Why  string // it cannot be edited; "" it can
	JSON bool
	Type string // media type of bytes
	old  string
}

// maxEditable is how long a payload may be to be edited in a form.
const maxEditable = 256 << 10

// editableOf returns the payload of a message for a form.
func editableOf(m *wire.Message) (e editable) {
	b, media := bytesOf(m)
	e.Type, e.JSON = media, m.PayloadBytes == nil
	switch {
	case m.Erased || m.Damaged:
		e.JSON = true
	case len(b) > maxEditable:
		e.Why = "The payload is too long to be edited here."
	case e.JSON:
		if e.Text = indented(b); len(e.Text) >= 2*maxEditable {
			e.Text = string(b)
		}
	case utf8.Valid(b) && !strings.ContainsFunc(string(b), hidden):
		e.Text = string(b)
	default:
		e.Why = "The payload is binary: it cannot be edited here."
	}
	e.old = e.Text
	return e
}

// edit returns what was changed in a form that was sent, nil for nothing.
func (e *editable) edit(form url.Values) (*wire.ReplayEdit, error) {
	if e.Why != "" || !form.Has("payload") {
		return nil, nil
	}
	e.Text = form.Get("payload")
	text := strings.ReplaceAll(e.Text, "\r\n", "\n") // forms send lines so
	switch {
	case text == strings.ReplaceAll(e.old, "\r\n", "\n"):
		return nil, nil
	case !e.JSON:
		return &wire.ReplayEdit{PayloadBytes: []byte(text), ContentType: e.Type}, nil
	case !jsontext.Value(text).IsValid():
		return nil, mistake("The payload is not JSON.")
	}
	v := jsontext.Value(text)
	if err := v.Compact(); err != nil {
		return nil, err
	}
	return &wire.ReplayEdit{Payload: v}, nil
}

package console

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// undoData is the form that brings back what left a queue, as it was filled in.
type undoData struct {
	Queue                             *wire.Queue
	State, From, To, Until            string
	Worker, Because, Key, Kind        string
	Order, Target, Rate, Reason, Seen string

	Error   string
	Would   *wire.Undone // nil: nothing is selected yet
	Skipped []skipped
	Changed bool // the form is not what was previewed
	Workers []string
	As      *as
}

// Task reports whether a task does it.
func (d *undoData) Task() bool {
	return d.Would.BroughtBack > undoAtOnce || byTask(d.Would.Matched, d.Rate)
}

// Takes is about how long it takes at the rate; "" without one.
func (d *undoData) Takes() string { return takes(d.Would.BroughtBack, d.Rate) }

// undoAtOnce is how many messages the API brings back in the call itself.
const undoAtOnce = 500

// byTask reports whether the API does with a task what is about n messages.
func byTask(n int64, rate string) bool {
	r, err := strconv.ParseInt(rate, 10, 64)
	return n > atOnce || err == nil && r > 0 && n > r
}

// takes returns about how long n messages take at a rate, "" if there is none.
func takes(n int64, rate string) string {
	r, err := strconv.ParseInt(rate, 10, 64)
	if err != nil || r <= 0 || n <= r {
		return ""
	}
	return span(time.Duration(n/r) * time.Second)
}

// values are the parameters of the page, or of the form that was sent.
func (p *page) values() url.Values {
	if p.r.Method == http.MethodPost {
		return p.r.PostForm
	}
	return p.r.URL.Query()
}

// undoing reads the form from the parameters of the page, or from a form that was sent.
func (p *page) undoing() (*undoData, error) {
	q, err := p.api.Queue(p.ctx, p.r.PathValue("queue"), p.now())
	if err != nil {
		return nil, err
	}
	v, now := p.values(), time.Now() // before which a duration is: what is done is what was previewed
	get := func(name string) string { return strings.TrimSpace(v.Get(name)) }
	d := &undoData{
		Queue: q, State: get("state"), From: pastOf(get("from"), now), To: pastOf(get("to"), now),
		Until:  get("until"),
		Worker: v.Get("worker"), Because: get("reason"), Key: v.Get("key"), Kind: v.Get("kind"),
		Order: get("order"), Target: get("target"), Rate: get("rate"), Reason: v.Get("why"),
		Seen: get("seen"),
	}
	workers, err := p.api.Workers(p.ctx, q.Name, p.now())
	if err != nil {
		return nil, err
	}
	for _, w := range workers[:min(len(workers), 100)] {
		d.Workers = append(d.Workers, w.Worker)
	}
	return d, nil
}

// request is what the form asks for, without its reason.
func (d *undoData) request() (wire.UndoRequest, error) {
	r := wire.UndoRequest{
		Filter: &wire.UndoFilter{
			State: d.State, From: d.From, To: cmp.Or(d.To, d.Until), Reason: d.Because,
		},
		Order: d.Order, To: d.Target,
	}
	for to, value := range map[**string]string{
		&r.Filter.Worker: d.Worker, &r.Filter.Key: d.Key, &r.Filter.Kind: d.Kind,
	} {
		if value != "" {
			*to = &value
		}
	}
	if d.Rate != "" {
		n, err := strconv.ParseInt(d.Rate, 10, 64)
		if err != nil {
			return r, mistake("The rate must be a number of messages a second.")
		}
		r.RatePerSecond = n
	}
	return r, nil
}

// undoForm shows the form; with a state, also what it would bring back.
func (p *page) undoForm() error {
	d, err := p.undoing()
	if err != nil {
		return err
	}
	if d.State == "" {
		d.State = "acked"
		return p.showUndo(d, http.StatusOK)
	}
	return p.previewUndo(d, http.StatusOK)
}

func (p *page) showUndo(d *undoData, status int) error {
	return p.render(status, "undo", "Undo in "+d.Queue.Name, d)
}

// previewUndo adds what the form would do, and shows it.
func (p *page) previewUndo(d *undoData, status int) (err error) {
	if d.Until, err = p.until(); err != nil {
		return err
	}
	r, err := d.request()
	if err == nil {
		d.Seen, d.As = seen(&r), d.command(p, &r)
		r.DryRun = true
		d.Would, _, err = p.api.Undo(p.ctx, d.Queue.Name, r)
	}
	if err != nil {
		return p.undoFailed(d, err)
	}
	d.Skipped = skippedOf(d.Would.Skipped)
	return p.showUndo(d, status)
}

// undoFailed shows the form with a mistake.
func (p *page) undoFailed(d *undoData, err error) error {
	return p.wrong(err, func(status int, text string) error {
		d.Error, d.Would = text, nil
		return p.showUndo(d, status)
	})
}

// undo carries the form out if it is what was previewed, else it shows a preview.
func (p *page) undo() error {
	d, err := p.undoing()
	if err != nil {
		return err
	}
	r, err := d.request()
	if err != nil {
		return p.undoFailed(d, err)
	}
	asked := p.r.PostForm.Get("preview") != ""
	if asked || seen(&r) != d.Seen {
		d.Changed = !asked
		return p.previewUndo(d, http.StatusOK)
	}
	r.Reason = d.Reason
	done, task, err := p.api.Undo(p.ctx, d.Queue.Name, r)
	switch {
	case err != nil:
		return p.undoFailed(d, err)
	case task != nil:
		return p.done("A task brings back about "+plural(task.Total, "message")+".",
			"tasks", task.ID)
	}
	return p.done("Brought back "+plural(done.BroughtBack, "message")+" of "+d.Queue.Name+".",
		"queues", cmp.Or(d.Target, d.Queue.Name))
}

// command returns how a script would do it.
func (d *undoData) command(p *page, r *wire.UndoRequest) *as {
	body, err := wire.Marshal(r)
	if err != nil {
		return nil
	}
	words := withFlags([]string{"undo", d.Queue.Name}, [][2]string{
		{"state", d.State}, {"from", d.From}, {"to", r.Filter.To}, {"worker", d.Worker},
		{"reason", d.Because}, {"key", d.Key}, {"kind", d.Kind}, {"order", d.Order},
		{"to-queue", d.Target}, {"rate", d.Rate},
	})
	return p.as("POST", "/v1/queues/"+d.Queue.Name+"/resurrect", string(body),
		append(words, "--yes")...)
}

package console

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
)

// movement is the form that replays or purges dead letters, as it was filled in.
type movement struct {
	Queue, Verb string // replay, purge
	IDs         []string
	Filter      wire.DeadFilter // without IDs
	Until       string          // where the filter ends, if it has no end: what was previewed

	Order, Target, Rate, MaxReplays string
	Reason, Error                   string

	Would   *wire.DeadMoved // what it would do
	Skipped []skipped
	Seen    string   // names what was previewed
	Changed bool     // the form is not what was previewed
	Content editable // of one message
	As      *as
}

// skipped counts what is passed over for one reason.
type skipped struct {
	Code  string
	Count int64
}

// Query is the selection as parameters of a page.
func (m *movement) Query() map[string]any { return params(&m.Filter) }

// All reports whether all dead letters of the queue are selected.
func (m *movement) All() bool { return len(m.IDs) == 0 && m.Filter == (wire.DeadFilter{}) }

// Count is how many messages would be moved.
func (m *movement) Count() int64 {
	if m.Would == nil || m.Would.Count == nil {
		return 0
	}
	return *m.Would.Count
}

// atOnce is how many messages the API moves in the call itself; more are moved by a task.
const atOnce = 1000

// Task reports whether a task does it.
func (m *movement) Task() bool { return byTask(m.Count(), m.Rate) }

// Takes is about how long it takes at the rate; "" without one.
func (m *movement) Takes() string { return takes(m.Count(), m.Rate) }

func (p *page) replayForm() error    { return p.movementForm("replay") }
func (p *page) replay() error        { return p.move("replay") }
func (p *page) purgeDeadForm() error { return p.movementForm("purge") }
func (p *page) purgeDead() error     { return p.move("purge") }

// movement reads the form from the parameters of a page, or from a form that was sent.
func (p *page) movement(verb string) (*movement, error) {
	v := p.values()
	m := &movement{
		Queue: p.r.PathValue("queue"), Verb: verb, IDs: v["id"], Filter: deadFilter(v.Get),
		Until: v.Get("until"), Order: v.Get("order"), Target: strings.TrimSpace(v.Get("target")),
		Rate: v.Get("rate"), MaxReplays: cmp.Or(v.Get("max_replays"), "100"),
		Reason: v.Get("why"), Seen: v.Get("seen"),
	}
	if len(m.IDs) == 1 && verb == "replay" {
		one, err := p.api.DeadMessage(p.ctx, m.Queue, m.IDs[0], p.now())
		if err != nil {
			return nil, err
		}
		m.Content = editableOf(one)
	}
	return m, nil
}

// request is what the form asks for, without its reason and an edit.
func (m *movement) request() (r wire.ReplayRequest, err error) {
	if r.MessageIDs = m.IDs; len(m.IDs) == 0 {
		f := m.Filter
		f.To = cmp.Or(f.To, m.Until)
		r.MessageIDs, r.Filter = nil, &f
	}
	if m.Verb == "purge" {
		return r, nil
	}
	r.Order, r.To = m.Order, m.Target
	if m.Rate != "" {
		n, err := strconv.ParseInt(m.Rate, 10, 64)
		if err != nil {
			return r, mistake("The rate must be a number of messages a second.")
		}
		r.RatePerSecond = &n
	}
	n, err := strconv.ParseInt(m.MaxReplays, 10, 64)
	if err != nil {
		return r, mistake("The number of replays must be a number; 0 is no limit.")
	}
	if n != 100 {
		r.MaxReplays = &n
	}
	return r, nil
}

// movementForm shows the form with what it would do.
func (p *page) movementForm(verb string) error {
	m, err := p.movement(verb)
	if err != nil {
		return err
	}
	if m.Until, err = p.until(); err != nil {
		return err
	}
	return p.preview(m, http.StatusOK)
}

// until names the present, as the end of a filter: so that what is done is what was previewed.
func (p *page) until() (string, error) {
	head, err := p.api.LogHead(p.ctx, p.now())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("index:%d", head.Index), nil
}

// preview adds what the form would do, and shows it. A mistake in the form is shown in it.
func (p *page) preview(m *movement, status int) error {
	r, err := m.request()
	if err == nil {
		m.Seen, m.As = seen(&r), m.command(p, &r)
		r.DryRun = true
		m.Would, err = p.would(m, &r)
	}
	title := strings.ToUpper(m.Verb[:1]) + m.Verb[1:] + " dead letters of " + m.Queue
	if err != nil {
		return p.wrong(err, func(status int, text string) error {
			m.Error, m.Would = text, nil
			return p.render(status, "dead-move", title, m)
		})
	}
	m.Skipped = skippedBy(m.Would.Skipped)
	return p.render(status, "dead-move", title, m)
}

// would asks what a request would do.
func (p *page) would(m *movement, r *wire.ReplayRequest) (*wire.DeadMoved, error) {
	if m.Verb == "purge" {
		would, _, err := p.api.PurgeDead(p.ctx, m.Queue, wire.PurgeRequest{
			MessageIDs: r.MessageIDs, Filter: r.Filter, DryRun: true,
		})
		return would, err
	}
	would, _, err := p.api.Replay(p.ctx, m.Queue, *r)
	return would, err
}

func skippedBy(list []wire.Skipped) []skipped {
	n := map[string]int64{}
	for _, s := range list {
		n[s.Code]++
	}
	return skippedOf(n)
}

// skippedOf returns counts by reason, in the order of these.
func skippedOf(n map[string]int64) (out []skipped) {
	for code, count := range n {
		out = append(out, skipped{code, count})
	}
	slices.SortFunc(out, func(a, b skipped) int { return cmp.Compare(a.Code, b.Code) })
	return out
}

// move carries the form out if it is what was previewed, else it shows a preview.
func (p *page) move(verb string) error {
	m, err := p.movement(verb)
	if err != nil {
		return err
	}
	r, err := m.request()
	if err != nil {
		return p.preview(m, http.StatusBadRequest)
	}
	edit, err := m.Content.edit(p.r.PostForm)
	asked := p.r.PostForm.Get("preview") != ""
	if err != nil || asked || seen(&r) != m.Seen {
		if m.Changed = !asked && err == nil; err != nil {
			m.Error = err.Error()
		}
		if m.Until, err = p.until(); err != nil {
			return err
		}
		return p.preview(m, http.StatusOK)
	}
	if edit != nil {
		r.Edit = map[string]wire.ReplayEdit{m.IDs[0]: *edit}
	}
	r.Reason = m.Reason
	var done *wire.DeadMoved
	var task *wire.Task
	if verb == "purge" {
		done, task, err = p.api.PurgeDead(p.ctx, m.Queue, wire.PurgeRequest{
			MessageIDs: r.MessageIDs, Filter: r.Filter, Reason: r.Reason,
		})
	} else {
		done, task, err = p.api.Replay(p.ctx, m.Queue, r)
	}
	switch {
	case err != nil:
		return p.wrong(err, func(status int, text string) error {
			m.Error = text
			return p.preview(m, status)
		})
	case task != nil:
		return p.done("A task does it: "+verb+" about "+plural(task.Total, "message")+".",
			"tasks", task.ID)
	}
	n := cmp.Or(done.Replayed, done.Purged, new(int64))
	text := map[string]string{"replay": "Replayed ", "purge": "Purged "}[verb] +
		plural(*n, "message") + " of " + m.Queue + "."
	for _, s := range skippedBy(done.Skipped) {
		text += fmt.Sprintf(" Passed over %d: %s.", s.Count, strings.ReplaceAll(s.Code, "_", " "))
	}
	if verb == "replay" && len(m.IDs) == 1 && len(done.Messages) == 1 {
		return p.done(text, "messages", done.Messages[0].NewMessageID)
	}
	return p.done(text, "queues", m.Queue, "dead")
}

// seen names a request, to find out whether it is the one that was previewed.
func seen(request any) string {
	b, _ := wire.Marshal(request) // an error: not UTF-8, which the API refuses
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// command returns how a script would do it.
func (m *movement) command(p *page, r *wire.ReplayRequest) *as {
	words := append([]string{"dead", m.Verb, m.Queue}, r.MessageIDs...)
	if f := r.Filter; f != nil {
		if m.All() && f.To == "" {
			words = append(words, "--all")
		}
		words = withFlags(words, [][2]string{
			{"reason", f.Reason}, {"error", f.Error}, {"key", deref(f.Key)}, {"kind", deref(f.Kind)},
			{"from", f.From}, {"to", f.To}, {"fingerprint", f.Fingerprint},
		})
	}
	var body any = r
	if m.Verb == "purge" {
		body = &wire.PurgeRequest{MessageIDs: r.MessageIDs, Filter: r.Filter}
	} else {
		words = withFlags(words, [][2]string{{"order", r.Order}, {"to-queue", r.To}, {"rate", m.Rate}})
		if r.MaxReplays != nil {
			words = append(words, "--max-replays", m.MaxReplays)
		}
	}
	text, err := wire.Marshal(body)
	if err != nil {
		return nil
	}
	return p.as("POST", "/v1/queues/"+m.Queue+"/dead/"+m.Verb, string(text),
		append(words, "--yes")...)
}

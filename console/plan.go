package console

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// plan is what a form would do before it does it: it replays or purges dead letters, or brings back
// what left a queue.
type plan struct {
	Queue, Tab string // of the page
	Verb       string // replay, purge, undo
	Into       string // the queue in which messages would be enqueued
	Would      *outcome
	How        string // at once, or by a task
	Changed    bool   // the form is not what was previewed
	OnDemand   bool   // it is previewed only when it is asked for
}

// outcome is what a plan would do, or has done.
type outcome struct {
	Matched, Count int64
	Skipped        map[string]int64 // by reason
	Sample         []wire.Message
	More           bool       // not all were looked at
	Begins         *wire.Time // of history, if what is asked for is before that
	message        string     // the id of the only one
}

// request is what the form of a plan asks for.
type request struct {
	seen   string // names it, without the reason and an edit
	as     *as
	rate   *int64
	atOnce int64 // how many messages the API moves in the call itself; more are moved by a task
	run    func(dry bool) (*outcome, *wire.Task, error)
}

// named names a request, to find out whether it is the one that was previewed.
func named(request any) string {
	b, _ := wire.Marshal(request) // an error: not UTF-8, which the API refuses
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// how says whether n messages are moved at once or by a task, and then about how long it takes.
func (r *request) how(n int64) string {
	switch {
	case r.rate != nil && *r.rate > 0 && n > *r.rate:
		return "A task does it, in about " + span(time.Duration(n / *r.rate)*time.Second) +
			"; it can be watched and cancelled."
	case n > r.atOnce:
		return "A task does it; it can be watched and cancelled."
	}
	return "All at once."
}

// preview adds what a form would do, and shows it. Until names the present, as the end of what is
// selected: so that what is done is what was previewed.
func (p *page) preview(f *form, ask func() (*request, error), status int) error {
	head, err := p.api.LogHead(p.ctx, p.now())
	if err != nil {
		return err
	}
	f.Hidden.Set("until", fmt.Sprintf("index:%d", head.Index))
	r, err := ask()
	if err == nil {
		f.As = r.as
		f.Hidden.Set("seen", r.seen)
		f.Plan.Would, _, err = r.run(true)
	}
	show := func(status int, text string) error {
		f.Error = cmp.Or(f.Error, text)
		return p.render(status, "form", f.Title, f)
	}
	if err != nil {
		f.Plan.Would, f.Submit = nil, ""
		return p.wrong(err, show)
	}
	switch would := f.Plan.Would; {
	case would.More:
		f.Submit += " all that match"
		f.Plan.How = r.how(r.atOnce + 1)
	case would.Count == 0:
		f.Submit = ""
	default:
		f.Submit += " " + plural(would.Count, "message")
		f.Plan.How = r.how(would.Count)
	}
	return show(status, "")
}

// planned shows a form with what it would do, and does it once it is sent as it was previewed.
func (p *page) planned(f *form, ask func() (*request, error)) error {
	read := p.r.Method == http.MethodGet
	if read && !f.Plan.OnDemand {
		return p.preview(f, ask, http.StatusOK)
	}
	r, err := ask()
	if read || p.Param("part") != "" {
		if f.Submit = ""; err == nil {
			f.As = r.as
		}
		return p.render(http.StatusOK, "form", f.Title, f)
	}
	asked := p.r.PostForm.Has("preview")
	if err != nil || asked || r.seen != p.r.PostForm.Get("seen") {
		f.Plan.Changed = !asked && err == nil
		return p.preview(f, ask, http.StatusOK)
	}
	done, task, err := r.run(false)
	switch {
	case err != nil:
		return p.wrong(err, func(status int, text string) error {
			if f.Error = text; status < http.StatusInternalServerError {
				return p.preview(f, ask, status)
			}
			f.As = r.as
			return p.render(status, "form", f.Title, f)
		})
	case task != nil:
		text := "A task does it, for at most " + plural(task.Total, "message") + "."
		return p.done(nil, text, "tasks", task.ID)
	}
	did := map[string]string{"replay": "Replayed ", "purge": "Purged ", "undo": "Brought back "}
	text := did[f.Plan.Verb] + plural(done.Count, "message") + " of " + f.Plan.Queue + "."
	for _, code := range slices.Sorted(maps.Keys(done.Skipped)) {
		text += fmt.Sprintf(" Passed over %d: %s.", done.Skipped[code], words(code))
	}
	switch {
	case done.message != "" && len(f.Hidden["id"]) == 1:
		return p.done(nil, text, "messages", done.message)
	case f.Plan.Verb == "undo":
		return p.done(nil, text, "queues", f.Plan.Into)
	}
	return p.done(nil, text, "queues", f.Plan.Queue, "dead")
}

// Without being asked, a preview looks at most at so many dead letters, or at their errors; when it
// is asked for, at so many errors.
const (
	maxCounted    = 50_000
	maxErrorsRead = 500
	lookedAt      = 10_000
)

// readsErrors reports whether the errors, which are in the log, must be read for a filter.
func readsErrors(f *wire.DeadFilter) bool {
	return f != nil && (f.Error != "" || f.Fingerprint != "")
}

// amongFirst counts what fits a filter among the dead letters that died first: to read the errors
// of a million takes minutes.
func (p *page) amongFirst(queue string, filter *wire.DeadFilter) (*outcome, *wire.Task, error) {
	q := client.DeadQuery{DeadFilter: *filter, Limit: 10}
	list, err := p.api.Dead(p.ctx, queue, q, p.now(), client.MaxPayload(previewBytes))
	if err != nil {
		return nil, nil, err
	}
	q.Limit, q.Most = 1000, lookedAt
	found, err := p.api.DeadGroups(p.ctx, queue, q, p.now())
	if err != nil {
		return nil, nil, err
	}
	would := &outcome{Sample: list.Dead, More: found.NextCursor != ""}
	for i := range found.Groups {
		would.Count += found.Groups[i].Count
	}
	return would, nil, nil
}

// Fields of plans. A plan's filter has a reason of its own.
var (
	why   = field{Name: "why", Label: "Why", Hint: "kept in the events, beside your name", Wide: true}
	speed = field{Name: "rate", Label: "Rate per second", Hint: "empty: at once", Kind: "number"}
	order = field{Name: "order", Label: "Order", None: "as the queue does",
		Options: []string{"original", "append", "head"}}
)

func target(queue string) field {
	return field{Name: "target", Label: "Into", Hint: "empty: " + queue, Placeholder: queue}
}

func (p *page) replay() error    { return p.moveDead("replay") }
func (p *page) purgeDead() error { return p.moveDead("purge") }

// moveDead is the form that replays or purges dead letters.
func (p *page) moveDead(verb string) (err error) {
	v, queue := p.values(), p.r.PathValue("queue")
	ids, filter := v["id"], deadFilter(v.Get)
	var one *wire.Message // if there is only one
	fields := []field{why}
	if verb == "replay" {
		fields = []field{target(queue), order, speed, {Name: "max_replays", Label: "Replays at most",
			Hint: "0: any number", Kind: "number", Value: "100"}, why}
		if len(ids) == 1 {
			if one, err = p.api.DeadMessage(p.ctx, queue, ids[0], p.now()); err != nil {
				return err
			}
			fields = append(fields, editable(one))
		}
	}
	f := p.newForm(capital(verb)+" dead letters of "+queue, capital(verb),
		p.LinkNow("queues", queue, "dead"), fields...)
	f.Danger = verb == "purge"
	f.Plan = &plan{Queue: queue, Tab: "dead", Verb: verb, Into: cmp.Or(f.target(), queue)}
	f.Text = "All that died here until now."
	if len(ids) > 0 {
		f.Hidden["id"] = ids
		f.Text = plural(int64(len(ids)), "message") + ", selected by hand."
	} else if selected := params(&filter); len(selected) > 0 {
		f.Text = "Those with"
		for _, name := range slices.Sorted(maps.Keys(selected)) {
			f.Hidden.Set(name, fmt.Sprint(selected[name]))
			f.Text += fmt.Sprintf(" %s “%s”,", words(name), clip(80, fmt.Sprint(selected[name])))
		}
		f.Text += " until now."
	}
	if len(ids) == 0 {
		most := int64(maxCounted)
		if readsErrors(&filter) {
			most = maxErrorsRead
		}
		q, err := p.api.Queue(p.ctx, queue, p.now())
		if err != nil && !errors.Is(err, client.ErrQueueNotFound) {
			return err // else it may be deleted
		}
		if f.Plan.OnDemand = err != nil || q.Dead > most; f.Plan.OnDemand {
			f.Text += " They are counted when you ask for a preview."
		}
	}
	return p.planned(f, func() (*request, error) {
		if len(ids) > 0 {
			return p.moving(f, ids, nil, one)
		}
		until := filter
		until.To = cmp.Or(filter.To, f.Hidden.Get("until"))
		return p.moving(f, nil, &until, nil)
	})
}

// moving is the request to replay or purge messages.
func (p *page) moving(
	f *form, ids []string, filter *wire.DeadFilter, one *wire.Message,
) (*request, error) {
	queue, verb := f.Plan.Queue, f.Plan.Verb
	cli := append([]string{"dead", verb, queue, "--yes"}, ids...)
	at := v1("queues", queue, "dead", verb)
	flags := []string{"why", f.get("why")}
	if filter != nil {
		flags = append(flags, "reason", filter.Reason, "error", filter.Error, "key", deref(filter.Key),
			"kind", deref(filter.Kind), "from", filter.From, "to", filter.To,
			"fingerprint", filter.Fingerprint)
	}
	if verb == "purge" {
		r := wire.PurgeRequest{MessageIDs: ids, Filter: filter}
		q := &request{seen: named(r), atOnce: 1000}
		r.Reason = f.get("why")
		q.as = p.as("POST", at, r, cli, flags...)
		q.run = func(dry bool) (*outcome, *wire.Task, error) {
			if r.DryRun = dry; dry && f.Plan.OnDemand && readsErrors(filter) {
				return p.amongFirst(queue, filter)
			}
			moved, task, err := p.api.PurgeDead(p.ctx, queue, r, p.once())
			return outcomeOf(moved), task, err
		}
		return q, nil
	}
	rate, err := f.number("rate")
	most, err2 := f.number("max_replays")
	edit, err3 := p.edit(one)
	if err := cmp.Or(err, err2); err != nil {
		return nil, err
	}
	r := wire.ReplayRequest{MessageIDs: ids, Filter: filter, Order: f.get("order"), To: f.target(),
		RatePerSecond: rate, MaxReplays: most}
	q := &request{seen: named(r), rate: rate, atOnce: 1000}
	r.Reason = f.get("why")
	flags = append(flags, "order", r.Order, "to-queue", r.To, "rate", f.get("rate"),
		"max-replays", f.get("max_replays"))
	if edit != nil {
		r.Edit = map[string]wire.ReplayEdit{ids[0]: *edit}
		if flags = append(flags, "payload", string(edit.Payload)); edit.Payload == nil {
			cli = nil // qlogd takes JSON
		}
	}
	q.as = p.as("POST", at, r, cli, flags...)
	q.run = func(dry bool) (*outcome, *wire.Task, error) {
		if err3 != nil {
			return nil, nil, err3
		}
		if r.DryRun = dry; dry && f.Plan.OnDemand && readsErrors(filter) {
			return p.amongFirst(queue, filter)
		}
		moved, task, err := p.api.Replay(p.ctx, queue, r, p.once())
		return outcomeOf(moved), task, err
	}
	return q, nil
}

// outcomeOf is the outcome of a move; nil: a task does it.
func outcomeOf(m *wire.DeadMoved) *outcome {
	if m == nil {
		return nil
	}
	counts := map[string]int64{}
	for _, s := range m.Skipped {
		counts[s.Code]++
	}
	n := cmp.Or(m.Count, m.Replayed, m.Purged, new(int64))
	o := &outcome{Count: *n, Skipped: counts, Sample: m.Sample}
	if len(m.Messages) == 1 {
		o.message = m.Messages[0].NewMessageID
	}
	return o
}

func (f *form) target() string { return strings.TrimSpace(f.get("target")) }

// undo is the form that brings back what left a queue.
func (p *page) undo() error {
	q, err := p.api.Queue(p.ctx, p.r.PathValue("queue"), p.now())
	if err != nil {
		return err
	}
	workers, err := p.api.Workers(p.ctx, q.Name, p.now())
	if err != nil {
		return err
	}
	who := field{Name: "worker", Label: "Worker", Hint: "that acked it"}
	for _, w := range workers[:min(len(workers), 100)] {
		who.Suggest = append(who.Suggest, w.Worker)
	}
	inOrder := order
	inOrder.Options = order.Options[:2]
	f := p.newForm("Bring back what left "+q.Name, "Bring back", p.LinkNow("queues", q.Name),
		field{Name: "state", Label: "What happened to it", Options: []string{"acked", "discarded"}},
		field{Name: "from", Label: "From", Hint: "time, 40m, start", Placeholder: "40m", Required: true},
		field{Name: "to", Label: "To", Hint: "empty: now", Placeholder: "20m"}, who,
		field{Name: "reason", Label: "Discarded because", None: "any reason", Options: []string{"purged",
			"deleted", "expired", "queue_deleted", "max_attempts", "rejected", "key_dead"}},
		field{Name: "key", Label: "Key"}, field{Name: "kind", Label: "Kind"},
		target(q.Name), inOrder, speed, why)
	f.Text = "What a bad deploy acked, or what was purged, deleted or expired, is enqueued again " +
		"from the log. Each message comes back once, with a new id."
	f.Plan = &plan{Queue: q.Name, Tab: "undo", Verb: "undo", Into: cmp.Or(f.target(), q.Name),
		OnDemand: !p.r.URL.Query().Has("state")}
	for _, name := range []string{"from", "to"} { // what is done is what was previewed
		f.field(name).Value = pastOf(strings.TrimSpace(f.get(name)), time.Now())
	}
	return p.planned(f, func() (*request, error) { return p.undoing(f) })
}

// undoing is the request of an undo.
func (p *page) undoing(f *form) (*request, error) {
	rate, err := f.number("rate")
	if err == nil && f.get("from") == "" {
		err = mistake("Say from which instant on: a time, or a duration such as 40m.")
	}
	if err != nil {
		return nil, err
	}
	r := wire.UndoRequest{
		Filter: &wire.UndoFilter{
			State: f.get("state"), From: f.get("from"), To: cmp.Or(f.get("to"), f.Hidden.Get("until")),
			Reason: f.get("reason"), Worker: optional(f.get("worker")), Key: optional(f.get("key")),
			Kind: optional(f.get("kind")),
		},
		Order: f.get("order"), To: f.target(), RatePerSecond: *cmp.Or(rate, new(int64)),
	}
	queue, q := f.Plan.Queue, &request{seen: named(r), rate: rate, atOnce: 500}
	r.Reason = f.get("why")
	q.as = p.as("POST", v1("queues", queue, "resurrect"), r, []string{"undo", queue, "--yes"},
		"state", r.Filter.State, "from", r.Filter.From, "to", r.Filter.To, "worker", f.get("worker"),
		"reason", r.Filter.Reason, "key", f.get("key"), "kind", f.get("kind"), "order", r.Order,
		"to-queue", r.To, "rate", f.get("rate"), "why", r.Reason)
	q.run = func(dry bool) (*outcome, *wire.Task, error) {
		r.DryRun = dry
		done, task, err := p.api.Undo(p.ctx, queue, r, p.once())
		if done == nil {
			return nil, task, err
		}
		return &outcome{Matched: done.Matched, Count: done.BroughtBack,
			Skipped: done.Skipped, Begins: done.HistoryBeginsAt}, nil, err
	}
	return q, nil
}

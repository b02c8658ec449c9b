package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/durations"
)

var pastPages = []route{
	{"GET past/bar", "", (*page).timeBar},
}

// Past reports whether this page can show an instant in the past.
func (p *page) Past() bool {
	return p.Nav != "attention" && p.Nav != "tasks" && p.Nav != "cluster" && p.Nav != ""
}

// pastOf returns an instant that does not move: of a duration before now, the time.
func pastOf(at string, now time.Time) string {
	switch d, err := durations.Parse(at); {
	case at == "now":
		return ""
	case err == nil && d > 0:
		return wire.TimeOf(now.Add(-d)).String()
	}
	return at
}

// When is the time of the instant that is shown, where it says so itself; else it is 0.
func (p *page) When() wire.Time {
	if t, err := time.Parse(time.RFC3339, p.At); err == nil {
		return wire.TimeOf(t)
	}
	if id, err := ulid.ParseStrict(p.At); err == nil {
		return wire.Time(id.Time())
	}
	return 0
}

// clock is the time of the log at the instant that is shown, or now.
func (p *page) clock() wire.Time {
	if p.At != "" {
		if head, err := p.api.LogHead(p.ctx, p.then()...); err == nil && head.Time != 0 {
			return head.Time
		}
	}
	return wire.TimeOf(time.Now())
}

// timeBar answers with the slider over the history, for the page that asks.
func (p *page) timeBar() error {
	if !p.fragment() {
		return &failure{http.StatusNotFound, "There is no such page", "It is part of another one."}
	}
	begin, marks, err := p.history()
	if err != nil {
		return err
	}
	bar := timeBar{Begin: begin, End: wire.TimeOf(time.Now())}
	at := bar.End
	if p.At != "" {
		at = cmp.Or(p.When(), max(p.clock(), begin))
		bar.Shown = at
	}
	bar.Value = int(bar.share(at) * sliderSteps)
	for i, e := range marks {
		bar.Marks = append(bar.Marks, mark{e, fmt.Sprintf("%.2f%%", bar.share(e.Time)*100)})
		if e.Time < at && e.EventID != p.At {
			bar.Before = &marks[i]
		}
		if e.Time > at && bar.After == nil {
			bar.After = &marks[i]
		}
	}
	return p.show("past-bar", "Time", &bar)
}

const sliderSteps = 2000

// timeBar is a slider over the whole history.
type timeBar struct {
	Begin, End, Shown wire.Time // Shown is 0 now
	Value             int       // of the slider
	Marks             []mark
	Before, After     *wire.Event // the marks beside the instant; nil: none
}

// Steps is the slider's range.
func (b *timeBar) Steps() int { return sliderSteps }

// mark is an event that changed something for longer: of a queue, a webhook or a task.
type mark struct {
	wire.Event
	Percent string // of the slider's width
}

// share returns where a time is between the ends.
func (b *timeBar) share(t wire.Time) float64 {
	if b.End <= b.Begin {
		return 1
	}
	return min(1, max(0, float64(t-b.Begin)/float64(b.End-b.Begin)))
}

// markTypes are the events at which the slider has a mark.
var markTypes = []string{
	"queue_created", "queue_updated", "queue_deleted", "queue_paused", "queue_resumed",
	"queue_purged", "webhook_created", "webhook_updated", "webhook_deleted", "task_created",
}

const (
	maxMarks      = 200 // about as many are kept of a history that has more
	historyFor    = 5 * time.Second
	historiesKept = 100
)

// history has the marks that a token may see, because finding them reads the log: a later look
// reads only what has come since.
type history struct {
	mu     sync.Mutex // held while the log is read
	read   time.Time
	begin  wire.Time
	cursor string // up to which the log was read
	marks  []wire.Event
}

// history returns where the history begins, and the marks that a session may see now.
func (p *page) history() (begin wire.Time, marks []wire.Event, err error) {
	one := entry(p.c.histories, p.who(), &history{})
	one.mu.Lock()
	defer one.mu.Unlock()
	if time.Since(one.read) >= historyFor {
		err = one.update(p)
	}
	for i := range one.marks { // they were read with the rights of then
		if e := &one.marks[i]; e.Queue != "" && p.May("read", e.Queue) || p.May("admin", "") {
			marks = append(marks, *e)
		}
	}
	return one.begin, marks, err
}

// update reads on in the log.
func (h *history) update(p *page) error {
	first, err := p.api.Events(p.ctx, client.EventQuery{From: "start", Limit: 1}, p.now())
	if err != nil {
		return err
	}
	h.begin = wire.TimeOf(time.Now())
	if len(first.Events) > 0 {
		h.begin = first.Events[0].Time
	}
	query := client.EventQuery{After: h.cursor, Types: markTypes, Limit: 1000}
	if h.cursor == "" {
		query.From = "start"
	}
	found, err := p.api.Events(p.ctx, query, p.now())
	if err != nil {
		if errors.Is(err, client.ErrHistoryExpired) { // what the cursor names is deleted
			h.cursor, h.marks = "", nil
		}
		return err
	}
	marks := slices.Concat(h.marks, found.Events)
	marks = slices.DeleteFunc(marks, func(e wire.Event) bool { return e.Time < h.begin })
	for len(marks) > 2*maxMarks {
		for i := range len(marks) / 2 {
			marks[i] = marks[2*i]
		}
		marks = marks[:len(marks)/2]
	}
	h.marks, h.cursor = marks, found.NextCursor
	if !found.Partial && len(found.Events) < 1000 { // else there is more
		h.read = time.Now()
	}
	return nil
}

package console

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var pastPages = []route{
	{"GET past/bar", "", (*page).timeBar},
	{"GET past/difference", "", (*page).difference},
}

// Past reports whether this page can show an instant in the past.
func (p *page) Past() bool {
	return p.Nav != "attention" && p.Nav != "tasks" && p.Nav != "cluster" && p.Nav != ""
}

// Difference is the link to what changed between the instant that is shown and now.
func (p *page) Difference() string {
	return p.LinkNow("past", "difference") + "?" + url.Values{"from": {p.At}, "to": {"now"}}.Encode()
}

// timeBar answers with the slider over the history, for the page that asks.
func (p *page) timeBar() error {
	if !p.fragment() {
		return &failure{http.StatusNotFound, "There is no such page", "It is part of another one."}
	}
	h, err := p.c.history.get(p)
	if err != nil {
		return err
	}
	bar := timeBar{Begin: h.begin, End: h.end, Value: h.end}
	if at := p.At; at != "" {
		head, err := p.api.LogHead(p.ctx, p.then()...)
		if err != nil {
			return err
		}
		if bar.Value = head.Time; bar.Value == 0 {
			bar.Value = h.begin
		}
		if t, err := time.Parse(time.RFC3339, at); err == nil {
			bar.Value = wire.TimeOf(t)
		}
	}
	for _, e := range h.marks {
		bar.Marks = append(bar.Marks, mark{
			Event: e, Percent: fmt.Sprintf("%.2f%%", bar.percent(e.Time)),
		})
	}
	return p.show("past-bar", "Time", bar)
}

// timeBar is a slider over the whole history.
type timeBar struct {
	Begin, End, Value wire.Time
	Marks             []mark
}

// mark is an event that changed something for longer: of a queue, a webhook or the log.
type mark struct {
	wire.Event
	Percent string
}

func (b *timeBar) percent(t wire.Time) float64 {
	if b.End <= b.Begin {
		return 100
	}
	return min(100, max(0, float64(t-b.Begin)*100/float64(b.End-b.Begin)))
}

// markTypes are the events at which the slider has a mark.
var markTypes = []string{
	"queue_created", "queue_updated", "queue_deleted", "queue_paused", "queue_resumed",
	"queue_purged", "webhook_created", "webhook_updated", "webhook_deleted", "task_created",
}

const (
	maxMarks    = 200
	historyKept = 10 * time.Second
)

// cachedHistory keeps the marks of each token for a moment: to find them, the log is read.
type cachedHistory struct {
	mu sync.Mutex
	of map[string]*history // by name of the token
}

type history struct {
	read       time.Time
	begin, end wire.Time
	marks      []wire.Event
}

// get returns the history that a session may see.
func (c *cachedHistory) get(p *page) (*history, error) {
	c.mu.Lock()
	h := c.of[p.cookieOwner()]
	c.mu.Unlock()
	if h != nil && time.Since(h.read) < historyKept {
		return h, nil
	}
	h = &history{read: time.Now(), end: wire.TimeOf(time.Now())}
	first, err := p.api.Events(p.ctx, client.EventQuery{From: "start", Limit: 1}, p.now())
	if err != nil {
		return nil, err
	}
	h.begin = h.end
	if len(first.Events) > 0 {
		h.begin = first.Events[0].Time
	}
	found, err := p.api.Events(p.ctx, client.EventQuery{
		From: "start", Types: markTypes, Limit: maxMarks,
	}, p.now())
	if err != nil {
		return nil, err
	}
	h.marks = found.Events
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil || len(c.of) > 100 {
		c.of = map[string]*history{}
	}
	c.of[p.cookieOwner()] = h
	return h, nil
}

// cookieOwner names whose view of the history it is.
func (p *page) cookieOwner() string {
	if p.session == nil {
		return ""
	}
	return string(p.session.sum[:])
}

// difference shows what changed between two instants.
func (p *page) difference() error {
	return p.show("difference", "Difference", differenceData{p.Param("from"), p.Param("to")})
}

type differenceData struct{ From, To string }

package console

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var queuePages = []route{
	{"GET queues/{queue}", "overview", (*page).queue},
	{"GET queues/{queue}/policy", "overview", (*page).policy},
	{"GET queues/{queue}/workers", "overview", (*page).workers},
	{"GET queues/{queue}/explain", "overview", (*page).explain},
	{"POST queues/{queue}/produce", "overview", (*page).produce},
	{"POST queues/{queue}/pause", "overview", (*page).pause},
	{"POST queues/{queue}/resume", "overview", (*page).pause},
	{"POST queues/{queue}/purge", "overview", (*page).purge},
}

const (
	messagesPerPage = 25
	previewBytes    = 1024 // of payloads; larger ones are only on the message's page
)

// queue shows one queue: what is in it, its rates, and its messages.
func (p *page) queue() error {
	name := p.r.PathValue("queue")
	q, err := p.api.Queue(p.ctx, name, p.then()...)
	if err != nil {
		return err
	}
	data := queueData{Queue: q, Range: cmp.Or(p.Param("range"), "hour")}
	if p.At == "" && p.part("chart") {
		if data.Chart, err = p.chart(name, data.Range); err != nil {
			return err
		}
	}
	if p.part("messages") {
		query := p.messageQuery()
		list, err := p.api.Messages(p.ctx, name, query,
			append(p.then(), client.MaxPayload(previewBytes))...)
		if err != nil {
			return err
		}
		data.Messages, data.Pager = list.Messages, p.pager(list.NextCursor)
		data.Filtered = query.State != "" || query.Key != nil || query.Kind != nil ||
			len(query.Headers) > 0
		if list.Scanned != nil && list.NextCursor != "" && len(list.Messages) < messagesPerPage {
			read, _ := strconv.Atoi(p.Param("read"))
			read += *list.Scanned
			data.Pager.On = len(list.Messages) == 0
			data.Pager.Next = p.Query("after", list.NextCursor, "read", strconv.Itoa(read))
			data.Pager.Note = plural(int64(read), "message") + " read so far"
		}
	}
	return p.show("queue", name, data)
}

type queueData struct {
	Queue    *wire.Queue
	Range    string // hour, day
	Chart    *chart // nil: of a past
	Messages []wire.Message
	Filtered bool
	Pager    pager
}

// messageQuery returns what the filter bar selects.
func (p *page) messageQuery() client.MessageQuery {
	q := client.MessageQuery{
		State: p.Param("state"), Limit: messagesPerPage, After: p.Param("after"),
		Key: optional(p.Param("key")), Kind: optional(p.Param("kind")),
	}
	if name, value, ok := strings.Cut(p.Param("header"), "="); ok {
		q.Headers = map[string]string{strings.TrimSpace(name): strings.TrimSpace(value)}
	}
	return q
}

// chart is what passed through a queue, in steps of time. Its fields are read by console.js.
type chart struct {
	Times  []int64  `json:"times"` // Unix seconds, the oldest first
	Series []series `json:"series"`
}

type series struct {
	Name   string    `json:"name"`
	Colour string    `json:"colour"` // the name of a token in console.css
	Values []float64 `json:"values"`
	Total  int64     `json:"total"`
}

// JSON is the chart for the script that draws it.
func (c *chart) JSON() (string, error) {
	b, err := json.Marshal(c)
	return string(b), err
}

// chart counts the last hour by minutes, or the last day by ten minutes.
func (p *page) chart(queue, span string) (*chart, error) {
	minutes, step := 60, 1
	if span == "day" {
		minutes, step = 24*60, 10
	}
	stats, err := p.api.QueueStats(p.ctx, queue, minutes, p.now())
	if err != nil {
		return nil, err
	}
	c := &chart{}
	last := time.Now().Truncate(time.Minute)
	for i := range minutes / step {
		back := time.Duration(minutes-1-i*step) * time.Minute
		c.Times = append(c.Times, last.Add(-back).Unix())
	}
	for _, s := range []struct {
		name, colour string
		of           func(*wire.Minute) uint64
	}{
		{"enqueued", "ready", func(m *wire.Minute) uint64 { return m.Enqueued }},
		{"acked", "acked", func(m *wire.Minute) uint64 { return m.Acked }},
		{"failed", "leased", func(m *wire.Minute) uint64 { return m.Retried + m.LeaseExpired }},
		{"dead", "dead", func(m *wire.Minute) uint64 { return m.DeadLettered }},
	} {
		values, total := counted(stats.Minutes, minutes, step, s.of)
		c.Series = append(c.Series, series{s.name, s.colour, values, total})
	}
	return c, nil
}

// counted sums up a value of the last minutes in steps of some, the oldest first, and in all.
// Minutes in which nothing happened are not listed.
func counted(list []wire.Minute, minutes, step int, of func(*wire.Minute) uint64) (
	values []float64, total int64) {
	values = make([]float64, minutes/step)
	last := time.Now().Truncate(time.Minute)
	for i := range list {
		back := int(last.Sub(list[i].Start.Time()) / time.Minute)
		if at := minutes - 1 - max(back, 0); at >= 0 { // the log's clock may be ahead
			n := of(&list[i])
			values[at/step] += float64(n)
			total += int64(n)
		}
	}
	return values, total
}

// lately returns a chart of the last minutes of a queue, nil for a past. format names the sum.
func (p *page) lately(
	queue string, minutes, step int, format string, of func(*wire.Minute) uint64,
) *spark {
	if p.At != "" {
		return nil
	}
	stats, err := p.api.QueueStats(p.ctx, queue, minutes, p.now())
	if err != nil {
		return nil // the counts are being made; the page is of use without them
	}
	values, total := counted(stats.Minutes, minutes, step, of)
	s := sparks(fmt.Sprintf(format, total), values)
	return &s
}

// workers lists who leases from a queue.
func (p *page) workers() error {
	name := p.r.PathValue("queue")
	list, err := p.api.Workers(p.ctx, name, p.now())
	if err != nil {
		return err
	}
	return p.show("queue-workers", "Workers of "+name, workersData{name, list})
}

type workersData struct {
	Queue   string
	Workers []wire.Worker
}

// explain says why a message, or the first of a key, is not being delivered.
func (p *page) explain() error {
	name, id := p.r.PathValue("queue"), strings.TrimSpace(p.Param("message_id"))
	key := optional(p.Param("key"))
	if id != "" {
		key = nil
	}
	e, err := p.api.Explain(p.ctx, name, id, key, p.then()...)
	if err != nil {
		return err
	}
	return p.show("queue-explain", "Why "+name+" waits", explainData{
		Queue: name, Explanation: e,
		As: p.as("GET",
			v1("queues", name, "explain")+query("message_id", id, "key", deref(key), "at", p.At), nil,
			[]string{"queue", "explain", name}, "message", id, "key", deref(key), "at", p.At),
	})
}

type explainData struct {
	Queue       string
	Explanation *wire.Explanation
	As          *as
}

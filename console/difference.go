package console

import (
	"cmp"
	"errors"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var differencePages = []route{{"GET past/difference", "", (*page).difference}}

const (
	differPerPage   = 50    // queues that differ
	comparedPerPage = 10000 // queues
	eventsPerPage   = 100   // of which the messages are compared
)

// difference shows what differs between two instants: the queues, or the messages of one.
func (p *page) difference() error {
	data := differenceData{
		FromText: p.Param("from"), ToText: cmp.Or(p.Param("to"), "now"), Queue: p.Param("queue"),
	}
	if data.FromText == "" {
		return p.show("difference", "Difference", data)
	}
	var err error
	if data.From, err = p.instant(data.FromText); err != nil {
		return err
	}
	if data.To, err = p.instant(data.ToText); err != nil {
		return err
	}
	if data.From.Index > data.To.Index {
		data.From, data.To = data.To, data.From
	}
	title := "Difference"
	if data.Queue == "" {
		err = p.queuesThatDiffer(&data)
	} else {
		title += " in " + data.Queue
		err = p.messagesThatDiffer(&data)
	}
	if err != nil {
		return err
	}
	return p.show("difference", title, data)
}

type differenceData struct {
	FromText, ToText string // as asked for
	From, To         instant
	Queue            string // "": all, without their messages

	Queues   []queueDifference
	Messages []messageDifference
	Changes  []wire.Event // of the queue itself
	Pager    pager
}

// instant is a place in history.
type instant struct {
	At    string // "": now
	Index uint64
	Time  wire.Time // of the newest block then
}

// opts are the options of a read at the instant.
func (t *instant) opts() []client.CallOption {
	return []client.CallOption{client.Stale(), client.At(t.At)}
}

func (p *page) instant(text string) (instant, error) {
	t := instant{At: text}
	if text == "now" {
		t.At = ""
	}
	head, err := p.api.LogHead(p.ctx, t.opts()...)
	if err != nil {
		return t, err
	}
	t.Index, t.Time = head.Index, head.Time
	return t, nil
}

// queueDifference is a queue at two instants; nil: it was not there.
type queueDifference struct {
	Name          string
	Before, After *wire.Queue
	Policy        []wire.Difference
	Replaced      bool // deleted, and created again
}

// Counts returns what is in the queue, before and after.
func (d *queueDifference) Counts() (out []counts) {
	var a, b wire.Queue
	if d.Before != nil {
		a = *d.Before
	}
	if d.After != nil {
		b = *d.After
	}
	return []counts{
		{a.Stats.Depth, b.Stats.Depth}, {a.Stats.InFlight, b.Stats.InFlight},
		{a.Stats.Scheduled, b.Stats.Scheduled}, {a.Dead, b.Dead},
		{a.Stats.EnqueuedTotal, b.Stats.EnqueuedTotal}, {a.Stats.AckedTotal, b.Stats.AckedTotal},
	}
}

// counts is a number at two instants.
type counts struct{ Before, After int64 }

// queuesThatDiffer compares a page of queues, by name.
func (p *page) queuesThatDiffer(data *differenceData) error {
	before := &queueReader{p: p, at: &data.From, after: p.Param("after")}
	after := &queueReader{p: p, at: &data.To, after: p.Param("after")}
	for n := 1; ; n++ {
		a, err := before.peek()
		if err != nil {
			return err
		}
		b, err := after.peek()
		if err != nil || a == nil && b == nil {
			return err
		}
		d := queueDifference{Before: a, After: b}
		switch {
		case b == nil || a != nil && a.Name < b.Name:
			d.Name, d.After = a.Name, nil
		case a == nil || b.Name < a.Name:
			d.Name, d.Before = b.Name, nil
		default:
			d.Name = a.Name
		}
		if d.Before != nil {
			before.next()
		}
		if d.After != nil {
			after.next()
		}
		differs, err := d.compare()
		if err != nil {
			return err
		}
		if differs {
			data.Queues = append(data.Queues, d)
		}
		if len(data.Queues) == differPerPage || n == comparedPerPage {
			data.Pager = p.pager(d.Name)
			return nil
		}
	}
}

// compare reports whether the queue differs. Ages and rates always do, and do not count.
func (d *queueDifference) compare() (bool, error) {
	if d.Before == nil || d.After == nil {
		return true, nil
	}
	a, b := *d.Before, *d.After
	before, err := wire.Marshal(&a.Policy)
	if err != nil {
		return false, err
	}
	after, err := wire.Marshal(&b.Policy)
	if err != nil {
		return false, err
	}
	d.Policy, d.Replaced = wire.Differences(before, after), a.CreatedAt != b.CreatedAt
	for _, s := range []*wire.Stats{&a.Stats, &b.Stats} {
		s.OldestMessageAgeSeconds, s.MessagesPerMinute = 0, nil
	}
	return len(d.Policy) > 0 || d.Replaced || a.Stats != b.Stats || a.Dead != b.Dead ||
		a.Paused != b.Paused || !slices.Equal(a.PausedKeys, b.PausedKeys), nil
}

// queueReader reads the queues at an instant, in the order of their names.
type queueReader struct {
	p     *page
	at    *instant
	after string
	list  []wire.Queue
	ended bool
}

// peek returns the next queue, nil behind the last one.
func (r *queueReader) peek() (*wire.Queue, error) {
	if len(r.list) == 0 && !r.ended {
		l, err := r.p.api.QueuePage(r.p.ctx, client.QueueQuery{After: r.after}, r.at.opts()...)
		if err != nil {
			return nil, err
		}
		r.list, r.after, r.ended = l.Queues, l.NextCursor, l.NextCursor == ""
	}
	if len(r.list) == 0 {
		return nil, nil
	}
	return &r.list[0], nil
}

func (r *queueReader) next() { r.list = r.list[1:] }

// messageDifference is a message at two instants; nil: it was not there.
type messageDifference struct {
	ID, Key       string
	Before, After *wire.Message
	Last          wire.Event // between them
}

// messagesThatDiffer compares the messages that a page of events between the instants is about. A
// message is on the page of its first event.
func (p *page) messagesThatDiffer(data *differenceData) error {
	found, err := p.api.Events(p.ctx, client.EventQuery{
		From: cmp.Or(data.From.At, "now"), To: cmp.Or(data.To.At, "now"), After: p.Param("after"),
		Queue: data.Queue, Limit: eventsPerPage,
	}, p.now())
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i := range found.Events {
		e := &found.Events[i]
		id := e.MessageID
		if e.Queue != data.Queue {
			id = e.NewMessageID // it came from another queue
		}
		switch {
		case e.Index <= data.From.Index || seen[id]:
			continue
		case id == "":
			data.Changes = append(data.Changes, *e)
			continue
		}
		seen[id] = true
		if err := p.compareMessage(data, e, id); err != nil {
			return err
		}
	}
	if len(found.Events) == eventsPerPage || found.Partial {
		data.Pager = p.pager(found.NextCursor)
	}
	return nil
}

// compareMessage adds a message that differs, unless it was on an earlier page.
func (p *page) compareMessage(data *differenceData, e *wire.Event, id string) (err error) {
	d := messageDifference{ID: id}
	if d.After, err = p.messageAt(id, &data.To); err != nil || d.After == nil {
		return err
	}
	for _, h := range d.After.History {
		if h.MessageID != id && h.NewMessageID != id || h.Index <= data.From.Index {
			continue
		}
		if p.Param("after") != "" && h.EventID < e.EventID {
			return nil
		}
		d.Last = h
	}
	if d.Before, err = p.messageAt(id, &data.From); err != nil {
		return err
	}
	a, b := d.Before, d.After
	if d.Key = b.Key; a == nil || a.State != b.State || a.Attempt != b.Attempt ||
		a.LeaseID != b.LeaseID || a.AvailableAt != b.AvailableAt || a.Priority != b.Priority {
		data.Messages = append(data.Messages, d)
	}
	return nil
}

// messageAt returns a message as it was at an instant, nil if it was not there.
func (p *page) messageAt(id string, t *instant) (*wire.Message, error) {
	m, err := p.api.Message(p.ctx, id, t.opts()...)
	if errors.Is(err, client.ErrMessageNotFound) {
		return nil, nil
	}
	return m, err
}

package console

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var differencePages = []route{{"GET past/difference", "", (*page).difference}}

const (
	differPerPage   = 50  // queues that differ
	comparedPerPage = 500 // queues
	eventsPerPage   = 15  // of which the messages are compared
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
	all, end := map[string]*queueDifference{}, ""
	for _, t := range []*instant{&data.From, &data.To} {
		list, err := p.api.QueuePage(p.ctx, client.QueueQuery{
			After: p.Param("after"), Limit: comparedPerPage,
		}, t.opts()...)
		if err != nil {
			return err
		}
		if next := list.NextCursor; next != "" && (end == "" || next < end) {
			end = next // beyond it, only one of the lists goes on
		}
		for i := range list.Queues {
			q := &list.Queues[i]
			d := cmp.Or(all[q.Name], &queueDifference{Name: q.Name})
			if all[q.Name] = d; t == &data.From {
				d.Before = q
			} else {
				d.After = q
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch differs, err := all[name].compare(); {
		case err != nil:
			return err
		case end != "" && name > end:
		case differs && len(data.Queues) == differPerPage:
			data.Pager = p.pager(data.Queues[differPerPage-1].Name)
			return nil
		case differs:
			data.Queues = append(data.Queues, *all[name])
		}
	}
	data.Pager = p.pager(end)
	return nil
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

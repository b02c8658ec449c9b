package console

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var messagePages = []route{
	{"GET messages/{id}", "overview", (*page).messagePage},
	{"GET messages/{id}/payload", "overview", (*page).download},
	{"POST messages/{id}/delete", "overview", (*page).deleteMessage},
	{"POST messages/{id}/resurrect", "overview", (*page).resurrect},
	{"POST messages/{id}/reschedule", "overview", (*page).reschedule},
	{"POST messages/{id}/erase", "overview", (*page).erase},
}

const (
	maxEvents   = 200      // of a message's life on a page
	maxCommand  = 16 << 10 // bytes of a payload in a command
	maxAnswer   = 4 << 10  // bytes that are shown of a result
	maxKinShown = 200      // messages in the tree of a lineage
)

// messageData is a message and all that is known of it.
type messageData struct {
	*wire.Message
	Worker  string     // who has its lease
	Begins  *wire.Time // where history begins, if that is later than the message
	Erasure *wire.Event

	Life    *life
	Events  []eventRow
	Earlier string // query of the page of events before these; "" none
	Later   bool   // there are events after these

	Kin        []wire.Kin
	KinUnknown string // why there is no lineage
	KinMore    bool

	Changes  []wire.MessageEdit
	Payload  *payload
	Original *payload
	Read     *as
	Again    *as // enqueues the same once more; nil: it is too long, or not known
}

// eventRow is one event of a message's life.
type eventRow struct {
	wire.Event
	After string // since the event before
	Other string // the message that it is about, where that is another than in the row before
	Place string // the queue, in the same way
	Next  wire.Time
}

// message returns a message, or says clearly why there is none.
func (p *page) message(id string) (*wire.Message, error) {
	m, err := p.api.Message(p.ctx, id, p.then()...)
	e, ok := errors.AsType[*client.Error](err)
	switch {
	case !ok:
		return m, err
	case e.Problem.Status == http.StatusBadRequest && e.Problem.Field == "id":
		return nil, &failure{http.StatusBadRequest, "This is no message id",
			"A message's id is a ULID: 26 characters, such as 01JD8K2V3M4N5P6Q7R8S9T0VWX."}
	case e.Problem.Status == http.StatusNotFound && p.At != "":
		return nil, &failure{http.StatusNotFound, "There was no such message then", id +
			" did not exist at " + p.At + ", or its history has been deleted since."}
	case e.Problem.Status == http.StatusNotFound:
		return nil, &failure{http.StatusNotFound, "There is no such message", id +
			" never existed, or retention has deleted its history."}
	}
	return nil, err
}

// messagePage shows one message and its life.
func (p *page) messagePage() error {
	m, err := p.message(p.r.PathValue("id"))
	if err != nil {
		return err
	}
	data := &messageData{Message: m}
	now := p.clock()
	if n := len(m.History); n > 0 {
		now = max(now, m.History[n-1].Time)
	}
	for _, a := range m.Attempts {
		if a.LeaseID == m.LeaseID {
			data.Worker = a.Worker
		}
	}
	if p.fragment() && p.Param("last") == cmp.Or(data.Last(), "-") {
		p.w.WriteHeader(http.StatusNoContent) // the browser keeps what it has
		return nil
	}
	if p.part("life") {
		if err := p.live(data, now); err != nil {
			return err
		}
	}
	if p.part("content") {
		if err := p.content(data); err != nil {
			return err
		}
	}
	status := http.StatusOK
	if p.fragment() && !data.Live() {
		status = stopPolling
	}
	return p.render(status, "message", "Message "+short(m.ID), data)
}

// live adds what changes while a message is in its queue.
func (p *page) live(data *messageData, now wire.Time) error {
	m := data.Message
	kin, err := p.api.Lineage(p.ctx, m.ID, p.then()...)
	if e, ok := errors.AsType[*client.Error](err); ok {
		kin, data.KinUnknown = nil, e.Problem.Detail
	} else if err != nil {
		return err
	}
	if kin != nil {
		data.Begins = kin.HistoryBeginsAt
		data.Kin, data.KinMore = kin.Tree(), kin.Truncated
		if len(data.Kin) > maxKinShown {
			data.Kin, data.KinMore = data.Kin[:maxKinShown], true
		}
	}
	last := len(m.History)
	if before, err := strconv.Atoi(p.Param("before")); err == nil && before > 0 && before < last {
		last, data.Later = before, true
	}
	first := max(0, last-maxEvents)
	if first > 0 {
		data.Earlier = p.Query("before", strconv.Itoa(first))
	}
	data.Events = eventRows(m.History, first, last)
	shown := *m
	if shown.History = m.History[:last]; data.Later && last > 0 {
		now = shown.History[last-1].Time
	}
	data.Life = paintLife(&shown, first, now)
	return nil
}

func eventRows(events []wire.Event, first, last int) []eventRow {
	workers := workersOf(events)
	rows := make([]eventRow, 0, last-first)
	id, queue := "", ""
	for i := first; i < last; i++ {
		e := eventRow{Event: events[i], Next: dueOf(&events[i])}
		e.Worker = cmp.Or(e.Worker, workers[e.LeaseID])
		if i > 0 {
			e.After = fine(e.Time - events[i-1].Time)
		}
		if e.MessageID != id {
			id, e.Other = e.MessageID, e.MessageID
		}
		if e.Queue != queue {
			queue, e.Place = e.Queue, e.Queue
		}
		rows = append(rows, e)
	}
	return rows
}

// content adds what the producer wrote, and the commands that read and write it.
func (p *page) content(data *messageData) error {
	m := data.Message
	for i := range m.History {
		if e := &m.History[i]; e.Type == "erased" {
			data.Erasure = e
		}
	}
	edited := func(e wire.Event) bool { return e.Edited }
	if slices.ContainsFunc(m.History, edited) {
		edits, err := p.api.Edits(p.ctx, m.ID, p.then()...)
		if err != nil {
			return err
		}
		data.Changes = edits
	}
	data.Read = p.as("GET", v1("messages", m.ID)+query("at", p.At), nil,
		[]string{"message", "show", m.ID}, "at", p.At)
	b, media := bytesOf(m)
	if m.Erased || m.Damaged || len(b) == 0 && m.HistoryTruncated ||
		m.HistoryTruncated && m.Size == 0 {
		data.Payload = &payload{Missing: true}
		return nil
	}
	data.Payload = payloadOf(b, media, p.Param("as"))
	if len(m.Original) > 0 {
		data.Original = payloadOf(m.Original, "application/json", p.Param("as"))
	}
	if len(b) > maxCommand {
		return nil
	}
	again := wire.NewMessage{
		Payload: m.Payload, PayloadBytes: m.PayloadBytes, ContentType: m.ContentType, Key: m.Key,
		Kind: m.Kind, CorrelationID: m.CorrelationID,
	}
	if len(m.Headers) > 0 {
		again.Headers = m.Headers
	}
	if m.PayloadBytes != nil {
		again.Payload = nil
	}
	if m.Priority != 0 {
		again.Priority = &m.Priority
	}
	body, err := wire.Marshal(&again)
	if err != nil {
		return nil // not UTF-8 somewhere: there is no such command
	}
	data.Again = p.as("POST", v1("queues", m.Queue, "messages"),
		wire.ProduceRequest{Messages: []wire.NewMessage{again}},
		[]string{"enqueue", m.Queue, "--as", "message", string(body)})
	return nil
}

// Last is the id of its last event: without another one, its page does not change.
func (d *messageData) Last() string {
	if n := len(d.History); n > 0 {
		return d.History[n-1].EventID
	}
	return ""
}

// Live reports whether the message is in its queue.
func (d *messageData) Live() bool { return d.Waits() || d.State == "leased" }

// Waits reports whether it can be given another time.
func (d *messageData) Waits() bool { return d.State == "ready" || d.State == "scheduled" }

// Shown is the state as a person sees it: a dead message waits in a queue of its own.
func (d *messageData) Shown() string {
	switch {
	case d.Dead != nil && d.Waits():
		return "dead"
	case d.Held:
		return "held"
	}
	return d.State
}

// ResultText is the result with which it was acked.
func (d *messageData) ResultText() string {
	return plain(string(d.Result[:min(len(d.Result), maxAnswer)]))
}

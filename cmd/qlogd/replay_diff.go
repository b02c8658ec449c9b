package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/replay"
)

// diffBody is a line of --diff with --output json. A queue's has no message_id, and a queueSide
// before and after; a message's has a messageSide.
type diffBody struct {
	Queue     string `json:"queue"`
	MessageID string `json:"message_id,omitzero"`
	Before    any    `json:"before"`
	After     any    `json:"after"`
}

type queueSide struct {
	Paused    bool       `json:"paused"`
	CreatedAt wire.Time  `json:"created_at"`
	UpdatedAt wire.Time  `json:"updated_at"`
	Stats     wire.Stats `json:"stats"`
}

type messageSide struct {
	State          string    `json:"state"`
	Held           bool      `json:"held,omitzero"`
	Reason         string    `json:"reason,omitzero"`
	Key            string    `json:"key,omitzero"`
	Attempt        uint32    `json:"attempt"`
	AvailableAt    wire.Time `json:"available_at,omitzero"`
	LeaseID        string    `json:"lease_id,omitzero"`
	LeaseExpiresAt wire.Time `json:"lease_expires_at,omitzero"`
	LeftAt         wire.Time `json:"left_at,omitzero"`
	ToQueue        string    `json:"to_queue,omitzero"`
	NewMessageID   string    `json:"new_message_id,omitzero"`
}

// changes prints what changed between the two instants.
func (r *replayer) changes(d *replay.Dir) error {
	var queues, messages int
	bar := r.progress("folding", true)
	cost, err := d.Diff(r.ctx, r.from, r.to, r.filter, func(c *replay.Change) error {
		bar.done()
		if c.Message != (event.ID{}) {
			messages++
		} else {
			queues++
		}
		return r.change(c)
	})
	bar.done()
	if err != nil || r.output == "json" {
		return err
	}
	fmt.Fprintf(r.stdout, "%s and %s changed\n",
		plural(queues, "queue", "queues"), plural(messages, "message", "messages"))
	fmt.Fprintf(r.stderr, "%s folded\n", plural(int64(cost.Blocks), "block", "blocks"))
	return nil
}

// change prints a queue or a message that differs.
func (r *replayer) change(c *replay.Change) error {
	body := diffBody{Queue: c.Queue}
	if c.Message != (event.ID{}) {
		body.MessageID = c.Message.String()
		body.Before, body.After = messageSideOf(c.Before), messageSideOf(c.After)
	} else {
		body.Before = queueSideOf(c.QueueBefore, c.ClockBefore)
		body.After = queueSideOf(c.QueueAfter, c.ClockAfter)
	}
	return r.difference(body)
}

// difference prints one line of a diff.
func (r *replayer) difference(body diffBody) error {
	if r.output == "json" {
		return r.wire(named{"diff": body})
	}
	_, err := fmt.Fprintf(r.stdout, "%-20s  %-26s  %s → %s\n",
		body.Queue, cmp.Or(body.MessageID, "queue"), sideText(body.Before), sideText(body.After))
	return err
}

func queueSideOf(q *event.QueueView, clock int64) any {
	if q == nil {
		return nil
	}
	stats := api.StatsOf(&q.Stats, clock)
	return queueSide{q.Paused, wire.Time(q.CreatedAt), wire.Time(q.UpdatedAt), stats}
}

func messageSideOf(f *replay.Fate) any {
	if f == nil {
		return nil
	}
	s := messageSide{State: f.State.String(), Held: f.Held, Key: f.Key, Attempt: f.Attempt}
	if f.State == event.StateScheduled {
		s.AvailableAt = wire.Time(f.Due)
	}
	if f.State == event.StateLeased {
		s.LeaseID, s.LeaseExpiresAt = f.Lease.String(), wire.Time(f.LeaseExpiresAt)
	}
	if e := f.Left; e != nil {
		s.LeftAt, s.Reason = wire.Time(event.ClockOf(e.ID)), e.Reason.String()
		if e.ToQueue != "" {
			s.ToQueue, s.NewMessageID = e.ToQueue, e.ID.String()
		}
	}
	return s
}

func sideText(v any) string {
	switch s := v.(type) {
	case queueSide:
		t := s.Stats
		text := fmt.Sprintf("depth %d, scheduled %d, in flight %d, enqueued %d, acked %d, dead %d",
			t.Depth, t.Scheduled, t.InFlight, t.EnqueuedTotal, t.AckedTotal, t.DeadLetteredTotal)
		if s.Paused {
			text += ", paused"
		}
		return text
	case messageSide:
		text := s.State
		if s.Held {
			text += " (held)"
		}
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		if s.Attempt > 0 {
			text += fmt.Sprintf(", attempt %d", s.Attempt)
		}
		if s.ToQueue != "" {
			text += ", to " + s.ToQueue
		}
		return text
	}
	return "nothing"
}

// compare compares the log with another node's, or with a live state.
func (r *replayer) compare(d *replay.Dir) (err error) {
	var body *replay.Comparison
	if strings.HasPrefix(r.Against, "http://") || strings.HasPrefix(r.Against, "https://") {
		body, err = r.againstLive()
	} else {
		other, oerr := (&logSource{DataDir: r.Against}).open(r.request)
		if oerr != nil {
			return oerr
		}
		defer other.Close()
		body, err = d.Compare(r.ctx, other, r.to, r.filter, r.change)
	}
	if err != nil {
		return err
	}
	text := "the logs are the same"
	if !body.SameLog {
		text = fmt.Sprintf("the logs agree up to index:%d and part at index:%d",
			body.AgreeUpTo, body.Parted)
	}
	text += fmt.Sprintf("; compared at index:%d (%d here, %d there): %s", body.Index, body.Head,
		body.OtherHead, plural(body.Changes, "difference", "differences"))
	if body.InMotion > 0 {
		text += fmt.Sprintf(", %d changed meanwhile and left out", body.InMotion)
	}
	if err := r.say(named{"compare": body}, "%s", text); err != nil {
		return err
	}
	if !body.SameLog || !body.SameState {
		return exitf(exitDifference, "%s differs from %s", r.name, r.Against)
	}
	return nil
}

// sides are the queues of a state, and the messages in them.
type sides map[place]any

// place names a queue or, with an id, a message in it.
type place struct{ message, queue string }

// compare orders queues by name before messages by id.
func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.message, o.message), cmp.Compare(p.queue, o.queue))
}

// serverSides returns what a server answers, and the heads of its log before and after.
func serverSides(c request) (all sides, before, after *wire.LogHead, err error) {
	all = sides{}
	if before, err = c.LogHead(c.ctx); err != nil {
		return nil, nil, nil, err
	}
	queues, err := c.Queues(c.ctx, "")
	if err != nil {
		return nil, nil, nil, err
	}
	for _, q := range queues {
		all[place{"", q.Name}] = queueSide{q.Paused, q.CreatedAt, q.UpdatedAt, q.Stats}
		for m, err := range c.AllMessages(c.ctx, q.Name, client.MessageQuery{Limit: 1000}) {
			if err != nil {
				return nil, nil, nil, err
			}
			all[place{m.ID, m.Queue}] = messageSide{
				State: m.State, Held: m.Held, Key: m.Key, Attempt: uint32(m.Attempt),
				AvailableAt: m.AvailableAt, LeaseID: m.LeaseID, LeaseExpiresAt: m.LeaseExpiresAt,
			}
		}
	}
	after, err = c.LogHead(c.ctx)
	return all, before, after, err
}

// againstLive compares the fold of the log with a running server's answers. The directory must be a
// running node's. What changed between the first answer and the last is left out.
func (r *replayer) againstLive() (*replay.Comparison, error) {
	r.reach.Addr = r.Against
	var there sides
	var before, after *wire.LogHead
	err := r.ask(func(c request) (err error) {
		there, before, after, err = serverSides(c)
		return err
	})
	if err != nil {
		return nil, err
	}
	d, err := r.dir(false) // opened again: the directory has moved on, too
	if err != nil {
		return nil, err
	}
	defer d.Close()
	index := after.Index
	body := &replay.Comparison{Index: index, Head: d.Log.Head(), OtherHead: index, AgreeUpTo: index}
	if body.Head < index {
		return nil, usagef("the log ends at index:%d, the server is at index:%d already: "+
			"give the data directory of a node of its cluster that runs", body.Head, index)
	}
	chain, err := d.Log.ChainAt(index)
	if err != nil {
		return nil, err
	}
	if body.SameLog = event.Chain(chain).String() == after.ChainHash; !body.SameLog {
		body.AgreeUpTo, body.Parted = 0, index
		fmt.Fprintf(r.stderr, "qlogd: at index:%d the chain is %x… here and %.16s… there: "+
			"another cluster's, or rewritten\n", index, chain[:8], after.ChainHash)
		return body, nil
	}
	moving, movingQueues, err := d.InMotion(r.ctx, before.Index+1, index)
	if err != nil {
		return nil, err
	}
	state, _, err := d.StateAt(r.ctx, event.Instant{Kind: event.InstantIndex, Index: index})
	if err != nil {
		return nil, err
	}
	here := sides{}
	for _, q := range state.Queues() {
		here[place{"", q.Name}] = queueSideOf(&q, state.Clock())
	}
	for m := range state.All {
		here[place{m.ID.String(), m.Queue}] = messageSideOf(&replay.Fate{MessageView: m})
	}
	body.InMotion = len(moving)
	both := maps.Clone(here)
	maps.Copy(both, there)
	for _, p := range slices.SortedFunc(maps.Keys(both), place.compare) {
		inMotion := movingQueues[p.queue]
		excluded := moving[p.message] || p.message == "" && inMotion ||
			r.filter.Queue != "" && r.filter.Queue != p.queue ||
			p.message != "" && r.Message != "" && r.filter.Message.String() != p.message
		if excluded || steady(here[p], inMotion) == steady(there[p], inMotion) {
			continue
		}
		body.Changes++
		if err := r.difference(diffBody{p.queue, p.message, here[p], there[p]}); err != nil {
			return nil, err
		}
	}
	body.SameState = body.Changes == 0
	return body, nil
}

// steady returns a side without what changes with the moment: ages and rates of a queue, and
// whether a message is held, if its queue is moving.
func steady(body any, moving bool) any {
	switch s := body.(type) {
	case queueSide:
		s.Stats.OldestMessageAgeSeconds, s.Stats.MessagesPerMinute = 0, nil
		return s
	case messageSide:
		s.Held = s.Held && !moving
		return s
	}
	return nil
}

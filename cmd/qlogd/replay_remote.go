package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
)

// remote tells the past by asking a running server: its events, and its queues
// as they were. Index and chain are those of a log that is at hand, so they are
// left out here.
func (r *replayer) remote(ctx context.Context) error {
	c, err := r.server()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(r.stdout, 64<<10)
	buffered := *r.app
	buffered.stdout = out
	// Both questions are asked about the same instant: now moves on.
	at := r.toText
	when := wire.Time(r.to.Time)
	switch r.to.Kind {
	case event.InstantTime:
		at = when.String()
	case event.InstantNow:
		newest, err := c.Events(ctx, client.EventQuery{From: "now", Limit: 1})
		if err != nil {
			return remoteError(err)
		}
		if id, err := event.ParseID(newest.NextCursor); err == nil {
			// A cursor is a place, not always an event's: its entry is meant.
			at, when = fmt.Sprintf("index:%d", event.RefOf(id).Index), wire.Time(event.ClockOf(id))
		}
	case event.InstantID:
		when = wire.Time(event.ClockOf(r.to.ID))
	}
	from := r.fromText
	if r.from.Kind == event.InstantTime {
		from = wire.Time(r.from.Time).String()
	}
	lines := &eventLines{app: &buffered}
	n := 0
	var last wire.Event
	events := c.AllEvents(ctx, client.EventQuery{From: from, To: at, Queue: r.filter.Queue, Limit: 1000})
	if r.message != "" {
		events = r.history(ctx, c, at)
	}
	for e, err := range events {
		if err != nil {
			return remoteError(err)
		}
		n++
		last = e
		if err := lines.print(e); err != nil {
			return err
		}
	}
	queues, err := c.Queues(ctx, "", client.At(at))
	if err != nil {
		return remoteError(err)
	}
	if when == 0 {
		when = last.Time // index:N: that of its newest event told
	}
	body := remoteState{At: when, Queues: map[string]wire.Stats{}}
	for _, q := range queues {
		if r.filter.Queue == "" || r.filter.Queue == q.Name {
			body.Queues[q.Name] = q.Stats
		}
	}
	if r.output == "json" {
		err = buffered.wire(struct {
			State remoteState `json:"state"`
		}{body})
	} else {
		err = buffered.state(&stateBody{At: body.At, Queues: body.Queues}, n)
	}
	return errors.Join(err, out.Flush())
}

// history tells a message's events, through dead-letter queues, replays and
// resurrections as a data directory's log does, between the two instants; to is
// the second one in the server's words.
func (r *replayer) history(ctx context.Context, c *client.Client, to string) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		last, err := event.ParseInstant(to, 0)
		var events []wire.Event
		if err == nil {
			events, err = c.History(ctx, r.message)
		}
		if errors.Is(err, client.ErrMessageNotFound) {
			return
		}
		if err != nil {
			yield(wire.Event{}, err)
			return
		}
		for _, e := range events {
			if order(&e, r.from) < 0 || order(&e, last) > 0 || r.filter.Queue != "" && e.Queue != r.filter.Queue && e.ToQueue != r.filter.Queue {
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// order compares an event with an instant: negative before, positive behind it.
func order(e *wire.Event, at event.Instant) int {
	switch at.Kind {
	case event.InstantStart:
		return 1
	case event.InstantNow:
		return -1
	case event.InstantTime:
		return cmp.Compare(int64(e.Time), at.Time)
	}
	return cmp.Compare(e.Index, at.Index)
}

type remoteState struct {
	At     wire.Time             `json:"at"`
	Queues map[string]wire.Stats `json:"queues"`
}

// remoteError makes a refused instant wrong usage, as it is for a directory.
func remoteError(err error) error {
	if errors.Is(err, client.ErrHistoryExpired) {
		return usagef("%w", err)
	}
	return told(err)
}

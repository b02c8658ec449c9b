package main

import (
	"bufio"
	"context"
	"errors"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/event"
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
	to, at := r.toText, r.toText
	if r.to.Kind == event.InstantNow || r.to.Kind == event.InstantTime {
		ms := r.to.Time
		if r.to.Kind == event.InstantNow {
			ms = time.Now().UnixMilli()
		}
		to = wire.Time(ms).String()
		at = to
	}
	from := r.fromText
	if r.from.Kind == event.InstantTime {
		from = wire.Time(r.from.Time).String()
	}
	lines := &eventLines{app: &buffered}
	n := 0
	var last wire.Event
	q := client.EventQuery{From: from, To: to, Queue: r.filter.Queue, MessageID: r.message, Limit: 1000}
	for e, err := range c.AllEvents(ctx, q) {
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
	body := remoteState{At: last.Time, Queues: map[string]wire.Stats{}}
	if t, err := time.Parse(time.RFC3339Nano, at); err == nil {
		body.At = wire.TimeOf(t)
	}
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

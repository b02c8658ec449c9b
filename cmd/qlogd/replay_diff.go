package main

import (
	"bufio"
	"context"
	"fmt"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/replay"
)

// diffLine is a line of --diff with --output json. Of a queue, message_id is
// left out and before and after are its counts; of a message, what it is.
type diffLine struct {
	Diff diffBody `json:"diff"`
}

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

// tellDiff prints what changed between the two instants.
func (r *replayer) tellDiff(ctx context.Context, d *replay.Dir) error {
	out := bufio.NewWriterSize(r.stdout, 64<<10)
	printer := *r.app
	printer.stdout = out
	var queues, messages int
	bar := r.progress("folding", true)
	var beforeClock, afterClock int64
	_, _, cost, err := d.Diff(ctx, r.from, r.to, r.filter, func(before, after int64) { beforeClock, afterClock = before, after; bar.done() }, func(c *replay.Change) error {
		if c.Message != (event.ID{}) {
			messages++
		} else {
			queues++
		}
		return r.change(&printer, c, beforeClock, afterClock)
	})
	bar.done()
	if err != nil {
		return err
	}
	if r.output != "json" {
		fmt.Fprintf(out, "%s and %s changed\n", plural(queues, "queue", "queues"), plural(messages, "message", "messages"))
		fmt.Fprintf(r.stderr, "%s folded\n", plural(int(cost.Blocks), "block", "blocks"))
	}
	return out.Flush()
}

// change prints a queue or a message that differs.
func (r *replayer) change(out *app, c *replay.Change, beforeClock, afterClock int64) error {
	body := diffBody{Queue: c.Queue}
	if c.Message != (event.ID{}) {
		body.MessageID = c.Message.String()
		body.Before, body.After = messageSideOf(c.Before), messageSideOf(c.After)
	} else {
		body.Before, body.After = queueSideOf(c.QueueBefore, beforeClock), queueSideOf(c.QueueAfter, afterClock)
	}
	return r.line(out, body)
}

// line prints one difference.
func (r *replayer) line(out *app, body diffBody) error {
	if r.output == "json" {
		return out.wire(diffLine{body})
	}
	what := "queue"
	if body.MessageID != "" {
		what = body.MessageID
	}
	_, err := fmt.Fprintf(out.stdout, "%-20s  %-26s  %s → %s\n", body.Queue, what, sideText(body.Before), sideText(body.After))
	return err
}

func queueSideOf(q *event.QueueView, clock int64) any {
	if q == nil {
		return nil
	}
	return queueSide{Paused: q.Paused, CreatedAt: wire.Time(q.CreatedAt), UpdatedAt: wire.Time(q.UpdatedAt), Stats: statsOf(&q.Stats, clock)}
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
		s.LeftAt = wire.Time(event.ClockOf(e.ID))
		s.Reason = e.Reason.String()
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
		text := fmt.Sprintf("depth %d, scheduled %d, in flight %d, enqueued %d, acked %d, dead %d", t.Depth, t.Scheduled, t.InFlight, t.EnqueuedTotal, t.AckedTotal, t.DeadLetteredTotal)
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

package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
)

// discards warn of messages that died in a queue without a dead-letter queue.
// They are counted where they are decided, under the state's lock, and told
// from elsewhere: a thousand that expire together are one line.
type discards struct {
	logger *slog.Logger

	mu   sync.Mutex
	died map[death]*tally
}

type death struct {
	queue  string
	reason event.Reason
}

type tally struct {
	count int
	last  event.ID
}

func newDiscards(logger *slog.Logger) *discards {
	return &discards{logger: logger, died: map[death]*tally{}}
}

// count notes what a block discarded, but for what somebody asked to be gone.
func (d *discards) count(events []event.Event) {
	for i := range events {
		e := &events[i]
		if e.Type != event.Discarded {
			continue
		}
		switch e.Reason {
		case event.ReasonMaxAttempts, event.ReasonExpired, event.ReasonRejected, event.ReasonKeyDead:
		default:
			continue
		}
		d.mu.Lock()
		t := d.died[death{e.Queue, e.Reason}]
		if t == nil {
			t = &tally{}
			d.died[death{e.Queue, e.Reason}] = t
		}
		t.count++
		t.last = e.Subject
		d.mu.Unlock()
	}
}

// run warns once a second until ctx ends, and then a last time.
func (d *discards) run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.tell()
		case <-ctx.Done():
			d.tell()
			return
		}
	}
}

func (d *discards) tell() {
	d.mu.Lock()
	died := d.died
	d.died = map[death]*tally{}
	d.mu.Unlock()
	for of, t := range died {
		d.logger.Warn("messages were discarded: their queue has no dead-letter queue",
			"queue", of.queue, "reason", of.reason.String(), "count", t.count, "last", t.last)
	}
}

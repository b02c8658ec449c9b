package replay

import (
	"context"

	"github.com/qlogd/qlogd/event"
)

// Filter selects events; its zero value takes all.
type Filter struct {
	Queue   string   // the event's own, or the one that a message moved to
	Message event.ID // through dead-letter queues and replays
}

// Takes reports whether the filter takes an event, Message left aside: a
// message's events are found by its history.
func (f *Filter) Takes(e *event.Event) bool {
	return f.Queue == "" || e.Queue == f.Queue || e.ToQueue == f.Queue
}

// Events calls fn with the events between two instants, both inclusive, in the
// log's order, and returns the indexes that the instants stand for.
func (s *Source) Events(ctx context.Context, from, to event.Instant, f Filter, fn func(index uint64, e *event.Event) error) (first, last uint64, err error) {
	if first, err = s.Log.From(from); err != nil {
		return 0, 0, err
	}
	if last, err = s.Log.To(to); err != nil {
		return 0, 0, err
	}
	if f.Message != (event.ID{}) {
		events, err := s.Log.History(ctx, f.Message)
		if err != nil {
			return first, last, err
		}
		for i := range events {
			index := event.RefOf(events[i].ID).Index
			if index < first || index > last || !f.Takes(&events[i]) {
				continue
			}
			if err := fn(index, &events[i]); err != nil {
				return first, last, err
			}
		}
		return first, last, nil
	}
	err = s.blocks(ctx, first, last, func(b *event.Block) error {
		for i := range b.Events {
			if f.Takes(&b.Events[i]) {
				if err := fn(b.Index, &b.Events[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return first, last, err
}

package replay

import (
	"context"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// Change is one queue or one message that differs between two instants. Of a
// queue, Message is zero.
type Change struct {
	Queue   string
	Message event.ID

	QueueBefore, QueueAfter *event.QueueView
	Before, After           *Fate
}

// Fate is a message at an instant: live, or how it left.
type Fate struct {
	event.MessageView
	Left *event.Event // the event with which it left its queue; nil while it is live
}

// Diff tells what changed between two instants: queues by name, then messages
// in the order in which they came. Also a message that came and went in between
// is told (from nothing to how it left). clocks, if not nil, is told the log's
// clock at both before the first change.
func (s *Source) Diff(ctx context.Context, from, to event.Instant, f Filter, clocks func(before, after int64), fn func(*Change) error) (before, after *projections.State, cost Cost, err error) {
	if before, cost, err = s.StateAt(ctx, from); err != nil {
		return nil, nil, cost, err
	}
	var c Cost
	if after, c, err = s.StateAt(ctx, to); err != nil {
		return nil, nil, cost, err
	}
	cost.Blocks, cost.Events = cost.Blocks+c.Blocks, cost.Events+c.Events
	if clocks != nil {
		clocks(before.Clock(), after.Clock())
	}
	if err := diffQueues(before, after, f, fn); err != nil {
		return before, after, cost, err
	}
	return before, after, cost, s.diffMessages(ctx, before, after, f, fn)
}

func diffQueues(before, after *projections.State, f Filter, fn func(*Change) error) error {
	names := map[string]bool{}
	for _, s := range []*projections.State{before, after} {
		for _, q := range s.Queues() {
			names[q.Name] = true
		}
	}
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		if f.Queue != "" && f.Queue != name {
			continue
		}
		c := &Change{Queue: name}
		if q, ok := before.Queue(name); ok {
			c.QueueBefore = &q
		}
		if q, ok := after.Queue(name); ok {
			c.QueueAfter = &q
		}
		if c.QueueBefore != nil && c.QueueAfter != nil && sameQueue(c.QueueBefore, c.QueueAfter) {
			continue
		}
		if err := fn(c); err != nil {
			return err
		}
	}
	return nil
}

func sameQueue(a, b *event.QueueView) bool {
	return a.Number == b.Number && a.Revision == b.Revision && a.Paused == b.Paused && a.Stats == b.Stats
}

// diffMessages looks at every message that an event in between is about, and at
// those that waited for their time: they become ready without an event.
func (s *Source) diffMessages(ctx context.Context, before, after *projections.State, f Filter, fn func(*Change) error) error {
	ids := map[event.ID]bool{}
	left := map[event.ID]event.Event{}
	add := func(id event.ID, queue string) {
		if id != (event.ID{}) && (f.Queue == "" || f.Queue == queue) {
			ids[id] = true
		}
	}
	if after.Index() > before.Index() {
		err := s.blocks(ctx, before.Index()+1, after.Index(), func(b *event.Block) error {
			for i := range b.Events {
				e := &b.Events[i]
				add(e.Subject, e.Queue)
				if leaves(e.Type) {
					gone := *e
					gone.Content.Bytes = nil // only the fact: a long range must not hold all payloads
					left[e.Subject] = gone
				}
				if e.IsMove() {
					add(e.ID, e.ToQueue)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	before.All(func(m event.MessageView) bool {
		add(m.ID, m.Queue)
		return true
	})
	sorted := make([]event.ID, 0, len(ids))
	for id := range ids {
		sorted = append(sorted, id)
	}
	slices.SortFunc(sorted, event.ID.Compare)
	for _, id := range sorted {
		if err := ctx.Err(); err != nil {
			return err
		}
		if f.Message != (event.ID{}) && id != f.Message {
			continue
		}
		c := &Change{Message: id, Before: fateIn(before, id), After: fateIn(after, id)}
		if e, ok := left[id]; ok && (c.After == nil || c.After.State != event.StateReady && c.After.State != event.StateLeased && c.After.State != event.StateScheduled) {
			c.After = &Fate{Left: &e, MessageView: event.MessageView{ID: id, Queue: e.Queue, State: stateOf(&e)}}
			if c.Before != nil {
				view := c.Before.MessageView
				view.State, view.Held, view.Lease, view.LeaseExpiresAt = stateOf(&e), false, event.ID{}, 0
				c.After.MessageView = view
			}
		}
		if err := c.tell(fn); err != nil {
			return err
		}
	}
	return nil
}

// tell calls fn with a message's change, if it is one.
func (c *Change) tell(fn func(*Change) error) error {
	if c.Before == nil && c.After == nil || c.Before != nil && c.After != nil && sameMessage(&c.Before.MessageView, &c.After.MessageView) {
		return nil
	}
	for _, fate := range []*Fate{c.After, c.Before} {
		if fate != nil && c.Queue == "" {
			c.Queue = fate.Queue
		}
	}
	return fn(c)
}

func leaves(t event.Type) bool {
	return t == event.Acked || t == event.DeadLettered || t == event.Discarded || t == event.Replayed
}

func stateOf(e *event.Event) event.State {
	switch e.Type {
	case event.Acked:
		return event.StateAcked
	case event.DeadLettered:
		return event.StateDeadLettered
	case event.Replayed:
		return event.StateReplayed
	}
	return event.StateDiscarded
}

func fateIn(s *projections.State, id event.ID) *Fate {
	m, ok := s.Message(id)
	if !ok {
		return nil
	}
	return &Fate{MessageView: m}
}

// sameMessage compares what can change in a message's life.
func sameMessage(a, b *event.MessageView) bool {
	return a.State == b.State && a.Held == b.Held && a.Attempt == b.Attempt && a.Due == b.Due &&
		a.Lease == b.Lease && a.LeaseExpiresAt == b.LeaseExpiresAt && a.Queue == b.Queue
}

package replay

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/projections"
)

// Change is one queue or one message that differs between two instants. Of a
// queue, Message is zero.
type Change struct {
	Queue   string
	Message event.ID

	QueueBefore, QueueAfter *event.QueueView
	ClockBefore, ClockAfter int64 // of a queue: the log's clock at both instants
	Before, After           *Fate
}

// Fate is a message at an instant: live, or how it left.
type Fate struct {
	event.MessageView
	Left *event.Event // the event with which it left its queue; nil while it is live
}

// Diff calls fn with what changed between two instants: queues by name, then
// messages in the order in which they came. A message that came and went in
// between changed from nothing to how it left.
func (s *Source) Diff(ctx context.Context, from, to event.Instant, f Filter, fn func(*Change) error) (Cost, error) {
	before, cost, err := s.StateAt(ctx, from)
	if err != nil {
		return cost, err
	}
	after, c, err := s.StateAt(ctx, to)
	cost.Blocks, cost.Events = cost.Blocks+c.Blocks, cost.Events+c.Events
	if err == nil {
		err = diffQueues(before, after, f, fn)
	}
	if err == nil {
		err = s.diffMessages(ctx, before, after, f, fn)
	}
	return cost, err
}

func diffQueues(before, after *projections.State, f Filter, fn func(*Change) error) error {
	names := map[string]bool{}
	for _, s := range []*projections.State{before, after} {
		for _, q := range s.Queues() {
			names[q.Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if f.Queue != "" && f.Queue != name {
			continue
		}
		c := &Change{Queue: name, ClockBefore: before.Clock(), ClockAfter: after.Clock()}
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
	for _, id := range slices.SortedFunc(maps.Keys(ids), event.ID.Compare) {
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
		if err := c.report(fn); err != nil {
			return err
		}
	}
	return nil
}

// report calls fn with a message's change, if it is one.
func (c *Change) report(fn func(*Change) error) error {
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

// Comparison is the result of comparing a data directory with another node's.
type Comparison struct {
	Index uint64 `json:"index"` // of the newest block that both may have: compared was there
	// SameLog: the chains agree there, and so everything before.
	SameLog bool `json:"same_log"`
	// AgreeUpTo is the newest index at which the chains agree; Parted is that of
	// the first block in which the logs differ, 0 with SameLog.
	AgreeUpTo uint64 `json:"agree_up_to_index"`
	Parted    uint64 `json:"first_different_index,omitzero"`
	SameState bool   `json:"same_state"`
	Changes   int    `json:"differences"`        // queues and messages that differ
	InMotion  int    `json:"in_motion,omitzero"` // of a live state: changed while it was compared
	Head      uint64 `json:"log_head"`
	OtherHead uint64 `json:"other_log_head"`
}

// Compare compares two nodes' logs, and the states that they lead to, at the
// newest index that both have, or at another one that both have. fn is called
// with each queue and each message that differs, this directory's as before, the
// other's as after. It trusts the logs' chains
// to be those of their blocks: see Verify.
func (d *Dir) Compare(ctx context.Context, other *Dir, at event.Instant, f Filter, fn func(*Change) error) (*Comparison, error) {
	c := &Comparison{Head: d.Log.Head(), OtherHead: other.Log.Head()}
	c.Index = min(c.Head, c.OtherHead)
	if at.Kind != event.InstantNow {
		index, err := d.Log.To(at)
		if err != nil {
			return nil, err
		}
		c.Index = min(c.Index, index)
	}
	same, err := sameChain(d.Log, other.Log, c.Index)
	if err != nil {
		return nil, err
	}
	c.SameLog, c.AgreeUpTo = same, c.Index
	if !same {
		if err := c.part(d.Log, other.Log); err != nil {
			return nil, err
		}
	}
	a, _, err := d.stateAfter(ctx, c.Index)
	if err != nil {
		return nil, err
	}
	b, _, err := other.stateAfter(ctx, c.Index)
	if err != nil {
		return nil, err
	}
	c.SameState = a.Digest() == b.Digest() && a.Clock() == b.Clock()
	count := func(x *Change) error {
		c.Changes++
		return fn(x)
	}
	if err := diffQueues(a, b, f, count); err != nil {
		return nil, err
	}
	return c, diffStates(ctx, a, b, f, count)
}

func sameChain(a, b *log.Log, index uint64) (bool, error) {
	if index == 0 {
		return true, nil
	}
	x, err := a.ChainAt(index)
	if err != nil {
		return false, err
	}
	y, err := b.ChainAt(index)
	return x == y, err
}

// part finds where two logs part: below that the chains agree, from there on
// they don't.
func (c *Comparison) part(a, b *log.Log) error {
	// The lowest index at which both still know their chain.
	low := uint64(0)
	for _, l := range []*log.Log{a, b} {
		if before, deleted := l.DeletedBefore(); deleted {
			low = max(low, before)
		}
	}
	same, err := sameChain(a, b, low)
	if err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("the logs differ at index %d already, before which retention has deleted the history of at least one", low)
	}
	high := c.Index // they differ there
	for low+1 < high {
		middle := low + (high-low)/2
		if same, err = sameChain(a, b, middle); err != nil {
			return err
		}
		if same {
			low = middle
		} else {
			high = middle
		}
	}
	c.AgreeUpTo, c.Parted = low, high
	return nil
}

// diffStates calls fn with each live message that differs between two states.
func diffStates(ctx context.Context, a, b *projections.State, f Filter, fn func(*Change) error) error {
	ids := map[event.ID]bool{}
	for _, s := range []*projections.State{a, b} {
		s.All(func(m event.MessageView) bool {
			if (f.Queue == "" || m.Queue == f.Queue) && (f.Message == (event.ID{}) || m.ID == f.Message) {
				ids[m.ID] = true
			}
			return true
		})
	}
	for _, id := range slices.SortedFunc(maps.Keys(ids), event.ID.Compare) {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := &Change{Message: id, Before: fateIn(a, id), After: fateIn(b, id)}
		if err := c.report(fn); err != nil {
			return err
		}
	}
	return nil
}

// InMotion returns the messages, by their ids, and the queues that entries in a range are about: they
// cannot be compared with what was read somewhere in that range.
func (s *Source) InMotion(ctx context.Context, from, to uint64) (
	messages, queues map[string]bool, err error) {
	messages, queues = map[string]bool{}, map[string]bool{}
	err = s.blocks(ctx, from, to, func(b *event.Block) error {
		for i := range b.Events {
			e := &b.Events[i]
			messages[e.Subject.String()], messages[e.ID.String()] = true, true
			queues[e.Queue], queues[e.ToQueue] = true, true
		}
		return nil
	})
	return messages, queues, err
}

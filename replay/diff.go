package replay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/projections"
)

// Change is one queue or one message that differs between two states. Message is zero for a queue.
type Change struct {
	Queue   string
	Message event.ID

	QueueBefore, QueueAfter *event.QueueView
	ClockBefore, ClockAfter int64 // of a queue: the log's clock of both states
	Before, After           *Fate
}

// Fate is a message in a state: live, or how it left.
type Fate struct {
	event.MessageView
	Left *event.Event // the event with which it left its queue; nil while it is live
}

// Diff calls fn with each change between two instants: queues by name, then messages by id. For a
// message that was enqueued and left in between, the change is from nothing to how it left.
func (s *Source) Diff(ctx context.Context, from, to event.Instant, f Filter,
	fn func(*Change) error) (Cost, error) {
	before, cost, err := s.StateAt(ctx, from)
	if err != nil {
		return cost, err
	}
	after, c, err := s.StateAt(ctx, to)
	cost.Blocks, cost.Events = cost.Blocks+c.Blocks, cost.Events+c.Events
	if err != nil {
		return cost, err
	}
	// Every message that an event in between is about may differ, and so may those that waited for
	// their time: they become ready without an event.
	ids, left := map[event.ID]bool{}, map[event.ID]*event.Event{}
	for e, err := range s.Log.Events(ctx, before.Index()+1, after.Index()) {
		if err != nil {
			return cost, err
		}
		if f.Queue == "" || f.Queue == e.Queue {
			ids[e.Subject] = true
		}
		if e.IsMove() && (f.Queue == "" || f.Queue == e.ToQueue) {
			ids[e.ID] = true
		}
		if leaves(e.Type) {
			left[e.Subject] = fact(e)
		}
	}
	collect(before, f, ids)
	if err := diffQueues(before, after, f, fn); err != nil {
		return cost, err
	}
	return cost, diffMessages(ctx, before, after, f, ids, left, fn)
}

// collect adds the ids of a state's live messages.
func collect(state *projections.State, f Filter, ids map[event.ID]bool) {
	for m := range state.All {
		if f.Queue == "" || m.Queue == f.Queue {
			ids[m.ID] = true
		}
	}
}

// diffQueues calls fn with each queue that differs between two states.
func diffQueues(before, after *projections.State, f Filter, fn func(*Change) error) error {
	names := map[string]bool{}
	for _, q := range append(before.Queues(), after.Queues()...) {
		names[q.Name] = f.Queue == "" || f.Queue == q.Name
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c := &Change{
			Queue: name, ClockBefore: before.Clock(), ClockAfter: after.Clock(),
			QueueBefore: queueIn(before, name), QueueAfter: queueIn(after, name),
		}
		if names[name] && !sameQueue(c.QueueBefore, c.QueueAfter) {
			if err := fn(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// diffMessages calls fn with each of some messages that differs between two states. left has the
// events with which messages left in between.
func diffMessages(ctx context.Context, before, after *projections.State, f Filter,
	ids map[event.ID]bool, left map[event.ID]*event.Event, fn func(*Change) error) error {
	for _, id := range slices.SortedFunc(maps.Keys(ids), event.ID.Compare) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if id == (event.ID{}) || f.Message != (event.ID{}) && id != f.Message {
			continue
		}
		c := &Change{Message: id, Before: fateIn(before, id), After: fateIn(after, id)}
		if e := left[id]; e != nil && (c.After == nil || !c.After.State.Live()) {
			c.After = &Fate{MessageView: event.MessageView{ID: id, Queue: e.Queue}, Left: e}
			if c.Before != nil {
				c.After.MessageView = c.Before.MessageView
				c.After.Held, c.After.Lease, c.After.LeaseExpiresAt = false, event.ID{}, 0
			}
			c.After.State = leftAs[e.Type]
		}
		if last := cmp.Or(c.After, c.Before); !sameMessage(c.Before, c.After) {
			c.Queue = last.Queue
			if err := fn(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameQueue compares a queue in two states; nil is none.
func sameQueue(a, b *event.QueueView) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Number == b.Number && a.Revision == b.Revision && a.Paused == b.Paused &&
		a.Stats == b.Stats
}

// leftAs are the events with which a message leaves its queue, and its state then.
var leftAs = map[event.Type]event.State{
	event.Acked: event.StateAcked, event.DeadLettered: event.StateDeadLettered,
	event.Discarded: event.StateDiscarded, event.Replayed: event.StateReplayed,
}

func leaves(t event.Type) bool { _, ok := leftAs[t]; return ok }

func queueIn(s *projections.State, name string) *event.QueueView {
	q, ok := s.Queue(name)
	if !ok {
		return nil
	}
	return &q
}

func fateIn(s *projections.State, id event.ID) *Fate {
	m, ok := s.Message(id)
	if !ok {
		return nil
	}
	return &Fate{MessageView: m}
}

// sameMessage compares what can change in a message's life; nil is none.
func sameMessage(a, b *Fate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.State == b.State && a.Held == b.Held && a.Attempt == b.Attempt && a.Due == b.Due &&
		a.Lease == b.Lease && a.LeaseExpiresAt == b.LeaseExpiresAt && a.Queue == b.Queue
}

// fact returns an event without what users wrote: a long range must not hold all payloads.
func fact(e *event.Event) *event.Event {
	f := *e
	f.Content = event.Blob{}
	return &f
}

// Comparison is the result of comparing a data directory with another node's.
type Comparison struct {
	Index   uint64 `json:"index"`    // of the newest block that both have; compared was there
	SameLog bool   `json:"same_log"` // the chains agree there, and so everything before
	// AgreeUpTo is the newest index at which the chains agree; Parted is that of the first block in
	// which the logs differ, 0 with SameLog.
	AgreeUpTo uint64 `json:"agree_up_to_index"`
	Parted    uint64 `json:"first_different_index,omitzero"`
	SameState bool   `json:"same_state"`
	Changes   int    `json:"differences"`        // queues and messages that differ
	InMotion  int    `json:"in_motion,omitzero"` // of a live state: changed during the comparison
	Head      uint64 `json:"log_head"`
	OtherHead uint64 `json:"other_log_head"`
}

// Compare compares two nodes' logs, and the states that they lead to, at the newest index that both
// have, or at an earlier instant. fn is called with each queue and each message that differs, this
// directory's as before, the other's as after. It assumes that the logs' chains are those of their
// blocks: see Verify.
func (d *Dir) Compare(ctx context.Context, other *Dir, at event.Instant, f Filter,
	fn func(*Change) error) (*Comparison, error) {
	c := &Comparison{Head: d.Log.Head(), OtherHead: other.Log.Head()}
	c.Index = min(c.Head, c.OtherHead)
	if at.Kind != event.InstantNow {
		index, err := d.Log.To(at)
		if err != nil {
			return nil, err
		}
		c.Index = min(c.Index, index)
	}
	var err error
	if c.SameLog, err = sameChain(d.Log, other.Log, c.Index); err != nil {
		return nil, err
	}
	if c.AgreeUpTo = c.Index; !c.SameLog {
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
	ids := map[event.ID]bool{}
	collect(a, f, ids)
	collect(b, f, ids)
	count := func(x *Change) error {
		c.Changes++
		return fn(x)
	}
	if err := diffQueues(a, b, f, count); err != nil {
		return nil, err
	}
	return c, diffMessages(ctx, a, b, f, ids, nil, count)
}

func sameChain(a, b *log.Log, index uint64) (bool, error) {
	x, err := a.ChainAt(index)
	if err != nil {
		return false, err
	}
	y, err := b.ChainAt(index)
	return x == y, err
}

// part finds the index at which two logs diverge: the chains agree below it, and differ from it on.
func (c *Comparison) part(a, b *log.Log) error {
	low := uint64(0) // the lowest index at which both still know their chain
	for _, l := range []*log.Log{a, b} {
		before, _ := l.Begins()
		low = max(low, before)
	}
	same, err := sameChain(a, b, low)
	if err == nil && !same {
		err = fmt.Errorf("the logs differ at index %d already, before which retention has deleted "+
			"the history of at least one", low)
	}
	if err != nil {
		return err
	}
	n := sort.Search(int(c.Index-low-1), func(i int) bool {
		same, e := sameChain(a, b, low+1+uint64(i))
		err = cmp.Or(err, e)
		return !same
	})
	c.AgreeUpTo = low + uint64(n)
	c.Parted = c.AgreeUpTo + 1
	return err
}

// InMotion returns the messages, by their ids, and the queues that entries in a range are about:
// they cannot be compared with what was read somewhere in that range.
func (s *Source) InMotion(ctx context.Context, from, to uint64) (
	messages, queues map[string]bool, err error) {
	messages, queues = map[string]bool{}, map[string]bool{}
	for e, err := range s.Log.Events(ctx, from, to) {
		if err != nil {
			return nil, nil, err
		}
		messages[e.Subject.String()], messages[e.ID.String()] = true, true
		queues[e.Queue], queues[e.ToQueue] = true, true
	}
	return messages, queues, nil
}

package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/projections"
)

// Comparison is how two nodes' data directories stand to each other.
type Comparison struct {
	Index uint64 // of the newest block that both may have: what was compared
	// SameLog: the chains agree there, and so everything before.
	SameLog bool
	// Parted is the index of the first block in which the logs differ, or that
	// only one of them has, 0 with SameLog. AgreeUpTo is the newest index at
	// which their chains agree.
	Parted, AgreeUpTo uint64
	SameState         bool
	// Changes are how many queues and messages differ.
	Changes int
}

// Compare holds two nodes' logs, and the states that they lead to, against each
// other: at the newest index that both have, or at another one that both have.
// fn is called with each queue and each message that differs, this directory's
// as what was before, the other's as what is after. It trusts the logs' chains
// to be those of their blocks: see Verify.
func (d *Dir) Compare(ctx context.Context, other *Dir, at event.Instant, f Filter, clocks func(a, b int64), fn func(*Change) error) (*Comparison, error) {
	c := &Comparison{Index: min(d.Log.Head(), other.Log.Head())}
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
	if clocks != nil {
		clocks(a.Clock(), b.Clock())
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

func sameChain(a, b *eventlog.Log, index uint64) (bool, error) {
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
func (c *Comparison) part(a, b *eventlog.Log) error {
	// The lowest index at which both can still tell their chain.
	low := uint64(0)
	for _, l := range []*eventlog.Log{a, b} {
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
	sorted := make([]event.ID, 0, len(ids))
	for id := range ids {
		sorted = append(sorted, id)
	}
	slices.SortFunc(sorted, event.ID.Compare)
	for _, id := range sorted {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := &Change{Message: id, Before: fateIn(a, id), After: fateIn(b, id)}
		if err := c.tell(fn); err != nil {
			return err
		}
	}
	return nil
}

// InMotion returns the messages and queues that entries in a range are about:
// what cannot be compared with something that was seen somewhere in it.
func (s *Source) InMotion(ctx context.Context, from, to uint64) (messages map[event.ID]bool, queues map[string]bool, err error) {
	messages, queues = map[event.ID]bool{}, map[string]bool{}
	if from > to {
		return messages, queues, nil
	}
	err = s.blocks(ctx, from, to, func(b *event.Block) error {
		for i := range b.Events {
			e := &b.Events[i]
			messages[e.Subject], messages[e.ID] = true, true
			queues[e.Queue], queues[e.ToQueue] = true, true
		}
		return nil
	})
	return messages, queues, err
}

package replay

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
)

// Predicate is a question about a state. It must not keep the state.
type Predicate func(*projections.State) (bool, error)

// Turn is where a predicate began to hold.
type Turn struct {
	Found   bool
	Already bool   // it held at the first instant already
	Index   uint64 // of the entry after which it holds
	// Event is the one of the entry after which it holds until the entry's end;
	// nil where it came with the passing of time alone.
	Event *event.Event
	Clock int64 // the log's, there
	Cost  BisectCost
}

// BisectCost is the work of a search.
type BisectCost struct {
	Checkpoints int    // loaded
	Blocks      uint64 // folded
	Asked       int    // how often the predicate was asked
}

// Bisect finds the first event between two instants after which a predicate
// holds. An entry is atomic: only states after a whole entry count.
//
// It halves the checkpoints in between, and then looks at the entries between two
// of them one by one. Of a predicate that begins to hold several times it finds
// one of these places, and nothing if it does not hold at the last instant;
// exhaustive looks at every entry and finds the first. InstantStart is the
// earliest state that can be rebuilt.
func (s *Source) Bisect(ctx context.Context, from, to event.Instant, holds Predicate, exhaustive bool, progress func(done, total int64)) (*Turn, error) {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	t := &Turn{}
	ask := func(state *projections.State) (bool, error) {
		t.Cost.Asked++
		return holds(state)
	}
	if from.Kind == event.InstantStart {
		var err error
		if from, err = s.Earliest(); err != nil {
			return nil, err
		}
	}
	low, cost, err := s.StateAt(ctx, from)
	t.Cost.Blocks += cost.Blocks
	if err != nil {
		return nil, err
	}
	if ok, err := ask(low); err != nil || ok {
		t.Found, t.Already, t.Index, t.Clock = ok, ok, low.Index(), low.Clock()
		return t, err
	}
	last, err := s.Log.To(to)
	if err != nil {
		return nil, err
	}
	if last <= low.Index() {
		return t, nil
	}
	first := low.Index()
	if !exhaustive {
		high, cost, err := s.StateAt(ctx, to)
		t.Cost.Blocks += cost.Blocks
		if err != nil {
			return nil, err
		}
		if ok, err := ask(high); err != nil || !ok {
			return t, err
		}
		if low, last, err = s.halve(ctx, low, last, ask, &t.Cost); err != nil {
			return nil, err
		}
	}
	// Where the linear part begins, to go there again.
	begin := low.Index()
	found := errors.New("found")
	err = s.fold(ctx, low, last, func(b *event.Block) error {
		t.Cost.Blocks++
		progress(int64(b.Index-first), int64(last-first))
		ok, err := ask(low)
		if err == nil && ok {
			err = found
		}
		return err
	})
	switch {
	case errors.Is(err, found):
		t.Found, t.Index, t.Clock = true, low.Index(), low.Clock()
		return t, s.within(ctx, t, begin, ask)
	case err != nil:
		return nil, err
	case to.Kind == event.InstantTime:
		// After the last entry only time went on.
		low.Advance(to.Time)
		ok, err := ask(low)
		t.Found, t.Index, t.Clock = ok, low.Index(), low.Clock()
		return t, err
	}
	return t, nil
}

// halve narrows the range down to two neighbouring checkpoints, of which the
// predicate does not hold at the first and holds at the second. It returns the
// state at the first, and the index of the second.
func (s *Source) halve(ctx context.Context, low *projections.State, last uint64, ask Predicate, cost *BisectCost) (*projections.State, uint64, error) {
	if s.Checkpoints == "" {
		return low, last, nil
	}
	metas, _, err := checkpoint.List(s.FS, s.Checkpoints)
	if err != nil {
		return nil, 0, err
	}
	slices.Reverse(metas) // oldest first
	metas = slices.DeleteFunc(metas, func(m checkpoint.Meta) bool { return m.HeadIndex <= low.Index() || m.HeadIndex >= last })
	for len(metas) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		i := len(metas) / 2
		state, err := s.load(&metas[i])
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, checkpoint.ErrCorrupt) {
				return nil, 0, err
			}
			metas = slices.Delete(metas, i, i+1) // the others will do
			continue
		}
		cost.Checkpoints++
		ok, err := ask(state)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			last = metas[i].HeadIndex
			metas = metas[:i]
		} else {
			low = state
			metas = metas[i+1:]
		}
	}
	return low, last, nil
}

// within finds the event of the entry at t.Index from which on the predicate
// holds until the entry's end.
func (s *Source) within(ctx context.Context, t *Turn, begin uint64, ask Predicate) (err error) {
	state, cost, err := s.stateAfter(ctx, max(t.Index-1, begin))
	if err != nil {
		return err
	}
	t.Cost.Blocks += cost.Blocks
	b, err := s.Log.Block(t.Index)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = &FoldError{b.Index, r}
		}
	}()
	state.Begin(b.Index, b.Time)
	held, err := ask(state)
	if err != nil {
		return err
	}
	for i := range b.Events {
		state.Apply(&b.Events[i])
		now, err := ask(state)
		if err != nil {
			return err
		}
		switch {
		case now && !held:
			t.Event = &b.Events[i]
		case !now:
			t.Event = nil
		}
		held = now
	}
	return nil
}

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
	// Event is the one of the entry after which it holds until the entry's end; nil if it began
	// with the passing of time alone.
	Event *event.Event
	Clock int64 // the log's, there
	Cost  BisectCost
}

// BisectCost is the work of a search.
type BisectCost struct {
	Checkpoints int    `json:"checkpoints"` // loaded
	Blocks      uint64 `json:"blocks"`      // folded
	Asked       int    `json:"asked"`       // evaluations of the predicate
}

// bisection is a search in progress.
type bisection struct {
	*Source
	Turn
	holds Predicate
}

func (t *bisection) stateAt(ctx context.Context, at event.Instant) (*projections.State, error) {
	state, cost, err := t.StateAt(ctx, at)
	t.Cost.Blocks += cost.Blocks
	return state, err
}

// turned records that the predicate holds at a state, if it does.
func (t *bisection) turned(holds bool, state *projections.State) *Turn {
	t.Found, t.Index, t.Clock = holds, state.Index(), state.Clock()
	return &t.Turn
}

// Bisect finds the first event between two instants after which a predicate holds. An entry is
// atomic: only states after a whole entry count.
//
// It bisects the checkpoints in between, and then examines the entries between two of them one by
// one. Of a predicate that begins to hold several times it finds one of these places, and nothing
// if it does not hold at the last instant; exhaustive examines every entry and finds the first.
// InstantStart is the earliest state that can be rebuilt.
func (s *Source) Bisect(ctx context.Context, from, to event.Instant, holds Predicate,
	exhaustive bool, progress func(done, total int64)) (*Turn, error) {
	t := &bisection{Source: s}
	t.holds = func(state *projections.State) (bool, error) {
		t.Cost.Asked++
		return holds(state)
	}
	if from.Kind == event.InstantStart {
		var err error
		if from, err = s.Earliest(); err != nil {
			return nil, err
		}
	}
	low, err := t.stateAt(ctx, from)
	if err != nil {
		return nil, err
	}
	if t.Already, err = t.holds(low); err != nil || t.Already {
		return t.turned(t.Already, low), err
	}
	first := low.Index()
	last, err := s.Log.To(to)
	if err != nil || last <= first {
		return &t.Turn, err
	}
	if !exhaustive {
		high, err := t.stateAt(ctx, to)
		if err != nil {
			return nil, err
		}
		if ok, err := t.holds(high); err != nil || !ok {
			return &t.Turn, err
		}
		if low, last, err = t.halve(ctx, low, last); err != nil {
			return nil, err
		}
	}
	begin := low.Index() // of the linear part
	for b, err := range s.fold(ctx, low, last) {
		if err != nil {
			return nil, err
		}
		t.Cost.Blocks++
		if progress != nil {
			progress(int64(b.Index-first), int64(last-first))
		}
		if ok, err := t.holds(low); err != nil {
			return nil, err
		} else if ok {
			return t.turned(true, low), t.within(ctx, b, begin)
		}
	}
	if to.Kind != event.InstantTime {
		return &t.Turn, nil
	}
	low.Advance(to.Time) // after the last entry only time has passed
	ok, err := t.holds(low)
	return t.turned(ok, low), err
}

// halve narrows the range down to two neighbouring checkpoints: the predicate does not hold at the
// first and holds at the second. It returns the state at the first, and the index of the second.
func (t *bisection) halve(ctx context.Context, low *projections.State, last uint64) (
	*projections.State, uint64, error) {
	metas, _, err := checkpoint.List(t.FS, t.Checkpoints)
	if err != nil {
		return nil, 0, err
	}
	slices.Reverse(metas) // oldest first
	metas = slices.DeleteFunc(metas, func(m checkpoint.Meta) bool {
		return m.HeadIndex <= low.Index() || m.HeadIndex >= last
	})
	for len(metas) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		i := len(metas) / 2
		state, err := t.load(&metas[i])
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, checkpoint.ErrCorrupt) {
			metas = slices.Delete(metas, i, i+1) // the others serve
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		t.Cost.Checkpoints++
		ok, err := t.holds(state)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			last, metas = metas[i].HeadIndex, metas[:i]
		} else {
			low, metas = state, metas[i+1:]
		}
	}
	return low, last, nil
}

// within finds the event of an entry from which on the predicate holds until the entry's end.
func (t *bisection) within(ctx context.Context, b *event.Block, begin uint64) (err error) {
	state, cost, err := t.stateAfter(ctx, max(b.Index-1, begin))
	if err != nil {
		return err
	}
	t.Cost.Blocks += cost.Blocks
	defer foldFailed(b, &err)
	state.Begin(b.Index, b.Time)
	held, err := t.holds(state)
	for i := 0; i < len(b.Events) && err == nil; i++ {
		state.Apply(&b.Events[i])
		var now bool
		if now, err = t.holds(state); !now {
			t.Event = nil
		} else if !held {
			t.Event = &b.Events[i]
		}
		held = now
	}
	return err
}

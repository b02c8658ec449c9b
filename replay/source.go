// Package replay tells the past from the event log: the state at an instant,
// the events in between, what changed, whether all of it is true. It reads and
// never touches, be it a live node's log, a stopped one's directory or a copy.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Source is an event log and the checkpoints beside it.
type Source struct {
	Log         *eventlog.Log
	FS          vfs.FS
	Checkpoints string // directory; "" is none
}

// Cost tells what a state took to rebuild.
type Cost struct {
	Checkpoint uint64 // index of the checkpoint it started from; 0 the log's start
	Blocks     uint64
	Events     uint64
	// Skipped are newer checkpoints that would have served but are unusable.
	Skipped []error
}

// StateAt folds the state after the whole entry that an instant falls on. At a
// time at which there is no entry, what was scheduled until then is ready.
func (s *Source) StateAt(ctx context.Context, at event.Instant) (*projections.State, Cost, error) {
	to, err := s.Log.To(at)
	if err != nil {
		return nil, Cost{}, err
	}
	state, cost, err := s.stateAfter(ctx, to)
	if err != nil {
		return nil, cost, err
	}
	if at.Kind == event.InstantTime && to > 0 {
		state.Advance(at.Time)
	}
	return state, cost, nil
}

// Earliest returns the first instant of which the state can be told: the log's
// start, or, where retention has deleted that, the oldest checkpoint's.
func (s *Source) Earliest() (event.Instant, error) {
	before, deleted := s.Log.DeletedBefore()
	if !deleted || s.Checkpoints == "" {
		return event.Instant{Kind: event.InstantStart}, nil
	}
	metas, _, err := checkpoint.List(s.FS, s.Checkpoints)
	if err != nil {
		return event.Instant{}, err
	}
	for i := len(metas) - 1; i >= 0; i-- { // oldest first
		if metas[i].HeadIndex > before {
			return event.Instant{Kind: event.InstantIndex, Index: metas[i].HeadIndex}, nil
		}
	}
	return event.Instant{}, &eventlog.RangeError{
		What:  fmt.Sprintf("history up to index:%d has been deleted by retention, and no checkpoint holds the state there", before),
		First: s.Log.First(), Head: s.Log.Head(), Clock: s.Log.Clock(), Expired: true,
	}
}

// stateAfter folds the state after the last block up to index to.
func (s *Source) stateAfter(ctx context.Context, to uint64) (*projections.State, Cost, error) {
	state, cost, err := s.base(to)
	if err != nil {
		return nil, cost, err
	}
	err = s.fold(ctx, state, to, func(b *event.Block) error {
		cost.Blocks++
		cost.Events += uint64(len(b.Events))
		return nil
	})
	return state, cost, err
}

// base returns the newest state up to index to that needs no folding: a good
// checkpoint's, or the empty one.
func (s *Source) base(to uint64) (*projections.State, Cost, error) {
	var cost Cost
	if s.Checkpoints != "" {
		metas, bad, err := checkpoint.List(s.FS, s.Checkpoints)
		if err != nil {
			return nil, cost, err
		}
		for _, b := range bad {
			cost.Skipped = append(cost.Skipped, fmt.Errorf("checkpoint %s: %w", b.Name, b.Err))
		}
		for i := range metas {
			if metas[i].HeadIndex > to {
				continue
			}
			state, err := s.load(&metas[i])
			if err == nil {
				cost.Checkpoint = metas[i].HeadIndex
				return state, cost, nil
			}
			if !errors.Is(err, fs.ErrNotExist) { // a live node has thinned it out
				cost.Skipped = append(cost.Skipped, err)
			}
		}
	}
	if before, deleted := s.Log.DeletedBefore(); deleted && to > 0 {
		return nil, cost, &eventlog.RangeError{
			What:  fmt.Sprintf("the state at index:%d cannot be rebuilt: history up to index:%d has been deleted by retention, and no checkpoint lies between", to, before),
			First: s.Log.First(), Head: s.Log.Head(), Clock: s.Log.Clock(), Expired: true,
		}
	}
	return projections.New(), cost, nil
}

// load reads a checkpoint's whole body and holds it against its head.
func (s *Source) load(meta *checkpoint.Meta) (*projections.State, error) {
	_, body, err := checkpoint.Open(s.FS, s.Checkpoints, meta.Name())
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return LoadState(meta, body)
}

// LoadState reads a checkpoint's body to its verified end and compares the
// state with what the head says of it.
func LoadState(meta *checkpoint.Meta, body io.Reader) (*projections.State, error) {
	state, err := projections.Load(body)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", meta.Name(), err)
	}
	// Only a reader at its end has verified the whole (checkpoint.Open).
	if n, err := io.Copy(io.Discard, body); err != nil || n > 0 {
		if err == nil {
			err = fmt.Errorf("%d bytes behind the state", n)
		}
		return nil, fmt.Errorf("checkpoint %s: %w", meta.Name(), err)
	}
	switch {
	case state.Index() != meta.HeadIndex:
		err = fmt.Errorf("its state is of index %d, its head says %d", state.Index(), meta.HeadIndex)
	case state.Clock() != meta.Clock:
		err = fmt.Errorf("its state's clock is %d, its head says %d", state.Clock(), meta.Clock)
	case state.Digest() != meta.Digest:
		err = fmt.Errorf("its state's digest is %x, its head says %x", state.Digest(), meta.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", meta.Name(), err)
	}
	return state, nil
}

// fold folds all blocks above the state's index up to to. each, if not nil,
// sees every block after it was folded.
func (s *Source) fold(ctx context.Context, state *projections.State, to uint64, each func(*event.Block) error) error {
	if state.Index() >= to {
		return nil
	}
	return s.blocks(ctx, state.Index()+1, to, func(b *event.Block) error {
		if err := FoldBlock(state, b); err != nil {
			return err
		}
		if each != nil {
			return each(b)
		}
		return nil
	})
}

// FoldError is an event that the state before it rules out: one of the two is
// wrong.
type FoldError struct {
	Index  uint64
	Reason any // what the fold panicked with
}

func (e *FoldError) Error() string { return fmt.Sprintf("block %d: %v", e.Index, e.Reason) }

// FoldBlock folds a block; a panic of the fold becomes a FoldError, for here
// nothing goes on with the state.
func FoldBlock(state *projections.State, b *event.Block) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &FoldError{b.Index, r}
		}
	}()
	state.Fold(b)
	return nil
}

// blocks calls fn with the blocks from and to inclusive.
func (s *Source) blocks(ctx context.Context, from, to uint64, fn func(*event.Block) error) error {
	next, done := s.Log.Blocks(from)
	defer done()
	for {
		b, err := next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if b.Index > to {
			return nil
		}
		if err := fn(b); err != nil {
			return err
		}
	}
}

package replay

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// keepIdle is how long past states are kept after the last request: each is as large as the live
// state was.
const keepIdle = time.Minute

// Past serves past states of a live log to many readers: it keeps the few that were used last, and
// folds one at a time.
type Past struct {
	source  *Source
	folding chan struct{} // has a token while a state is folded
	known   *lru.Cache[pastKey, *projections.State]
	idle    *time.Timer // forgets all states
}

// pastKey is what a state depends on: the last entry, and the time to which the clock advanced
// after it (0: not).
type pastKey struct {
	index uint64
	clock int64
}

// NewPast returns a Past that keeps at most keep states, at least one.
func NewPast(source *Source, keep int) *Past {
	known, err := lru.New[pastKey, *projections.State](keep)
	if err != nil {
		panic(err) // keep is not positive
	}
	return &Past{
		source: source, folding: make(chan struct{}, 1), known: known,
		idle: time.AfterFunc(keepIdle, known.Purge),
	}
}

// At returns the state after the whole entry at an instant. It must only be read.
func (p *Past) At(ctx context.Context, at event.Instant) (*projections.State, error) {
	index, err := p.source.Log.To(at)
	if err != nil {
		return nil, err
	}
	key := pastKey{index: index}
	if at.Kind == event.InstantTime && index > 0 {
		key.clock = at.Time
	}
	p.idle.Reset(keepIdle)
	if state, ok := p.known.Get(key); ok {
		return state, nil
	}
	select {
	case p.folding <- struct{}{}:
		defer func() { <-p.folding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if state, ok := p.known.Get(key); ok { // another reader has just folded it
		return state, nil
	}
	state, _, err := p.source.stateAfter(ctx, index)
	if err != nil {
		return nil, err
	}
	if key.clock > 0 {
		state.Advance(key.clock)
	}
	p.known.Add(key, state)
	p.idle.Reset(keepIdle) // folding may have taken longer
	return state, nil
}

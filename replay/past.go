package replay

import (
	"context"
	"slices"
	"sync"
	"time"

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
	keep    int
	folding chan struct{} // has a token while a state is folded

	mu    sync.Mutex
	known []pastState // most recently used first; not changed after they were folded
	idle  *time.Timer // forgets all states
}

// pastKey is what a state depends on: the last entry, and the time to which the clock advanced
// after it (0: not).
type pastKey struct {
	index uint64
	clock int64
}

type pastState struct {
	key   pastKey
	state *projections.State
}

// NewPast returns a Past that keeps at most keep states.
func NewPast(source *Source, keep int) *Past {
	return &Past{source: source, keep: keep, folding: make(chan struct{}, 1)}
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
	if state := p.get(key); state != nil {
		return state, nil
	}
	select {
	case p.folding <- struct{}{}:
		defer func() { <-p.folding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if state := p.get(key); state != nil { // another reader has just folded it
		return state, nil
	}
	state, _, err := p.source.stateAfter(ctx, index)
	if err != nil {
		return nil, err
	}
	if key.clock > 0 {
		state.Advance(key.clock)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = slices.Insert(p.known, 0, pastState{key, state})
	p.known = slices.Delete(p.known, min(p.keep, len(p.known)), len(p.known))
	return state, nil
}

// get returns a known state, and keeps all for a while.
func (p *Past) get(key pastKey) *projections.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = time.AfterFunc(keepIdle, p.forget)
	}
	p.idle.Reset(keepIdle)
	i := slices.IndexFunc(p.known, func(s pastState) bool { return s.key == key })
	if i < 0 {
		return nil
	}
	s := p.known[i]
	p.known = slices.Insert(slices.Delete(p.known, i, i+1), 0, s)
	return s.state
}

func (p *Past) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = nil
}

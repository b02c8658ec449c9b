package replay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// keepIdle is how long past states are kept after the last request: each is as
// large as the live one was.
const keepIdle = time.Minute

// Past serves past states of a live log to many readers: it keeps the few that
// were used last, and folds only a few at once. A state is not changed after it
// was folded.
type Past struct {
	source  *Source
	keep    int
	folding chan struct{} // holds one token for each fold in progress

	mu    sync.Mutex
	known []*pastState // most recently used first
	idle  *time.Timer  // forgets all states
}

// pastKey is what a state depends on: the last entry, and how far the clock went
// on after it (0: not).
type pastKey struct {
	index uint64
	clock int64
}

// pastState is a state that is there or being folded.
type pastState struct {
	key   pastKey
	done  chan struct{} // closed when state or err is set
	state *projections.State
	err   error
}

// NewPast returns a Past that keeps at most keep states and runs at most folds
// folds at once.
func NewPast(source *Source, keep, folds int) *Past {
	return &Past{source: source, keep: max(keep, 1), folding: make(chan struct{}, max(folds, 1))}
}

// At returns the state after the whole entry that an instant falls on. It must
// only be read.
func (p *Past) At(ctx context.Context, at event.Instant) (*projections.State, error) {
	index, err := p.source.Log.To(at)
	if err != nil {
		return nil, err
	}
	key := pastKey{index: index}
	if at.Kind == event.InstantTime && index > 0 {
		key.clock = at.Time
	}
	for {
		s, mine := p.entry(key)
		if mine {
			p.fold(ctx, s)
		}
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// That the request which folded was cancelled does not concern the others.
		cancelled := errors.Is(s.err, context.Canceled) || errors.Is(s.err, context.DeadlineExceeded)
		if mine || !cancelled || ctx.Err() != nil {
			return s.state, s.err
		}
	}
}

// entry returns the key's state, and whether the caller has to fold it.
func (p *Past) entry(key pastKey) (s *pastState, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = time.AfterFunc(keepIdle, func() { p.forget(func(*pastState) bool { return true }) })
	} else {
		p.idle.Reset(keepIdle)
	}
	i := slices.IndexFunc(p.known, func(s *pastState) bool { return s.key == key })
	if mine = i < 0; mine {
		s = &pastState{key: key, done: make(chan struct{})}
	} else {
		s = p.known[i]
		p.known = slices.Delete(p.known, i, i+1)
	}
	// A forgotten state is still used by those who fold it or wait for it.
	p.known = slices.Insert(p.known, 0, s)
	p.known = slices.Delete(p.known, min(p.keep, len(p.known)), len(p.known))
	return s, mine
}

func (p *Past) forget(which func(*pastState) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = slices.DeleteFunc(p.known, which)
}

func (p *Past) fold(ctx context.Context, s *pastState) {
	defer close(s.done)
	select {
	case p.folding <- struct{}{}:
		s.state, _, s.err = p.source.stateAfter(ctx, s.key.index)
		<-p.folding
	case <-ctx.Done():
		s.err = ctx.Err()
	}
	if s.err != nil {
		p.forget(func(other *pastState) bool { return other == s })
	} else if s.key.clock > 0 {
		s.state.Advance(s.key.clock)
	}
}

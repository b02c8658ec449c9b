package replay

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// Past serves past states of a live log to many readers: the last few are kept,
// and few are folded at once. A state, once folded, is only read.
type Past struct {
	source  *Source
	keep    int
	folding chan struct{} // holds one token for each fold under way

	mu    sync.Mutex
	known map[pastKey]*list.Element // of *pastState
	order *list.List                // most recently used first
	idle  *time.Timer               // lets all go when nobody has asked for a while
}

// keepIdle is how long past states are kept after the last was asked for: each
// is as large as the live one was.
const keepIdle = time.Minute

// pastKey is what a state depends on: the last entry, and how far the clock
// went on behind it (0: not).
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

// NewPast returns a Past that keeps so many states and folds so many at once.
func NewPast(source *Source, keep, folds int) *Past {
	return &Past{source: source, keep: max(keep, 1), folding: make(chan struct{}, max(folds, 1)),
		known: map[pastKey]*list.Element{}, order: list.New()}
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
		entry, mine := p.entry(key)
		if mine {
			p.fold(ctx, entry)
		}
		select {
		case <-entry.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// Whoever folded may have hung up; that says nothing to the others.
		if entry.err != nil && !mine && ctx.Err() == nil && (entry.err == context.Canceled || entry.err == context.DeadlineExceeded) {
			continue
		}
		return entry.state, entry.err
	}
}

// entry returns the key's state, and whether the caller is to fold it.
func (p *Past) entry(key pastKey) (s *pastState, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = time.AfterFunc(keepIdle, p.letGo)
	} else {
		p.idle.Reset(keepIdle)
	}
	if el, ok := p.known[key]; ok {
		p.order.MoveToFront(el)
		return el.Value.(*pastState), false
	}
	s = &pastState{key: key, done: make(chan struct{})}
	p.known[key] = p.order.PushFront(s)
	for p.order.Len() > p.keep {
		// One that is still being folded is only forgotten: its folder and
		// those who wait for it hold it.
		p.forget(p.order.Back())
	}
	return s, true
}

// letGo forgets all states; who reads one, or folds one, holds it.
func (p *Past) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.order.Len() > 0 {
		p.forget(p.order.Back())
	}
}

func (p *Past) forget(el *list.Element) {
	s := el.Value.(*pastState)
	p.order.Remove(el)
	if p.known[s.key] == el {
		delete(p.known, s.key)
	}
}

func (p *Past) fold(ctx context.Context, s *pastState) {
	defer func() {
		if s.err != nil {
			p.mu.Lock()
			if el, ok := p.known[s.key]; ok && el.Value.(*pastState) == s {
				p.forget(el)
			}
			p.mu.Unlock()
		}
		close(s.done)
	}()
	select {
	case p.folding <- struct{}{}:
		defer func() { <-p.folding }()
	case <-ctx.Done():
		s.err = ctx.Err()
		return
	}
	if s.state, _, s.err = p.source.stateAfter(ctx, s.key.index); s.err == nil && s.key.clock > 0 {
		s.state.Advance(s.key.clock)
	}
}

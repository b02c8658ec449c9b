package replay

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
)

// logCache bounds the memory for the event log's newest blocks, from which what was just enqueued
// is leased.
const logCache = 64 << 20

// Recover opens the event log and folds it, before Raft is opened. Only what Raft can apply again
// (o.HeldFrom) is cut from the log's end, and never what a checkpoint depends on (I1).
func Recover(ctx context.Context, o log.Options, checkpoints string) (
	*Source, *projections.State, error) {
	metas, _, err := checkpoint.List(o.FS, checkpoints)
	if err != nil {
		return nil, nil, err
	}
	o.CacheBytes = logCache
	if len(metas) > 0 {
		o.Durable = metas[0].HeadIndex
		// Between a checkpoint's newest block and Raft's first entry lie only Raft's own entries.
		if o.HeldFrom > 0 && o.HeldFrom <= metas[0].Index+1 {
			o.HeldFrom = min(o.HeldFrom, metas[0].HeadIndex+1)
		}
	}
	l, err := log.Open(o)
	if err != nil {
		return nil, nil, err
	}
	// Raft then applies what the log does not hold, and skips what it does (I4).
	past := &Source{Log: l, FS: o.FS, Checkpoints: checkpoints}
	began := time.Now()
	state, cost, err := past.StateAt(ctx, event.Instant{Kind: event.InstantNow})
	if err != nil {
		_ = l.Close() // nothing was written
		return nil, nil, err
	}
	for _, bad := range cost.Skipped {
		o.Logger.Warn("skipped unusable checkpoint", "error", bad)
	}
	o.Logger.Info("state rebuilt", "index", state.Index(), "checkpoint", cost.Checkpoint,
		"blocks", cost.Blocks, "took", time.Since(began).Round(time.Millisecond))
	return past, state, nil
}

// keepIdle is how long past states are kept after the last request: each is as large as the live
// state was.
const keepIdle = time.Minute

// Past serves past states of a live log to many readers: it keeps the few that were used last, and
// folds one at a time.
type Past struct {
	source  *Source
	folding chan struct{} // has a token while a state is folded
	waiting chan struct{} // has a token for each reader that folds, or waits to
	known   *lru.Cache[pastKey, *projections.State]
	idle    *time.Timer // forgets all states
}

// pastKey is what a state depends on: the last entry, and the time to which the clock advanced
// after it (0: not).
type pastKey struct {
	index uint64
	clock int64
}

// maxWaiting bounds the readers that wait for a state to be folded: each holds its request.
const maxWaiting = 32

// NewPast returns a Past that keeps at most keep states, at least one.
func NewPast(source *Source, keep int) *Past {
	known, err := lru.New[pastKey, *projections.State](keep)
	if err != nil {
		panic(err) // keep is not positive
	}
	return &Past{
		source: source, known: known, idle: time.AfterFunc(keepIdle, known.Purge),
		folding: make(chan struct{}, 1), waiting: make(chan struct{}, maxWaiting),
	}
}

// At returns the state after the whole entry at an instant. It must only be read. An *event.Problem
// says that too many wait; other errors are as the log's.
func (p *Past) At(ctx context.Context, at event.Instant) (*projections.State, error) {
	index, err := p.source.Log.To(at)
	if err != nil {
		return nil, err
	}
	key := pastKey{index: index}
	if at.Kind == event.InstantTime {
		key.clock = at.Time
	}
	p.idle.Reset(keepIdle)
	if state, ok := p.known.Get(key); ok {
		return state, nil
	}
	select {
	case p.waiting <- struct{}{}:
		defer func() { <-p.waiting }()
	default:
		return nil, event.Problemf(event.CodeOverloaded, "at",
			"%d reads of the past wait for states that are being folded", maxWaiting)
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

package replay

import (
	"context"
	"time"

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

package replay

import (
	"context"
	"log/slog"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Recovery is what Recover needs of a node's data directory.
type Recovery struct {
	FS            vfs.FS
	LogDir        string
	CheckpointDir string
	SegmentSize   int64
	HeldFrom      uint64 // the first entry that the Raft log holds; 0 none
	Logger        *slog.Logger
}

// Recovered is the event log, cut where a crash tore it, and the state that it folds to.
type Recovered struct {
	Log   *log.Log
	State *projections.State
	Past  *Source
}

// logCache bounds the memory for the event log's newest blocks, from which what was just enqueued
// is leased.
const logCache = 64 << 20

// Recover opens the event log and folds it, before Raft is opened. Only what Raft can apply again
// is cut from the log's end, and never what a checkpoint depends on (I1).
func Recover(ctx context.Context, o Recovery) (r Recovered, err error) {
	metas, _, err := checkpoint.List(o.FS, o.CheckpointDir)
	if err != nil {
		return r, err
	}
	lo := log.Options{
		FS: o.FS, Dir: o.LogDir, SegmentSize: o.SegmentSize, HeldFrom: o.HeldFrom,
		CacheBytes: logCache, Logger: o.Logger,
	}
	if len(metas) > 0 {
		lo.Durable = metas[0].HeadIndex
		// Between a checkpoint's newest block and Raft's first entry lie only Raft's own entries.
		if o.HeldFrom > 0 && o.HeldFrom <= metas[0].Index+1 {
			lo.HeldFrom = min(o.HeldFrom, metas[0].HeadIndex+1)
		}
	}
	if r.Log, err = log.Open(lo); err != nil {
		return r, err
	}
	// Raft then applies what the log does not hold, and skips what it does (I4).
	r.Past = &Source{Log: r.Log, FS: o.FS, Checkpoints: o.CheckpointDir}
	began := time.Now()
	state, cost, err := r.Past.StateAt(ctx, event.Instant{Kind: event.InstantNow})
	if err != nil {
		_ = r.Log.Close() // nothing was written
		return Recovered{}, err
	}
	r.State = state
	for _, bad := range cost.Skipped {
		o.Logger.Warn("skipped unusable checkpoint", "error", bad)
	}
	o.Logger.Info("state rebuilt", "index", state.Index(), "checkpoint", cost.Checkpoint,
		"blocks", cost.Blocks, "took", time.Since(began).Round(time.Millisecond))
	return r, nil
}

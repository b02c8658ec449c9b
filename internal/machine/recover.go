package machine

import (
	"context"
	"log/slog"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/replay"
)

// Recovered is what a start finds on disk: the event log, cut where a crash
// tore it, and the state that it folds to.
type Recovered struct {
	Log   *eventlog.Log
	State *projections.State
	Past  *replay.Source
}

// logCache bounds the memory for the event log's newest blocks: what was just
// enqueued is then leased without reading it back.
const logCache = 64 << 20

// Recover brings back what is on disk, before Raft is opened on it. ro says
// where Raft and the checkpoints are, dir where the event log is.
func Recover(ctx context.Context, ro raft.Options, dir string, segmentSize int64, logger *slog.Logger) (r Recovered, err error) {
	// What Raft still holds, and what a checkpoint has promised, before the
	// event log is opened: only what can be applied again may be cut from its
	// end, and never anything that a checkpoint stands on (I1).
	heldFrom, _, err := raft.Held(ro)
	if err != nil {
		return r, err
	}
	metas, _, err := checkpoint.List(ro.FS, ro.CheckpointDir)
	if err != nil {
		return r, err
	}
	o := eventlog.Options{FS: ro.FS, Dir: dir, SegmentSize: segmentSize, HeldFrom: heldFrom, CacheBytes: logCache, Logger: logger}
	if len(metas) > 0 {
		o.Durable = metas[0].HeadIndex
		// A checkpoint stands for all that Raft no longer holds: between its
		// newest block and Raft's first entry lie only entries of Raft's own.
		if heldFrom > 0 && heldFrom <= metas[0].Index+1 {
			o.HeldFrom = min(heldFrom, metas[0].HeadIndex+1)
		}
	}
	if r.Log, err = eventlog.Open(o); err != nil {
		return r, err
	}
	// The state before Raft: Raft then applies what the log does not hold yet,
	// and skips what it does (I4).
	r.Past = &replay.Source{Log: r.Log, FS: ro.FS, Checkpoints: ro.CheckpointDir}
	began := time.Now()
	state, cost, err := r.Past.StateAt(ctx, event.Instant{Kind: event.InstantNow})
	if err != nil {
		_ = r.Log.Close() // nothing was written
		return Recovered{}, err
	}
	r.State = state
	for _, bad := range cost.Skipped {
		logger.Warn("a checkpoint cannot be used, an older one and the log serve", "error", bad)
	}
	logger.Info("state rebuilt", "index", state.Index(), "checkpoint", cost.Checkpoint, "blocks", cost.Blocks, "took", time.Since(began).Round(time.Millisecond))
	return r, nil
}

package erasure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/datadir"
)

// batch is how many contents are erased in one go: it is a list on disk, and an
// fsync for each segment.
const batch = 4096

// writeEvery is how many indexes ErasedFile may be behind while nothing is erased:
// they are read at a start.
const writeEvery = 50_000

// retryAfter is the pause after an error. Where nothing wakes it, Run checks every
// checkPosition whether ErasedFile is too far behind.
const (
	retryAfter    = 2 * time.Second
	checkPosition = time.Minute
)

// Run carries out what there is until ctx ends.
func (e *Eraser) Run(ctx context.Context) {
	e.Loop.Run(ctx, e.once, func(err error) {
		e.Logger.Warn("erasure failed here, retrying", "error", err)
	})
}

// once carries out all that there is.
func (e *Eraser) once(ctx context.Context) error {
	// The tasks first: whatever a sealed one erases is overwritten then.
	tasks := e.State.Tasks()
	if err := e.overwrite(ctx); err != nil {
		return err
	}
	for i := range tasks {
		t := &tasks[i]
		if t.Kind == event.TaskErase && t.Status == event.TaskRunning && t.Sealed &&
			!reported(t, e.Self()) {
			if err := e.finish(ctx, t); err != nil {
				return fmt.Errorf("task %s: %w", t.ID, err)
			}
		}
	}
	return nil
}

// reported reports whether a member has carried out a task.
func reported(t *event.TaskView, member string) bool {
	return slices.ContainsFunc(t.Nodes, func(r event.TaskNode) bool { return r.Node == member })
}

// overwrite carries out the `erased` events of the log that are not yet.
func (e *Eraser) overwrite(ctx context.Context) error {
	first, head := e.State.TakeErased()
	if e.from == 0 {
		e.from = first
	}
	from, erased := e.from, 0
	if from > 0 {
		var refs []event.Ref
		for ev, err := range e.Log.Events(ctx, from, head) {
			if err != nil {
				return err
			}
			if ev.Type != event.Erased {
				continue
			}
			erased += len(ev.Refs)
			if refs = append(refs, ev.Refs...); len(refs) >= batch {
				if err := e.Log.Erase(refs); err != nil {
					return err
				}
				refs = refs[:0]
			}
		}
		if len(refs) > 0 {
			if err := e.Log.Erase(refs); err != nil {
				return err
			}
		}
	}
	e.from = 0
	if erased > 0 {
		e.Logger.Info("contents erased", "from", from, "up-to", head, "contents", erased)
	}
	if head <= e.written || erased == 0 && head < e.written+writeEvery {
		return nil
	}
	if err := datadir.WriteErased(e.FS, e.DataDir, head); err != nil {
		return err
	}
	e.written = head
	return nil
}

// finish does the rest of a sealed task, whose contents are overwritten here.
func (e *Eraser) finish(ctx context.Context, t *event.TaskView) error {
	begun := time.Now()
	if err := e.Fetched(); err != nil {
		return err
	}
	// All that there is, not only up to the seal: settles that came too late, and
	// were refused, may have come in since.
	upTo := e.Log.Head()
	if err := e.PurgeLog(ctx, upTo); err != nil {
		return err
	}
	if e.Archive != nil {
		refs, err := e.refsOf(ctx, t.ID, upTo)
		if err != nil {
			return err
		}
		if err := e.Archive(ctx, refs); err != nil {
			return err
		}
	}
	report := &event.UpdateTask{ID: t.ID, Op: event.TaskOpReport, Node: e.Self()}
	r, err := e.Propose(ctx, &event.Command{UpdateTask: report})
	if err != nil {
		return err
	}
	if r.Problem != nil { // it has ended meanwhile
		e.Logger.Warn("erasure carried out here, but its task takes no report",
			"task", t.ID, "why", r.Problem.Detail)
		return nil
	}
	e.Logger.Info("erasure carried out here",
		"task", t.ID, "up-to", upTo, "took", time.Since(begun).Round(time.Millisecond))
	return nil
}

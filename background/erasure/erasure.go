// Package erasure erases what users wrote from the cluster for good: contents in every node's event
// log and Raft log, and in the archive (I22). What is erased is itself an event, `erased`, which
// names the events whose content goes; the task that it belongs to shows the progress.
//
// RunTask, on the leader, finds all events of a message, through moves, replays and resurrections,
// or of all messages of a key, proposes their erasure, seals the task, and waits until every member
// has reported. Run, on every node, carries out what is decided, in this order, and reports:
//
//	overwrite the contents in the event log          durable and crash-safe
//	remove what was fetched and is not in place
//	purge the Raft log up to here                    raft.Replica.PurgeLog
//	bring the archive's copies up to date
//
// Each step can be repeated. The first is done for every `erased` event of the log, up to a
// position of its own (datadir.ErasedFile), whatever became of its task: a directory that was
// restored from an old copy, or fetched from a node that is behind, does it again. The others are
// done for a task that lacks this node's report.
package erasure

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Options are what an Eraser works with.
type Options struct {
	Log     *log.Log
	State   *fsm.Machine
	FS      vfs.FS
	DataDir string
	// Propose decides a command.
	Propose func(context.Context, *event.Command) (event.Result, error)
	// Self returns this data directory's name among the cluster's members, Members all of them.
	Self    func() string
	Members func() []string
	// Fetched removes what was fetched and is not in place.
	Fetched func() error
	// PurgeLog returns when no file of the Raft log holds an entry up to an index.
	PurgeLog func(ctx context.Context, upTo uint64) error
	// OpenPast opens the log as it is now together with the archive before it; it may return Log if
	// there is no archive that goes back further.
	OpenPast func(context.Context) (past *log.Log, done func(), err error)
	// Archive removes erased contents from the archive; nil without one.
	Archive func(ctx context.Context, refs []event.Ref) error
	Logger  *slog.Logger
}

// Eraser carries erasures out on one node, and, while that leads, for all.
type Eraser struct {
	Options
	*loop.Loop // of Run

	// finding is held by the task that looks for what to erase: one at a time reads the log.
	finding sync.Mutex

	// overwriting is held while contents are overwritten, or a segment is replaced.
	overwriting sync.Mutex

	// Only Run uses these.
	from    uint64 // the first block that may have erasures that are not carried out; 0: none
	written uint64 // what ErasedFile says
}

// New returns an Eraser for a log that was recovered. The state must apply all blocks that are
// appended from now on.
func New(o Options) (*Eraser, error) {
	e := &Eraser{Options: o, Loop: loop.New(checkPosition, retryAfter)}
	var err error
	if e.written, err = datadir.ReadErased(o.FS, o.DataDir); err != nil {
		return nil, err
	}
	if e.written < o.Log.Head() {
		e.from = e.written + 1
	}
	return e, nil
}

// Spec says what an erasure erases: the JSON of its task's creation (event.Content.Spec). Either a
// message, by any id that it has or had, or all messages of a key that were in a queue when the
// task was created.
type Spec struct {
	Message event.ID `json:"message_id,omitzero"`
	Queue   string   `json:"queue,omitzero"`
	Key     string   `json:"key,omitzero"`
	Reason  string   `json:"reason"`
}

// erased returns the events whose contents a range of a log erases, by a task; zero: any.
func erased(ctx context.Context, l *log.Log, task event.ID, from, upTo uint64) (
	refs []event.Ref, err error) {
	for b, err := range l.Blocks(ctx, from, upTo, event.Erased) {
		if err != nil {
			return nil, err
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Type == event.Erased && (task.IsZero() || e.Task == task) {
				refs = append(refs, e.Refs...)
			}
		}
	}
	return refs, nil
}

// Replace puts a fetched segment, whole and in dir, in place of the log's damaged one, without the
// contents that are erased here: the node that sent it may not have erased them yet (I22).
func (e *Eraser) Replace(ctx context.Context, dir string, sealed log.SegmentInfo) error {
	e.overwriting.Lock()
	defer e.overwriting.Unlock()
	// What erases it may be in the segment itself, which can be read in the copy alone.
	copied, err := log.OpenReadOnly(log.Options{FS: e.FS, Dir: dir})
	if err != nil {
		return err
	}
	defer copied.Close()
	inside, err := erased(ctx, copied, event.ID{}, sealed.First, sealed.Last)
	if err != nil {
		return err
	}
	behind, err := erased(ctx, e.Log, event.ID{}, sealed.Last+1, e.Log.Head())
	if err != nil {
		return err
	}
	refs := slices.DeleteFunc(append(inside, behind...), func(r event.Ref) bool {
		return r.Index < sealed.First || r.Index > sealed.Last
	})
	b, found, err := log.EraseSegment(e.FS, dir, sealed, refs)
	file := path.Join(dir, sealed.Name)
	if err == nil && found {
		err = vfs.WriteFile(e.FS, file, b)
	}
	if err != nil {
		return err
	}
	return e.Log.Replace(sealed, file)
}

// eraseArchived erases in the archive what a task has erased in the log up to an index.
func (e *Eraser) eraseArchived(ctx context.Context, task event.ID, upTo uint64) error {
	if e.Archive == nil {
		return nil
	}
	refs, err := erased(ctx, e.Log, task, event.RefOf(task).Index, upTo)
	if err != nil {
		return err
	}
	return e.Archive(ctx, refs)
}

const (
	// batch is how many contents are erased in one go: a list on disk, and an fsync a segment.
	batch = 4096
	// writeEvery is how many indexes ErasedFile may be behind while nothing is erased: they are
	// read at a start. It is checked each checkPosition.
	writeEvery    = 50_000
	checkPosition = time.Minute
	retryAfter    = 2 * time.Second // an error
)

// Run carries out what there is until ctx ends.
func (e *Eraser) Run(ctx context.Context) {
	e.Loop.Run(ctx, e.once, e.Logger.Warn, "erasure failed here, retrying")
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
	e.overwriting.Lock()
	defer e.overwriting.Unlock()
	first, head := e.State.TakeErased()
	if e.from == 0 {
		e.from = first
	}
	var refs []event.Ref
	if e.from > 0 {
		var err error
		if refs, err = erased(ctx, e.Log, event.ID{}, e.from, head); err != nil {
			return err
		}
		for part := range slices.Chunk(refs, batch) {
			if err := e.Log.Erase(part); err != nil {
				return err
			}
		}
	}
	if len(refs) > 0 {
		e.Logger.Info("contents erased", "from", e.from, "up_to", head, "contents", len(refs))
	}
	e.from = 0
	if head <= e.written || len(refs) == 0 && head < e.written+writeEvery {
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
	if err := e.eraseArchived(ctx, t.ID, upTo); err != nil {
		return err
	}
	report := &event.UpdateTask{ID: t.ID, Op: event.TaskOpReport, Node: e.Self()}
	r, err := e.Propose(ctx, &event.Command{UpdateTask: report})
	switch {
	case err != nil:
		return err
	case r.Problem != nil: // it has ended meanwhile
		e.Logger.Warn("erasure carried out here, but its task takes no report",
			"task", t.ID, "why", r.Problem.Detail)
	default:
		e.Logger.Info("erasure carried out here",
			"task", t.ID, "up_to", upTo, "took", time.Since(begun).Round(time.Millisecond))
	}
	return nil
}

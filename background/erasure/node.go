// Package erasure erases what users wrote from the cluster for good: contents in every
// node's event log and Raft log, and in the archive (I22). What is erased is decided
// like all else and is itself an event, `erased`, which names the events whose content
// goes; the task that it belongs to shows the progress.
//
//	Eraser   on the leader: finds all events of a message, through moves, replays
//	         and resurrections, or of all messages of a key; proposes their erasure;
//	         seals the task; and waits until every member has reported
//	Node     on every node: carries out what is decided, and reports
//
// What a node does, in this order:
//
//	overwrite the contents in the event log          durable and crash-safe
//	remove what was fetched and is not in place
//	purge the Raft log up to here                    raft.Replica.PurgeLog
//	bring the archive's copies up to date
//	report
//
// Each step can be repeated. The first is done for every `erased` event of the log, up
// to a position of its own (datadir.ErasedFile), whatever became of its task: a
// directory that was restored from an old copy, or fetched from a node that is behind,
// does it again. The others are done for a task that lacks this node's report.
package erasure

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Log is the part of the event log that a Node needs.
type Log interface {
	follower
	Head() uint64
	// Erase overwrites contents durably, and skips what is erased or gone.
	Erase(refs []event.Ref) error
}

// NodeOptions are what a Node works with.
type NodeOptions struct {
	Log     Log
	FS      vfs.FS
	DataDir string
	// Self returns this data directory's name among the cluster's members.
	Self func() string
	// Erased returns the first block with an `erased` event that it has not returned
	// before, 0 for none, and the index up to which it knows (fsm.Machine.TakeErased).
	Erased func() (first, upTo uint64)
	// Tasks returns all tasks.
	Tasks func() []event.TaskView
	// Propose decides a command.
	Propose func(context.Context, *event.Command) (event.Result, error)
	// Fetched removes what was fetched and is not in place.
	Fetched func() error
	// PurgeLog returns when no file of the Raft log holds an entry up to an index.
	PurgeLog func(ctx context.Context, upTo uint64) error
	// Archive removes erased contents from the archive; nil without one.
	Archive func(ctx context.Context, refs []event.Ref) error
	Logger  *slog.Logger
}

// Node carries erasures out on one node.
type Node struct {
	o    NodeOptions
	wake chan struct{}

	// Only Run uses these.
	from    uint64 // the first block that may have erasures that are not carried out; 0: none
	written uint64 // what ErasedFile says
}

// batch is how many contents are erased in one go: it is a list on disk, and an
// fsync for each segment.
const batch = 4096

// writeEvery is how many indexes ErasedFile may be behind while nothing is erased:
// they are read at a start.
const writeEvery = 50_000

// retryAfter is the pause after an error. Where nothing wakes it, a Node checks every
// checkPosition whether ErasedFile is too far behind.
const (
	retryAfter    = 2 * time.Second
	checkPosition = time.Minute
)

// NewNode returns a Node for a log that was recovered. Erased must know all blocks that are
// appended from now on.
func NewNode(o NodeOptions) (*Node, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{o: o, wake: make(chan struct{}, 1)}
	var err error
	if n.written, _, err = datadir.ReadErased(o.FS, o.DataDir); err != nil {
		return nil, err
	}
	if n.written < o.Log.Head() {
		n.from = n.written + 1
	}
	return n, nil
}

// Wake makes Run look again.
func (n *Node) Wake() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run carries out what there is until ctx ends.
func (n *Node) Run(ctx context.Context) {
	logged := ""
	for {
		err, pause := n.once(ctx), checkPosition
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			logged = ""
		} else if pause = retryAfter; err.Error() != logged { // the same words once
			logged = err.Error()
			n.o.Logger.Warn("erasure failed here, retrying", "error", err)
		}
		select {
		case <-n.wake:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// once carries out all that there is.
func (n *Node) once(ctx context.Context) error {
	// The tasks first: whatever a sealed one erases is overwritten then.
	tasks := n.o.Tasks()
	if err := n.overwrite(ctx); err != nil {
		return err
	}
	for i := range tasks {
		t := &tasks[i]
		if t.Kind == event.TaskErase && t.Status == event.TaskRunning && t.Sealed &&
			!reported(t, n.o.Self()) {
			if err := n.finish(ctx, t); err != nil {
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
func (n *Node) overwrite(ctx context.Context) error {
	first, head := n.o.Erased()
	if n.from == 0 {
		n.from = first
	}
	from, erased := n.from, 0
	if from > 0 {
		var refs []event.Ref
		for e, err := range events(ctx, n.o.Log, from, head) {
			if err != nil {
				return err
			}
			if e.Type != event.Erased {
				continue
			}
			erased += len(e.Refs)
			if refs = append(refs, e.Refs...); len(refs) >= batch {
				if err := n.o.Log.Erase(refs); err != nil {
					return err
				}
				refs = refs[:0]
			}
		}
		if len(refs) > 0 {
			if err := n.o.Log.Erase(refs); err != nil {
				return err
			}
		}
	}
	n.from = 0
	if erased > 0 {
		n.o.Logger.Info("contents erased", "from", from, "up-to", head, "contents", erased)
	}
	if head <= n.written || erased == 0 && head < n.written+writeEvery {
		return nil
	}
	if err := datadir.WriteErased(n.o.FS, n.o.DataDir, head); err != nil {
		return err
	}
	n.written = head
	return nil
}

// finish does the rest of a sealed task, whose contents are overwritten here.
func (n *Node) finish(ctx context.Context, t *event.TaskView) error {
	begun := time.Now()
	if err := n.o.Fetched(); err != nil {
		return err
	}
	// All that there is, not only up to the seal: settles that came too late, and
	// were refused, may have come in since.
	upTo := n.o.Log.Head()
	if err := n.o.PurgeLog(ctx, upTo); err != nil {
		return err
	}
	if n.o.Archive != nil {
		refs, err := refsOf(ctx, n.o.Log, t.ID, upTo)
		if err != nil {
			return err
		}
		if err := n.o.Archive(ctx, refs); err != nil {
			return err
		}
	}
	report := &event.UpdateTask{ID: t.ID, Op: event.TaskOpReport, Node: n.o.Self()}
	r, err := n.o.Propose(ctx, &event.Command{UpdateTask: report})
	if err != nil {
		return err
	}
	if r.Problem != nil { // it has ended meanwhile
		n.o.Logger.Warn("erasure carried out here, but its task takes no report",
			"task", t.ID, "why", r.Problem.Detail)
		return nil
	}
	n.o.Logger.Info("erasure carried out here",
		"task", t.ID, "up-to", upTo, "took", time.Since(begun).Round(time.Millisecond))
	return nil
}

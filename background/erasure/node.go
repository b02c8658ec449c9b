// Package erasure takes what users wrote out of the cluster for good: contents in
// every node's event log and Raft log, and in the archive. What is to be erased is
// decided like all else and is itself an event, `erased`, which names the events
// whose content goes; the task that it belongs to tells how far that is.
//
//	Carrier  on the leader: finds all events of a message, through moves, replays
//	         and resurrections, or of all messages of a key; has them decided on;
//	         seals the task; and waits until every member has reported
//	Node     on every node: carries out what is decided, and reports
//
// What a node does, and in this order:
//
//	overwrite the contents in the event log          durable, and crash-safe by itself
//	throw away what was fetched and is not in place
//	let the Raft log go up to here                   raft.Replica.Shed
//	bring the archive's copies up to date
//	report
//
// Each step can be done again. The first is done for every `erased` event of the
// log, at a position of its own (datadir.ErasedFile), whatever became of its task:
// a directory that was put back from an old copy, or was fetched from a node that
// is not so far, does it again. The others are done for a task that lacks this
// node's report.
package erasure

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// Log is the part of the event log that a Node needs.
type Log interface {
	// Follow yields the blocks from an index on to the end; a block is valid until
	// the next one.
	Follow(from uint64) iter.Seq2[*event.Block, error]
	Head() uint64
	// Erase overwrites contents durably, and passes over what is erased or gone.
	Erase(refs []event.Ref) error
}

// NodeOptions are what a Node stands on.
type NodeOptions struct {
	Log     Log
	FS      vfs.FS
	DataDir string
	// Self returns what this data directory is called among the cluster's members.
	Self func() string
	// Erased returns the first block with an `erased` event that it has not returned before,
	// 0 for none, and the index up to which it knows (fsm.Machine.TakeErased).
	Erased func() (first, upTo uint64)
	// Tasks returns all tasks.
	Tasks func() []event.TaskView
	// Propose gets a command decided.
	Propose func(context.Context, *event.Command) (event.Result, error)
	// Fetched throws away what was fetched and is not in place.
	Fetched func() error
	// Shed returns when no file of the Raft log holds an entry up to an index.
	Shed func(ctx context.Context, upTo uint64) error
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
	known   bool
}

// batch is how many contents are erased in one go: it is a list on disk, and an
// fsync for each segment.
const batch = 4096

// writeEvery is how many indexes the position may be behind while nothing is
// erased: they are gone through at a start.
const writeEvery = 50_000

// lookAgain is when a Node looks again after an error; and, where nothing wakes
// it, whether its position is to be written.
const (
	lookAgain = 2 * time.Second
	lookEvery = time.Minute
)

// NewNode returns a Node for a log that was recovered. Erased must know all blocks that are
// appended from now on.
func NewNode(o NodeOptions) (*Node, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{o: o, wake: make(chan struct{}, 1)}
	var err error
	if n.written, n.known, err = datadir.ReadErased(o.FS, o.DataDir); err != nil {
		return nil, err
	}
	head := o.Log.Head()
	if n.written < head {
		n.from = n.written + 1
	}
	return n, nil
}

// Wake lets Run look anew.
func (n *Node) Wake() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run carries out what there is until ctx ends.
func (n *Node) Run(ctx context.Context) {
	told := ""
	for {
		err := n.once(ctx)
		if ctx.Err() != nil {
			return
		}
		again := lookEvery
		switch {
		case err == nil:
			told = ""
		default:
			again = lookAgain
			if err.Error() != told { // the same words once
				told = err.Error()
				n.o.Logger.Warn("an erasure could not be carried out here; trying again", "error", err)
			}
		}
		timer := time.NewTimer(again)
		select {
		case <-n.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// once carries out all that there is.
func (n *Node) once(ctx context.Context) error {
	// The tasks first: whatever a sealed one told to be erased is overwritten then.
	tasks := n.o.Tasks()
	if err := n.overwrite(ctx); err != nil {
		return err
	}
	for _, t := range tasks {
		if t.Kind != event.TaskErase || t.Status != event.TaskRunning || !t.Sealed || n.reported(&t) {
			continue
		}
		if err := n.finish(ctx, &t); err != nil {
			return fmt.Errorf("task %s: %w", t.ID, err)
		}
	}
	return nil
}

func (n *Node) reported(t *event.TaskView) bool {
	return slices.ContainsFunc(t.Nodes, func(r event.TaskNode) bool { return r.Node == n.o.Self() })
}

// overwrite carries out the `erased` events of the log that are not yet.
func (n *Node) overwrite(ctx context.Context) (err error) {
	first, head := n.o.Erased()
	if n.from == 0 {
		n.from = first
	}
	from := n.from
	erased := 0
	if from > 0 {
		var refs []event.Ref
		flush := func() error {
			erased += len(refs)
			err := n.o.Log.Erase(refs)
			refs = refs[:0]
			return err
		}
		err := each(ctx, n.o.Log, from, head, func(e *event.Event) error {
			if e.Type == event.Erased {
				refs = append(refs, e.Refs...)
			}
			if len(refs) >= batch {
				return flush()
			}
			return nil
		})
		if err == nil && len(refs) > 0 {
			err = flush()
		}
		if err != nil {
			return err
		}
	}
	n.from = 0
	if erased > 0 {
		n.o.Logger.Info("contents erased", "from", from, "up-to", head, "contents", erased)
	}
	if n.known && (head <= n.written || erased == 0 && from == 0 && head < n.written+writeEvery) {
		return nil
	}
	if err := datadir.WriteErased(n.o.FS, n.o.DataDir, head); err != nil {
		return err
	}
	n.written, n.known = head, true
	return nil
}

type follower interface {
	Follow(from uint64) iter.Seq2[*event.Block, error]
}

// each calls fn with the events of the blocks from and to inclusive.
func each(ctx context.Context, log follower, from, to uint64, fn func(*event.Event) error) error {
	for b, err := range log.Follow(from) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if b.Index > to {
			return nil
		}
		for i := range b.Events {
			if err := fn(&b.Events[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// refsOf returns the events whose contents a task has told to be erased.
func refsOf(ctx context.Context, log follower, task event.ID, upTo uint64) (refs []event.Ref, err error) {
	err = each(ctx, log, event.RefOf(task).Index, upTo, func(e *event.Event) error {
		if e.Type == event.Erased && e.Task == task {
			refs = append(refs, e.Refs...)
		}
		return nil
	})
	return refs, err
}

// finish does the rest of a sealed task, whose contents are overwritten here.
func (n *Node) finish(ctx context.Context, t *event.TaskView) error {
	began := time.Now()
	if err := n.o.Fetched(); err != nil {
		return err
	}
	// All that there is, not only up to the seal: settles that came too late, and
	// were refused, may have come in since.
	upTo := n.o.Log.Head()
	if err := n.o.Shed(ctx, upTo); err != nil {
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
	r, err := n.o.Propose(ctx, &event.Command{UpdateTask: &event.UpdateTask{ID: t.ID, Op: event.TaskOpReport, Node: n.o.Self()}})
	if err != nil {
		return err
	}
	if r.Problem != nil {
		// It has ended meanwhile.
		n.o.Logger.Warn("an erasure was carried out here, but its task takes no report", "task", t.ID, "why", r.Problem.Detail)
		return nil
	}
	n.o.Logger.Info("erasure carried out here", "task", t.ID, "up-to", upTo, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

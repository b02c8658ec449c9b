// Package verify verifies the files of a running node, as qlogd replay --verify does: a task of the
// node that it names, which reads at a bounded rate and reports the first thing that is wrong.
package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

// Rate is how many bytes of files are read in a second at most.
const Rate = 50_000_000

const atOnce = 1 << 20 // bytes that are read before the rate counts

// Options are what a Verifier works with.
type Options struct {
	FS      vfs.FS
	DataDir string
	Node    *datadir.Node
	Log     interface{ Head() uint64 } // of the node, which appends to it
	// Opened is the head with which the log was opened. A task that is older was interrupted.
	Opened uint64
	Rate   int64 // bytes a second
	// Busy reports whether the node is overloaded: nothing is read meanwhile.
	Busy func() bool
	// Damaged is called with damage that was found.
	Damaged func(*log.CorruptionError)
	Logger  *slog.Logger
}

// Verifier verifies the files of one node.
type Verifier struct {
	o       Options
	stopped context.Context // ended by Stop
	stop    context.CancelFunc

	running sync.Mutex // held by Run: a cancelled one may still be ending when the next one begins
	last    outcome    // of the newest one. Guarded by running

	mu  sync.Mutex
	now datadir.Verifying
}

// outcome is how a verification has ended. It is kept because its proposal may fail.
type outcome struct {
	task   event.ID
	result []byte
	err    error
}

// New returns a Verifier.
func New(o Options) *Verifier {
	v := &Verifier{o: o}
	v.stopped, v.stop = context.WithCancel(context.Background())
	return v
}

// Stop ends the running verification, and each later one, as failed. Call it while the node can
// still propose that.
func (v *Verifier) Stop() { v.stop() }

// Verifying returns the progress of the running verification.
func (v *Verifier) Verifying() datadir.Verifying {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

func (v *Verifier) progress(now datadir.Verifying) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = now
}

// Run is a task.Run of the node that the task names. Its result is a wire.Verified. It is not
// retried: any interruption fails the task.
func (v *Verifier) Run(ctx context.Context, t event.TaskView, _ []byte) (
	skipped int64, result []byte, err error) {
	v.running.Lock()
	defer v.running.Unlock()
	if v.last.task != t.ID {
		result, err := v.verify(ctx, t.ID)
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		v.last = outcome{t.ID, result, err}
	}
	return 0, v.last.result, v.last.err
}

// failed returns the error that ends a task.
func failed(format string, args ...any) error {
	return event.Problemf(event.CodeConflict, "", format, args...)
}

// verify verifies all up to the log's head. An error ends the task, unless ctx has ended.
func (v *Verifier) verify(ctx context.Context, id event.ID) ([]byte, error) {
	stopped := failed("node %s was stopped", v.o.Node.NodeID)
	switch {
	case event.RefOf(id).Index <= v.o.Opened:
		return nil, failed("node %s was restarted", v.o.Node.NodeID)
	case v.stopped.Err() != nil:
		return nil, stopped
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.stopped, cancel)()
	v.progress(datadir.Verifying{Task: id.String()})
	defer v.progress(datadir.Verifying{})
	head := v.o.Log.Head()
	files := &paced{v.o.FS, reading, loop.NewPace(v.o.Rate, atOnce, v.o.Busy)}
	report, err := replay.Verify(reading, files, v.o.DataDir, v.o.Node, func(done, total int64) {
		v.progress(datadir.Verifying{Task: id.String(), Done: done / 2, Total: total / 2})
	})
	if err == nil {
		err = reaches(report, head)
	}
	if reading.Err() != nil {
		return nil, stopped
	}
	found, failure := Result(report, err)
	if failure != nil {
		return nil, failed("%v", failure)
	}
	if err != nil {
		v.o.Logger.Error("verification found a difference", "error", err)
	}
	if c, ok := errors.AsType[*log.CorruptionError](err); ok {
		v.o.Damaged(c)
	}
	found.TornBytes = 0 // a block that is being appended
	return wire.Marshal(found)
}

// reaches returns a difference if a log ends before the head that the node has reached.
func reaches(r *replay.Report, head uint64) error {
	if r.Log.Last >= head {
		return nil
	}
	c := &log.CorruptionError{LastGood: r.Log.Last, Reason: "the log ends"}
	if t := r.Log.Tail; t != nil {
		c.Segment, c.Offset, c.Reason = t.Segment, t.Offset, t.Reason
	}
	c.Reason += fmt.Sprintf("; the node has written up to index %d", head)
	return &replay.Difference{Index: r.Log.Last + 1, Err: c}
}

// Result returns what replay.Verify found, a difference included. Its other errors are returned.
func Result(r *replay.Report, err error) (*wire.Verified, error) {
	l := &r.Log
	out := &wire.Verified{
		OK: err == nil, Index: l.Last, ChainHash: l.Chain.String(), FirstIndex: l.First,
		Segments: l.Segments, Blocks: l.Blocks, Events: l.Records, Erased: l.Erased,
		Damaged: l.Damaged, Bytes: l.Bytes, Checkpoints: r.Checkpoints,
	}
	if l.Tail != nil {
		out.TornBytes = l.Tail.Bytes
	}
	if r.State != nil {
		out.Time = wire.Time(r.State.Clock())
	}
	if err == nil {
		return out, nil
	}
	d, different := errors.AsType[*replay.Difference](err)
	if !different {
		return nil, err
	}
	out.Difference, out.WrongIndex = d.Error(), d.Index
	if c, ok := errors.AsType[*log.CorruptionError](err); ok && c.Segment != "" {
		out.Segment, out.Offset = c.Segment, &c.Offset
	}
	return out, nil
}

// checkEvery is the pause between checks whether a node is still a member.
const checkEvery = time.Second

// Watch returns the leader's part of a verification: it fails the task of a node that is no longer
// a member. All other ends are the node's to propose.
func Watch(members func() []string) task.Run {
	return func(ctx context.Context, t event.TaskView, _ []byte) (int64, []byte, error) {
		of := t.Nodes[0].Node
		for ctx.Err() == nil {
			if all := members(); len(all) > 0 && !slices.Contains(all, of) {
				node, _, _ := strings.Cut(of, "/")
				return 0, nil, failed("node %s, with that data directory, is no longer a member", node)
			}
			loop.Sleep(ctx, checkEvery)
		}
		return 0, nil, ctx.Err()
	}
}

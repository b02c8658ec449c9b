// Package erasure erases what users wrote from the cluster for good: contents in every
// node's event log and Raft log, and in the archive (I22). What is erased is decided
// like all else and is itself an event, `erased`, which names the events whose content
// goes; the task that it belongs to shows the progress.
//
//	RunTask  on the leader: finds all events of a message, through moves, replays
//	         and resurrections, or of all messages of a key; proposes their erasure;
//	         seals the task; and waits until every member has reported
//	Run      on every node: carries out what is decided, and reports
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
	"encoding/json"
	"log/slog"
	"sync"

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
	// OpenPast opens the log as it is now together with the archive before it, nil if that does not
	// go back further. nil: there is no archive.
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

	// Only Run uses these.
	from    uint64 // the first block that may have erasures that are not carried out; 0: none
	written uint64 // what ErasedFile says
}

// New returns an Eraser for a log that was recovered. The state must apply all blocks that are
// appended from now on.
func New(o Options) (*Eraser, error) {
	e := &Eraser{Options: o, Loop: loop.New(checkPosition, retryAfter)}
	var err error
	if e.written, _, err = datadir.ReadErased(o.FS, o.DataDir); err != nil {
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
	Message string `json:"message_id,omitzero"`
	Queue   string `json:"queue,omitzero"`
	Key     string `json:"key,omitzero"`
	Reason  string `json:"reason"`
}

// Encode returns the JSON.
func (s *Spec) Encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings alone
	}
	return b
}

// refsOf returns the events whose contents a task has erased.
func (e *Eraser) refsOf(ctx context.Context, task event.ID, upTo uint64) (
	refs []event.Ref, err error) {
	for e, err := range e.Log.Events(ctx, event.RefOf(task).Index, upTo) {
		if err != nil {
			return nil, err
		}
		if e.Type == event.Erased && e.Task == task {
			refs = append(refs, e.Refs...)
		}
	}
	return refs, nil
}

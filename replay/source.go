// Package replay reads the past from files alone: the state at an instant, the events and changes
// between two instants, and whether the files are intact. It never writes to the log that it reads,
// whether that is a live node's, a stopped one's or a copy.
package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Source is an event log and the checkpoints beside it.
type Source struct {
	Log         *log.Log
	FS          vfs.FS
	Checkpoints string // directory, which may be missing
}

// Cost is the work of rebuilding a state.
type Cost struct {
	Checkpoint uint64 // index of the checkpoint it started from; 0: the log's start
	Blocks     uint64
	Events     uint64
	Skipped    []error // why newer checkpoints could not be used
}

// StateAt folds the state after the whole entry at an instant. At a time at which there is no
// entry, what was scheduled until then is ready.
func (s *Source) StateAt(ctx context.Context, at event.Instant) (*projections.State, Cost, error) {
	to, err := s.Log.To(at)
	if err != nil {
		return nil, Cost{}, err
	}
	state, cost, err := s.stateAfter(ctx, to)
	if err == nil && at.Kind == event.InstantTime {
		state.Advance(at.Time)
	}
	return state, cost, err
}

// Earliest returns the first instant whose state can be rebuilt: the log's start, or, where
// retention has deleted that, the oldest checkpoint's.
func (s *Source) Earliest() (event.Instant, error) {
	before, _ := s.Log.Begins()
	if before == 0 {
		return event.Instant{Kind: event.InstantStart}, nil
	}
	metas, _, err := checkpoint.List(s.FS, s.Checkpoints)
	if err != nil {
		return event.Instant{}, err
	}
	for _, m := range slices.Backward(metas) { // oldest first
		if m.HeadIndex > before {
			return event.Instant{Kind: event.InstantIndex, Index: m.HeadIndex}, nil
		}
	}
	return event.Instant{}, s.Log.OutOfRange(fmt.Sprintf("history up to index:%d has been deleted "+
		"by retention, and no checkpoint holds the state there", before), true)
}

// stateAfter folds the state after the last block up to index to.
func (s *Source) stateAfter(ctx context.Context, to uint64) (*projections.State, Cost, error) {
	state, cost, err := s.base(to)
	if err != nil {
		return nil, cost, err
	}
	for b, err := range s.fold(ctx, state, to) {
		if err != nil {
			return nil, cost, err
		}
		cost.Blocks++
		cost.Events += uint64(len(b.Events))
	}
	return state, cost, nil
}

// base returns the newest state up to index to that needs no folding: a good checkpoint's, or the
// empty one.
func (s *Source) base(to uint64) (*projections.State, Cost, error) {
	var cost Cost
	metas, bad, err := checkpoint.List(s.FS, s.Checkpoints)
	if err != nil {
		return nil, cost, err
	}
	for _, b := range bad {
		cost.Skipped = append(cost.Skipped, fmt.Errorf("checkpoint %s: %w", b.Name, b.Err))
	}
	for i := range metas {
		if metas[i].HeadIndex > to {
			continue
		}
		state, err := s.load(&metas[i])
		if err == nil {
			cost.Checkpoint = metas[i].HeadIndex
			return state, cost, nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // not deleted meanwhile by a live node
			cost.Skipped = append(cost.Skipped, err)
		}
	}
	if before, _ := s.Log.Begins(); before > 0 && to > 0 {
		return nil, cost, s.Log.OutOfRange(fmt.Sprintf("the state at index:%d cannot be rebuilt: "+
			"history up to index:%d has been deleted by retention, and no checkpoint lies between",
			to, before), true)
	}
	return projections.New(), cost, nil
}

// load reads a checkpoint's body to its verified end and compares the state with its head.
func (s *Source) load(meta *checkpoint.Meta) (*projections.State, error) {
	_, body, err := checkpoint.Open(s.FS, s.Checkpoints, meta.Name())
	if err != nil {
		return nil, err
	}
	defer body.Close()
	state, err := projections.Load(body)
	if err == nil {
		// Only a reader at its end has verified everything (checkpoint.Open).
		var n int64
		if n, err = io.Copy(io.Discard, body); err == nil && n > 0 {
			err = fmt.Errorf("%d bytes after the state", n)
		}
	}
	if err == nil && (state.Index() != meta.HeadIndex || state.Clock() != meta.Clock ||
		state.Digest() != meta.Digest) {
		err = fmt.Errorf("its state is of index %d, clock %d, digest %x; its head says %d, %d, %x",
			state.Index(), state.Clock(), state.Digest(), meta.HeadIndex, meta.Clock, meta.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", meta.Name(), err)
	}
	return state, nil
}

// fold folds all blocks after the state's index up to to, and yields each block after it was
// folded.
func (s *Source) fold(ctx context.Context, state *projections.State, to uint64,
) iter.Seq2[*event.Block, error] {
	return func(yield func(*event.Block, error) bool) {
		for b, err := range s.Log.Blocks(ctx, state.Index()+1, to) {
			if err == nil {
				err = foldBlock(state, b)
			}
			if !yield(b, err) {
				return
			}
		}
	}
}

// foldBlock folds a block.
func foldBlock(state *projections.State, b *event.Block) (err error) {
	defer foldFailed(b, &err)
	state.Fold(b)
	return nil
}

// foldFailed makes a panic of the fold a Difference: the block, or the state before it, is wrong.
// Here nothing goes on with the state.
func foldFailed(b *event.Block, err *error) {
	if r := recover(); r != nil {
		*err = differ(b.Index, "block %d: %v", b.Index, r)
	}
}

// Filter selects events; its zero value takes all.
type Filter struct {
	log.Filter
	Message event.ID // through dead-letter queues and replays
}

// Events yields the events of the entries from first to last, both inclusive, that a filter
// selects, in the log's order.
func (s *Source) Events(ctx context.Context, first, last uint64, f *Filter,
) iter.Seq2[*event.Event, error] {
	all := s.Log.Events(ctx, first, last)
	if !f.Message.IsZero() {
		all = s.history(ctx, first, last, f.Message)
	}
	return func(yield func(*event.Event, error) bool) {
		for e, err := range all {
			ok := false
			if err == nil {
				ok, err = f.Selects(ctx, s.Log, e)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if ok && !yield(e, nil) {
				return
			}
		}
	}
}

// history yields a message's events of the entries from first to last.
func (s *Source) history(ctx context.Context, first, last uint64, id event.ID,
) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		history, err := s.Log.History(ctx, id)
		if err != nil {
			yield(nil, err)
			return
		}
		for i := range history {
			index := event.RefOf(history[i].ID).Index
			if index >= first && index <= last && !yield(&history[i], nil) {
				return
			}
		}
	}
}

// Dir is a data directory that is only read: nothing is locked or written (I14).
type Dir struct {
	Source
	Path string
	Node *datadir.Node // blank where node.json is missing (a copy of log/ alone)
	// Metas are the checkpoints that existed before the log was opened, so that none of a live
	// node's is newer than the log.
	Metas []checkpoint.Meta
}

// newDir returns a directory whose log is not opened, and its unusable checkpoints.
func newDir(fsys vfs.FS, path string, node *datadir.Node) (
	d *Dir, bad []checkpoint.Bad, err error) {
	d = &Dir{Path: path, Node: cmp.Or(node, &datadir.Node{})}
	d.FS, d.Checkpoints = fsys, datadir.Path(path, datadir.CheckpointDir)
	d.Metas, bad, err = checkpoint.List(d.FS, d.Checkpoints)
	return d, bad, err
}

// Open opens the data directory at path. It does not search for damage that only reading everything
// would show: Verify does.
func Open(path string) (*Dir, error) {
	node, err := ReadCard(path)
	if err != nil {
		return nil, err
	}
	return OpenOn(vfs.OS{}, path, node, false)
}

// ReadCard returns the card of the data directory at path, a blank one if it has none.
func ReadCard(path string) (*datadir.Node, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("data directory %s is not a directory", path)
	}
	node, err := datadir.ReadNode(path)
	if errors.Is(err, datadir.ErrNoNode) {
		return &datadir.Node{}, nil
	}
	return node, err
}

// OpenOn opens the data directory at path of any file system; node may be nil. With toDamage, a
// damaged log is opened too, and what is before the damage can be read (log.Options.ToDamage).
func OpenOn(fsys vfs.FS, path string, node *datadir.Node, toDamage bool) (*Dir, error) {
	if _, err := fsys.Stat(datadir.Path(path, datadir.LogDir)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no data directory: it has no %s/", path, datadir.LogDir)
	}
	d, _, err := newDir(fsys, path, node)
	if err == nil {
		o := d.logOptions()
		o.ToDamage = toDamage
		d.Log, err = log.OpenReadOnly(o)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// LogDir returns the directory of the log's files.
func (d *Dir) LogDir() string { return datadir.Path(d.Path, datadir.LogDir) }

func (d *Dir) logOptions() log.Options {
	o := log.Options{FS: d.FS, Dir: d.LogDir()}
	if len(d.Metas) > 0 {
		o.Durable = d.Metas[0].HeadIndex
	}
	return o
}

// Close closes the files.
func (d *Dir) Close() error { return d.Log.Close() }

package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Difference is the first thing that verification found wrong.
type Difference struct {
	// Index of the first block that is wrong, or that cannot be right; 0 if it is no block.
	Index uint64
	Err   error
}

func (d *Difference) Error() string { return d.Err.Error() }
func (d *Difference) Unwrap() error { return d.Err }

func differ(index uint64, format string, args ...any) error {
	return &Difference{index, fmt.Errorf(format, args...)}
}

// Report is the result of a verification.
type Report struct {
	Log         log.Report
	Checkpoints int    // compared and equal
	Folded      uint64 // blocks
	From        uint64 // the checkpoint folded from; 0: the log's start
	State       *projections.State
}

// Verify reads every byte of the log and of the checkpoints, folds the log from its start (or from
// the oldest checkpoint if retention has deleted the start), and compares digest, chain and clock
// with every checkpoint. The first thing wrong is a *Difference; any other error means that
// verification failed.
//
// node is the directory's card, nil or blank without one. progress is called with the work done and
// the total, in bytes of the log, each counted twice: read and folded.
func Verify(ctx context.Context, fsys vfs.FS, path string, node *datadir.Node,
	progress func(done, total int64)) (*Report, error) {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	r := &Report{}
	// Before the log is read: a live node's log may only be ahead of these checkpoints.
	d, bad, err := newDir(fsys, path, node)
	if err != nil {
		return r, err
	}
	for _, b := range bad {
		if !errors.Is(b.Err, fs.ErrNotExist) {
			return r, differ(0, "checkpoint %s: %w", b.Name, b.Err)
		}
	}
	r.Log, err = log.Verify(ctx, d.logOptions(), func(done, all int64) {
		progress(done, 2*all)
	})
	if err == nil {
		d.Log, err = log.OpenReadOnly(d.logOptions())
	}
	if err != nil {
		return r, difference(err)
	}
	defer d.Log.Close()
	return r, d.verifyFold(ctx, r, func() {
		done := float64(r.Folded) / float64(r.Log.Blocks)
		progress(r.Log.Bytes+int64(done*float64(r.Log.Bytes)), 2*r.Log.Bytes)
	})
}

// difference makes damage a Difference, and returns other errors as they are.
func difference(err error) error {
	if c, ok := errors.AsType[*log.CorruptionError](err); ok {
		return &Difference{Index: c.LastGood + 1, Err: err}
	}
	if c, ok := errors.AsType[*checkpoint.CorruptError](err); ok {
		return &Difference{Err: c}
	}
	return err
}

// verifyFold folds the log as far as Verify has read it, and stops at every checkpoint on the way.
func (d *Dir) verifyFold(ctx context.Context, r *Report, progress func()) error {
	metas := slices.Clone(d.Metas)
	slices.Reverse(metas) // oldest first
	state := projections.New()
	head := r.Log.Last
	before, _ := d.Log.Begins()
	if before > 0 {
		var err error
		if state, metas, err = d.oldest(metas, before, head); err != nil {
			return err
		}
		r.From = state.Index()
	}
	r.State = state
	check := func(upTo uint64) error {
		for ; len(metas) > 0 && metas[0].HeadIndex <= upTo; metas = metas[1:] {
			if err := d.checkpointEqual(&metas[0], state); err != nil {
				return err
			}
			if metas[0].HeadIndex >= r.From {
				r.Checkpoints++
			}
		}
		return nil
	}
	// Retention announces in the log what it deletes. A live node may have deleted more since the
	// log was read, so the log is read on until it announces what is missing.
	announced := uint64(0)
	for b, err := range d.Log.Blocks(ctx, state.Index()+1, math.MaxUint64) {
		if err != nil {
			return difference(err)
		}
		if b.Index > head {
			if before == 0 || before < max(state.History(), announced) {
				break
			}
			for i := range b.Events {
				if e := &b.Events[i]; e.Type == event.HistoryDeleted {
					announced = max(announced, e.Before)
				}
			}
			continue
		}
		// Checkpoints of the state before this block, which it is still in.
		if err := check(b.Index - 1); err != nil {
			return err
		}
		if err := foldBlock(state, b); err != nil {
			return err
		}
		r.Folded++
		progress()
	}
	if err := check(head); err != nil {
		return err
	}
	// The last index that a copy has from its original.
	shared := cmp.Or(d.Node.Fork, &datadir.Fork{}).Index
	announced = max(announced, state.History())
	switch {
	case before > 0 && before >= max(announced, shared+1): // a copy may end before the announcement
		return differ(max(announced, 1), "the log begins behind index %d, but retention has "+
			"deleted only what is before index %d: its beginning is missing", before, announced)
	case len(metas) > 0 && metas[0].HeadIndex > head:
		return differ(head+1, "the log ends at index %d, before checkpoint %s, which is of index "+
			"%d: its end is missing", head, metas[0].Name(), metas[0].HeadIndex)
	}
	return nil
}

// oldest returns the state of the first checkpoint from which a log continues whose start is
// deleted, and the checkpoints from there on. A live node may delete it meanwhile, and then has
// newer ones.
func (d *Dir) oldest(metas []checkpoint.Meta, before, head uint64) (
	*projections.State, []checkpoint.Meta, error) {
	for listed := false; ; listed = true {
		for i := range metas {
			if metas[i].HeadIndex < before {
				continue
			}
			state, err := d.load(&metas[i])
			if err == nil {
				return state, metas, nil
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return nil, nil, &Difference{Err: err}
			}
		}
		if listed {
			return nil, nil, differ(0, "history up to index %d was deleted, "+
				"and no checkpoint holds the state there", before)
		}
		var err error
		if metas, _, err = checkpoint.List(d.FS, d.Checkpoints); err != nil {
			return nil, nil, err
		}
		slices.Reverse(metas)
		newer := func(m checkpoint.Meta) bool { return m.HeadIndex > head }
		metas = slices.DeleteFunc(metas, newer)
	}
}

// checkpointEqual compares a checkpoint, every byte of it, with the state that the fold has
// reached, and its chain with the log's.
func (d *Dir) checkpointEqual(m *checkpoint.Meta, state *projections.State) error {
	stored, err := d.load(m)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted meanwhile by a live node
	}
	if err != nil {
		return &Difference{Index: m.HeadIndex, Err: err}
	}
	if m.HeadIndex < state.Index() {
		return nil // older than where the fold started: only its own checksums can be checked
	}
	chain, err := d.Log.ChainAt(m.HeadIndex)
	if err != nil {
		return difference(err)
	}
	wrong := ""
	switch {
	case chain != m.Chain:
		wrong = fmt.Sprintf("its chain is %x, the log's is %x", m.Chain, chain)
	case state.Index() != m.HeadIndex:
		wrong = fmt.Sprintf("the log has no block there (the newest before is %d)", state.Index())
	case state.Clock() != m.Clock:
		wrong = fmt.Sprintf("its clock is %d, the fold's is %d", m.Clock, state.Clock())
	case state.Digest() != m.Digest:
		wrong = fmt.Sprintf("its digest is %x, the fold's is %x%s",
			m.Digest, state.Digest(), firstDifference(stored, state))
	default:
		return nil
	}
	return differ(m.HeadIndex, "checkpoint %s at index %d: %s", m.Name(), m.HeadIndex, wrong)
}

// firstDifference names a message or queue in which two states differ.
func firstDifference(a, b *projections.State) string {
	for _, q := range b.Queues() {
		if !sameQueue(queueIn(a, q.Name), &q) {
			return fmt.Sprintf(" (queue %s differs)", q.Name)
		}
	}
	for m := range b.All {
		if !sameMessage(fateIn(a, m.ID), &Fate{MessageView: m}) {
			return fmt.Sprintf(" (message %s in queue %s differs)", m.ID, m.Queue)
		}
	}
	return ""
}

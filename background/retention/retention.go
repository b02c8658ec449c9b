// Package retention deletes history that is older than a limit and not needed any more.
//
// The leader carries forward the contents that live messages still need from old segments (it
// proposes entries that write them again), and then commits that history below an index may be
// deleted. Each node then deletes whole segments below it, but none after the oldest checkpoint
// that it keeps. The index is that of a checkpoint at the limit, so every state within the limit
// can be rebuilt.
package retention

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/raft"
)

// Retention is one node's part of retention.
type Retention struct {
	Limit   time.Duration // how long history is kept; 0: for ever
	Log     *log.Log
	State   *fsm.Replica
	Replica *raft.Replica
	// KeepFrom returns the first index that the archive lacks, which therefore stays.
	KeepFrom func() uint64
	Logger   *slog.Logger
}

// Run deletes history until ctx ends.
func (r *Retention) Run(ctx context.Context) {
	if r.Limit == 0 {
		return
	}
	every := min(max(r.Limit/100, time.Second), 5*time.Minute)
	loop.New(every, every).Run(ctx, r.Once, r.Logger.Warn,
		"failed to delete old history, retrying")
}

// Once deletes what is older than the limit.
func (r *Retention) Once(ctx context.Context) error {
	metas := r.Replica.Status().Checkpoints
	if r.Replica.Leader() {
		cut, err := r.plan(metas)
		if err == nil && cut > r.State.History() {
			err = r.commit(ctx, cut)
		}
		if err != nil {
			return err
		}
	}
	return r.delete(metas)
}

// plan returns the first index to keep: the beginning of the segment after the newest checkpoint
// that is older than the limit; 0 keeps everything.
func (r *Retention) plan(metas []checkpoint.Meta) (cut uint64, err error) {
	index, ok, err := r.Log.SeekTime(r.Replica.Clock() - r.Limit.Milliseconds())
	if err != nil {
		return 0, err
	}
	if !ok {
		index = r.Log.Head() + 1 // nothing has happened since: all of it is old
	}
	base := slices.IndexFunc(metas, func(m checkpoint.Meta) bool { return m.HeadIndex < index })
	if base < 0 {
		return 0, nil
	}
	return r.segment(metas[base].HeadIndex + 1), nil
}

// segment returns the first index of the segment that contains an index; 0 if that is the oldest
// segment, or none.
func (r *Retention) segment(index uint64) (first uint64) {
	for i, s := range r.Log.Segments() {
		if i > 0 && s.First <= index {
			first = s.First
		}
	}
	return first
}

const (
	// The most that one entry carries forward.
	carryCount = 200
	carryBytes = 512 << 10
	// The number of messages examined at once: nothing is applied meanwhile.
	scanned = 16 << 10
)

// commit carries forward what live messages need below cut, and commits that history below may go.
func (r *Retention) commit(ctx context.Context, cut uint64) error {
	for at, more := uint32(0), true; more; {
		var refs []event.MessageView
		r.State.View(func(s *projections.State) { refs, at, more = s.Behind(cut, at, scanned) })
		if err := r.carry(ctx, refs); err != nil {
			return err
		}
	}
	// The count of what is needed is coarse: it may be a little below the cut, and a segment is
	// then deleted the next time.
	r.State.View(func(s *projections.State) { cut = min(cut, s.Needed()) })
	if cut <= r.State.History() {
		return nil
	}
	result, err := r.Replica.Propose(ctx, &event.Command{Retain: &event.Retain{Before: cut}})
	if err == nil && result.Problem != nil {
		return result.Problem
	}
	return err
}

// carry proposes entries that write the contents of messages again.
func (r *Retention) carry(ctx context.Context, refs []event.MessageView) error {
	// In the order of the log.
	slices.SortFunc(refs, func(a, b event.MessageView) int { return a.ID.Compare(b.ID) })
	for len(refs) > 0 {
		c := &event.Carry{}
		size := 0
		for len(refs) > 0 && len(c.Items) < carryCount && size < carryBytes {
			m := refs[0]
			refs = refs[1:]
			item, err := r.item(ctx, &m)
			if errors.Is(err, log.ErrGone) || errors.Is(err, log.ErrNotFound) {
				continue // it has been carried meanwhile, or was damaged
			}
			if err != nil {
				return err
			}
			c.Items = append(c.Items, item)
			size += len(item.Content.Bytes)
		}
		if len(c.Items) == 0 {
			continue
		}
		if _, err := r.Replica.Propose(ctx, &event.Command{Carry: c}); err != nil {
			return err
		}
	}
	return nil
}

// item returns what a live message needs of the log: its content, and its labels, by which its
// events are found, and undone, for as long as they are kept.
func (r *Retention) item(ctx context.Context, m *event.MessageView) (
	item event.CarryItem, err error) {
	item = event.CarryItem{ID: m.ID, From: m.Content, First: m.ID, Lease: m.Lease}
	switch {
	case m.Dead != nil:
		item.First, item.Replays = m.Dead.First, m.Dead.ReplayCount
	case m.Origin != nil:
		item.First, item.Replays = m.Origin.First, m.Origin.Replays
	}
	if item.Content, err = r.content(m); err != nil {
		return item, err
	}
	made, err := log.Made(ctx, r.Log, m.ID)
	if err != nil {
		return item, err
	}
	item.CorrelationID, item.DedupKey = made.CorrelationID, made.DedupKey
	if q, ok := r.State.Queue(cmp.Or(made.ToQueue, made.Queue)); ok && !made.Alias.IsZero() {
		item.DedupKey = made.Alias.Of(q.Number) // its own inverse
	}
	if !m.Lease.IsZero() {
		item.Worker, _, err = log.Worker(ctx, r.Log,
			&event.Event{ID: event.MaxID, Subject: m.ID, Lease: m.Lease})
	}
	return item, err
}

// content returns what a live message needs of the log: what it was produced with and, of a dead
// one, the error text, which is in the event that moved it. That event is later than the content
// until the content is carried forward, so whenever the event may go, so may the content.
func (r *Retention) content(m *event.MessageView) (event.Blob, error) {
	made, err := r.Log.Event(m.Content)
	if err == nil && made.Content.Damaged {
		if _, err = r.Log.Content(m.Content); !log.IsDamage(err) { // else it may be repaired
			err = log.ErrGone // there is nothing to carry
		}
	}
	if err != nil {
		return event.Blob{}, err
	}
	if m.Dead == nil {
		return made.Content, nil
	}
	c, err := event.DecodeContent(made.Content.Bytes)
	if err == nil && c.Error == "" {
		var moved *event.Content
		if moved, err = r.Log.Content(event.RefOf(m.ID)); err == nil {
			c.Error = moved.Error
		}
	}
	if err != nil {
		return event.Blob{}, err
	}
	return event.EncodeContent(c), nil
}

// delete deletes the segments and checkpoints that the log's commit allows.
func (r *Retention) delete(metas []checkpoint.Meta) error {
	history := min(r.State.History(), r.KeepFrom())
	if segments := r.Log.Segments(); len(segments) < 2 || segments[0].Last >= history {
		return nil
	}
	first := r.segment(history)
	// The newest checkpoint from which everything that stays can be folded, and at least the newest
	// two: a start must survive the loss of one.
	base := max(slices.IndexFunc(metas, func(m checkpoint.Meta) bool {
		return m.HeadIndex+1 <= history || m.HeadIndex < first
	}), 1)
	if base >= len(metas) {
		return nil
	}
	// The commit that allows it must be durable before anything is deleted; and the segments go
	// first: without the checkpoint the state at a segment before it could not be rebuilt.
	old := r.Log.First()
	if err := r.Log.Sync(); err != nil {
		return err
	}
	if err := r.Log.DeleteBefore(min(history, metas[base].HeadIndex+1)); err != nil {
		return err
	}
	if first := r.Log.First(); first > old {
		r.Logger.Info("history deleted", "from", old, "to", first-1, "kept_from", first)
	}
	return r.Replica.DropCheckpoints(metas[base].Index)
}

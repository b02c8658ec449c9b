package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
)

// History goes in three steps, so that nothing goes that is needed:
//
//	the leader carries forward what live messages still need of the old
//	segments (entries that write their contents anew), then commits that history
//	below an index may go; and each node then deletes whole segments below it,
//	never what lies behind the oldest checkpoint that it keeps.
//
// So the past can be told for the whole of --history-retention: the index is
// that of a checkpoint at its beginning.

// retainEvery is how often it is looked whether history is to go.
func retainEvery(retention time.Duration) time.Duration {
	return min(max(retention/100, time.Second), 5*time.Minute)
}

// retain runs until the node ends.
func (e *engine) retain() {
	if e.c.HistoryRetention == 0 {
		return
	}
	tick := time.NewTicker(retainEvery(e.c.HistoryRetention))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.background.Done():
			return
		}
		if err := e.retainOnce(e.background, e.c.HistoryRetention); err != nil && e.background.Err() == nil {
			e.logger.Warn("history was not let go of; trying again", "error", err)
		}
	}
}

// retainOnce lets go of what is older than retention.
func (e *engine) retainOnce(ctx context.Context, retention time.Duration) error {
	metas := e.replica.Status().Checkpoints
	if e.replica.Leader() {
		cut, ok, err := e.planCut(metas, retention)
		if err != nil {
			return err
		}
		if ok && cut > e.machine.History() {
			if err := e.letGo(ctx, cut); err != nil {
				return err
			}
		}
	}
	return e.deleteHistory(metas)
}

// planCut returns the first index that is to be kept: the beginning of the
// segment behind the newest checkpoint that is older than the retention.
func (e *engine) planCut(metas []checkpoint.Meta, retention time.Duration) (uint64, bool, error) {
	horizon := e.replica.Clock() - retention.Milliseconds()
	index, ok, err := e.log.SeekTime(horizon)
	if err != nil {
		return 0, false, err
	}
	if !ok {
		index = e.log.Head() + 1 // nothing has happened since: all of it is old
	}
	base := slices.IndexFunc(metas, func(m checkpoint.Meta) bool { return m.HeadIndex < index })
	if base < 0 {
		return 0, false, nil
	}
	var cut uint64
	for i, s := range e.log.Segments() {
		if i > 0 && s.First <= metas[base].HeadIndex+1 {
			cut = s.First
		}
	}
	return cut, cut > 0, nil
}

const (
	// What one entry carries forward at most.
	carryCount = 200
	carryBytes = 512 << 10
	// How many messages are looked at in one go: nothing is applied meanwhile.
	scanned = 16 << 10
)

// letGo carries forward what live messages need below cut, and commits that
// history below may go.
func (e *engine) letGo(ctx context.Context, cut uint64) error {
	for at, more := uint32(0), true; more; {
		var refs []event.MessageView
		e.machine.View(func(s *projections.State) { refs, at, more = s.Behind(cut, at, scanned) })
		if err := e.carry(ctx, refs); err != nil {
			return err
		}
	}
	// What is needed is counted coarsely: it may lie a little below the cut,
	// and a segment then goes the next time.
	var needed uint64
	e.machine.View(func(s *projections.State) { needed = s.Needed() })
	cut = min(cut, needed)
	if cut <= e.machine.History() {
		return nil
	}
	r, err := e.replica.Propose(ctx, &event.Command{Retain: &event.Retain{Before: cut}})
	if err == nil && r.Problem != nil {
		return r.Problem
	}
	return err
}

// carry writes the contents of messages anew.
func (e *engine) carry(ctx context.Context, refs []event.MessageView) error {
	slices.SortFunc(refs, func(a, b event.MessageView) int { return a.ID.Compare(b.ID) }) // as they lie in the log
	for len(refs) > 0 {
		c := &event.Carry{}
		size := 0
		for len(refs) > 0 && len(c.Items) < carryCount && size < carryBytes {
			m := refs[0]
			refs = refs[1:]
			content, err := e.needed(&m)
			if errors.Is(err, log.ErrGone) || errors.Is(err, log.ErrNotFound) {
				continue // it has been carried meanwhile
			}
			if err != nil {
				return err
			}
			c.Items = append(c.Items, event.CarryItem{ID: m.ID, From: m.Content, Content: content})
			size += len(content.Bytes)
		}
		if len(c.Items) == 0 {
			continue
		}
		if _, err := e.replica.Propose(ctx, &event.Command{Carry: c}); err != nil {
			return err
		}
	}
	return nil
}

// needed returns what a live message needs of the log: what it was produced
// with and, of a dead one, the error text, which lies in the event that moved
// it: later than the content until that is carried forward, so whenever the
// event is to go, so is the content.
func (e *engine) needed(m *event.MessageView) (event.Blob, error) {
	made, err := e.log.Event(m.Content)
	if err != nil {
		return event.Blob{}, err
	}
	if m.Dead == nil {
		return made.Content, nil
	}
	c, err := event.DecodeContent(made.Content.Bytes)
	if err != nil {
		return event.Blob{}, err
	}
	if c.Error == "" {
		moved, err := e.log.Content(event.RefOf(m.ID))
		if err != nil {
			return event.Blob{}, err
		}
		c.Error = moved.Error
	}
	return event.EncodeContent(c), nil
}

// deleteHistory deletes the segments and checkpoints of which it was committed
// that they may go.
func (e *engine) deleteHistory(metas []checkpoint.Meta) error {
	// What is to be archived stays until it is.
	history := min(e.machine.History(), e.archiver.KeepFrom())
	segments := e.log.Segments()
	if history == 0 || len(segments) < 2 || segments[0].Last >= history {
		return nil
	}
	// The newest checkpoint from which everything that stays can be folded, and
	// never less than the newest two (a start must survive the loss of one).
	base := max(slices.IndexFunc(metas, func(m checkpoint.Meta) bool {
		return m.HeadIndex+1 <= history || m.HeadIndex < segmentAt(segments, history)
	}), 1)
	if base >= len(metas) {
		return nil
	}
	// The segments first: a checkpoint that is gone while a segment before it
	// is there would leave a past that can't be told.
	before := min(history, metas[base].HeadIndex+1)
	old := e.log.First()
	// What lets them go must be on disk before they are gone from there.
	if err := e.log.Sync(); err != nil {
		return err
	}
	if err := e.log.DeleteBefore(before); err != nil {
		return err
	}
	if first := e.log.First(); first > old {
		e.logger.Info("history deleted", "from", old, "to", first-1, "kept-from", first)
	}
	return e.replica.DropCheckpoints(metas[base].Index)
}

// segmentAt returns the first index of the segment in which index lies.
func segmentAt(segments []log.SegmentInfo, index uint64) uint64 {
	first := uint64(0)
	for _, s := range segments {
		if s.First <= index {
			first = s.First
		}
	}
	return first
}

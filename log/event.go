package log

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// toRecord returns the record of an event. Id, subject, alias, back-pointer and content
// have fields of their own in it, so that the log can index and erase without decoding
// events; everything else is the header, which is appended to buf.
func toRecord(e *event.Event, buf []byte) (record, []byte) {
	n := len(buf)
	buf = event.AppendHeader(buf, e)
	r := record{ID: e.ID, Subject: e.Subject, Alias: e.Alias, Prev: e.Prev, Header: buf[n:]}
	if !e.Content.IsZero() {
		r.Digest, r.Content = e.Content.Digest, e.Content.Bytes
	}
	return r, buf
}

// fromRecord is the inverse of toRecord, into an empty event. Of an erased content only the
// digest is left: see event.Event.Erased.
func fromRecord(r *record, e *event.Event) error {
	if len(r.Header) == 0 {
		return ErrNotFound // left out by a salvage
	}
	if err := event.DecodeHeader(r.Header, e); err != nil {
		return fmt.Errorf("event %s: %w", event.ID(r.ID), err)
	}
	e.ID, e.Subject, e.Alias, e.Prev = r.ID, r.Subject, r.Alias, r.Prev
	if e.Content.Digest, e.Content.Damaged = r.Digest, r.Damaged; !r.Erased {
		e.Content.Bytes = r.Content
	}
	return nil
}

// fromRaw decodes a block into out, whose events it overwrites. If whole names types, it decodes
// of all others only type and queue, and the worker of leased ones.
func fromRaw(b *rawBlock, out *event.Block, whole []event.Type) error {
	out.Index, out.Time, out.Chain = b.Index, b.Time, b.Chain
	out.Events = slices.Grow(out.Events[:0], len(b.Records))
	name, workerName := "", ""
	for i := range b.Records {
		r := &b.Records[i]
		if len(r.Header) == 0 {
			continue // left out by a salvage
		}
		out.Events = append(out.Events, event.Event{})
		e := &out.Events[len(out.Events)-1]
		if whole != nil {
			t, queue, worker, ok := event.HeaderKind(r.Header)
			if ok && !slices.Contains(whole, t) {
				if string(queue) != name {
					name = string(queue)
				}
				if len(worker) > 0 && string(worker) != workerName {
					workerName = string(worker)
				}
				if e.Type, e.Queue = t, name; len(worker) > 0 {
					e.Worker = workerName
				}
				continue
			}
		}
		if err := fromRecord(r, e); err != nil {
			return fmt.Errorf("block %d: %w", b.Index, err)
		}
	}
	return nil
}

// Blocks yields the kept blocks with an index in from..to, up to the head. A block is valid until
// the next one. If whole names types, only type and queue are set of events of all others, and the
// worker of leased ones. An error is the last; if retention overtakes, it is ErrGone.
func (l *Log) Blocks(ctx context.Context, from, to uint64, whole ...event.Type) iter.Seq2[
	*event.Block, error] {
	return func(yield func(*event.Block, error) bool) {
		if from > to {
			return
		}
		out := &event.Block{}
		for b, err := range l.blocks(from) {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil && b.Index > to {
				return
			}
			if err == nil {
				err = fromRaw(b, out, whole)
			}
			if !yield(out, err) || err != nil || b.Index == to {
				return // nothing behind to is read: it may be damaged
			}
		}
	}
}

// Events yields the events of Blocks.
func (l *Log) Events(ctx context.Context, from, to uint64) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for b, err := range l.Blocks(ctx, from, to) {
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range b.Events {
				if !yield(&b.Events[i], nil) {
					return
				}
			}
		}
	}
}

// Block returns the block at index, or ErrNotFound if there is none: the index is that of
// one of Raft's own entries, or beyond the head.
func (l *Log) Block(index uint64) (b *event.Block, err error) {
	for b, err = range l.Blocks(context.Background(), index, index) {
		break // at most one
	}
	switch before, _ := l.Begins(); {
	case index <= before:
		err = ErrGone
	case b == nil:
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("block %d: %w", index, err)
	}
	return b, nil
}

// Event returns one event. The content of an erased one has a digest but no bytes. It returns
// ErrNotFound, ErrGone, or a *CorruptionError if the bytes are wrong.
func (l *Log) Event(ref event.Ref) (*event.Event, error) {
	e := &event.Event{}
	r, err := l.record(ref)
	if err == nil || errors.Is(err, ErrDamaged) {
		err = fromRecord(&r, e)
	}
	if err != nil {
		return nil, fmt.Errorf("read event %s: %w", ref, err)
	}
	return e, nil
}

// Content returns the user data of an event that the log has, or had before a salvage; empty if it
// has none.
func (l *Log) Content(ref event.Ref) (*event.Content, error) {
	r, err := l.record(ref)
	switch {
	case errors.Is(err, ErrNotFound) && ref.Index <= l.Head():
		err = ErrDamaged // lost with its block
	case err != nil:
	case r.Damaged || len(r.Header) == 0:
		err = ErrDamaged
	case r.Erased:
		err = ErrErased
	}
	var c *event.Content
	if err == nil {
		c, err = event.DecodeContent(r.Content)
	}
	if err != nil {
		return nil, fmt.Errorf("content of %s: %w", ref, err)
	}
	return c, nil
}

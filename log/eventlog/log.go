// Package eventlog is the event log in words: it turns the log's records, which
// are bytes to it, into events and back, follows a message's history, and
// resolves instants of the past. It adds no bytes of its own.
package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// What reading can end in, besides damage (*log.CorruptionError).
var (
	// ErrGone is returned for what retention has deleted.
	ErrGone = log.ErrDeleted
	// ErrNotFound is returned for a place at which there is no event.
	ErrNotFound = log.ErrNotFound
	// ErrErased is returned for a content that was erased on request.
	ErrErased = errors.New("content was erased")
)

// Options are the log's.
type Options = log.Options

// Log is an open event log. Append and Sync are for one goroutine, the reading
// methods for any number at any time.
type Log struct {
	raw *log.Log

	// Append's, for the next block.
	records []log.Record
	headers []byte
}

// Open opens the log in o.Dir for writing, makes it where there is none, and
// cuts a torn tail that the Raft log can feed again (see log.Open).
func Open(o Options) (*Log, error) {
	raw, err := log.Open(o)
	if err != nil {
		return nil, err
	}
	return &Log{raw: raw}, nil
}

// OpenReadOnly opens the log in o.Dir without ever touching it, also one that
// another process is writing to.
func OpenReadOnly(o Options) (*Log, error) {
	raw, err := log.OpenReadOnly(o)
	if err != nil {
		return nil, err
	}
	return &Log{raw: raw}, nil
}

// Raw returns the log beneath, for what has no word: its segments and its tail.
func (l *Log) Raw() *log.Log { return l.raw }

// Close closes the log. What was appended is synced first.
func (l *Log) Close() error { return l.raw.Close() }

// Append adds a block and sets its chain. It is durable after Sync.
func (l *Log) Append(b *event.Block) error {
	raw := log.Block{Index: b.Index, Time: b.Time, Records: slices.Grow(l.records[:0], len(b.Events))[:len(b.Events)]}
	headers := l.headers[:0]
	for i := range b.Events {
		headers = record(headers, &raw.Records[i], &b.Events[i])
	}
	err := l.raw.Append(&raw)
	b.Chain = raw.Chain
	clear(raw.Records) // they hold contents
	if l.records, l.headers = raw.Records, headers; len(raw.Records) > keepRecords {
		l.records, l.headers = nil, nil
	}
	return err
}

// keepRecords bounds the memory that is kept for the next block.
const keepRecords = 4096

// Sync makes durable what was appended before it was called.
func (l *Log) Sync() error { return l.raw.Sync() }

// Head returns the index of the newest block, 0 in an empty log.
func (l *Log) Head() uint64 { return l.raw.Head().Index }

// Tip returns the newest block's index and chain.
func (l *Log) Tip() (index uint64, chain [32]byte) {
	h := l.raw.Head()
	return h.Index, h.Chain
}

// First returns the lowest index kept, 0 in an empty log.
func (l *Log) First() uint64 { return l.raw.First() }

// Clock returns the log's clock: the maximum of all stamps, Unix ms.
func (l *Log) Clock() int64 { return l.raw.Clock() }

// ChainAt returns the chain after the last block up to index.
func (l *Log) ChainAt(index uint64) ([32]byte, error) { return l.raw.ChainAt(index) }

// Wait returns nil once the head is above index, or the context's error.
func (l *Log) Wait(ctx context.Context, index uint64) error { return l.raw.Wait(ctx, index) }

// DeletedBefore reports whether retention has deleted the log's beginning, and
// the index of the newest block that is gone.
func (l *Log) DeletedBefore() (index uint64, deleted bool) {
	index, _ = l.Begins()
	return index, index > 0
}

// Begins returns the index of the newest block that retention has deleted, and
// the log's clock there; zeros where none is.
func (l *Log) Begins() (index uint64, clock int64) {
	s := l.raw.Segments()
	if len(s) == 0 {
		return 0, 0
	}
	return s[0].PrevIndex, s[0].PrevClock
}

// Blocks reads blocks in order, from the first one on that has an index >= from
// and is kept. next returns io.EOF at the head, and after more was appended the
// next block; a reader that retention overtakes gets ErrGone.
func (l *Log) Blocks(from uint64) (next func(context.Context) (*event.Block, error), closeBlocks func()) {
	r := l.raw.Blocks(from)
	return func(ctx context.Context) (*event.Block, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := r.Next()
		if err == io.EOF {
			return nil, io.EOF
		}
		if err != nil {
			return nil, err
		}
		return fromBlock(&b)
	}, func() {}
}

// Follow yields the blocks from an index on, to the end that the log has when it
// is reached. A block is valid until the next one.
func (l *Log) Follow(from uint64) iter.Seq2[*event.Block, error] {
	return func(yield func(*event.Block, error) bool) {
		out := &event.Block{}
		for r := l.raw.Blocks(from); ; {
			b, err := r.Next()
			if err == io.EOF {
				return
			}
			if err == nil {
				err = intoBlock(&b, out)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// Block returns the block at index. ErrNotFound where there is none: the index
// is one of Raft's own entries, or beyond the head.
func (l *Log) Block(index uint64) (*event.Block, error) {
	if before, deleted := l.DeletedBefore(); deleted && index <= before {
		return nil, fmt.Errorf("block %d: %w", index, ErrGone)
	}
	b, err := l.raw.Blocks(index).Next()
	if err == io.EOF || err == nil && b.Index != index {
		return nil, fmt.Errorf("block %d: %w", index, ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return fromBlock(&b)
}

// Event returns one event. The content of an erased one has a digest but no
// bytes.
func (l *Log) Event(ref event.Ref) (*event.Event, error) {
	r, err := l.raw.Record(log.Ref(ref))
	if err != nil {
		return nil, err
	}
	e := &event.Event{}
	return e, fromRecord(&r, e)
}

// Content returns what users wrote in an event; an empty one where they wrote
// nothing.
func (l *Log) Content(ref event.Ref) (*event.Content, error) {
	b, erased, err := l.raw.Content(log.Ref(ref))
	if err != nil {
		return nil, err
	}
	if erased {
		return nil, fmt.Errorf("content of %d/%d: %w", ref.Index, ref.Number, ErrErased)
	}
	c, err := event.DecodeContent(b)
	if err != nil {
		return nil, fmt.Errorf("content of %d/%d: %w", ref.Index, ref.Number, err)
	}
	return c, nil
}

// Contents returns the contents of several events, in that order; nil for one
// that was erased.
func (l *Log) Contents(refs []event.Ref) ([]*event.Content, error) {
	out := make([]*event.Content, len(refs))
	for i, ref := range refs {
		c, err := l.Content(ref)
		if err != nil && !errors.Is(err, ErrErased) {
			return nil, err
		}
		out[i] = c
	}
	return out, nil
}

// Erase overwrites what users wrote in these events, durably. Those without
// content, erased before or deleted by retention are passed over. One at a time;
// a crash in the middle is finished by Open.
func (l *Log) Erase(refs []event.Ref) error {
	places := make([]log.Ref, len(refs))
	for i, ref := range refs {
		places[i] = log.Ref(ref)
	}
	return l.raw.Erase(places)
}

// FindAlias returns the newest event with this alias at an index >= from.
func (l *Log) FindAlias(alias event.Hash, from uint64) (event.Ref, bool, error) {
	ref, ok, err := l.raw.FindAlias(alias, from)
	return event.Ref(ref), ok, err
}

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
type Log struct{ *log.Log }

// Open opens the log in o.Dir for writing, makes it where there is none, and
// cuts a torn tail that the Raft log can feed again (see log.Open).
func Open(o Options) (*Log, error) {
	raw, err := log.Open(o)
	if err != nil {
		return nil, err
	}
	return &Log{raw}, nil
}

// OpenReadOnly opens the log in o.Dir without ever touching it, also one that
// another process is writing to.
func OpenReadOnly(o Options) (*Log, error) {
	raw, err := log.OpenReadOnly(o)
	if err != nil {
		return nil, err
	}
	return &Log{raw}, nil
}

// Append adds a block and sets its chain. It is durable after Sync.
func (l *Log) Append(b *event.Block) error {
	raw := log.Block{Index: b.Index, Time: b.Time, Records: make([]log.Record, len(b.Events))}
	for i := range b.Events {
		raw.Records[i] = record(&b.Events[i])
	}
	err := l.Log.Append(&raw)
	b.Chain = raw.Chain
	return err
}

// Head returns the index of the newest block, 0 in an empty log.
func (l *Log) Head() uint64 { return l.Log.Head().Index }

// Tip returns the newest block's index and chain.
func (l *Log) Tip() (index uint64, chain [32]byte) {
	h := l.Log.Head()
	return h.Index, h.Chain
}

// DeletedBefore reports whether retention has deleted the log's beginning, and
// the index of the newest block that is gone.
func (l *Log) DeletedBefore() (index uint64, deleted bool) {
	index, _ = l.Begins()
	return index, index > 0
}

// Begins returns the index of the newest block that retention has deleted, and
// the log's clock there; zeros where none is.
func (l *Log) Begins() (index uint64, clock int64) {
	s := l.Segments()
	if len(s) == 0 {
		return 0, 0
	}
	return s[0].PrevIndex, s[0].PrevClock
}

// Blocks reads blocks in order, from the first one on that has an index >= from
// and is kept. next returns io.EOF at the head, and after more was appended the
// next block; a reader that retention overtakes gets ErrGone.
func (l *Log) Blocks(from uint64) (next func(context.Context) (*event.Block, error), closeBlocks func()) {
	r := l.Log.Blocks(from)
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
		for r := l.Log.Blocks(from); ; {
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
	b, err := l.Log.Blocks(index).Next()
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
	r, err := l.Record(log.Ref(ref))
	if err != nil {
		return nil, err
	}
	e := &event.Event{}
	return e, fromRecord(&r, e)
}

// Content returns what users wrote in an event; an empty one where they wrote
// nothing.
func (l *Log) Content(ref event.Ref) (*event.Content, error) {
	b, erased, err := l.Log.Content(log.Ref(ref))
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
	return l.Log.Erase(places)
}

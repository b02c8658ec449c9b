// Package log is the event log: durable, append-only and hash-chained.
//
// A log is a sequence of blocks, one for each command entry of the Raft log that
// was applied; a block is the events that the entry caused. On disk an event is
// a record: a header (bytes), a content (bytes, erasable), an id that rises, and
// two keys to find it by; only event.go and history.go know what is in it. Blocks
// are chained by SHA-256, are kept in segments of equal size, and are byte for byte
// the same on every node. docs/reference/formats.md draws the bytes, format.go writes them.
//
// Append does not wait for the disk. What was appended since the last Sync can
// be lost by a power cut; Open then cuts the log at its last whole block, and
// the caller appends the lost blocks again, from the Raft log.
package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// DefaultSegmentSize is the size of a segment, unless Options say otherwise.
const DefaultSegmentSize = 64 << 20

// Options configure a log.
type Options struct {
	FS  vfs.FS // nil = vfs.OS
	Dir string
	// SegmentSize is a constant of a log, kept in each of its segments: for a
	// log that exists, the value in it counts. 0 = DefaultSegmentSize.
	SegmentSize int64
	// HeldFrom is the lowest index from which on every block can be applied again: the
	// first index that the Raft log holds or, if a checkpoint covers all entries before
	// that, the checkpoint's head + 1 (Raft's own entries lie between). 0 = none can.
	// Only blocks that can be applied again are ever cut.
	HeldFrom uint64
	// Durable is the Head of a moment at which Sync had returned (the
	// newest checkpoint's): a log that is damaged or ends before it is corrupt.
	Durable uint64
	// CacheBytes bounds the newest blocks that are kept in memory for Content; 0 = none.
	CacheBytes int64
	Logger     *slog.Logger // nil = silent
	// Damaged, if not nil, is called with each damage that a read has met, in a segment or in a
	// side file, every time. It must not block or call the log.
	Damaged func(*CorruptionError)
	// Only, if not nil, reports whether nobody has a copy of the log from which damage could be
	// repaired: a damaged content is then reported, and reads as one that a salvage has marked, so
	// that it does not hide what is around it. Content returns both errors for it. It must not
	// block.
	Only func() bool
	// ToDamage lets OpenReadOnly end a damaged log before the damage that it finds. What is asked
	// for by an instant after that end is refused with the CorruptionError.
	ToDamage bool

	// inline does the background work inside Append, so that tests are deterministic.
	inline bool
}

// Log is an open event log. Append, Sync, DeleteBefore and Erase may be called
// from different goroutines, but the order of Appends is the caller's business;
// all that reads may run at any time from any number of goroutines.
type Log struct {
	fs      vfs.FS
	dir     string
	logger  *slog.Logger
	damaged func(*CorruptionError) // may be nil
	only    func() bool            // may be nil
	segSize int64
	before  SegmentInfo // where an empty log begins: behind what another one has deleted
	files   *fileCache
	tail    *Tail   // what Open found after the last whole block
	ended   error   // the damage that the log ends before (Options.ToDamage)
	w       *writer // nil: open for reading only

	mu       sync.RWMutex
	segments []*segment // by first index; the last one is active. Changed with writer.writeMu too
	cache    cache
	changed  chan struct{} // closed at the next Append; nil when nobody waits
	broken   error         // the first failed write or sync
	closed   bool
}

// SegmentInfo describes one segment. Its JSON is what identifies the file on every node.
type SegmentInfo struct {
	Name        string      `json:"name"` // file name in the log's directory
	SideFile    string      `json:"-"`
	SegmentSize int64       `json:"-"`     // rotate before a block that would end past it
	First       uint64      `json:"first"` // index of the first block
	PrevIndex   uint64      `json:"-"`     // the block before the first one: 0 = none
	PrevChain   event.Chain `json:"-"`
	PrevClock   int64       `json:"-"` // the log's clock before First
	Sealed      bool        `json:"-"`

	Last  uint64      `json:"last"`  // index of the last block
	Size  int64       `json:"size"`  // bytes up to the end of the last whole block
	Chain event.Chain `json:"chain"` // at Last
	Clock int64       `json:"-"`     // the log's clock at Last
}

// segment is one file of the log. What describes its end is guarded by Log.mu while the
// segment is active, and constant afterwards.
type segment struct {
	SegmentInfo
	salt   uint32   // of its blocks' checksums
	lastID [16]byte // newest record's; zeros: no record
	index  index    // in memory, and once the segment is sealed in its side file; guarded by Log.mu
}

func newSegment(first uint64) *segment {
	return &segment{SegmentInfo: SegmentInfo{
		Name: SegmentName(first), SideFile: SideFileName(first), First: first,
	}}
}

// Errors of use. What is wrong on the disk is a *CorruptionError or a *VersionError.
var (
	ErrClosed   = errors.New("event log is closed")
	ErrReadOnly = errors.New("event log is open for reading only")
	// ErrNotFound is returned for a place at which there is no event.
	ErrNotFound = errors.New("no such event")
	// ErrGone is returned for what retention has deleted.
	ErrGone = errors.New("deleted by retention")
	// ErrErased is returned for a content that was erased on request.
	ErrErased = errors.New("content was erased")
	// ErrDamaged is returned for a content that was damaged when the log was salvaged, or is and
	// cannot be repaired (Options.Only). It is as if it were erased.
	ErrDamaged = fmt.Errorf("content was damaged: %w", ErrErased)
	// ErrBroken is returned for every write after a write or sync has failed:
	// what the disk holds is unknown until the log is opened again.
	ErrBroken = errors.New("event log is broken by an earlier error")
)

// CorruptionError names the place at which the log's bytes are wrong.
type CorruptionError struct {
	Segment  string // file name; "" if there is no segment
	Offset   int64  // of the first thing that is wrong
	LastGood uint64 // index of the last block that is known to be right; 0 = none
	Reason   string

	damage *damage // of a block, that a scan has found
}

func (e *CorruptionError) Error() string {
	place := fmt.Sprintf("segment %s, offset %d", e.Segment, e.Offset)
	if e.Segment == "" {
		place = "no segment"
	}
	return fmt.Sprintf("event log is corrupt: %s: %s (last good index %d)", place, e.Reason,
		e.LastGood)
}

// IsDamage reports whether an error is due to wrong or unreadable bytes of a segment.
func IsDamage(err error) bool {
	_, ok := errors.AsType[*CorruptionError](err)
	return ok
}

// report passes damage on to Options.Damaged.
func (l *Log) report(err error) {
	if c, ok := errors.AsType[*CorruptionError](err); ok && l.damaged != nil {
		l.damaged(c)
	}
}

// and adds a reason.
func (e *CorruptionError) and(reason string) error {
	e.Reason += "; " + reason
	return e
}

// VersionError is the refusal of a file that a newer program has written.
type VersionError struct {
	File    string
	Version uint32
	Known   uint32 // the newest version that this program knows
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s: log format version %d is newer than this program's %d", e.File,
		e.Version, e.Known)
}

// Head returns the index of the newest block, 0 in an empty log.
func (l *Log) Head() uint64 {
	index, _ := l.Tip()
	return index
}

// Tip returns the newest block's index and chain.
func (l *Log) Tip() (index uint64, chain [32]byte) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	end := l.end()
	return end.Last, end.Chain
}

// end returns the active segment, which says how the log ends. The caller
// holds l.mu or writer.writeMu.
func (l *Log) end() *SegmentInfo {
	if len(l.segments) == 0 {
		return &l.before
	}
	return &l.segments[len(l.segments)-1].SegmentInfo
}

// Begins returns the index of the newest block that retention has deleted, and
// the log's clock there; zeros if it has deleted nothing.
func (l *Log) Begins() (index uint64, clock int64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.segments) == 0 {
		return 0, 0
	}
	return l.segments[0].PrevIndex, l.segments[0].PrevClock
}

// Clock returns the log's clock: the maximum of all blocks' times.
func (l *Log) Clock() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.end().Clock
}

// First returns the lowest index that is still held, or 0.
func (l *Log) First() uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if len(l.segments) == 0 {
		return 0
	}
	return l.segments[0].First
}

// SegmentSize returns the size at which segments are rotated.
func (l *Log) SegmentSize() int64 { return l.segSize }

// Segments returns the log's segments in order.
func (l *Log) Segments() []SegmentInfo {
	l.mu.RLock()
	defer l.mu.RUnlock()
	infos := make([]SegmentInfo, len(l.segments))
	for i, s := range l.segments {
		infos[i] = s.SegmentInfo
		infos[i].Sealed = i < len(l.segments)-1
	}
	return infos
}

// Tail describes bytes after the last whole block.
type Tail struct {
	Segment  string // file name
	Offset   int64  // where the last whole block ends
	Bytes    int64  // how many bytes follow
	LastGood uint64 // index of the last whole block
	Reason   string // what is wrong with the first of them
}

// Tail returns what Open found after the last whole block, or nil: a writer
// has cut it, a reader has left it alone (a block still being written, or torn
// by a crash).
func (l *Log) Tail() *Tail { return l.tail }

// Wait returns nil once the head is past index, or the context's error.
func (l *Log) Wait(ctx context.Context, index uint64) error {
	for {
		l.mu.Lock()
		if l.end().Last > index {
			l.mu.Unlock()
			return nil
		}
		if err := l.failure(); err != nil {
			l.mu.Unlock()
			return err
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wake wakes Wait. The caller holds l.mu.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// fail marks the log as broken.
func (l *Log) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil && !l.closed {
		l.broken = err
		l.wake()
	}
}

// usable returns why the log cannot be written, or nil.
func (l *Log) usable() error {
	if l.w == nil {
		return ErrReadOnly
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.failure()
}

// failure returns why the log does not grow any more, or nil. The caller holds l.mu.
func (l *Log) failure() error {
	switch {
	case l.closed:
		return ErrClosed
	case l.broken != nil:
		return fmt.Errorf("%w: %w", ErrBroken, l.broken)
	}
	return nil
}

// Close ends the background work, syncs what was appended, and closes the
// files. Readers fail afterwards.
func (l *Log) Close() error {
	var err error
	if l.usable() == nil {
		err = l.Sync()
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.wake()
	l.mu.Unlock()
	if l.w != nil {
		err = errors.Join(err, l.w.close())
	}
	l.files.close()
	wrap(&err, "close event log")
	return err
}

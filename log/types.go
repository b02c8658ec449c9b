package log

import (
	"fmt"

	"github.com/qlogd/qlogd/event"
)

// record is one event as the log keeps it. The slices of a record that was read belong to the log
// and must not be changed; they stay valid for as long as they are kept.
type record struct {
	ID      [16]byte  // a ULID; opaque, but append wants it to rise strictly
	Subject [16]byte  // a key to find the record by; zero = none
	Alias   [16]byte  // another key to find it by; zero = none
	Prev    event.Ref // the subject's record before this one; zero = none
	// Digest is the SHA-256 of Content, made by the caller; zero without content.
	Digest [32]byte
	Header []byte
	// Content is nil for none; a content of no bytes is not nil. Of an erased
	// one only the length is true.
	Content []byte
	Erased  bool // set by readers
}

// rawBlock is what one entry of the Raft log has left.
type rawBlock struct {
	Index   uint64
	Time    int64 // the entry's stamp, Unix milliseconds
	Records []record
	// Chain is SHA-256 over the chain before and this block's headers; set by
	// append and by readers.
	Chain [32]byte
}

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

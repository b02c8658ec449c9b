package log

import (
	"errors"
	"fmt"
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

package log

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/qlogd/qlogd/event"
)

// RangeError is returned for an instant outside of this log, with the range that it
// holds.
type RangeError struct {
	What        string // what is wrong with it
	First, Head uint64 // the indexes that the log holds
	Clock       int64  // the log's clock at Head, Unix ms
	Expired     bool   // retention has deleted it
}

func (e *RangeError) Error() string {
	if e.Head == 0 {
		return e.What + ": the log is empty"
	}
	return fmt.Sprintf("%s: the log holds index:%d to index:%d (%s)", e.What, e.First, e.Head,
		Stamp(e.Clock))
}

// Is makes a deleted instant an ErrGone.
func (e *RangeError) Is(target error) bool { return e.Expired && target == ErrGone }

// IsRange reports whether an error is a RangeError.
func IsRange(err error) bool { return errors.As(err, new(*RangeError)) }

// Stamp formats a time for users: RFC 3339 UTC with milliseconds.
func Stamp(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// From resolves an instant to the first index of a range that begins with it. It may be
// head+1: nothing yet. Start is the first index kept, even if retention has deleted
// earlier ones.
func (l *Log) From(at event.Instant) (uint64, error) {
	if at.Kind == event.InstantStart {
		return max(l.First(), 1), nil
	}
	i, err := l.first(at, 0)
	return max(i, 1), err
}

// To resolves an instant to the last index of a range that ends with it, 0 if that is
// before the first event.
func (l *Log) To(at event.Instant) (uint64, error) {
	if at.Kind == event.InstantStart {
		return 0, nil
	}
	// Between the last block up to then and the next there are only indexes of
	// Raft's own entries.
	i, err := l.first(at, 1)
	return max(i, 1) - 1, err
}

// first returns the first index at an instant, or at the one after it (by 1).
func (l *Log) first(at event.Instant, by int64) (uint64, error) {
	switch at.Kind {
	case event.InstantNow:
		return l.Head() + 1, l.ended
	case event.InstantTime:
		// The log's clock may be ahead of this machine's; a time that the log has reached is
		// never the future.
		if at.Time > max(time.Now().UnixMilli()+1, l.Clock()+1) {
			return 0, l.OutOfRange(Stamp(at.Time)+" is in the future", false)
		}
		return l.reached(at.Time + by)
	}
	return at.Index + uint64(by), l.checkIndex(at)
}

// reached returns the first index at which the log's clock has reached ms, head+1 if it
// has not yet. It is an error if retention may have deleted that place.
func (l *Log) reached(ms int64) (uint64, error) {
	head := l.Head()
	i, ok, err := l.SeekTime(ms)
	if err != nil || !ok {
		return head + 1, cmp.Or(err, l.ended)
	}
	// If the first kept block has reached ms already, a deleted one may have been the
	// first to do so.
	if before, _ := l.Begins(); before > 0 && i == l.First() {
		return 0, l.OutOfRange("what happened at "+Stamp(ms)+" has been deleted by retention", true)
	}
	return i, nil
}

// checkIndex checks an index or an event's id against what the log holds.
func (l *Log) checkIndex(at event.Instant) error {
	name := fmt.Sprintf("index:%d", at.Index)
	if at.Kind == event.InstantID {
		name = at.ID.String()
	}
	switch before, _ := l.Begins(); {
	case at.Index > l.Head():
		if l.ended != nil {
			return l.ended
		}
		return l.OutOfRange(name+" is beyond the end of this log", false)
	case at.Index <= before && at.Index > 0:
		return l.OutOfRange(name+" has been deleted by retention", true)
	case at.Kind != event.InstantID:
		return nil
	}
	e, err := l.Event(event.RefOf(at.ID))
	if errors.Is(err, ErrNotFound) || err == nil && e.ID != at.ID {
		return l.OutOfRange(name+" is not an event of this log", false)
	}
	return err
}

// OutOfRange returns the RangeError of an instant.
func (l *Log) OutOfRange(what string, expired bool) error {
	return &RangeError{What: what, First: l.First(), Head: l.Head(), Clock: l.Clock(),
		Expired: expired}
}

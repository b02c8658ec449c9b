// Package event defines the types that every layer of qlogd shares: commands
// (what clients ask), events (what was decided), results (what is answered),
// their ids and their encodings. It depends on no other layer and does no I/O.
package event

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/internal/durations"
)

// ID is the ULID of an event, and so of a message (the event that created it
// in its queue) and of a lease (its leased event).
//
// Ids are not random. From the most significant bit:
//
//	48 bits  the log's clock, Unix milliseconds
//	 8 bits  group of the Raft log, 0 today
//	48 bits  Raft index of the entry
//	24 bits  number of the event within the entry, from 0
//
// Invariant: strictly increasing in log order and the same on every node (I2).
type ID = ulid.ULID

// MaxNumber is the highest number of an event within one entry.
const MaxNumber = 1<<24 - 1

// MaxID is after all ids.
var MaxID = ID(bytes.Repeat([]byte{0xff}, len(ID{})))

// NewID builds the id of event number of the entry at index.
func NewID(clock int64, index uint64, number uint32) ID {
	var id ID
	if clock < 0 || uint64(clock) > ulid.MaxTime() || index >= 1<<48 || number > MaxNumber {
		panic(fmt.Sprintf("event: id out of range: clock %d, index %d, number %d", clock, index,
			number))
	}
	_ = id.SetTime(uint64(clock)) // in range: checked above
	id[6] = 0                     // group
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], index)
	copy(id[7:13], b[2:])
	id[13], id[14], id[15] = byte(number>>16), byte(number>>8), byte(number)
	return id
}

// ParseID reads the 26 characters of a ULID, upper or lower case.
func ParseID(s string) (ID, error) {
	id, err := ulid.ParseStrict(s)
	if err != nil {
		return ID{}, fmt.Errorf("not a ULID: %w", err)
	}
	return id, nil
}

// Ref is the place of an event in the log: the Raft index of its block and
// its number in it. The zero Ref is none.
type Ref struct {
	Index  uint64
	Number uint32
}

// IsZero reports whether r is none.
func (r Ref) IsZero() bool { return r == Ref{} }

func (r Ref) String() string { return fmt.Sprintf("%d/%d", r.Index, r.Number) }

// Compare orders by place in the log.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Index, o.Index), cmp.Compare(r.Number, o.Number))
}

// RefOf returns where the event with this id lies.
func RefOf(id ID) Ref {
	var b [8]byte
	copy(b[2:], id[7:13])
	return Ref{
		Index:  binary.BigEndian.Uint64(b[:]),
		Number: uint32(id[13])<<16 | uint32(id[14])<<8 | uint32(id[15]),
	}
}

// ClockOf returns the log's clock in an id, Unix milliseconds.
func ClockOf(id ID) int64 { return int64(id.Time()) }

// Hash is the first half of a SHA-256: enough to distinguish keys.
type Hash [16]byte

// Of returns the hash of the same thing in the queue with this number: what is
// deduplicated is so within one incarnation of a queue.
func (h Hash) Of(number uint32) Hash {
	for i := range 4 { // the bits of a SHA-256 distinguish queues
		h[i] ^= byte(number >> (8 * i))
	}
	return h
}

// IsZero reports whether h is none.
func (h Hash) IsZero() bool { return h == Hash{} }

// InstantKind says how an instant in the past was named.
type InstantKind uint8

const (
	InstantStart InstantKind = iota
	InstantNow
	InstantTime  // Time
	InstantIndex // Index
	InstantID    // ID: the whole entry that it falls on
)

// Instant is a point in the log's past.
type Instant struct {
	Kind  InstantKind
	Time  int64 // Unix ms
	Index uint64
	ID    ID
}

// ParseInstant reads an RFC 3339 time, an event's ULID, index:N, a duration
// before now (15m, 7d), start or now. now is Unix ms.
func ParseInstant(s string, now int64) (Instant, error) {
	switch s {
	case "start":
		return Instant{Kind: InstantStart}, nil
	case "now":
		return Instant{Kind: InstantNow, Time: now}, nil
	}
	if n, ok := strings.CutPrefix(s, "index:"); ok {
		i, err := strconv.ParseUint(n, 10, 64)
		if err != nil || i >= 1<<48 {
			return Instant{}, fmt.Errorf("%.64q: index: must be a whole number", s)
		}
		return Instant{Kind: InstantIndex, Index: i}, nil
	}
	if id, err := ParseID(s); err == nil {
		return Instant{Kind: InstantID, ID: id, Index: RefOf(id).Index}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return Instant{Kind: InstantTime, Time: t.UnixMilli()}, nil
	}
	if d, err := durations.Parse(s); err == nil && d >= 0 {
		return Instant{Kind: InstantTime, Time: now - d.Milliseconds()}, nil
	}
	return Instant{}, fmt.Errorf(
		"%.64q is not an instant: an RFC 3339 time, an event's ULID, index:N, "+
			"a duration before now such as 15m, start or now", s)
}

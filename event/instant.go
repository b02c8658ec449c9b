package event

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// InstantKind says how an instant in the past was named.
type InstantKind uint8

const (
	InstantStart InstantKind = iota
	InstantNow
	InstantTime  // Time
	InstantIndex // Index
	InstantID    // ID: the whole entry that it falls on
)

// Instant is a point in the log's past (contract.md section 1).
type Instant struct {
	Kind  InstantKind
	Time  int64 // Unix ms
	Index uint64
	ID    ID
}

// ParseInstant reads an RFC 3339 time, an event's ULID, index:N, a duration
// before now (15m), start or now. now is Unix ms.
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
			return Instant{}, fmt.Errorf("%.64q: index: wants a whole number", s)
		}
		return Instant{Kind: InstantIndex, Index: i}, nil
	}
	if id, err := ParseID(s); err == nil {
		return Instant{Kind: InstantID, ID: id, Index: RefOf(id).Index}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return Instant{Kind: InstantTime, Time: t.UnixMilli()}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return Instant{Kind: InstantTime, Time: now - d.Milliseconds()}, nil
	}
	return Instant{}, fmt.Errorf(
		"%.64q is not an instant: an RFC 3339 time, an event's ULID, index:N, "+
			"a duration before now such as 15m, start or now", s)
}

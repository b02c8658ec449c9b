package raft

import "time"

// ticker decides when an empty entry is proposed, so that due work happens although
// no client asks for anything.
type ticker struct {
	due  int64
	same int   // entries in a row with this due time
	last int64 // log time of the last tick, ms
}

// Much can be due at one millisecond and is done in bounded parts, one entry each.
// But a due time that stays the same for sameDue entries is a defect of the Machine,
// and must not fill the log as fast as the disk allows.
const (
	sameDue  = 20_000
	slowTick = 100 // ms
)

const never = time.Hour

// wait returns 0 if an empty entry must be proposed now, else for how long not.
func (t *ticker) wait(p progress, now int64) time.Duration {
	if !p.hasDue || p.due-now >= never.Milliseconds() {
		return never
	}
	if p.due > now {
		return time.Duration(p.due-now) * time.Millisecond
	}
	if p.due != t.due {
		t.due, t.same = p.due, 0
	}
	if t.same >= sameDue && now-t.last < slowTick {
		return time.Duration(slowTick-(now-t.last)) * time.Millisecond
	}
	t.same++
	t.last = now
	return 0
}

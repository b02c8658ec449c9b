package raft

import "time"

// ticks decide when an empty entry is proposed, so that what is due happens
// although nobody asks for anything.
type ticks struct {
	due  int64
	same int   // in a row with this due time
	last int64 // log time of the last one
}

// Much can be due at one millisecond and is done in bounded parts, one entry
// each. But a due time that stays the same for so many entries is a mistake in
// the Machine, and must not fill the log as fast as the disk allows.
const (
	tooOften = 20_000
	slowTick = 100 // ms
)

// wait returns 0 if an empty entry is to be proposed now, or how long not.
func (t *ticks) wait(p progress, now int64) time.Duration {
	if !p.hasDue {
		return never
	}
	if p.due-now >= never.Milliseconds() {
		return never
	}
	if p.due > now {
		return time.Duration(p.due-now) * time.Millisecond
	}
	if p.due != t.due {
		t.due, t.same = p.due, 0
	}
	if t.same >= tooOften && now-t.last < slowTick {
		return time.Duration(slowTick-(now-t.last)) * time.Millisecond
	}
	t.same++
	t.last = now
	return 0
}

// rate is how many commands are executed in a second, for estimates.
type rate struct {
	perSecond float64
	at        time.Time
	n         int
}

func (r *rate) add(n int, now time.Time) {
	r.n += n
	d := now.Sub(r.at).Seconds()
	switch {
	case r.at.IsZero() || d > 10:
		// After a pause the count says nothing about the speed.
		r.at, r.n = now, 0
	case d >= 0.1:
		r.perSecond = 0.7*r.perSecond + 0.3*float64(r.n)/d
		r.at, r.n = now, 0
	}
}

// wait estimates how many milliseconds n commands take.
func (r *rate) wait(n int) int64 {
	if r.perSecond < 1 {
		return 1000
	}
	return min(max(int64(float64(n)/r.perSecond*1000), 50), 10_000)
}

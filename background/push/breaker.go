package push

import "time"

// breaker keeps a queue from hammering a target that is down, and from burning
// its messages' attempts on it. It is closed; it opens after enough failures in
// a row that are the target's and not a message's; and after a while it lets one
// delivery through, whose outcome closes it or keeps it open for twice as long.
//
// A target that may not be reached from here is down at once, and one that can't
// be reached soon. One that answers 500, or
// not in time, may have something against these messages: it is down when that
// has gone on for a while, or was seen very often.
//
// It is not locked: its queue is.
type breaker struct {
	failures int           // in a row
	unheard  int           // of these the newest that did not reach it, in a row
	since    time.Time     // the first of them
	open     bool          //
	probing  bool          // open, and one delivery is let through
	pause    time.Duration // how long it is open
	next     time.Time     // when the next delivery is let through
	last     string        // why the newest failed
}

const (
	breakAfter  = 5 // failures in a row
	breakWithin = 2 * time.Second
	breakAnyway = 50 // however fast they came
	firstPause  = 500 * time.Millisecond
	maxPause    = 15 * time.Second
)

// failed notes a failure that is the target's. It reports whether the breaker
// opened now.
func (b *breaker) failed(now time.Time, v *verdict, probe bool) (opened bool) {
	b.last = v.told
	if b.failures++; b.failures == 1 {
		b.since = now
	}
	if b.unheard++; !v.unreached {
		b.unheard = 0
	}
	down := v.refused || b.unheard >= breakAfter || b.failures >= breakAnyway || b.failures >= breakAfter && now.Sub(b.since) >= breakWithin
	switch {
	case b.open && !probe:
		return false // sent before it opened
	case b.open:
		b.pause = min(2*b.pause, maxPause)
	case !down:
		return false
	default:
		b.open, b.pause, opened = true, firstPause, true
	}
	b.probing = false
	b.next = now.Add(max(b.pause, v.hold))
	return opened
}

// worked notes that the target answers. It reports whether that closed the
// breaker.
func (b *breaker) worked() (closed bool) {
	closed = b.open
	*b = breaker{}
	return closed
}

// abandoned notes that a delivery which was let through ended without telling
// anything of the target; the next one may go.
func (b *breaker) abandoned() { b.probing = false }

// allows returns how many deliveries of n may begin, and if none, how long it is
// until one may (0: when the one that is let through has ended).
func (b *breaker) allows(n int, now time.Time) (int, time.Duration) {
	switch {
	case !b.open:
		return n, 0
	case b.probing:
		return 0, 0
	case now.Before(b.next):
		return 0, b.next.Sub(now)
	}
	return min(n, 1), 0
}

package push

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// breaker is a circuit breaker: it keeps a queue from hammering a target that is down, and from
// spending its messages' attempts on it. It opens after enough consecutive failures of the target,
// not of a message. Then it allows one delivery at a time, whose outcome closes it or keeps it open
// for twice as long.
//
// A target that this node may not reach is down at once, and an unreachable one after few failures.
// A target that answers 500, or not in time, may fail because of these messages: it is down after a
// while of such failures, or after many. The queue's lock guards the breaker.
type breaker struct {
	failures int           // consecutive
	since    time.Time     // the first failure
	open     bool          // the target is down
	probing  bool          // open, and one delivery is in flight
	pause    time.Duration // how long it is open
	next     time.Time     // when the next delivery is allowed
	last     string        // why the newest failed
}

const (
	breakAfter  = 5 // consecutive failures
	breakWithin = 2 * time.Second
	breakAnyway = 50 // however fast they came
	firstPause  = 500 * time.Millisecond
	maxPause    = 15 * time.Second
)

// failed records a failure of the target. It reports whether the breaker opened now.
func (b *breaker) failed(now time.Time, v *verdict, probe bool) (opened bool) {
	b.last = v.safe
	if b.failures++; b.failures == 1 {
		b.since = now
	}
	down := v.refused || b.failures >= breakAnyway ||
		b.failures >= breakAfter && (v.unreached || now.Sub(b.since) >= breakWithin)
	switch {
	case b.open && !probe: // sent before it opened
		return false
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

// allows returns how many deliveries of n may begin, and if none, when one may (0: when the probe
// has ended).
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

// newPace returns a limiter of perSecond deliveries, 0 for no limit. A twentieth of a second's may
// begin at once.
func newPace(perSecond float64) *rate.Limiter {
	if perSecond == 0 {
		return rate.NewLimiter(rate.Inf, maxInFlight)
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(max(1, perSecond/20)))
}

// allowed returns how many deliveries of n may begin, and if none, when one may.
func allowed(pace *rate.Limiter, n int, now time.Time) (int, time.Duration) {
	tokens := pace.TokensAt(now)
	if tokens < 1 {
		wait := (1 - tokens) / float64(pace.Limit()) * float64(time.Second)
		return 0, time.Duration(math.Ceil(wait))
	}
	return min(n, int(tokens)), 0
}

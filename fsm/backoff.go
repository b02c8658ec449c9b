package fsm

import (
	"math/bits"

	"github.com/qlogd/qlogd/event"
)

// backoff returns the wait in ms after the n-th failure: the policy's schedule,
// or initial * multiplier^(n-1), at most max_backoff_ms, spread by the jitter.
// The jitter's seed is the id of the event that will carry the result.
func (d *decision) backoff(p *event.Policy, n uint32) int64 {
	wait := Backoff(p, n)
	if p.BackoffJitter == 0 || wait == 0 {
		return wait
	}
	id := event.NewID(d.s.Clock(), d.block.Index, uint32(len(d.block.Events)))
	wait += spread(id, wait*p.BackoffJitter/event.Million)
	if p.BackoffScheduleMS == nil {
		wait = min(wait, p.MaxBackoffMS)
	}
	return wait
}

// Backoff returns the wait in ms that a policy sets after the n-th failure, before
// jitter.
func Backoff(p *event.Policy, n uint32) int64 {
	if n == 0 {
		n = 1
	}
	if s := p.BackoffScheduleMS; len(s) > 0 {
		return s[min(int(n), len(s))-1]
	}
	wait := min(p.InitialBackoffMS, p.MaxBackoffMS)
	for i := uint32(1); i < n && wait > 0 && wait < p.MaxBackoffMS; i++ {
		hi, lo := bits.Mul64(uint64(wait), uint64(p.BackoffMultiplier))
		if hi >= event.Million { // the quotient would not fit
			return p.MaxBackoffMS
		}
		next, _ := bits.Div64(hi, lo, event.Million)
		if next >= uint64(p.MaxBackoffMS) {
			return p.MaxBackoffMS
		}
		if int64(next) == wait {
			break // a multiplier of 1, or one too small to move it
		}
		wait = int64(next)
	}
	return wait
}

// spread returns a number from -share to +share that follows from an id. Ids
// differ in few bits, so they are mixed (the finalizer of splitmix64,
// https://prng.di.unimi.it/splitmix64.c).
func spread(id event.ID, share int64) int64 {
	var x uint64
	for _, b := range id {
		x = x<<8 | x>>56
		x ^= uint64(b)
	}
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	hi, _ := bits.Mul64(x, uint64(2*share+1))
	return int64(hi) - share
}

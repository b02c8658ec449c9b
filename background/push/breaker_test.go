package push

import (
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var (
	unheard = &verdict{down: true, unreached: true, safe: "connection refused"}
	answers = &verdict{down: true, safe: "status 500"}
)

// TestBreakerUnreachable: five in a row that did not reach the target open it.
func TestBreakerUnreachable(t *testing.T) {
	var b breaker
	now := time.Unix(1000, 0)
	for i := range breakAfter - 1 {
		require.True(t, !b.failed(now, unheard, false) && !b.open, "open after %d", i+1)
	}
	b = breaker{}
	for range breakAfter - 1 {
		b.failed(now, unheard, false)
	}
	require.False(t, b.open, "failures before a success count")
	require.True(t, b.failed(now, unheard, false) && b.open, "not open")
	assert.False(t, b.failed(now, unheard, false), "opened twice")
	n, wait := b.allows(10, now)
	assert.True(t, n == 0 && wait == firstPause, "allows %d, %s", n, wait)
	// One is let through; it fails, and the pause doubles, up to a bound.
	for pause := firstPause; pause < 4*maxPause; pause *= 2 {
		now = b.next
		n, _ = b.allows(10, now)
		require.Equal(t, n, 1, "probes")
		b.probing = true
		n, wait = b.allows(10, now)
		assert.True(t, n == 0 && wait == 0, "beside a probe it allows %d, %s", n, wait)
		b.failed(now, unheard, true)
		assert.Equal(t, b.next.Sub(now), min(2*pause, maxPause), "pause")
	}
	b.probing = false
	n, _ = b.allows(10, b.next)
	assert.Equal(t, n, 1, "probes after one that told nothing")
}

// TestBreakerAnswers: a target that answers with failures is down when that goes
// on, or comes in masses; not by a few messages that it can't stomach.
func TestBreakerAnswers(t *testing.T) {
	var b breaker
	now := time.Unix(1000, 0)
	for range breakAnyway - 1 {
		b.failed(now, answers, false)
	}
	require.False(t, b.open, "open within a moment")
	require.True(t, b.failed(now, answers, false), "not open after masses")
	b = breaker{}
	for i := range breakAfter {
		opened := b.failed(now.Add(time.Duration(i)*time.Second), answers, false)
		assert.Equal(t, opened, i == breakAfter-1, "open after failure %d", i+1)
	}
	b = breaker{}
	for range breakAfter {
		b.failed(now, answers, false)
		now = now.Add(time.Second)
	}
	assert.Equal(t, b.next.Sub(now.Add(-time.Second)), firstPause, "pause %s", b.next.Sub(now))
	// It asked to be left alone for longer.
	now = b.next
	b.failed(now, &verdict{down: true, hold: time.Minute}, true)
	assert.Equal(t, b.next.Sub(now), time.Minute, "pause")
}

func TestPace(t *testing.T) {
	n, _ := allowed(newPace(0), 7, time.Now())
	assert.Equal(t, n, 7, "no limit allows")
	for _, rate := range []float64{0.5, 100} {
		p, now, begun := newPace(rate), time.Unix(1000, 0), 0
		for end := now.Add(10 * time.Second); now.Before(end); {
			n, wait := allowed(p, 1000, now)
			p.AllowN(now, n)
			begun += n
			now = now.Add(wait)
		}
		want := rate * 10
		assert.True(t, float64(begun) >= want-1 && float64(begun) <= want*1.06+1,
			"rate %g: %d in 10 s", rate, begun)
	}
}

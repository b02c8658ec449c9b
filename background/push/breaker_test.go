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
	if n, wait := b.allows(10, now); n != 0 || wait != firstPause {
		t.Errorf("allows %d, %s", n, wait)
	}
	// One is let through; it fails, and the pause doubles, up to a bound.
	for pause := firstPause; pause < 4*maxPause; pause *= 2 {
		now = b.next
		if n, _ := b.allows(10, now); n != 1 {
			t.Fatalf("allows %d probes", n)
		}
		b.probing = true
		if n, wait := b.allows(10, now); n != 0 || wait != 0 {
			t.Errorf("beside a probe it allows %d, %s", n, wait)
		}
		b.failed(now, unheard, true)
		if want := min(2*pause, maxPause); b.next.Sub(now) != want {
			t.Errorf("pause %s, want %s", b.next.Sub(now), want)
		}
	}
	b.probing = false
	if n, _ := b.allows(10, b.next); n != 1 {
		t.Error("after a probe that told nothing none is let through")
	}
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
		if opened := b.failed(now.Add(time.Duration(i)*time.Second), answers,
			false); opened != (i == breakAfter-1) {
			t.Errorf("failure %d: open %t", i+1, opened)
		}
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
	if b.next.Sub(now) != time.Minute {
		t.Errorf("pause %s, it asked for a minute", b.next.Sub(now))
	}
}

func TestPace(t *testing.T) {
	if n, _ := allowed(newPace(0), 7, time.Now()); n != 7 {
		t.Errorf("no limit allows %d", n)
	}
	for _, rate := range []float64{0.5, 100} {
		p, now, begun := newPace(rate), time.Unix(1000, 0), 0
		for end := now.Add(10 * time.Second); now.Before(end); {
			n, wait := allowed(p, 1000, now)
			p.AllowN(now, n)
			begun += n
			now = now.Add(wait)
		}
		if want := rate * 10; float64(begun) < want-1 || float64(begun) > want*1.06+1 {
			t.Errorf("rate %g: %d in 10 s", rate, begun)
		}
	}
}

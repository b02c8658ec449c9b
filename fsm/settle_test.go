package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestRetryWaits(t *testing.T) {
	for _, c := range []struct {
		about string
		set   func(*event.Policy)
		want  []int64
	}{
		{"the default", nil, []int64{1000, 2000, 4000, 8000}},
		{"at most max_backoff_ms", func(p *event.Policy) { p.MaxBackoffMS = 2500; p.MaxAttempts = 9 }, []int64{1000, 2000, 2500, 2500, 2500}},
		{"a multiplier of 1.5", func(p *event.Policy) { p.BackoffMultiplier = 1_500_000 }, []int64{1000, 1500, 2250, 3375}},
		{"a multiplier of 1", func(p *event.Policy) { p.BackoffMultiplier = event.Million }, []int64{1000, 1000, 1000, 1000}},
		{"the schedule takes its place, its last value repeats", func(p *event.Policy) { p.BackoffScheduleMS = []int64{5, 0, 700_000}; p.MaxAttempts = 0 }, []int64{5, 0, 700_000, 700_000, 700_000}},
		{"none", func(p *event.Policy) { p.InitialBackoffMS = 0 }, []int64{0, 0, 0}},
		{"the greatest", func(p *event.Policy) {
			p.InitialBackoffMS, p.MaxBackoffMS, p.BackoffMultiplier = event.MaxDelayMS-1, event.MaxDelayMS, 1000*event.Million
		}, []int64{event.MaxDelayMS - 1, event.MaxDelayMS, event.MaxDelayMS}},
	} {
		t.Run(c.about, func(t *testing.T) {
			for _, expiring := range []bool{false, true} { // a lease that runs out waits the same
				b := setup(t)
				b.mustQueue("q", c.set)
				b.fill("q", "a")
				for i, wait := range c.want {
					b.wantTake("q", 1, "a")
					if expiring {
						b.tick(30_000)
						e := b.last().Events[0]
						mustEqual(t, e.Type, event.LeaseExpired)
						mustEqual(t, e.Due-b.now, wait)
					} else {
						s := b.settle(event.OpRetry, b.leases["a"])
						mustEqual(t, s.Status, event.StatusRetried)
						mustEqual(t, s.NextAt-b.now, wait)
						mustEqual(t, b.last().Events[0].Due, s.NextAt) // the computed instant is in the event
					}
					mustEqual(t, b.last().Events[0].Attempt, i+1)
					b.tick(wait)
				}
			}
		})
	}
}

func TestJitterSpreads(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", func(p *event.Policy) { p.BackoffJitter = event.Million / 4; p.InitialBackoffMS = 10_000 })
	b.many("q", 500)
	low, high := int64(1<<62), int64(0)
	for _, l := range b.lease("q", 500) {
		s := b.settle(event.OpRetry, l.Lease)
		mustEqual(t, b.last().Events[0].Due, s.NextAt)
		low, high = min(low, s.NextAt-b.now), max(high, s.NextAt-b.now)
	}
	require.True(t, low >= 7500 && high <= 12_500, "from %d to %d", low, high)
	require.True(t, low <= 7700 && high >= 12_300, "500 waits from %d to %d only", low, high)
}

package fsm

import (
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestJitterSpreads: the waits after a failure, of which TestModel checks the bounds, differ.
func TestJitterSpreads(t *testing.T) {
	b := setup(t)
	b.queue("q", func(p *event.Policy) {
		p.BackoffJitter, p.InitialBackoffMS = event.Million/4, 10_000
	})
	b.put("q", slices.Repeat([]event.NewMessage{msg("x")}, 500)...)
	s := &event.Settle{}
	for _, l := range b.lease("q", 500) {
		s.Items = append(s.Items, event.SettleItem{Op: event.OpRetry, Lease: l.Lease, DelayMS: -1})
	}
	low, high := int64(1<<62), int64(0)
	for _, r := range b.one(&event.Command{Settle: s}).Settled {
		low, high = min(low, r.NextAt-b.now), max(high, r.NextAt-b.now)
	}
	require.True(t, low >= 7500 && high <= 12_500, "from %d to %d", low, high)
	require.True(t, low <= 7700 && high >= 12_300, "500 waits from %d to %d only", low, high)
}

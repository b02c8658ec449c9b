package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"pgregory.net/rapid"
)

// TestRateLimit: of a queue in which something always waits, any window of a period sees at most
// twice the count of leases, and workers that come whenever they are told to get count leases per
// period, also across restarts.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := setup(rt)
		count := rapid.Int64Range(1, 20).Draw(rt, "count")
		per := rapid.SampledFrom([]int64{1, 2, 7, 100, 999, 1000, event.MaxRatePerMS}).Draw(rt, "per")
		prompt := rapid.Bool().Draw(rt, "prompt")
		p := event.DefaultPolicy()
		p.RateLimit, p.RatePerMS = count, per
		b.one(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: p}})

		var leases []int64
		for range 20 {
			if due, ok := b.m.NextDue(); prompt {
				require.True(rt, ok || len(leases) == 0, "nobody is told when the next token comes")
				b.now = max(b.now, due)
			} else {
				b.now += rapid.Int64Range(0, 3*per/2).Draw(rt, "ms")
			}
			if rapid.IntRange(0, 5).Draw(rt, "restart") == 0 {
				b.restart()
			}
			produce := &event.Produce{Queue: "q"}
			for range count + 1 {
				produce.Messages = append(produce.Messages, msg("m"))
			}
			rs := b.do(&event.Command{Produce: produce},
				&event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 1000}})
			settle := &event.Settle{}
			for _, m := range rs[1].Leased {
				leases = append(leases, b.now)
				settle.Items = append(settle.Items, event.SettleItem{Op: event.OpAck, Lease: m.Lease})
			}
			b.one(&event.Command{Settle: settle})
		}
		first := 0
		for i, at := range leases {
			for leases[first] <= at-per {
				first++
			}
			require.True(rt, int64(i-first+1) <= 2*count, "%d leases of %d in the %d ms to %d",
				i-first+1, count, per, at)
		}
		if prompt {
			require.Equal(rt, int64(len(leases)), count+(b.now-epoch)*count/per, "leases")
		}
		b.refold()
	})
}

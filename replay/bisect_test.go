package replay

import (
	"errors"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections"
)

// acked reports whether so many messages were acked.
func acked(queues []event.QueueView, n int64) bool {
	for _, q := range queues {
		n -= q.Stats.Acked
	}
	return n <= 0
}

// What is found is what a look at every state finds.
func TestBisectFindsTheFirst(t *testing.T) {
	l, d := lives(t, 31, 8<<10, 4, 50)
	for n := int64(1); ; n++ {
		want := uint64(0)
		if i := slices.IndexFunc(l.history, func(h observed) bool { return acked(h.queues, n) }); i >= 0 {
			want = l.history[i].index
		}
		holds := func(s *projections.State) (bool, error) { return acked(s.Queues(), n), nil }
		for _, exhaustive := range []bool{false, true} {
			got, err := d.Bisect(t.Context(), start, now, holds, exhaustive, nil)
			must(t, err)
			assert.True(t, got.Found == (want > 0) && (want == 0 || got.Index == want),
				"%d acked: %+v, want index %d", n, got, want)
			assert.False(t, want > 0 && (got.Event == nil || got.Event.Type != event.Acked ||
				event.RefOf(got.Event.ID).Index != want), "%d acked: event %+v", n, got.Event)
			assert.False(t, want > 0 && !exhaustive && (got.Cost.Checkpoints == 0 ||
				got.Cost.Asked > 110), "%d acked: %+v", n, got.Cost)
		}
		if want == 0 {
			require.True(t, n >= 4, "only %d were acked", n-1)
			break
		}
	}
	// From the middle on.
	middle := l.history[len(l.history)/2]
	always := func(*projections.State) (bool, error) { return true, nil }
	got, err := d.Bisect(t.Context(), at(middle.index), now, always, false, nil)
	assert.True(t, err == nil && got.Found && got.Already && got.Index == middle.index,
		"%+v, %v", got, err)
	broken := errors.New("no")
	fails := func(*projections.State) (bool, error) { return false, broken }
	_, err = d.Bisect(t.Context(), start, now, fails, true, nil)
	assert.ErrorIs(t, err, broken)
}

// A delay that is over brings no event.
func TestBisectFindsThePassingOfTime(t *testing.T) {
	l := startLive(t, 32, 1<<20)
	l.queue("jobs", func(*event.Policy) {})
	l.produce("jobs", event.NewMessage{DelayMS: 500})
	produced := l.now
	l.now += 1000
	l.do()
	ready := func(s *projections.State) (bool, error) {
		q, _ := s.Queue("jobs")
		return q.Stats.Ready > 0, nil
	}
	must(t, l.log.Sync())
	d := l.open()
	for after, to := range map[int64]event.Instant{
		0: now, 600: {Kind: event.InstantTime, Time: produced + 600},
		400: {Kind: event.InstantTime, Time: produced + 400},
	} {
		got, err := d.Bisect(t.Context(), start, to, ready, false, nil)
		must(t, err)
		assert.True(t, got.Found == (after != 400) && got.Event == nil, "%d ms later: %+v", after, got)
		assert.True(t, after != 0 || got.Index == l.index, "now: %+v", got)
		assert.True(t, after != 600 || int64(got.Time) == to.Time, "%d ms later: %+v", after, got)
	}
}

package replay

import (
	"errors"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections"
)

func acked(n int64) Predicate {
	return func(s *projections.State) (bool, error) {
		var sum int64
		for _, q := range s.Queues() {
			sum += q.Stats.Acked
		}
		return sum >= n, nil
	}
}

// What is found is what a look at every state finds.
func TestBisectFindsTheFirst(t *testing.T) {
	l := startLive(t, 31, 8<<10)
	for range 4 {
		l.busy(50)
		l.checkpoint()
	}
	l.busy(20)
	must(t, l.log.Sync())
	d := l.open()
	start, now := event.Instant{Kind: event.InstantStart}, event.Instant{Kind: event.InstantNow}
	for n := int64(1); ; n++ {
		want := uint64(0)
		for _, h := range l.history {
			var sum int64
			for _, q := range h.queues {
				sum += q.Stats.Acked
			}
			if sum >= n {
				want = h.index
				break
			}
		}
		for _, exhaustive := range []bool{false, true} {
			got, err := d.Bisect(t.Context(), start, now, acked(n), exhaustive, nil)
			must(t, err)
			if got.Found != (want > 0) || got.Index != want && want > 0 {
				t.Errorf("%d acked: %+v, want index %d", n, got, want)
			}
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
	got, err := d.Bisect(t.Context(), at(middle.index), now, acked(0), false, nil)
	assert.True(t, err == nil && got.Found && got.Already && got.Index == middle.index,
		"%+v, %v", got, err)
	broken := errors.New("no")
	if _, err := d.Bisect(t.Context(), start, now, func(*projections.State) (bool, error) {
		return false,
			broken
	}, true, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// A delay that is over brings no event.
func TestBisectFindsThePassingOfTime(t *testing.T) {
	l := startLive(t, 32, 1<<20)
	l.do(&event.Command{PutQueue: &event.PutQueue{Name: "jobs", Policy: event.DefaultPolicy()}})
	l.do(&event.Command{Produce: &event.Produce{Queue: "jobs",
		Messages: []event.NewMessage{{Priority: 5, DelayMS: 500}}}})
	produced := l.now
	l.now += 1000
	l.do()
	ready := func(s *projections.State) (bool, error) {
		q, _ := s.Queue("jobs")
		return q.Stats.Ready > 0, nil
	}
	must(t, l.log.Sync())
	d := l.open()
	start := event.Instant{Kind: event.InstantStart}
	got, err := d.Bisect(t.Context(), start, event.Instant{Kind: event.InstantNow}, ready, false,
		nil)
	assert.True(t, err == nil && got.Found && got.Event == nil && got.Index == l.index,
		"%+v, %v", got, err)
	got, err = d.Bisect(t.Context(), start,
		event.Instant{Kind: event.InstantTime, Time: produced + 600}, ready, false, nil)
	assert.True(t, err == nil && got.Found && got.Event == nil && int64(got.Time) == produced+600,
		"%+v, %v", got, err)
	got, err = d.Bisect(t.Context(), start,
		event.Instant{Kind: event.InstantTime, Time: produced + 400}, ready, false, nil)
	assert.True(t, err == nil && !got.Found, "%+v, %v", got, err)
}

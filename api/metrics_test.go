package api

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// The counters of queues without series of their own never fall: not when such a queue is deleted,
// gets a series, or loses it.
func TestCountersOfTheRest(t *testing.T) {
	var r rest
	add := func(acked ...int64) int64 { // of queues 1, 2, 3; -1: there is none
		t.Helper()
		var queues []event.QueueView
		for i, n := range acked {
			if n >= 0 {
				queues = append(queues, event.QueueView{
					Number: uint32(i + 1), Stats: event.Stats{Acked: n}})
			}
		}
		return r.add(queues, 1, func(i int) counters {
			return counters{1: queues[i].Stats.Acked}
		})[1]
	}
	for _, c := range []struct{ got, want int64 }{
		{add(100, 10, 20), 30},
		{add(100, 11, 20), 31},
		{add(100, 11, -1), 31}, // 3 is deleted
		{add(-1, 15, -1), 31},  // 1 is deleted, and 2 has a series
		{add(-1, 16, -1, 7), 38},
		{add(3, 18, -1, 7), 40}, // 2 has none any more
	} {
		assert.Equal(t, c.got, c.want)
	}
}

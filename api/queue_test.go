package api

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// TestMaxQueuesAtOnce: requests that create queues at the same time do not exceed the limit.
func TestMaxQueuesAtOnce(t *testing.T) {
	h, _ := onMachine(t, func(o *Options) { o.MaxQueues = 5 })
	var all sync.WaitGroup
	var created atomic.Int32
	for i := range 50 {
		all.Go(func() {
			if h.do("PUT", fmt.Sprint("/v1/queues/q", i), "{}").Code == 201 {
				created.Add(1)
			}
		})
	}
	all.Wait()
	if n := created.Load(); n < 1 || n > 5 {
		t.Errorf("%d queues", n)
	}
}

// TestCarriedOut: a purge's answer waits for the log to tell of each message,
// but not for ever where it does not come to that, and not where there is none.
func TestCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		purge := func(want time.Duration) {
			t.Helper()
			begun := time.Now()
			h.do("POST", "/v1/queues/q/purge", "").want(200)
			assert.Equal(t, time.Since(begun), want, "waited")
		}
		purge(0)
		h.produceN("q", 3)
		purge(removalsWithin) // nothing happens by itself here
		h.s.Drain()
		h.s.Drain()
	})
}

package api

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

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

package api

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// TestLostLeasesAreAnsweredInTime: what became of the messages of many lost leases is said as far as
// it can be read in about a second.
func TestLostLeasesAreAnsweredInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		h.produceN("q", 100)
		leases := h.do("POST", "/v1/queues/q/lease", `{"max_messages":100}`).want(200).
			each("messages", "lease_id")
		var retry wire.RetryRequest
		for _, id := range leases {
			h.do("POST", "/v1/leases/"+id+"/ack", "").want(200)
			retry.Items = append(retry.Items, wire.RetryItem{LeaseID: id})
		}
		body, err := wire.Marshal(retry)
		assert.NoError(t, err)
		h.log.slow = 100 * time.Millisecond
		begun := time.Now()
		a := h.do("POST", "/v1/queues/q/retry", string(body)).want(200)
		assert.True(t, time.Since(begun) <= 1100*time.Millisecond, "after %s", time.Since(begun))
		assert.Equal(t, a.each("results", "code")[99], "lease_lost")
		states := a.each("results", "state")
		assert.Equal(t, states[0], "acked")
		assert.Equal(t, states[99], "<nil>")
		h.s.Drain()
	})
}

package api

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

const oneMessage = `{"messages":[{"payload":1}]}`

func TestTrackerIsBounded(t *testing.T) {
	tr := newTracker()
	for range 2*keepOperations + 100 {
		tr.end(tr.begin("k", &event.Command{Produce: &event.Produce{}}), 1, nil)
	}
	n := len(tr.find(operationKey{"", "k"}))
	assert.True(t, n == keepOperations+100 && len(tr.pending) == 0,
		"%d kept, %d pending", n, len(tr.pending))
}

// TestDamagedContent: what is in a damaged file is answered with a retryable 503, but shown as
// damaged by a node that has nobody to repair it from. A lease returns what can be read, and
// releases the rest after a pause, at the cost of no attempt.
func TestDamagedContent(t *testing.T) {
	for _, single := range []bool{false, true} {
		testDamagedContent(t, single)
	}
}

func testDamagedContent(t *testing.T, single bool) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.log.single = single
		h.do("PUT", "/v1/queues/q", `{"delivery":{"max_attempts":1}}`).want(201)
		first := h.do("POST", "/v1/queues/q/messages", oneMessage).want(201).str("messages.0.id")
		h.log.damaged = h.log.Head()
		damaged := []any{"code", "node_damaged", "retryable", true}
		if page, one := "/v1/queues/q/messages", "/v1/messages/"+first; single {
			h.do("GET", page, "").want(200).with("messages.0.id", first,
				"messages.0.damaged", true, "messages.0.payload", nil)
			h.do("GET", one, "").want(200).with("id", first, "damaged", true)
			h.do("GET", page+"?header.h=x", "").want(200).with("scanned", 1.0)
		} else {
			h.do("GET", page, "").want(503).with(damaged...)
			h.do("GET", one, "").want(503).with(damaged...)
		}
		second := h.do("POST", "/v1/queues/q/messages", oneMessage).want(201).str("messages.0.id")
		for _, accept := range []string{"application/json", "application/cloudevents-batch+json"} {
			h.do("POST", "/v1/queues/q/lease", `{"max_messages":1}`).want(503).with(damaged...).
				with("outcome", "not_applied")
			// Meanwhile the one behind it is delivered.
			a := h.do("POST", "/v1/queues/q/lease", `{"max_messages":1}`, "Accept: "+accept).want(200)
			assert.Contains(t, a.Body.String(), second)
			second = h.do("POST", "/v1/queues/q/messages", oneMessage).want(201).str("messages.0.id")
			time.Sleep(damagedPause + time.Second)
		}
		h.log.damaged = 0
		h.do("POST", "/v1/queues/q/lease", "").want(200).with(
			"messages.0.id", first, "messages.0.attempt", 1.0, "messages.1.id", second)
	})
}

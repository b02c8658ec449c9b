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

// TestMaxQueues: at the limit no way creates a queue, and those that exist can be changed.
func TestMaxQueues(t *testing.T) {
	h, _ := onMachine(t, func(o *Options) { o.MaxQueues, o.AutoCreateQueues = 3, true })
	key, message := "Idempotency-Key: k", `{"messages":[{"payload":1}]}`
	auto := `{"delivery":{"dead_letter_queue":"auto"}}`
	h.do("PUT", "/v1/queues/a", "{}", key).want(201)
	h.do("PUT", "/v1/queues/b", auto).want(201)
	for _, r := range [][3]string{
		{"PUT", "/v1/queues/c", "{}"},
		{"PUT", "/v1/queues/a", auto},
		{"PATCH", "/v1/queues/a", auto},
		{"POST", "/v1/queues/c/messages", message},
		{"POST", "/v1/transactions", `{"produce":[{"queue":"c","messages":[{"payload":1}]}]}`},
		{"PUT", "/v1/definitions", `{"queues":[{"name":"a"},{"name":"c"}]}`},
		{"PUT", "/v1/definitions?dry_run=true", `{"queues":[{"name":"c"}]}`},
	} {
		h.do(r[0], r[1], r[2]).want(409).with("code", "conflict", "outcome", "not_applied",
			"detail", "there are 3 queues, and the limit is 3 (serve --max-queues): 1 more are not created")
	}
	h.do("PUT", "/v1/queues/a", "{}", key).want(201) // the first answer
	h.do("PUT", "/v1/queues/b", `{"description":"x"}`).want(200)
	h.do("PATCH", "/v1/queues/b", auto).want(200)
	h.do("POST", "/v1/queues/a/messages", message).want(201)
	h.do("PUT", "/v1/definitions", `{"queues":[{"name":"a","description":"x"}]}`).want(200)
	h.do("DELETE", "/v1/queues/b", "").want(204)
	h.do("POST", "/v1/queues/c/messages", message).want(201)
}

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

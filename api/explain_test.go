package api

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/raft/peer"
)

// Leases that wait are counted here and at the other nodes, by what they take.
func TestExplainCountsWaiters(t *testing.T) { synctest.Test(t, explainCountsWaiters) }

func explainCountsWaiters(t *testing.T) {
	h, _ := onMachine(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.node.askOthers = func(_ context.Context, name string, body []byte) [][]byte {
		answer, err := h.s.Answers()[name](t.Context(), peer.Identity{}, body)
		assert.NoError(t, err)
		return [][]byte{answer, []byte("x"), []byte("2")}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.do("POST", "/v1/queues/q/lease", `{"wait_ms":20000,"kinds":["red"]}`)
	}()
	synctest.Wait()                                               // it waits
	if n := h.s.clusterWaiters(t.Context(), "q", "red"); n != 4 { // this node is asked twice
		t.Errorf("%d wait", n)
	}
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"kind":"blue"}]}`).want(201)
	a := h.do("GET", "/v1/queues/q/explain", "").want(200)
	a.with("reasons.0.code", "ready", "reasons.0.waiters", 2.0, "reasons.1", nil)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"kind":"red"}]}`).want(201)
	<-done
}

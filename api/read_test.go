package api

import (
	"context"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/raft/peer"
)

func TestStaleReadsSayHowOldTheyAre(t *testing.T) {
	h := setup(t)
	h.node.age = func() (time.Duration, bool) { return 1500 * time.Millisecond, true }
	a := h.do("GET", "/v1/queues?consistency=stale", "").want(200)
	assert.Equal(t, a.Header().Get("X-Qlogd-Age-Ms"), "1500")
}

// What another node was asked to write is told too, also while it is pending.
func TestOperationsOfOthers(t *testing.T) {
	h, other := setup(t), setup(t)
	h.node.askOthers = func(_ context.Context, name string, body []byte) [][]byte {
		answer, err := other.s.Answers()[name](t.Context(), peer.Identity{}, body)
		assert.NoError(t, err)
		return [][]byte{answer, []byte("what?")}
	}
	other.do("PUT", "/v1/queues/q", "").want(201)
	other.fake.before = func() {
		other.fake.before = nil
		for _, h := range []*harness{h, other} {
			h.do("GET", "/v1/operations/k", "").want(200).with("operations.0.status", "pending",
				"operations.0.type", "produce", "operations.0.position", 0.0)
		}
	}
	other.do("POST", "/v1/queues/q/messages", oneMessage, "Idempotency-Key: k").want(201)
	a := h.do("GET", "/v1/operations/k", "").want(200)
	a.with("operations.0.status", "completed", "operations.0.index", 2.0)
	if a = h.do("GET", "/v1/operations/none", "").want(200); len(a.get("operations").([]any)) != 0 {
		t.Errorf("%s", a.Body)
	}
	if _, err := other.s.Answers()[askOperations](t.Context(), peer.Identity{}, []byte("?")); err == nil {
		t.Error("answered nonsense")
	}
}

package api

import (
	"context"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestReadsSayWhatTheyShow(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	id := h.do("POST", "/v1/queues/q/messages", oneMessage).want(201).str("messages.0.id")
	reads := []string{"/v1/queues", "/v1/queues/q", "/v1/queues/q/messages", "/v1/messages/" + id,
		"/v1/messages/" + id + "/history", "/v1/events"}
	for _, path := range reads {
		a := h.do("GET", path, "").want(200)
		if a.Header().Get("X-Qlogd-Applied-Index") != "2" ||
			a.Header().Get("X-Qlogd-Age-Ms") != "" {
			t.Errorf("%s: %v", path, a.Header())
		}
		a = h.do("GET", path+"?consistency=stale", "").want(200)
		if a.Header().Get("X-Qlogd-Applied-Index") != "2" ||
			a.Header().Get("X-Qlogd-Age-Ms") != "unknown" {
			t.Errorf("%s, stale: %v", path, a.Header())
		}
	}
	h.node.age = func() (time.Duration, bool) { return 1500 * time.Millisecond, true }
	if a := h.do("GET", "/v1/queues?consistency=stale",
		"").want(200); a.Header().Get("X-Qlogd-Age-Ms") != "1500" {
		t.Errorf("%v", a.Header())
	}
	// Without a leader only what is stale is answered.
	h.fake.barrier = &event.Problem{Code: codeNoLeader, Index: -1}
	for _, path := range reads {
		a := h.do("GET", path, "").want(503)
		if a.Header().Get("Retry-After") == "" || a.str("outcome") != "" ||
			a.Header().Get("X-Qlogd-Applied-Index") != "" {
			t.Errorf("%s: %v %s", path, a.Header(), a.Body)
		}
		h.do("GET", path+"?consistency=stale", "").want(200)
	}
	h.do("GET", "/v1/cluster", "").want(200)
	h.do("GET", "/v1/cluster?consistency=linearizable", "").want(503)
	h.do("GET", "/v1/operations/k", "").want(200)
	for _, path := range []string{"/v1/operations/k", "/v1/operations/stats", "/v1/cluster"} {
		h.do("GET", path+"?consistency=banana", "").want(400)
	}
	h.do("DELETE", "/v1/queues/none", "").want(503).with("outcome", "not_applied")
}

func TestReadyz(t *testing.T) {
	h := setup(t)
	h.node.unready = []string{"no leader is known"}
	a := h.do("GET", "/readyz", "").want(503)
	if a.str("reasons.0") != "no leader is known" || a.Header().Get("Retry-After") == "" {
		t.Errorf("%v %s", a.Header(), a.Body)
	}
	h.s.Drain()
	h.do("GET", "/readyz", "").want(503).with("reasons.0", "shutting down")
}

// What another node was asked to write is told too, also while it is pending.
func TestOperationsOfOthers(t *testing.T) {
	h, other := setup(t), setup(t)
	h.node.askOthers = func(_ context.Context, name string, body []byte) [][]byte {
		answer, err := other.s.Answers()[name](t.Context(), body)
		assert.NoError(t, err)
		return [][]byte{answer, []byte("what?")}
	}
	other.do("PUT", "/v1/queues/q", "").want(201)
	other.fake.before = func() {
		other.fake.before = nil
		h.do("GET", "/v1/operations/k", "").want(200).with("operations.0.status", "pending",
			"operations.0.type", "produce")
	}
	other.do("POST", "/v1/queues/q/messages", oneMessage, "Idempotency-Key: k").want(201)
	a := h.do("GET", "/v1/operations/k", "").want(200)
	a.with("operations.0.status", "completed", "operations.0.index", 2.0)
	if a = h.do("GET", "/v1/operations/none", "").want(200); len(a.get("operations").([]any)) != 0 {
		t.Errorf("%s", a.Body)
	}
	if _, err := other.s.Answers()[askOperations](t.Context(), []byte("?")); err == nil {
		t.Error("answered nonsense")
	}
}

package api

import (
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// wantProblem is want with a code.
func (a answer) wantProblem(status int, code string) {
	a.t.Helper()
	if got := a.want(status).str("code"); got != code {
		a.t.Errorf("code %s, want %s: %s", got, code, a.Body)
	}
}

func TestQueueStats(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("POST", "/v1/queues/q/messages", oneMessage).want(201)
	h.read = 2
	h.do("GET", "/v1/queues/q/stats", "").want(200).with("queue", "q", "totals.enqueued", 1.0,
		"dead_by_reason.rejected", 2.0, "minutes.0.enqueued", 1.0, "index", 2.0)
	h.do("GET", "/v1/queues/q/stats?minutes=1440", "").want(200).with("minutes.0", nil)
	h.do("GET", "/v1/queues/nope/stats", "").wantProblem(404, "queue_not_found")
	h.do("GET", "/v1/queues/q/stats?minutes=1441", "").wantProblem(400, "invalid_argument")
	h.do("GET", "/v1/queues/q/stats?at=start", "").wantProblem(400, "invalid_argument")
}

func TestProjectionsAreRebuilt(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("GET", "/v1/projections", "").want(200).with("index", 0.0, "log_head", 1.0)
	key := "Idempotency-Key: once"
	h.do("POST", "/v1/projections/rebuild", "", key).want(202)
	h.do("POST", "/v1/projections/rebuild", "", key).want(202)
	if h.rebuilt != 1 {
		t.Errorf("rebuilt %d times under one key", h.rebuilt)
	}
	h.do("POST", "/v1/projections/rebuild", `{"x":1}`).wantProblem(400, "invalid_argument")
	assert.Equal(t, h.rebuilt, 1, "a wrong call has rebuilt")
}

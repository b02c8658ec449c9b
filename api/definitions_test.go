package api

import "testing"

// Where a policy changed between plan and entry, definitions are planned again.
func TestDefinitionsStale(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/jobs", `{"ordering":"fifo"}`).want(201)
	h.fake.stale = 2
	h.do("PUT", "/v1/definitions", `{"queues":[{"name":"jobs"}]}`).want(200).
		with("changes.0.action", "update")
}

package api

import (
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestStory is the life of a few messages, through HTTP.
func TestStory(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/a", "").want(201)
	a := h.do("PUT", "/v1/queues/a", `{"delivery":{"backoff_multiplier":1.5,"dead_letter_queue":"auto"},"description":"d"}`).want(200)
	if a.get("delivery.backoff_multiplier") != 1.5 || a.str("delivery.dead_letter_queue") != "a.dlq" || a.get("delivery.backoff_schedule_ms") != nil {
		t.Fatalf("%s", a.Body)
	}
	if a.Header().Get("X-Qlogd-Index") != "2" || a.Header().Get("X-Request-Id") == "" {
		t.Fatalf("%v", a.Header())
	}
	a = h.do("PATCH", "/v1/queues/a", `{"delivery":{"dead_letter_queue":null,"max_attempts":3}}`).want(200)
	if a.get("delivery.dead_letter_queue") != nil || a.get("delivery.backoff_multiplier") != 1.5 || a.str("description") != "d" {
		t.Fatalf("%s", a.Body)
	}

	a = h.do("POST", "/v1/queues/a/messages", `{"messages":[{"payload":{"a" : [1, 2.50]},"key":"k","headers":{"h":"v"},"idempotency_key":"i"},{"payload":null}]}`).want(201)
	id := a.str("messages.0.id")
	if len(id) != 26 || a.str("messages.1.status") != "enqueued" {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/a/messages?key=r&priority=9&header.X-A=b", "raw \x00 bytes", "Content-Type: text/plain; charset=latin1").want(201)

	a = h.do("POST", "/v1/queues/a/lease", `{"max_messages":3,"worker":"w"}`).want(200)
	require.Contains(t, a.Body.String(), `"payload":{"a" : [1, 2.50]}`,
		"payload not as given: %s", a.Body)
	if a.str("messages.0.headers.h") != "v" || a.str("messages.2.payload_base64") != "cmF3IAAgYnl0ZXM=" || a.str("messages.2.content_type") != "text/plain; charset=latin1" {
		t.Fatalf("%s", a.Body)
	}
	l0, l1, l2 := a.str("messages.0.lease_id"), a.str("messages.1.lease_id"), a.str("messages.2.lease_id")
	a = h.do("POST", "/v1/queues/a/ack", `{"lease_ids":["`+l0+`"],"result":{"ok":1}}`).want(200)
	again := h.do("POST", "/v1/queues/a/ack", `{"lease_ids":["`+l0+`"]}`).want(200)
	if a.Body.String() != again.Body.String() || a.str("results.0.status") != "acked" {
		t.Fatalf("%s, then %s", a.Body, again.Body)
	}
	if a = h.do("POST", "/v1/queues/a/release", `{"lease_ids":["`+l0+`"]}`).want(200); a.str("results.0.code") != "lease_lost" {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/leases/"+l0+"/release", ``).want(409)
	h.do("POST", "/v1/leases/"+l0+"/ack", ``).want(200)
	if a = h.do("POST", "/v1/leases/"+l1+"/retry", `{"error":"e","delay_ms":5}`).want(200); a.str("next_at") == "" {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/leases/"+l2+"/extend", `{"lease_ms":5000}`).want(200)

	a = h.do("POST", "/v1/queues/a/messages", `{"messages":[{"payload":1,"idempotency_key":"i"}]}`).want(200)
	if a.str("messages.0.id") != id || a.str("messages.0.state") != "acked" || a.get("messages.0.result.ok") != 1.0 {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("GET", "/v1/messages/"+id, "").want(200)
	if a.str("state") != "acked" || a.get("payload.a.1") != 2.5 || a.str("history.2.type") != "acked" {
		t.Fatalf("%s", a.Body)
	}
	h.do("GET", "/v1/messages/"+id+"/history", "").want(200)
	a = h.do("GET", "/v1/queues/a/messages?limit=1", "").want(200)
	h.do("GET", "/v1/queues/a/messages?limit=1&cursor="+a.str("next_cursor"), "").want(200)

	a = h.do("POST", "/v1/transactions", `{"ack":["`+l2+`"],"produce":[{"queue":"a","messages":[{"payload":"x"}]}]}`).want(200)
	if a.str("results.0.status") != "acked" || a.str("messages.0.status") != "enqueued" {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("POST", "/v1/transactions", `{"retry":[{"lease_id":"`+l2+`"}]}`).want(409)
	if a.str("field") != "retry" || a.get("index") != 0.0 || a.str("outcome") != "not_applied" {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("POST", "/v1/transactions", `{"ack":["`+lease(h)+`"],"retry":[{"lease_id":"`+lease(h)+`","retryable":false},{"lease_id":"`+l0+`","retryable":false}],"dead_letter":[{"lease_id":"`+l1+`"}]}`).want(409)
	if a.str("field") != "retry" || a.get("index") != 1.0 {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/a/pause", "").want(200)
	h.do("POST", "/v1/queues/a/resume", "{}").want(200)
	h.do("POST", "/v1/queues/a/purge", "").want(200)
	h.do("GET", "/v1/queues", "").want(200)
	h.do("GET", "/v1/queues/a?at=start", "").want(200)
	h.do("DELETE", "/v1/queues/a?force=true", "").want(204)
	h.do("GET", "/v1/queues/a", "").want(404)
	for _, p := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/v1/operations/x", "/v1/operations/stats"} {
		h.do("GET", p, "").want(200)
	}
}

// lease enqueues a message and leases it.
func lease(h *harness) string {
	h.do("POST", "/v1/queues/a/messages", oneMessage).want(201)
	return h.do("POST", "/v1/queues/a/lease", `{"max_messages":1}`).want(200).str("messages.0.lease_id")
}

package api

import (
	"errors"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/event"
)

const oneMessage = `{"messages":[{"payload":1}]}`

func TestIdempotencyKey(t *testing.T) {
	h := setup(t)
	key := "Idempotency-Key: k1"
	first := h.do("PUT", "/v1/queues/q", `{"description":"one"}`, key).want(201)
	again := h.do("PUT", "/v1/queues/q", `{"description":"one"}`, key).want(201)
	if again.Header().Get("Idempotent-Replayed") != "true" || first.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("%v", again.Header())
	}
	if a, b := first.Header().Get("X-Qlogd-Index"), again.Header().Get("X-Qlogd-Index"); a != b || a == "" {
		t.Errorf("index %s, then %s", a, b)
	}
	if a := h.do("PUT", "/v1/queues/q", `{"description":"two"}`, key).want(422); a.str("code") != "idempotency_key_reused" {
		t.Errorf("%s", a.Body)
	}
	// Another method or path is another scope; a query counts as body.
	h.do("PATCH", "/v1/queues/q", `{}`, key).want(200)
	produced := h.do("POST", "/v1/queues/q/messages", oneMessage, key).want(201)
	again = h.do("POST", "/v1/queues/q/messages", oneMessage, key).want(201)
	if produced.Body.String() != again.Body.String() || again.str("messages.0.status") != "enqueued" {
		t.Errorf("%s, then %s", produced.Body, again.Body)
	}
	h.do("POST", "/v1/queues/q/messages?key=a", "x", "Content-Type: text/plain", "Idempotency-Key: k2").want(201)
	h.do("POST", "/v1/queues/q/messages?key=b", "x", "Content-Type: text/plain", "Idempotency-Key: k2").want(422)
	h.do("POST", "/v1/queues/q/pause", "", key).want(200)
	h.do("POST", "/v1/queues/q/resume", "", key).want(200)

	// It is no part of a lease.
	l := h.do("POST", "/v1/queues/q/lease", `{"max_messages":1}`, key).want(200)
	lease := l.str("messages.0.lease_id")
	for range 2 {
		h.do("POST", "/v1/leases/"+lease+"/ack", "", key).want(200)
		h.do("POST", "/v1/queues/q/purge", "", key).want(200)
		h.do("DELETE", "/v1/queues/q", "", key).want(204)
	}
	if h.queues["q"] != nil {
		t.Error("not deleted")
	}
	if a := h.do("POST", "/v1/queues/q/messages", oneMessage, key).want(201); a.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("a repeat after the queue has gone: %s", a.Body)
	}
}

func TestOperations(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "", "Idempotency-Key: k").want(201)
	h.do("POST", "/v1/queues/q/messages", oneMessage, "Idempotency-Key: k").want(201)
	h.fake.before = func() {
		h.fake.before = nil
		if a := h.do("GET", "/v1/operations/p", ""); a.str("operations.0.status") != "pending" || a.get("operations.0.position") != 0.0 {
			t.Errorf("%s", a.Body)
		}
	}
	h.do("POST", "/v1/queues/q/messages", oneMessage, "Idempotency-Key: p").want(201)
	a := h.do("GET", "/v1/operations/k", "").want(200)
	if a.str("operations.0.type") != "put_queue" || a.str("operations.1.type") != "produce" || a.str("operations.1.status") != "completed" || a.get("operations.1.index") != 2.0 {
		t.Errorf("%s", a.Body)
	}
	h.fake.err = &event.Problem{Code: "overloaded", Index: -1, QueueDepth: 7, Detail: "d"}
	a = h.do("POST", "/v1/queues/q/messages", oneMessage, "Idempotency-Key: f").want(429)
	if a.get("queue_depth") != 7.0 || a.Header().Get("Retry-After") != "1" || a.str("outcome") != "not_applied" || a.get("retryable") != true {
		t.Errorf("%s", a.Body)
	}
	a = h.do("GET", "/v1/operations/f", "").want(200)
	if a.str("operations.0.status") != "failed" || a.str("operations.0.error") != "overloaded" {
		t.Errorf("%s", a.Body)
	}
	if a = h.do("GET", "/v1/operations/none", "").want(200); len(a.get("operations").([]any)) != 0 {
		t.Errorf("%s", a.Body)
	}
	if a = h.do("GET", "/v1/operations/stats", "").want(200); len(a.get("stats").([]any)) != 3 {
		t.Errorf("%s", a.Body)
	}
}

func TestTrackerIsBounded(t *testing.T) {
	tr := newTracker()
	for range keepOperations + 100 {
		tr.end(tr.begin("k", &event.Command{Produce: &event.Produce{}}), 1, nil)
	}
	if n := len(tr.find(operationKey{"", "k"})); n != keepOperations || tr.waiting != 0 {
		t.Errorf("%d kept, %d pending", n, tr.waiting)
	}
}

func TestOutcomes(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	for _, c := range []struct {
		err     error
		status  int
		outcome string
	}{
		{&event.Problem{Code: "no_leader", Index: -1, Unknown: true, RetryAfterMS: 2500}, 503, "unknown"},
		{&event.Problem{Code: "no_leader", Index: -1}, 503, "not_applied"},
		{&event.Problem{Code: "insufficient_storage", Index: -1}, 507, "not_applied"},
		{&event.Problem{Code: "shutting_down", Index: -1}, 503, "not_applied"},
		{errors.New("odd"), 500, "unknown"},
	} {
		h.fake.err = c.err
		a := h.do("POST", "/v1/queues/q/messages", oneMessage).want(c.status)
		if a.str("outcome") != c.outcome || c.status != 500 && a.get("retryable") != true {
			t.Errorf("%v: %s", c.err, a.Body)
		}
		if c.status == 503 && a.Header().Get("Retry-After") == "" {
			t.Errorf("%v: no Retry-After", c.err)
		}
	}
	h.fake.err = errors.New("secret detail")
	if a := h.do("PUT", "/v1/queues/q", ""); strings.Contains(a.Body.String(), "secret") {
		t.Errorf("%s", a.Body)
	}
}

func TestStaleRevisionIsCheckedAnew(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.fake.stale = 3
	h.do("POST", "/v1/queues/q/messages", oneMessage).want(201)
	h.fake.stale = 3
	h.do("PATCH", "/v1/queues/q", `{"description":"x"}`).want(200)
	h.fake.stale = 1000
	h.do("POST", "/v1/queues/q/messages", oneMessage).want(409)
	h.do("POST", "/v1/transactions", `{"produce":[{"queue":"q","messages":[{"payload":1}]}]}`).want(409)
	h.do("PATCH", "/v1/queues/q", `{}`).want(409)
}

func TestPolicyDefaultsAndMerging(t *testing.T) {
	h := setup(t, func(o *Options) { o.HistoryRetention = 3600e9 })
	a := h.do("PUT", "/v1/queues/q", "").want(201)
	if a.get("deduplication.window_seconds") != 3600.0 {
		t.Errorf("window not clamped: %s", a.Body)
	}
	h.do("PUT", "/v1/queues/q", `{"deduplication":{"window_seconds":86400}}`).want(400)
	h.do("PATCH", "/v1/queues/q", `{"delivery":{"lease_ms":5000,"backoff_jitter":0.25},"retention":{"max_depth":9},"namespace":"n","message_schema":{"type":"object"}}`).want(200)
	a = h.do("PATCH", "/v1/queues/q", `{"delivery":{"lease_ms":null},"retention":null,"message_schema":null}`, "Content-Type: application/merge-patch+json").want(200)
	if a.get("delivery.lease_ms") != 30000.0 || a.get("delivery.backoff_jitter") != 0.25 || a.get("retention.max_depth") != 0.0 || a.str("namespace") != "n" || a.get("message_schema") != nil {
		t.Errorf("%s", a.Body)
	}
	a = h.do("PUT", "/v1/queues/q", `{"delivery":null}`).want(200)
	if a.get("delivery.backoff_jitter") != 0.0 || a.str("namespace") != "" {
		t.Errorf("%s", a.Body)
	}
	h.do("PUT", "/v1/queues/q2", `{"namespace":"n"}`).want(201)
	a = h.do("GET", "/v1/queues?namespace=n", "").want(200)
	if a.str("queues.0.name") != "q2" || a.get("next_cursor") != nil {
		t.Errorf("%s", a.Body)
	}
	a = h.do("GET", "/v1/queues?limit=1", "").want(200)
	if a = h.do("GET", "/v1/queues?limit=1&cursor="+a.str("next_cursor"), "").want(200); a.str("queues.0.name") != "q2" || a.get("next_cursor") != nil {
		t.Errorf("%s", a.Body)
	}
}

func TestErasedContent(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("POST", "/v1/queues/q/messages", oneMessage).want(201)
	h.fake.erased = true
	if a := h.do("GET", "/v1/queues/q/messages", "").want(200); a.get("messages.0.erased") != true {
		t.Errorf("%s", a.Body)
	}
	if a := h.do("POST", "/v1/queues/q/lease", "").want(200); a.get("messages.0.erased") != true || a.get("messages.0.payload") != nil {
		t.Errorf("%s", a.Body)
	}
}

func TestFateThroughMoves(t *testing.T) {
	h := setup(t)
	id := func(i uint64) event.ID { return event.NewID(1000*int64(i), i, 0) }
	history := []event.Event{
		{ID: id(1), Subject: id(1), Type: event.Enqueued, Queue: "a", Key: "k", Priority: 5, Size: 1, Content: event.EncodeContent(&event.Content{Payload: []byte("7")})},
		{ID: id(2), Subject: id(1), Type: event.Leased, Queue: "a", Attempt: 1},
		{ID: id(3), Subject: id(1), Type: event.DeadLettered, Queue: "a", ToQueue: "a.dlq", Lease: id(2), Attempt: 1, Reason: event.ReasonRejected, Content: event.EncodeContent(&event.Content{Error: "boom"})},
		{ID: id(4), Subject: id(3), Type: event.Leased, Queue: "a.dlq", Attempt: 1},
		{ID: id(5), Subject: id(3), Type: event.Acked, Queue: "a.dlq", Lease: id(4)},
	}
	l := lifeOf(history, id(1))
	if l.state() != event.StateDeadLettered || l.moved.ID != id(3) || l.attempts != 1 {
		t.Errorf("%+v", l)
	}
	l = lifeOf(history, id(3))
	m, err := h.s.pastMessage(l)
	if err != nil || m.State != "acked" || m.Queue != "a.dlq" || string(m.Payload) != "7" || m.Dead == nil || m.Dead.Error != "boom" || m.Key != "k" {
		t.Errorf("%+v %v", m, err)
	}
	if lifeOf(history, id(9)) != nil || lifeOf(history, id(2)) != nil {
		t.Error("a life of none")
	}
	e := EventOf(&history[2])
	if e.NewMessageID != id(3).String() || e.MessageID != id(1).String() || e.Error != "boom" || e.LeaseID != id(2).String() {
		t.Errorf("%+v", e)
	}
}

package client

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

// What a call does with each answer: how often it asks, how long it waits, and
// what it says in the end. After the answers comes a good one, if it still asks.
func TestRetryRules(t *testing.T) {
	type kind int
	const (
		write kind = iota
		lease
		settle
	)
	unknownJSON := func(status int) func(http.ResponseWriter) {
		return problemSays(status, "internal", "unknown", true)
	}
	tests := []struct {
		name     string
		kind     kind
		answers  answerList
		requests int
		min, max time.Duration // of the first wait; 0 none
		err      error         // nil: it succeeds
	}{
		{"202 is success", write, answerList{says(202, produced)}, 1, 0, 0, nil},
		{"429 with Retry-After", write, answerList{problemSays(429, "overloaded", "not_applied", true, "Retry-After", "2")}, 2, 2 * time.Second, 3 * time.Second, nil},
		{"429 without", write, answerList{problemSays(429, "overloaded", "not_applied", true)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"503 with Retry-After", write, answerList{problemSays(503, "no_leader", "not_applied", true, "Retry-After", "1")}, 2, time.Second, 2 * time.Second, nil},
		{"503 without", write, answerList{problemSays(503, "no_leader", "not_applied", true)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"a Retry-After of an hour", write, answerList{problemSays(503, "no_leader", "not_applied", true, "Retry-After", "3600")}, 2, 30 * time.Second, 38 * time.Second, nil},
		{"a Retry-After that is a date", write, answerList{says(503, "", "Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))}, 2, 30 * time.Second, 38 * time.Second, nil},
		{"429 to a lease", lease, answerList{problemSays(429, "overloaded", "not_applied", true)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"503 with an unknown outcome", write, answerList{problemSays(503, "no_leader", "unknown", true)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"503 with an unknown outcome to a lease", lease, answerList{problemSays(503, "no_leader", "unknown", true)}, 1, 0, 0, ErrNoLeader},
		{"500 with an unknown outcome", write, answerList{unknownJSON(500)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"500 with an unknown outcome to a settle", settle, answerList{unknownJSON(500)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"500 with an unknown outcome to a lease", lease, answerList{unknownJSON(500)}, 1, 0, 0, code("internal")},
		{"a proxy's 502", write, answerList{says(502, "<html>")}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"a proxy's 504 to a lease", lease, answerList{says(504, "<html>")}, 1, 0, 0, code("http_504")},
		{"507", write, answerList{problemSays(507, "insufficient_storage", "not_applied", true)}, 1, 0, 0, ErrInsufficientStorage},
		{"400", write, answerList{problemSays(400, "invalid_argument", "not_applied", false)}, 1, 0, 0, ErrInvalidArgument},
		{"404", write, answerList{problemSays(404, "queue_not_found", "not_applied", false)}, 1, 0, 0, ErrQueueNotFound},
		{"408, although it says that it may be repeated", write, answerList{problemSays(408, "request_timeout", "not_applied", true)}, 1, 0, 0, code("request_timeout")},
		{"409", settle, answerList{problemSays(409, "conflict", "not_applied", false)}, 1, 0, 0, ErrConflict},
		{"422", write, answerList{problemSays(422, "idempotency_key_reused", "not_applied", false)}, 1, 0, 0, ErrIdempotencyKey},
		{"hung up after the request", write, answerList{hangup, hangup}, 3, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"hung up after a settle", settle, answerList{hangup}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"a refusal of the repeat alone", write, answerList{unknownJSON(500), problemSays(403, "forbidden", "not_applied", false)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, ErrOutcomeUnknown},
		{"the same, by its code", write, answerList{unknownJSON(500), problemSays(507, "insufficient_storage", "not_applied", true)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, ErrInsufficientStorage},
		{"a refusal of the repeated settle alone", settle, answerList{hangup, problemSays(408, "request_timeout", "not_applied", true)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, ErrOutcomeUnknown},
		{"a refusal of both", write, answerList{unknownJSON(500), problemSays(404, "queue_not_found", "not_applied", false)}, 2, 25 * time.Millisecond, 50 * time.Millisecond, ErrQueueNotFound},
		{"a cut answer", write, answerList{says(201, `{"mess`, "Content-Length", "100")}, 2, 25 * time.Millisecond, 50 * time.Millisecond, nil},
		{"a cut answer to a lease", lease, answerList{says(200, `{"mess`, "Content-Length", "100")}, 1, 0, 0, errors.ErrUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			good := map[kind]string{write: produced, lease: `{"messages":[]}`, settle: `{"results":[{"lease_id":"01A","status":"acked"}]}`}
			c, f, waits := setup(t, append(tt.answers[:len(tt.answers):len(tt.answers)], says(200, good[tt.kind]))...)
			call := map[kind]func(context.Context) error{
				write:  func(ctx context.Context) error { _, err := c.Produce(ctx, "q", JSON(1)); return err },
				lease:  func(ctx context.Context) error { _, err := c.Lease(ctx, "q", LeaseOptions{}); return err },
				settle: func(ctx context.Context) error { _, err := c.Ack(ctx, "q", "01A"); return err },
			}[tt.kind]
			err := call(t.Context())
			if tt.err == nil && err != nil || tt.err != nil && err == nil {
				t.Errorf("error %v", err)
			}
			if tt.err != nil && tt.err != errors.ErrUnsupported && !errors.Is(err, tt.err) {
				t.Errorf("error %v, not %v", err, tt.err)
			}
			if n := len(f.asked()); n != tt.requests {
				t.Errorf("%d requests, not %d", n, tt.requests)
			}
			switch {
			case tt.max == 0 && len(*waits) > 0:
				t.Errorf("waited %v", *waits)
			case tt.max > 0 && (len(*waits) == 0 || (*waits)[0] < tt.min || (*waits)[0] > tt.max):
				t.Errorf("waited %v, not %v to %v", *waits, tt.min, tt.max)
			}
			keys := map[string]bool{}
			for _, a := range f.asked() {
				keys[a.header.Get("Idempotency-Key")] = true
			}
			if len(keys) != 1 || keys[""] != (tt.kind != write) {
				t.Errorf("keys %v", keys)
			}
		})
	}
}

// Calls that go round pass over an endpoint that failed, and come back to it.
func TestCallsThatGoRound(t *testing.T) {
	c, f, _ := several(t, []Option{WithSpread()}, answerList{enqueued, enqueued}, answerList{enqueued, stopping, enqueued}, answerList{enqueued, enqueued, enqueued})
	produce := func() {
		t.Helper()
		if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil {
			t.Fatal(err)
		}
	}
	asks := func(want ...int) {
		t.Helper()
		for i := range want {
			if n := len(f[i].asked()); n != want[i] {
				t.Errorf("endpoint %d: %d requests, not %d", i, n, want[i])
			}
		}
	}
	for range 3 {
		produce()
	}
	asks(1, 1, 1)
	produce() // by 1, which is stopping, so by 2
	asks(1, 2, 2)
	produce() // 2
	produce() // 0
	asks(2, 2, 3)
	c.endpoints[1].until.Store(1) // its time is over
	produce()
	asks(2, 3, 3)
	if c.endpoints[1].until.Load() != 0 {
		t.Error("it does again")
	}
}

// Lone calls go to the leader that answers name; many at once share all nodes.
func TestCallsGoToTheLeader(t *testing.T) {
	var c *Client
	var f []*fake
	committed := func(leader int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			headers := []string{"X-Qlogd-Index", "7"}
			if leader >= 0 {
				headers = append(headers, "X-Qlogd-Leader", c.endpoints[leader].url.Host)
			}
			says(201, produced, headers...)(w)
		}
	}
	here := committed(-1)
	c, f, _ = several(t, nil, answerList{committed(1)}, answerList{committed(2), here, here, here, here}, answerList{here, here, stopping})
	asks := func(want ...int) {
		t.Helper()
		for i := range want {
			if n := len(f[i].asked()); n != want[i] {
				t.Errorf("endpoint %d: %d requests, not %d", i, n, want[i])
			}
		}
	}
	enqueue := func() {
		t.Helper()
		if _, err := c.Enqueue(t.Context(), "q", JSON(1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		enqueue() // 1 names 2, which names nobody
	}
	asks(0, 1, 2)
	enqueue() // 2 stops, 0 names 1
	asks(1, 1, 3)
	for range 2 {
		enqueue() // 0 names 1
	}
	if asks(1, 3, 3); c.endpoints[0].busy.Load() != 0 || c.endpoints[1].busy.Load() != 0 {
		t.Error("nothing is under way")
	}
	// 2 is passed over, 1 leads.
	var at [3]int
	for range 6 {
		i := c.turn()
		c.endpoints[i].busy.Add(1)
		at[i]++
	}
	if at != [3]int{1, 5, 0} {
		t.Errorf("six calls at once go to %v", at)
	}
}

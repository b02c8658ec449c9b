package client

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// What a call does with each answer: how often it asks, how long it waits, and
// what it says in the end. After the answers comes a good one, if it still asks.
func TestRetryRules(t *testing.T) {
	type kind int
	const (
		write kind = iota
		lease
		settle
		short = 25 * time.Millisecond // the client's own backoff
	)
	var (
		busy     = refuses(429, "overloaded", true)
		away     = refuses(503, "no_leader", true)
		unsure   = problemSays(503, "no_leader", "unknown", true)
		unknown  = problemSays(500, "internal", "unknown", true)
		full     = refuses(507, "insufficient_storage", true)
		timeout  = refuses(408, "request_timeout", true)
		missing  = refuses(404, "queue_not_found", false)
		cut      = says(201, `{"mess`, "Content-Length", "100")
		tomorrow = time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
		after    = func(status int, v string) answer {
			return problemSays(status, "busy", "not_applied", true, "Retry-After", v)
		}
	)
	for _, tt := range []struct {
		name     string
		kind     kind
		answers  []answer
		requests int
		wait     time.Duration // at least, before the second request
		err      error         // nil: it succeeds
	}{
		{"202 is success", write, all(says(202, produced)), 1, 0, nil},
		{"429 with Retry-After", write, all(after(429, "2")), 2, 2 * time.Second, nil},
		{"429 without", write, all(busy), 2, short, nil},
		{"503 with Retry-After", write, all(after(503, "1")), 2, time.Second, nil},
		{"503 without", write, all(away), 2, short, nil},
		{"a Retry-After of an hour", write, all(after(503, "3600")), 2, 30 * time.Second, nil},
		{"a Retry-After that is a date", write, all(says(503, "", "Retry-After", tomorrow)), 2,
			30 * time.Second, nil},
		{"429 to a lease", lease, all(busy), 2, short, nil},
		{"503, unknown", write, all(unsure), 2, short, nil},
		{"503, unknown, to a lease", lease, all(unsure), 1, 0, ErrNoLeader},
		{"500, unknown", write, all(unknown), 2, short, nil},
		{"500, unknown, to a settle", settle, all(unknown), 2, short, nil},
		{"500, unknown, to a lease", lease, all(unknown), 1, 0, code("internal")},
		{"a proxy's 502", write, all(says(502, "<html>")), 2, short, nil},
		{"a proxy's 504 to a lease", lease, all(says(504, "<html>")), 1, 0, code("http_504")},
		{"507", write, all(full), 1, 0, ErrInsufficientStorage},
		{"400", write, all(refuses(400, "invalid_argument", false)), 1, 0, ErrInvalidArgument},
		{"404", write, all(missing), 1, 0, ErrQueueNotFound},
		{"408, although it is retryable", write, all(timeout), 1, 0, code("request_timeout")},
		{"409", settle, all(refuses(409, "conflict", false)), 1, 0, ErrConflict},
		{"422", write, all(refuses(422, "idempotency_key_reused", false)), 1, 0, ErrIdempotencyKey},
		{"hung up after the request", write, all(hangup, hangup), 3, short, nil},
		{"hung up after a settle", settle, all(hangup), 2, short, nil},
		{"a refusal of the repeat", write, all(unknown, missing), 2, short, ErrOutcomeUnknown},
		{"the same, by its code", write, all(unknown, full), 2, short, ErrInsufficientStorage},
		{"a refusal of the repeated settle alone", settle, all(hangup, timeout), 2, short,
			ErrOutcomeUnknown},
		{"a refusal of both", write, all(unknown, missing), 2, short, ErrQueueNotFound},
		{"a cut answer", write, all(cut), 2, short, nil},
		{"a cut answer to a lease", lease, all(cut), 1, 0, io.ErrUnexpectedEOF},
		{"an empty answer", write, all(says(200, "")), 1, 0, ErrOutcomeUnknown},
		{"an empty answer to a lease", lease, all(says(200, "")), 1, 0, code("bad_answer")},
		{"an answer about no message", write, all(says(200, "{}")), 1, 0, ErrOutcomeUnknown},
		{"an answer about no lease", settle, all(says(204, "")), 1, 0, ErrOutcomeUnknown},
		{"an answer about other leases", settle, all(says(200, `{"results":[{},{}]}`)), 1, 0,
			ErrOutcomeUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			good := map[kind]string{write: produced, lease: `{"messages":[]}`,
				settle: `{"results":[{"lease_id":"01A","status":"acked"}]}`}[tt.kind]
			c, f, waits := setup(t, append(tt.answers, says(200, good))...)
			var err error
			switch tt.kind {
			case write:
				_, err = c.Produce(t.Context(), "q", JSON(1))
			case lease:
				_, err = c.Lease(t.Context(), "q", LeaseOptions{})
			case settle:
				_, err = c.Ack(t.Context(), "q", "01A")
			}
			assert.True(t, (err == nil) == (tt.err == nil) && errors.Is(err, tt.err),
				"error %v, not %v", err, tt.err)
			assert.Equal(t, len(f.asked()), tt.requests, "requests")
			if n := len(*waits); (n > 0) != (tt.wait > 0) ||
				n > 0 && ((*waits)[0] < tt.wait || (*waits)[0] > max(2*short, tt.wait*3/2)) {
				t.Errorf("waited %v, not %v", *waits, tt.wait)
			}
			keys := map[string]bool{}
			for _, a := range f.asked() {
				keys[a.header.Get("Idempotency-Key")] = true
			}
			assert.True(t, len(keys) == 1 && keys[""] == (tt.kind != write), "keys %v", keys)
		})
	}
}

// Calls that go round pass over an endpoint that failed, and come back to it.
func TestCallsThatGoRound(t *testing.T) {
	c, f, _ := several(t, []Option{WithSpread()}, all(enqueued, enqueued),
		all(enqueued, stopping, enqueued), all(enqueued, enqueued, enqueued))
	produce := func(want ...int) {
		t.Helper()
		produceOne(t, c)
		asks(t, f, want...)
	}
	produce()
	produce()
	produce(1, 1, 1)
	produce(1, 2, 2)              // by 1, which is stopping, so by 2
	produce()                     // 2
	produce(2, 2, 3)              // 0
	c.endpoints[1].until.Store(1) // its time is over
	produce(2, 3, 3)
	assert.Equal(t, c.endpoints[1].until.Load(), 0, "it works again")
}

// asks compares the numbers of requests at each endpoint.
func asks(t *testing.T, f []*fake, want ...int) {
	t.Helper()
	for i := range want {
		if n := len(f[i].asked()); n != want[i] {
			t.Errorf("endpoint %d: %d requests, not %d", i, n, want[i])
		}
	}
}

// Lone calls go to the leader that answers name; many at once share all nodes.
func TestCallsGoToTheLeader(t *testing.T) {
	var c *Client
	var f []*fake
	committed := func(leader int) answer {
		return func(w http.ResponseWriter) {
			headers := []string{"X-Qlogd-Index", "7"}
			if leader >= 0 {
				headers = append(headers, "X-Qlogd-Leader", c.endpoints[leader].url.Host)
			}
			says(201, produced, headers...)(w)
		}
	}
	here := committed(-1)
	c, f, _ = several(t, nil, all(committed(1)),
		all(committed(2), here, here, here, here), all(here, here, stopping))
	enqueue := func(want ...int) {
		t.Helper()
		if _, err := c.Enqueue(t.Context(), "q", JSON(1)); err != nil {
			t.Fatal(err)
		}
		asks(t, f, want...)
	}
	enqueue()
	enqueue()
	enqueue(0, 1, 2) // 1 names 2, which names nobody
	enqueue(1, 1, 3) // 2 stops, 0 names 1
	enqueue()
	enqueue(1, 3, 3) // 0 names 1
	assert.True(t, c.endpoints[0].busy.Load() == 0 && c.endpoints[1].busy.Load() == 0,
		"nothing is in flight")
	// 2 is passed over, 1 leads.
	var at [3]int
	for range 6 {
		i := c.turn()
		c.endpoints[i].busy.Add(1)
		at[i]++
	}
	assert.Equal(t, at, [3]int{1, 5, 0}, "six calls at once go to")
}

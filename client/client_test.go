package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// fake answers requests from a list, and remembers them.
type fake struct {
	t       *testing.T
	mu      sync.Mutex
	answers []answer
	seen    []asked
}

// asked is one request, copied: the server reuses its own.
type asked struct {
	method, path, body string
	query              url.Values
	header             http.Header
}

func (f *fake) asked() []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]asked(nil), f.seen...)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b := bodyOf(r)
	f.mu.Lock()
	f.seen = append(f.seen, asked{
		r.Method, r.URL.EscapedPath(), string(b), r.URL.Query(), r.Header.Clone(),
	})
	if len(f.answers) == 0 {
		f.mu.Unlock()
		f.t.Errorf("unexpected %s %s", r.Method, r.URL)
		return
	}
	answer := f.answers[0]
	f.answers = f.answers[1:]
	f.mu.Unlock()
	answer(w)
}

// bodyOf returns the body of a request as JSON.
func bodyOf(r *http.Request) []byte {
	b, _ := io.ReadAll(r.Body)
	var v jsontext.Value
	if r.Header.Get("Content-Type") != wire.MediaMsgpack || wire.UnmarshalMsgpack(b, &v) != nil {
		return b
	}
	return v
}

// answer is what a fake does with a request.
type answer = func(http.ResponseWriter)

func says(status int, body string, headers ...string) answer {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func problemSays(status int, code, outcome string, retryable bool, headers ...string) answer {
	return says(status, fmt.Sprintf(
		`{"status":%d,"code":%q,"detail":"so it is","retryable":%v,"outcome":%q}`,
		status, code, retryable, outcome), headers...)
}

// refuses is a problem of a request that was surely not applied.
func refuses(status int, code string, retryable bool) answer {
	return problemSays(status, code, "not_applied", retryable)
}

// hangs up without an answer: the outcome is not learnt.
func hangup(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

func setup(t *testing.T, answers ...answer) (*Client, *fake, *[]time.Duration) {
	t.Helper()
	c, fakes, waits := several(t, nil, all(answers...))
	return c, fakes[0], waits
}

// produceOne enqueues a message, which must succeed.
func produceOne(t *testing.T, c *Client) {
	t.Helper()
	_, err := c.Produce(t.Context(), "q", JSON(1))
	require.NoError(t, err)
}

const produced = `{"messages":[{"id":"01A","status":"enqueued"}]}`

func TestUnknownOutcome(t *testing.T) {
	away := refuses(503, "no_leader", true)
	for _, tt := range []struct {
		answers       []answer
		unknown, away bool
	}{
		{all(hangup, hangup), true, false},
		{all(away), false, true},
		{all(hangup, away), true, true}, // one that may be committed, one that surely is not
	} {
		c, _, _ := setup(t, tt.answers...)
		c.retry.Attempts = len(tt.answers)
		_, err := c.Produce(t.Context(), "jobs", JSON(1))
		if errors.Is(err, ErrOutcomeUnknown) != tt.unknown ||
			errors.Is(err, ErrNoLeader) != tt.away {
			t.Error(err)
		}
	}
}

func TestErrorsHaveTheirCode(t *testing.T) {
	c, f, _ := setup(t, says(409, `{"code":"lease_lost","detail":"gone","status":409,
		"field":"ack","index":1,"outcome":"not_applied"}`, "X-Request-Id", "r1"))
	_, err := c.Transaction(t.Context(), wire.TransactionRequest{Ack: []wire.AckItem{{LeaseID: "01A"}}})
	var e *Error
	if !errors.Is(err, ErrLeaseLost) || !errors.As(err, &e) || e.Problem.Field != "ack" ||
		*e.Problem.Index != 1 || e.RequestID != "r1" {
		t.Errorf("%v", err)
	}
	assert.Equal(t, len(f.asked()), 1, "requests for a definite answer")
	c, _, _ = setup(t, says(502, "<html>bad gateway"))
	if _, err := c.Queue(t.Context(), "a/b"); !errors.As(err, &e) || e.Problem.Status != 502 {
		t.Errorf("a proxy's page: %v", err)
	}
	if _, err := New("ftp://x"); err == nil {
		t.Error("ftp")
	}
}

func TestNamesAreEscaped(t *testing.T) {
	c, f, _ := setup(t, says(200, `{"name":"x"}`))
	if _, err := c.Queue(t.Context(), "a/../b?c"); err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, f.asked()[0].path, "/v1/queues/a%2F..%2Fb%3Fc")
}

// Follow finds its position first, then continues after the last event seen when
// the connection breaks.
func TestFollowMissesNothing(t *testing.T) {
	line := func(id string) string { return `{"event_id":"` + id + `","type":"enqueued"}` + "\n" }
	c, f, _ := setup(t,
		says(200, `{"events":[],"next_cursor":"01A"}`),
		says(200, line("01B")+"\n"+line("01C")+`{"event_id":"01`),
		problemSays(503, "shutting_down", "", true),
		says(200, line("01D")),
	)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	for e, err := range c.Follow(ctx, EventQuery{Queue: "q"}) {
		require.NoError(t, err)
		if got = append(got, e.EventID); len(got) == 3 {
			break
		}
	}
	assert.Equal(t, strings.Join(got, " "), "01B 01C 01D", "%v", got)
	var after []string
	for _, r := range f.asked() {
		after = append(after, r.query.Get("after"))
	}
	assert.Equal(t, strings.Join(after, ","), ",01A,01C,01C", "%v", after)
}

func TestAllEventsPages(t *testing.T) {
	c, f, _ := setup(t,
		says(200, `{"events":[{"event_id":"01A"},{"event_id":"01B"}],"next_cursor":"01B"}`),
		says(200, `{"events":[{"event_id":"01C"}],"next_cursor":"01C"}`),
		says(200, `{"events":[],"next_cursor":"01C"}`),
	)
	n := 0
	for _, err := range c.AllEvents(t.Context(), EventQuery{From: "start"}) {
		require.NoError(t, err)
		n++
	}
	if n != 3 || f.asked()[1].query.Get("after") != "01B" || f.asked()[1].query.Get("from") != "" {
		t.Errorf("%d events; %v", n, f.asked()[1].query)
	}
}

// A policy's limits: only those that are set are sent, and all are read. A message without a delay
// has the queue's, one with 0 has none.
func TestDeliveryLimits(t *testing.T) {
	const limits = `{"delivery":{"max_in_flight":7,"default_delay_ms":0,` +
		`"rate_limit":{"count":5,"per_ms":2000}}}`
	c, f, _ := setup(t, says(200, limits), says(200, limits), says(200, `{}`),
		says(201, `{"messages":[{},{}]}`))
	q, err := c.UpdateQueue(t.Context(), "q", wire.PolicyUpdate{
		Delivery: wire.Some(wire.DeliveryUpdate{
			MaxInFlight: wire.Some[int64](7), DefaultDelayMS: wire.Some[int64](0),
			RateLimit: wire.Some(wire.RateLimitUpdate{
				Count: wire.Some[int64](5), PerMS: wire.Some[int64](2000),
			}),
		}),
	})
	require.NoError(t, err)
	assert.Equal(t, q.Delivery.RateLimit, wire.RateLimit{Count: 5, PerMS: 2000})
	assert.Equal(t, q.Delivery.MaxInFlight, 7)
	_, err = c.UpdateQueue(t.Context(), "q", wire.PolicyUpdate{
		Delivery: wire.Some(wire.DeliveryUpdate{
			RateLimit: wire.Some(wire.RateLimitUpdate{Count: wire.Some[int64](6)}),
		}),
	})
	require.NoError(t, err)
	_, _, err = c.PutQueue(t.Context(), "q", wire.PolicyUpdate{
		Delivery: wire.Some(wire.DeliveryUpdate{RateLimit: wire.Null[wire.RateLimitUpdate]()}),
	})
	require.NoError(t, err)
	late, atOnce := JSON(1), JSON(2)
	atOnce.DelayMS = new(int64)
	_, err = c.ProduceAll(t.Context(), "q", []wire.NewMessage{late, atOnce})
	require.NoError(t, err)
	for i, want := range []string{
		limits, `{"delivery":{"rate_limit":{"count":6}}}`, `{"delivery":{"rate_limit":null}}`,
		`{"messages":[{"payload":1},{"payload":2,"delay_ms":0}]}`,
	} {
		assert.Equal(t, f.asked()[i].body, want)
	}
}

// A replay answers in two shapes: what was done, or the task that does it.
func TestReplayShapes(t *testing.T) {
	c, f, _ := setup(t,
		says(200, `{"replayed":1,"messages":[{"message_id":"a","new_message_id":"b"}],
			"skipped":[{"message_id":"c","code":"leased"}]}`),
		says(202, `{"id":"t","task_id":"t","status":"running","total":7,"skipped":3}`),
		says(200, `{"dry_run":true,"purged":2,"count":2,"messages":[],"skipped":[]}`),
		says(200, `{"dead":[]}`), says(200, `{}`))
	all := wire.DeadFilter{}
	done, task, err := c.Replay(t.Context(), "q", wire.ReplayRequest{Filter: &all})
	if err != nil || task != nil || *done.Replayed != 1 ||
		done.Messages[0].NewMessageID != "b" || done.Skipped[0].Code != "leased" {
		t.Fatalf("%+v %+v %v", done, task, err)
	}
	done, task, err = c.Replay(t.Context(), "q", wire.ReplayRequest{MessageIDs: []string{"a"}})
	if err != nil || done != nil || task.ID != "t" || task.Total != 7 || task.Skipped != 3 {
		t.Fatalf("%+v %+v %v", done, task, err)
	}
	purged, task, err := c.PurgeDead(t.Context(), "q", wire.PurgeRequest{Filter: &all})
	if err != nil || task != nil || *purged.Purged != 2 {
		t.Fatalf("%+v %+v %v", purged, task, err)
	}
	query := DeadQuery{DeadFilter: wire.DeadFilter{Key: new(string), Error: "x"}, Limit: 3}
	if _, err := c.Dead(t.Context(), "q", query); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AwaitTask(t.Context(), "t", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`POST /v1/queues/q/dead/replay?{"filter":{}}`,
		`POST /v1/queues/q/dead/replay?{"message_ids":["a"]}`,
		`POST /v1/queues/q/dead/purge?{"filter":{}}`,
		"GET /v1/queues/q/dead?error=x&key=&limit=3", "GET /v1/tasks/t?wait_ms=20000",
	} {
		a := f.asked()[i]
		assert.Equal(t, a.method+" "+a.path+"?"+a.query.Encode()+a.body, want)
	}
}

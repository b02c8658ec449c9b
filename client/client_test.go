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
// the connection breaks, at the next node if this one stops.
func TestFollowMissesNothing(t *testing.T) {
	line := func(id string) string { return `{"event_id":"` + id + `","type":"enqueued"}` + "\n" }
	c, f, _ := several(t, nil, all(
		says(200, `{"events":[],"next_cursor":"01A"}`),
		says(200, line("01B")+"\n"+line("01C")+`{"event_id":"01`),
		problemSays(503, "shutting_down", "", true),
	), all(says(200, line("01D"))))
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
	for _, r := range append(f[0].asked(), f[1].asked()...) {
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

// A replay answers in two shapes: what was done, or the task that does it.
func TestReplayShapes(t *testing.T) {
	c, f, _ := setup(t, says(200, `{"replayed":1}`), says(202, `{"id":"t","status":"running"}`),
		says(200, `{"dead":[]}`), says(200, `{}`))
	done, task, err := c.Replay(t.Context(), "q", wire.ReplayRequest{Filter: &wire.DeadFilter{}})
	require.True(t, err == nil && task == nil && *done.Replayed == 1, "%+v %+v %v", done, task, err)
	done, task, err = c.Replay(t.Context(), "q", wire.ReplayRequest{MessageIDs: []string{"a"}})
	require.True(t, err == nil && done == nil && task.ID == "t", "%+v %+v %v", done, task, err)
	query := DeadQuery{DeadFilter: wire.DeadFilter{Key: new(string), Error: "x"}, Limit: 3}
	_, err = c.Dead(t.Context(), "q", query)
	require.NoError(t, err)
	_, err = c.AwaitTask(t.Context(), "t", 20*time.Second)
	require.NoError(t, err)
	for i, want := range []string{
		`POST /v1/queues/q/dead/replay?{"filter":{}}`,
		`POST /v1/queues/q/dead/replay?{"message_ids":["a"]}`,
		"GET /v1/queues/q/dead?error=x&key=&limit=3", "GET /v1/tasks/t?wait_ms=20000",
	} {
		a := f.asked()[i]
		assert.Equal(t, a.method+" "+a.path+"?"+a.query.Encode()+a.body, want)
	}
}

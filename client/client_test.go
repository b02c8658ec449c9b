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

	"github.com/qlogd/qlogd/api/wire"
)

// fake answers requests from a list, and remembers them.
type fake struct {
	t       *testing.T
	mu      sync.Mutex
	answers []func(http.ResponseWriter)
	seen    []asked
}

// asked is one request, copied: the server reuses its own.
type asked struct {
	path, body string
	query      url.Values
	header     http.Header
}

func (f *fake) asked() []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]asked(nil), f.seen...)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b := bodyOf(r)
	f.mu.Lock()
	f.seen = append(f.seen, asked{r.URL.EscapedPath(), string(b), r.URL.Query(), r.Header.Clone()})
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

func bodyOf(r *http.Request) []byte {
	b, _ := io.ReadAll(r.Body)
	return b
}

func says(status int, body string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func problemSays(status int, code, outcome string, retryable bool, headers ...string) func(http.ResponseWriter) {
	return says(status, fmt.Sprintf(`{"status":%d,"code":%q,"detail":"so it is","retryable":%v,"outcome":%q}`, status, code, retryable, outcome), headers...)
}

// hangs up without an answer: the outcome is not learnt.
func hangup(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

func setup(t *testing.T, answers ...func(http.ResponseWriter)) (*Client, *fake, *[]time.Duration) {
	t.Helper()
	c, fakes, waits := several(t, nil, append(answerList{}, answers...))
	return c, fakes[0], waits
}

const produced = `{"messages":[{"id":"01A","status":"enqueued"}]}`

func TestUnknownOutcome(t *testing.T) {
	c, _, _ := setup(t, hangup, hangup)
	c.retry.Attempts = 2
	if _, err := c.Produce(t.Context(), "jobs", JSON(1)); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	c, _, _ = setup(t, problemSays(503, "no_leader", "not_applied", true))
	c.retry.Attempts = 1
	if _, err := c.Produce(t.Context(), "jobs", JSON(1)); errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrNoLeader) {
		t.Errorf("%v", err)
	}
	// An attempt that may have been committed, then one that surely was not.
	c, _, _ = setup(t, hangup, problemSays(503, "no_leader", "not_applied", true))
	c.retry.Attempts = 2
	if _, err := c.Produce(t.Context(), "jobs", JSON(1)); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrNoLeader) {
		t.Errorf("%v", err)
	}
}

func TestErrorsHaveTheirCode(t *testing.T) {
	c, f, _ := setup(t, says(409, `{"code":"lease_lost","detail":"gone","status":409,"field":"ack","index":1,"outcome":"not_applied"}`, "X-Request-Id", "r1"))
	_, err := c.Transaction(t.Context(), wire.TransactionRequest{Ack: []string{"01A"}})
	var e *Error
	if !errors.Is(err, ErrLeaseLost) || !errors.As(err, &e) || e.Problem.Field != "ack" || *e.Problem.Index != 1 || e.RequestID != "r1" {
		t.Errorf("%v", err)
	}
	if len(f.asked()) != 1 {
		t.Errorf("%d requests for a definite answer", len(f.asked()))
	}
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
	if got := f.asked()[0].path; got != "/v1/queues/a%2F..%2Fb%3Fc" {
		t.Error(got)
	}
}

// Follow finds its position first, then continues after the last event seen when
// the connection breaks.
func TestFollowMissesNothing(t *testing.T) {
	line := func(id string) string { return fmt.Sprintf("{\"event_id\":%q,\"type\":\"enqueued\"}\n", id) }
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
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.EventID); len(got) == 3 {
			break
		}
	}
	if strings.Join(got, " ") != "01B 01C 01D" {
		t.Error(got)
	}
	var after []string
	for _, r := range f.asked() {
		after = append(after, r.query.Get("after"))
	}
	if strings.Join(after, ",") != ",01A,01C,01C" {
		t.Error(after)
	}
}

func TestAllEventsPages(t *testing.T) {
	c, f, _ := setup(t,
		says(200, `{"events":[{"event_id":"01A"},{"event_id":"01B"}],"next_cursor":"01B"}`),
		says(200, `{"events":[{"event_id":"01C"}],"next_cursor":"01C"}`),
		says(200, `{"events":[],"next_cursor":"01C"}`),
	)
	n := 0
	for _, err := range c.AllEvents(t.Context(), EventQuery{From: "start"}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 3 || f.asked()[1].query.Get("after") != "01B" || f.asked()[1].query.Get("from") != "" {
		t.Errorf("%d events; %v", n, f.asked()[1].query)
	}
}

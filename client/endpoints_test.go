package client

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// several returns a client of several servers, each with its answers.
func several(t *testing.T, opts []Option, answers ...[]func(http.ResponseWriter)) (*Client, []*fake, *[]time.Duration) {
	t.Helper()
	var addrs []string
	var fakes []*fake
	for _, a := range answers {
		f := &fake{t: t, answers: a}
		srv := httptest.NewServer(f)
		t.Cleanup(srv.Close)
		if a == nil {
			srv.Close() // nobody is there
		}
		addrs, fakes = append(addrs, srv.URL), append(fakes, f)
	}
	first := (len(addrs) + 1) / 2 // the others are options
	c, err := New(strings.Join(addrs[:first], ", "), append(opts, WithEndpoints(addrs[first:]...))...)
	if err != nil {
		t.Fatal(err)
	}
	var waits []time.Duration
	c.sleep = func(d time.Duration) <-chan time.Time {
		waits = append(waits, d)
		ch := make(chan time.Time, 1)
		ch <- time.Time{}
		return ch
	}
	return c, fakes, &waits
}

type answerList = []func(http.ResponseWriter)

var (
	noLeader  = problemSays(503, "no_leader", "not_applied", true, "Retry-After", "1")
	unsure    = problemSays(503, "no_leader", "unknown", true, "Retry-After", "1")
	stopping  = problemSays(503, "shutting_down", "not_applied", true, "Retry-After", "2")
	enqueued  = says(201, produced)
	noMessage = says(200, `{"messages":[]}`)
)

// A node that is away, has no leader, or shuts down is left for the next one,
// at once and for good.
func TestGoesToTheNextNode(t *testing.T) {
	for name, first := range map[string]answerList{"away": nil, "no leader": {noLeader}, "shutting down": {stopping}, "unknown": {unsure}, "hung up": {hangup}} {
		t.Run(name, func(t *testing.T) {
			c, f, waits := several(t, nil, first, answerList{enqueued, enqueued}, answerList{})
			for range 2 {
				if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil {
					t.Fatal(err)
				}
			}
			if len(*waits) != 0 || len(f[1].asked()) != 2 {
				t.Errorf("waited %v; %d requests", *waits, len(f[1].asked()))
			}
			if a := f[0].asked(); len(a) > 0 && a[0].header.Get("Idempotency-Key") != f[1].asked()[0].header.Get("Idempotency-Key") {
				t.Error("another key")
			}
		})
	}
}

// A node that lets its connections go is about to end.
func TestANodeThatDrainsIsLeft(t *testing.T) {
	c, f, _ := several(t, nil, answerList{says(201, produced, "Connection", "close")}, answerList{enqueued})
	for range 2 {
		if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil {
			t.Fatal(err)
		}
	}
	if len(f[0].asked()) != 1 || len(f[1].asked()) != 1 {
		t.Errorf("%d and %d requests", len(f[0].asked()), len(f[1].asked()))
	}
}

// A lease goes to another node only where it surely took nothing.
func TestALeaseGoesOnOnlyWhereItIsSafe(t *testing.T) {
	for name, first := range map[string]answerList{"away": nil, "no leader": {noLeader}, "shutting down": {stopping}} {
		c, _, _ := several(t, nil, first, answerList{noMessage})
		if _, err := c.Lease(t.Context(), "q", LeaseOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, first := range map[string]answerList{"unknown": {unsure}, "hung up": {hangup}} {
		c, f, _ := several(t, nil, first, answerList{noMessage})
		if _, err := c.Lease(t.Context(), "q", LeaseOptions{}); err == nil || len(f[1].asked()) != 0 {
			t.Errorf("%s: %v", name, err)
		}
		// The next call does not begin there.
		if _, err := c.Lease(t.Context(), "q", LeaseOptions{}); err != nil {
			t.Errorf("%s, then: %v", name, err)
		}
	}
}

// It waits once all nodes have failed, and gives up after as many rounds.
func TestRounds(t *testing.T) {
	c, _, waits := several(t, nil, answerList{noLeader, enqueued}, answerList{noLeader}, nil)
	if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil {
		t.Fatal(err)
	}
	if len(*waits) != 1 {
		t.Errorf("waited %v", *waits)
	}
	c, f, waits := several(t, []Option{WithRetry(Retry{Attempts: 3})}, answerList{noLeader, noLeader, noLeader}, answerList{noLeader, noLeader, noLeader})
	if _, err := c.Produce(t.Context(), "q", JSON(1)); !errors.Is(err, ErrNoLeader) || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	if len(f[0].asked())+len(f[1].asked()) != 6 || len(*waits) != 2 {
		t.Errorf("%d and %d requests, waited %v", len(f[0].asked()), len(f[1].asked()), *waits)
	}
	// A refusal is one by all.
	c, f, _ = several(t, nil, answerList{problemSays(404, "queue_not_found", "not_applied", false)}, answerList{})
	if _, err := c.Produce(t.Context(), "q", JSON(1)); !errors.Is(err, ErrQueueNotFound) || len(f[1].asked()) != 0 {
		t.Error(err)
	}
	// One that is busy is waited for.
	c, _, waits = several(t, nil, answerList{problemSays(429, "overloaded", "not_applied", true, "Retry-After", "3"), enqueued}, answerList{})
	if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil || len(*waits) != 1 || (*waits)[0] < 3*time.Second {
		t.Errorf("%v, waited %v", err, *waits)
	}
}

// A node that takes a request and does not answer is left after a while.
func TestAHangingNodeIsLeft(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	hangs := func(http.ResponseWriter) { <-hang }
	c, f, _ := several(t, []Option{WithTryTimeout(20 * time.Millisecond)}, answerList{hangs, hangs}, answerList{enqueued})
	if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil {
		t.Fatal(err)
	}
	if f[0].asked()[0].header.Get("Idempotency-Key") != f[1].asked()[0].header.Get("Idempotency-Key") {
		t.Error("another key")
	}
	c.at.Store(0)
	_, err := c.Lease(t.Context(), "q", LeaseOptions{})
	if err == nil || !strings.Contains(err.Error(), "does not answer") || len(f[1].asked()) != 1 {
		t.Error(err)
	}
}

func TestFollowGoesToTheNextNode(t *testing.T) {
	line := func(id string) string { return `{"event_id":"` + id + `","type":"acked"}` + "\n" }
	c, f, _ := several(t, nil, answerList{says(200, line("01A")), stopping}, answerList{says(200, line("01B"))})
	var got []string
	for e, err := range c.Follow(t.Context(), EventQuery{After: "019"}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.EventID); len(got) == 2 {
			break
		}
	}
	if strings.Join(got, " ") != "01A 01B" || f[1].asked()[0].query.Get("after") != "01A" {
		t.Error(got)
	}
}

// A removal whose answer was lost is done, though the next node says that there is no
// such node.
func TestRemoveNodeTwice(t *testing.T) {
	c, _, _ := setup(t, problemSays(404, "node_not_found", "not_applied", false))
	if err := c.RemoveNode(t.Context(), "n2", false); !errors.Is(err, ErrNodeNotFound) {
		t.Error(err)
	}
	c, _, _ = setup(t, hangup, problemSays(404, "node_not_found", "not_applied", false))
	if err := c.RemoveNode(t.Context(), "n2", false); err != nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	f := &fake{t: t, answers: answerList{enqueued}}
	srv := httptest.NewTLSServer(f)
	defer srv.Close()
	srv.Config.ErrorLog = nil
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	// An address without a scheme is https where a CA is named.
	c, err := New(srv.Listener.Addr().String(), WithCACert(ca), WithToken("qlogd_x"))
	if err != nil || !strings.HasPrefix(c.Addr(), "https://") {
		t.Fatal(err)
	}
	if _, err := c.Produce(t.Context(), "q", JSON(1)); err != nil {
		t.Fatal(err)
	}
	if f.asked()[0].header.Get("Authorization") != "Bearer qlogd_x" {
		t.Error(f.asked()[0].header)
	}
	c, err = New(srv.URL, WithRetry(Retry{Attempts: 1}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Produce(t.Context(), "q", JSON(1)); err == nil || !strings.Contains(err.Error(), "certificate") || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	for _, file := range []string{filepath.Join(t.TempDir(), "none"), os.Args[0]} {
		if _, err := New(srv.URL, WithCACert(file)); err == nil {
			t.Error(file)
		}
	}
	if _, err := New("127.0.0.1:1,,x"); err == nil {
		t.Error("an empty address")
	}
}

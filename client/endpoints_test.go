package client

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// inMemory is for bubbles: serve starts servers on a network in memory, through which clients
// with its option reach them.
func inMemory(t *testing.T) (serve func(http.Handler) *httptest.Server, reach Option) {
	n := memnet.New(memnet.Options{})
	dial := n.Dialer("client")
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return dial(ctx, addr)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	serve = func(h http.Handler) *httptest.Server {
		l, err := n.Listen("server:0")
		require.NoError(t, err)
		srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
		srv.Start()
		return srv
	}
	return serve, WithHTTPClient(&http.Client{Transport: transport})
}

// several returns a client of several servers, each with its answers.
func several(t *testing.T, opts []Option, answers ...[]answer) (
	*Client, []*fake, *[]time.Duration) {
	t.Helper()
	return severalOn(t, httptest.NewServer, opts, answers...)
}

func severalOn(t *testing.T, serve func(http.Handler) *httptest.Server, opts []Option,
	answers ...[]answer) (*Client, []*fake, *[]time.Duration) {
	t.Helper()
	var addrs []string
	var fakes []*fake
	for _, a := range answers {
		f := &fake{t: t, answers: a}
		srv := serve(f)
		t.Cleanup(srv.Close)
		if a == nil {
			srv.Close() // nobody is there
		}
		addrs, fakes = append(addrs, srv.URL), append(fakes, f)
	}
	first := (len(addrs) + 1) / 2 // the others are options
	opts = append(opts, WithEndpoints(addrs[first:]...))
	c, err := New(strings.Join(addrs[:first], ", "), opts...)
	require.NoError(t, err)
	var waits []time.Duration
	c.sleep = func(d time.Duration) <-chan time.Time {
		waits = append(waits, d)
		ch := make(chan time.Time, 1)
		ch <- time.Time{}
		return ch
	}
	return c, fakes, &waits
}

func all(answers ...answer) []answer { return append([]answer{}, answers...) }

var (
	noLeader  = problemSays(503, "no_leader", "not_applied", true, "Retry-After", "1")
	unsure    = problemSays(503, "no_leader", "unknown", true, "Retry-After", "1")
	stopping  = problemSays(503, "shutting_down", "not_applied", true, "Retry-After", "2")
	enqueued  = says(201, produced)
	noMessage = says(200, `{"messages":[]}`)
)

func sameKey(t *testing.T, f []*fake) {
	t.Helper()
	a, b := f[0].asked(), f[1].asked()
	if len(a) > 0 && a[0].header.Get("Idempotency-Key") != b[0].header.Get("Idempotency-Key") {
		t.Error("another key")
	}
}

// A node that is away, has no leader, or shuts down is left for the next one,
// at once and for good. A lease goes there only if it surely took nothing here.
func TestGoesToTheNextNode(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first []answer
		safe  bool
	}{
		{"away", nil, true}, {"no leader", all(noLeader), true},
		{"shutting down", all(stopping), true}, {"unknown", all(unsure), false},
		{"hung up", all(hangup), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, f, waits := several(t, nil, tt.first, all(enqueued, enqueued), all())
			for range 2 {
				produceOne(t, c)
			}
			assert.True(t, len(*waits) == 0 && len(f[1].asked()) == 2,
				"waited %v; %d requests", *waits, len(f[1].asked()))
			sameKey(t, f)
			c, f, _ = several(t, nil, tt.first, all(noMessage, noMessage))
			_, err := c.Lease(t.Context(), "q", LeaseOptions{})
			assert.True(t, (err == nil) == tt.safe && (len(f[1].asked()) > 0) == tt.safe,
				"a lease: %v", err)
			// The next call does not begin there.
			if _, err := c.Lease(t.Context(), "q", LeaseOptions{}); err != nil {
				t.Errorf("then: %v", err)
			}
		})
	}
}

// A node that lets its connections go is about to end.
func TestANodeThatDrainsIsLeft(t *testing.T) {
	c, f, _ := several(t, nil, all(says(201, produced, "Connection", "close")), all(enqueued))
	for range 2 {
		produceOne(t, c)
	}
	asks(t, f, 1, 1)
}

// It waits once all nodes have failed, and gives up after as many rounds.
func TestRounds(t *testing.T) {
	c, _, waits := several(t, nil, all(noLeader, enqueued), all(noLeader), nil)
	produceOne(t, c)
	assert.Equal(t, len(*waits), 1, "waited %v", *waits)
	three := []Option{WithRetry(Retry{Attempts: 3})}
	c, f, waits := several(t, three,
		all(noLeader, noLeader, noLeader), all(noLeader, noLeader, noLeader))
	_, err := c.Produce(t.Context(), "q", JSON(1))
	if !errors.Is(err, ErrNoLeader) || errors.Is(err, ErrOutcomeUnknown) || len(*waits) != 2 {
		t.Errorf("%v, waited %v", err, *waits)
	}
	asks(t, f, 3, 3)
	// A refusal is one by all.
	c, f, _ = several(t, nil, all(refuses(404, "queue_not_found", false)), all())
	if _, err := c.Produce(t.Context(), "q", JSON(1)); !errors.Is(err, ErrQueueNotFound) {
		t.Error(err)
	}
	asks(t, f, 1, 0)
	// One that is busy is waited for.
	busy := problemSays(429, "overloaded", "not_applied", true, "Retry-After", "3")
	c, _, waits = several(t, nil, all(busy, enqueued), all())
	_, err = c.Produce(t.Context(), "q", JSON(1))
	assert.True(t, err == nil && len(*waits) == 1 && (*waits)[0] >= 3*time.Second,
		"%v, waited %v", err, *waits)
}

// A node that takes a request and does not answer is left after a while.
func TestAHangingNodeIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		hangs := func(http.ResponseWriter) { <-hang }
		serve, reach := inMemory(t)
		soon := []Option{WithTryTimeout(20 * time.Millisecond), reach}
		c, f, _ := severalOn(t, serve, soon, all(hangs, hangs), all(enqueued))
		produceOne(t, c)
		sameKey(t, f)
		c.at.Store(0)
		_, err := c.Lease(t.Context(), "q", LeaseOptions{})
		if err == nil || !strings.Contains(err.Error(), "does not answer") ||
			len(f[1].asked()) != 1 {
			t.Error(err)
		}
	})
}

// A removal whose answer was lost is done, though the next node says that there is no such node.
func TestRemoveNodeTwice(t *testing.T) {
	missing := refuses(404, "node_not_found", false)
	c, _, _ := setup(t, missing)
	assert.ErrorIs(t, c.RemoveNode(t.Context(), "n2", false), ErrNodeNotFound)
	c, _, _ = setup(t, hangup, missing)
	require.NoError(t, c.RemoveNode(t.Context(), "n2", false))
}

func TestTLS(t *testing.T) {
	f := &fake{t: t, answers: all(enqueued)}
	srv := httptest.NewTLSServer(f)
	defer srv.Close()
	srv.Config.ErrorLog = nil
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(block), 0o600))
	// An address without a scheme is https where a CA is named.
	c, err := New(srv.Listener.Addr().String(), WithCACert(ca), WithToken("qlogd_x"))
	if err != nil || !strings.HasPrefix(c.Addr(), "https://") {
		t.Fatal(err)
	}
	produceOne(t, c)
	assert.Equal(t, f.asked()[0].header.Get("Authorization"), "Bearer qlogd_x",
		"%v", f.asked()[0].header)
	c, err = New(srv.URL, WithRetry(Retry{Attempts: 1}))
	require.NoError(t, err)
	_, err = c.Produce(t.Context(), "q", JSON(1))
	if err == nil || !strings.Contains(err.Error(), "certificate") ||
		errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	for _, file := range []string{filepath.Join(t.TempDir(), "none"), "client.go"} {
		if _, err := New(srv.URL, WithCACert(file)); err == nil {
			t.Error(file)
		}
	}
	if _, err := New("127.0.0.1:1,,x"); err == nil {
		t.Error("an empty address")
	}
}

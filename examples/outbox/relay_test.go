package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestMain is the relay itself in the processes that launch starts.
func TestMain(m *testing.M) {
	if os.Getenv("OUTBOX_RELAY") != "" {
		main()
		return
	}
	cluster.Main(m)
}

// relays are two processes, one of which works, and a proxy between them and the server.
type relays struct {
	*testing.T
	addr string
	pg   *postgres
	// killBefore kills the relays before the server gets their next produce, killAfter when it has
	// answered, which they never learn. It is closed when that is done.
	killBefore, killAfter atomic.Pointer[chan struct{}]

	mu   sync.Mutex
	cmds []*exec.Cmd
	logs bytes.Buffer
}

func startRelays(pg *postgres, server string) *relays {
	r := &relays{T: pg.T, pg: pg}
	to, err := url.Parse(server)
	require.NoError(r, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	killed := func(of *http.Request, when *atomic.Pointer[chan struct{}]) bool {
		done := when.Load()
		if of.Method != http.MethodPost || done == nil || !when.CompareAndSwap(done, nil) {
			return false
		}
		r.kill()
		close(*done)
		return true
	}
	proxy.ModifyResponse = func(a *http.Response) error {
		if a.StatusCode/100 == 2 && killed(a.Request, &r.killAfter) {
			return errors.New("nobody waits for the answer")
		}
		return nil
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !killed(req, &r.killBefore) {
			proxy.ServeHTTP(w, req)
		}
	}))
	r.Cleanup(s.Close)
	r.addr = s.URL
	r.Cleanup(func() {
		r.kill()
		if r.Failed() {
			r.Logf("relays:\n%s", r.logs.String())
		}
	})
	r.launch()
	return r
}

// Write implements io.Writer for what the relays log.
func (r *relays) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logs.Write(b)
}

func (r *relays) launch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.cmds) < 2 {
		cmd := exec.Command(os.Args[0], "--database", r.pg.url, "--addr", r.addr, "--poll", "100ms")
		cmd.Env = append(os.Environ(), "OUTBOX_RELAY=1")
		cmd.Stderr = r
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(r, cmd.Start())
		r.cmds = append(r.cmds, cmd)
	}
}

// stop ends all relays by a signal, and returns the errors of those that ended otherwise.
func (r *relays) stop(s syscall.Signal) (errs []error) {
	r.mu.Lock()
	cmds := r.cmds
	r.cmds = nil
	r.mu.Unlock()
	for _, cmd := range cmds {
		errs = append(errs, cmd.Process.Signal(s))
	}
	for _, cmd := range cmds {
		errs = append(errs, cmd.Wait())
	}
	return errs
}

func (r *relays) kill() { _ = r.stop(syscall.SIGKILL) }

// write inserts orders with their messages until ctx ends, one in five of which it rolls back. Its
// pace leaves no long backlog of the time in which something is down.
func write(ctx context.Context, url string, writer int64) {
	var conn *pgx.Conn
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for n := writer * 1_000_000; ctx.Err() == nil; n++ {
		<-pace.C
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, url); err != nil {
				continue // PostgreSQL is down
			}
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			continue
		}
		_, err1 := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", n)
		_, err2 := tx.Exec(ctx, `INSERT INTO outbox (queue, key, payload)
			VALUES ('orders', $1, json_build_object('order', $2::bigint))`, fmt.Sprint(writer), n)
		if err1 != nil || err2 != nil || rand.IntN(5) == 0 {
			_ = tx.Rollback(ctx)
			continue
		}
		_ = tx.Commit(ctx) // whether it did is in the table
	}
	if conn != nil {
		conn.Close(context.WithoutCancel(ctx))
	}
}

// TestOutbox runs its tests one by one on a server of PostgreSQL, which takes seconds to create.
func TestOutbox(t *testing.T) {
	pg := startPostgres(t)
	t.Run("kills", func(t *testing.T) {
		pg.T = t
		testKills(t, pg)
	})
	t.Run("operator", func(t *testing.T) {
		pg.T = t
		testOperator(t, pg)
	})
}

// testKills kills relays, PostgreSQL and qlogd under load. Each order that was committed arrives
// once, in the order of its writer, and no other does.
func testKills(t *testing.T, pg *postgres) {
	node := cluster.Start(t, cluster.Options{})
	c := node.Client()
	require.NoError(t, c.EnsureQueue(t.Context(), "orders", client.Queue{Ordering: "per_key"}))
	r := startRelays(pg, node.URL())

	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range int64(4) {
		writers.Go(func() { write(writing, pg.url, w+1) })
	}
	arrived := func() int64 {
		q, err := c.Queue(t.Context(), "orders")
		require.NoError(t, err)
		return q.Stats.EnqueuedTotal
	}
	for i := range cluster.Number(t, "OUTBOX_KILLS", 5) {
		more := arrived() + 20 + rand.Int64N(100)
		cluster.Until(t, func() error {
			if n := arrived(); n < more {
				return fmt.Errorf("%d messages, waiting for %d", n, more)
			}
			return nil
		})
		switch i % 5 {
		case 0, 3:
			done, when := make(chan struct{}), &r.killAfter
			if i%5 == 3 {
				when = &r.killBefore
			}
			when.Store(&done)
			<-done
			r.launch()
		case 1:
			r.kill()
			r.launch()
		case 2:
			pg.kill()
			pg.launch()
		case 4:
			node.Kill9()
			node.Launch()
			require.NoError(t, node.WaitReady())
		}
	}
	stop()
	writers.Wait()
	cluster.Until(t, pg.waitEmpty)
	for _, err := range r.stop(syscall.SIGTERM) {
		assert.NoError(t, err, "a relay that is stopped")
	}

	want := map[int64]bool{}
	rows, err := pg.connect().Query(t.Context(), "SELECT id FROM orders")
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	for _, id := range all {
		want[id] = true
	}
	last := map[string]int64{}
	for m, err := range c.AllMessages(t.Context(), "orders", client.MessageQuery{Limit: 1000}) {
		require.NoError(t, err)
		var payload struct{ Order int64 }
		require.NoError(t, json.Unmarshal(m.Payload, &payload))
		id := payload.Order
		assert.True(t, want[id], "order %d was not committed, or arrived twice", id)
		delete(want, id)
		assert.True(t, id > last[m.Key], "order %d is behind %d", id, last[m.Key])
		last[m.Key] = id
	}
	assert.Equal(t, len(want), 0, "orders that did not arrive")
	t.Logf("figures: %d orders", len(all))
}

// testOperator: rows that no try can help, and those that are too old, are left for an operator.
func testOperator(t *testing.T, pg *postgres) {
	c := cluster.Start(t, cluster.Options{}).Client()
	t.Cleanup(c.Close)
	ctx := t.Context()
	require.NoError(t, c.EnsureQueue(ctx, "orders", client.Queue{
		Schema: []byte(`{"type":"object"}`), DeduplicationWindow: time.Hour}))
	require.NoError(t, c.EnsureQueue(ctx, "unsafe", client.Queue{DeduplicationWindow: -1}))
	run := func(logs io.Writer) (context.CancelFunc, chan error) {
		ctx, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		relay := newRelay(pg.url, c, 20*time.Millisecond, slog.New(slog.NewTextHandler(logs, nil)))
		go func() { done <- relay.run(ctx) }()
		return stop, done
	}
	insert := func(queue, headers, payload string) {
		t.Helper()
		pg.exec("INSERT INTO outbox (queue, headers, payload) VALUES ($1, $2, $3)", queue, headers, payload)
	}
	logs := &safeBuffer{}
	stop, done := run(logs)
	insert("unsafe", `{}`, `1`) // none of these holds up what follows
	insert("missing", `{}`, `1`)
	for i := range 20 {
		payload := fmt.Sprintf(`{"order":%d}`, i)
		if i%7 == 3 {
			payload = `"no object"`
		}
		insert("orders", `{"h":"x"}`, payload)
	}
	insert("orders", `{"h":1}`, `{}`)
	cluster.Until(t, func() error {
		if n := pg.count("SELECT count(*) FROM outbox WHERE error IS NULL"); n != 2 {
			return fmt.Errorf("%d rows are left\n%s", n, logs)
		}
		return nil
	})
	assert.Equal(t, pg.count("SELECT count(*) FROM outbox WHERE error LIKE '%schema_mismatch%'"), 3)
	assert.Equal(t, pg.count("SELECT count(*) FROM outbox WHERE error LIKE '%headers%'"), 1)
	arrived := 0
	for m, err := range c.AllMessages(ctx, "orders", client.MessageQuery{}) {
		require.NoError(t, err)
		assert.Equal(t, m.Headers["h"], "x")
		arrived++
	}
	assert.Equal(t, arrived, 17)
	for _, want := range []string{`queue \"unsafe\" needs deduplication by key`, "queue_not_found"} {
		assert.Contains(t, logs.String(), want)
	}
	require.NoError(t, c.EnsureQueue(ctx, "missing", client.Queue{}))
	cluster.Until(t, func() error {
		_, err := c.Lease(ctx, "missing", client.LeaseOptions{Wait: time.Second})
		if n := pg.count("SELECT count(*) FROM outbox WHERE queue = 'missing'"); n > 0 {
			return fmt.Errorf("%d left: %v", n, err)
		}
		return err
	})
	stop()
	require.NoError(t, <-done)

	// One that was not tried is sent at any age; one that was, only within the window.
	pg.exec("DELETE FROM outbox")
	insert("orders", `{}`, `{"order":100}`)
	insert("orders", `{}`, `{"order":101}`)
	pg.exec(`UPDATE outbox SET tried_at = now() - interval '59 minutes' WHERE id = (
		SELECT max(id) FROM outbox)`)
	stop, done = run(logs)
	err := <-done
	stop()
	assert.ErrorIs(t, err, errTooOld)
	assert.Equal(t, pg.count("SELECT count(*) FROM outbox WHERE tried_at < now() - interval '58 minutes'"),
		1, "kept")
	pg.exec("UPDATE outbox SET tried_at = now() - interval '57 minutes' WHERE tried_at IS NOT NULL")
	stop, done = run(logs)
	cluster.Until(t, pg.waitEmpty)
	stop()
	require.NoError(t, <-done)
}

// safeBuffer is a buffer for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Builder.String()
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

// testConfig returns the settings of a node in this process.
func testConfig(t *testing.T, dir string, args ...string) *config {
	t.Helper()
	args = append([]string{"serve", "--data-dir", dir,
		"--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0"}, args...)
	c, err := (&app{args: args, getenv: func(string) string { return "" }}).loadConfig()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// testNode starts a node in this process and returns it with a client.
func testNode(t *testing.T, dir string, args ...string) (*node, *client.Client) {
	t.Helper()
	n, err := startNode(testConfig(t, dir, args...), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New("http://" + n.httpLis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return n, api
}

func stopNode(t *testing.T, n *node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := n.stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// History goes, but nothing that a live message or a kept checkpoint needs.
func TestRetentionLetsGoOfWhatNobodyNeeds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir, "--history-retention", "0", "--log-segment-bytes", "65536")
	ctx := t.Context()
	if _, _, err := c.PutQueue(ctx, "jobs", wire.PolicyUpdate{Deduplication: wire.Opt[wire.DeduplicationUpdate]{
		Set: true, Value: wire.DeduplicationUpdate{WindowSeconds: wire.Some(int64(0))},
	}}); err != nil {
		t.Fatal(err)
	}
	old := must[[]wire.Produced](t)(c.Produce(ctx, "jobs", wire.NewMessage{Payload: []byte(`"kept"`), Kind: "old"}))[0].ID
	// A dead letter needs its error text too, which lies in the event that moved it.
	auto := wire.PolicyUpdate{Delivery: wire.Opt[wire.DeliveryUpdate]{Set: true, Value: wire.DeliveryUpdate{DeadLetterQueue: wire.Some("auto")}}}
	if _, _, err := c.PutQueue(ctx, "fails", auto); err != nil {
		t.Fatal(err)
	}
	must[[]wire.Produced](t)(c.Produce(ctx, "fails", wire.NewMessage{Payload: []byte(`"dead"`)}))
	held := must[[]wire.LeasedMessage](t)(c.Lease(ctx, "fails", client.LeaseOptions{}))
	must[[]wire.SettleResult](t)(c.DeadLetter(ctx, "fails", []wire.DeadLetterItem{{LeaseID: held[0].LeaseID, Error: "why it died"}}))
	for i := range 4200 {
		if _, err := n.engine().replica.Propose(ctx, &event.Command{PauseQueue: &event.PauseQueue{Name: "jobs", Paused: i%2 == 0}}); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 {
			if err := n.engine().replica.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill := client.JSON(1)
	first := n.engine().log.First()
	for range 2 {
		fill.Kind = "fill"
		must[[]wire.Produced](t)(c.Produce(ctx, "jobs", fill))
		if err := n.engine().replica.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if err := n.engine().retention(time.Millisecond).Once(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n.engine().log.First() <= first {
		t.Fatalf("the log still begins at %d (head %d, %d segments); history %d",
			first, n.engine().log.Head(), len(n.engine().log.Segments()), n.engine().machine.History())
	}
	m := must[*wire.Message](t)(c.Message(ctx, old))
	if string(m.Payload) != `"kept"` || m.State != "ready" {
		t.Errorf("the live message: %+v", m)
	}
	if _, err := c.Queue(ctx, "jobs", client.At(fmt.Sprintf("index:%d", first))); !errors.Is(err, client.ErrHistoryExpired) {
		t.Errorf("the state in deleted history: %v", err)
	}
	// All of the past from the oldest checkpoint on can be told.
	metas := n.engine().replica.Status().Checkpoints
	oldest := metas[len(metas)-1].HeadIndex
	if _, err := c.Queue(ctx, "jobs", client.At(fmt.Sprintf("index:%d", oldest))); err != nil {
		t.Errorf("the state at the oldest checkpoint: %v", err)
	}
	stopNode(t, n)
	var said, complaint bytes.Buffer
	if code := run(ctx, []string{"replay", "--data-dir", dir, "--to", "start", "-o", "json"}, nil, &said, &complaint); code != 0 || !strings.Contains(said.String(), `"queues":{}`) {
		t.Errorf("nothing, before the first event: %d, %s%s", code, &said, &complaint)
	}
	report, err := replay.Verify(ctx, vfs.OS{}, dir, nil, nil)
	if err != nil || report.Checkpoints == 0 || report.From == 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	n, c = testNode(t, dir)
	defer stopNode(t, n)
	leased := must[[]wire.LeasedMessage](t)(c.Lease(ctx, "jobs", client.LeaseOptions{Kinds: []string{"old"}}))
	if len(leased) != 1 || string(leased[0].Payload) != `"kept"` {
		t.Errorf("after a restart: %+v", leased)
	}
	dead := must[[]wire.LeasedMessage](t)(c.Lease(ctx, "fails.dlq", client.LeaseOptions{}))
	if len(dead) != 1 || string(dead[0].Payload) != `"dead"` || dead[0].Dead.Error != "why it died" {
		t.Errorf("the dead letter after a restart: %+v", dead)
	}
}

// What was seen live is what at=, replay and a copy tell.
func TestPastEqualsLive(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir, "--checkpoint-entries", "20")
	ctx := t.Context()
	dlq := wire.PolicyUpdate{Delivery: wire.Opt[wire.DeliveryUpdate]{Set: true, Value: wire.DeliveryUpdate{
		DeadLetterQueue: wire.Some("auto"), MaxAttempts: wire.Some(int64(2)), InitialBackoffMS: wire.Some(int64(0)), LeaseMS: wire.Some(int64(60_000)),
	}}}
	if _, _, err := c.PutQueue(ctx, "jobs", dlq); err != nil {
		t.Fatal(err)
	}
	type live struct {
		index  uint64
		queues []wire.Queue
	}
	var seen []live
	for i := range 30 {
		must[[]wire.Produced](t)(c.Produce(ctx, "jobs", client.JSON(i), client.JSON(-i)))
		for _, m := range must[[]wire.LeasedMessage](t)(c.Lease(ctx, "jobs", client.LeaseOptions{Max: 1})) {
			if i%3 == 0 {
				must[*wire.SettleResult](t)(c.DeadLetterOne(ctx, m.LeaseID, wire.DeadLetterOne{Error: "no"}))
			} else {
				must[*wire.SettleResult](t)(c.AckOne(ctx, m.LeaseID, wire.AckOne{}))
			}
		}
		seen = append(seen, live{n.engine().log.Head(), must[[]wire.Queue](t)(c.Queues(ctx, ""))})
	}
	same := func(what string, a, b []wire.Queue) {
		t.Helper()
		if len(a) != len(b) {
			t.Fatalf("%s: %d queues, want %d", what, len(a), len(b))
		}
		for i := range a {
			x, y := a[i].Stats, b[i].Stats
			for _, s := range []*wire.Stats{&x, &y} {
				s.OldestMessageAgeSeconds, s.MessagesPerMinute = 0, nil
			}
			if x != y || a[i].Name != b[i].Name {
				t.Errorf("%s: %s has %+v, live it had %+v", what, a[i].Name, x, y)
			}
		}
	}
	for i := 2; i < len(seen); i += 9 {
		s := seen[i]
		same("at=", must[[]wire.Queue](t)(c.Queues(ctx, "", client.At(fmt.Sprintf("index:%d", s.index)))), s.queues)
		d := must[*replay.Dir](t)(replay.Open(dir))
		target := filepath.Join(t.TempDir(), "then")
		if _, err := d.Into(ctx, event.Instant{Kind: event.InstantIndex, Index: s.index}, target, seed, nil); err != nil {
			t.Fatal(err)
		}
		d.Close()
		copied, cc := testNode(t, target)
		same("copy", must[[]wire.Queue](t)(cc.Queues(ctx, "")), s.queues)
		// It lives on.
		must[[]wire.LeasedMessage](t)(cc.Lease(ctx, "jobs", client.LeaseOptions{}))
		stopNode(t, copied)
	}
	stopNode(t, n)
}

// A copy's clock goes on from its instant: a lease that has run out since runs
// on in it.
func TestCopyGoesOnFromItsInstant(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir)
	ctx := t.Context()
	if _, _, err := c.PutQueue(ctx, "jobs", wire.PolicyUpdate{}); err != nil {
		t.Fatal(err)
	}
	must[[]wire.Produced](t)(c.Produce(ctx, "jobs", client.JSON(1)))
	m := must[[]wire.LeasedMessage](t)(c.Lease(ctx, "jobs", client.LeaseOptions{Lease: 4 * time.Second}))[0]
	index := n.engine().log.Head()
	for e, err := range c.Follow(ctx, client.EventQuery{From: "start", Type: "lease_expired"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.LeaseID != m.LeaseID {
			t.Errorf("%+v", e)
		}
		break
	}
	d := must[*replay.Dir](t)(replay.Open(dir))
	defer d.Close()
	target := filepath.Join(t.TempDir(), "then")
	if _, err := d.Into(ctx, event.Instant{Kind: event.InstantIndex, Index: index}, target, seed, nil); err != nil {
		t.Fatal(err)
	}
	stopNode(t, n)
	copied, cc := testNode(t, target)
	defer stopNode(t, copied)
	r, err := cc.AckOne(ctx, m.LeaseID, wire.AckOne{})
	if err != nil || r.Status != "acked" {
		t.Errorf("the lease ran out in the copy: %+v, %v", r, err)
	}
}

func TestShutdownEndsLongPollsAndKeepsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir)
	ctx := t.Context()
	if _, _, err := c.PutQueue(ctx, "jobs", wire.PolicyUpdate{}); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Lease(ctx, "jobs", client.LeaseOptions{Wait: time.Minute})
		waiting <- err
	}()
	began := time.Now()
	stopNode(t, n)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	<-waiting // answered or refused: whether it had arrived can't be known here
	// After a good end nothing is torn, and nothing needs healing.
	d := must[*replay.Dir](t)(replay.Open(dir))
	defer d.Close()
	if d.Tail() != nil {
		t.Errorf("%+v", d.Tail())
	}
	if _, _, err := d.StateAt(ctx, event.Instant{Kind: event.InstantNow}); err != nil {
		t.Error(err)
	}
}

// Raft's metrics and the api's have names of their own: whichever comes first
// must not keep the other from being registered, nor the node from starting.
func TestMetricsOfRaftAndTheAPIAreApart(t *testing.T) {
	n, c := testNode(t, filepath.Join(t.TempDir(), "data"))
	defer stopNode(t, n)
	if _, _, err := c.PutQueue(t.Context(), "jobs", wire.PolicyUpdate{}); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + n.httpLis.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`qlogd_commit_seconds_count{class="settle"} `, "qlogd_entry_seconds_count ", "qlogd_entry_commands_count "} {
		if !strings.Contains(string(b), "\n"+want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

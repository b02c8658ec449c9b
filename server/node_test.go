package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	hashi "github.com/hashicorp/go-metrics"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/replay"
)

// testNode is a node in this process, and a client of it.
type testNode struct {
	*testing.T
	*Node
	*client.Client
	dir, addr string
}

func TestMain(m *testing.M) { cluster.Main(m) }

// with changes the settings of a node.
type with = func(c *Config)

// testConfig returns the settings of a node in this process.
func testConfig(dir string, changes ...with) *Config {
	c := DefaultConfig()
	c.DataDir, c.HTTPAddr, c.RaftAddr = dir, "127.0.0.1:0", "127.0.0.1:0"
	c.Admin = http.NotFoundHandler()
	for _, change := range changes {
		change(&c)
	}
	return &c
}

// startTest starts a node. Without a directory it gets a new one.
func startTest(t *testing.T, dir string, changes ...with) *testNode {
	t.Helper()
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "data")
	}
	n := must(Start(testConfig(dir, changes...), slog.New(slog.DiscardHandler)))
	addr := "http://" + n.HTTPAddr()
	return &testNode{t, n, must(client.New(addr)), dir, addr}
}

func (n *testNode) stop() {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), 3*time.Minute)
	defer cancel()
	require.NoError(n, n.Stop(ctx))
}

// call sends a request, which must be successful, and decodes the answer into out.
func (n *testNode) call(method, path, body string, out any) {
	n.Helper()
	r := must(http.NewRequestWithContext(n.Context(), method, n.addr+path, strings.NewReader(body)))
	r.Header.Set("Content-Type", "application/json")
	res := must(http.DefaultClient.Do(r))
	defer res.Body.Close()
	b := must(io.ReadAll(res.Body))
	require.Equal(n, res.StatusCode/100, 2, "%s %s: %d %s", method, path, res.StatusCode, b)
	if out != nil {
		require.NoError(n, wire.Unmarshal(b, out))
	}
}

// put creates a queue.
func (n *testNode) put(queue, policy string) {
	n.Helper()
	n.call("PUT", "/v1/queues/"+queue, policy, nil)
}

// produce enqueues messages and returns their ids.
func (n *testNode) produce(queue string, messages ...wire.NewMessage) (ids []string) {
	n.Helper()
	for _, p := range must(n.Produce(n.Context(), queue, messages...)) {
		ids = append(ids, p.ID)
	}
	return ids
}

func (n *testNode) lease(queue string, o client.LeaseOptions) []wire.LeasedMessage {
	n.Helper()
	return must(n.Lease(n.Context(), queue, o))
}

// die dead-letters a leased message.
func (n *testNode) die(m wire.LeasedMessage, why string) {
	n.Helper()
	must(n.DeadLetterOne(n.Context(), m.LeaseID, wire.DeadLetterOne{Error: why}))
}

// into copies the node's past up to an index, and starts the copy.
func (n *testNode) into(index uint64, changes ...with) *testNode {
	n.Helper()
	target := filepath.Join(n.TempDir(), "then")
	output(n.T, "replay", "--data-dir", n.dir, "--into", target, "--to", fmt.Sprint("index:", index))
	assert.True(n, must(datadir.ReadNode(target)).PushOff(), "the copy's card lets it push")
	return startTest(n.T, target, changes...)
}

// until waits for a condition that no event marks.
func (n *testNode) until(what string, ok func() bool) {
	n.Helper()
	cluster.Until(n, func() error {
		if !ok() {
			return fmt.Errorf("waits in vain for %s", what)
		}
		return nil
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// History goes, but nothing that a live message or a kept checkpoint needs.
func TestRetentionKeepsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	n := startTest(t, "", func(c *Config) {
		c.HistoryRetention, c.LogSegmentBytes, c.CheckpointEntries = 0, 65536, 256
	})
	ctx := t.Context()
	n.put("jobs", `{"deduplication":{"window_seconds":0}}`)
	old := n.produce("jobs", wire.NewMessage{Payload: []byte(`"kept"`), Kind: "old"})[0]
	// A dead letter needs its error text too, which is in the event that moved it.
	n.put("fails", `{"delivery":{"dead_letter_queue":"auto"}}`)
	n.produce("fails", wire.NewMessage{Payload: []byte(`"dead"`)})
	n.put("keyed", `{}`)
	acked := n.produce("keyed", wire.NewMessage{Payload: []byte(`"acked"`), Kind: "acked", Key: "k",
		CorrelationID: "c", IdempotencyKey: "once"})[0]
	taken := n.lease("keyed", client.LeaseOptions{Lease: time.Hour, Worker: "w"})[0]
	erased := n.produce("keyed", wire.NewMessage{Payload: []byte(`"erased"`), Key: "e"})[0]
	toErase := n.lease("keyed", client.LeaseOptions{Lease: time.Hour, Worker: "x"})[0]
	n.produce("keyed", wire.NewMessage{Payload: []byte(`1`), Kind: "early"})
	early := n.lease("keyed", client.LeaseOptions{Lease: time.Hour, Worker: "e"})[0]
	n.die(n.lease("fails", client.LeaseOptions{})[0], "why it died")
	e := n.engine()
	for i := range 1200 {
		must(e.replica.Propose(ctx, &event.Command{
			PauseQueue: &event.PauseQueue{Name: "jobs", Paused: i%2 == 0},
		}))
	}
	must(n.AckOne(ctx, early.LeaseID, wire.AckOne{}))
	first := e.log.First()
	for range 2 {
		fill := client.JSON(1)
		fill.Kind = "fill"
		n.produce("jobs", fill)
		require.NoError(t, errors.Join(e.replica.Snapshot(),
			e.retention(time.Millisecond).Once(ctx)))
	}
	require.True(t, e.log.First() > first, "the log still begins at %d (head %d); history %d",
		first, e.log.Head(), e.machine.History())
	m := must(n.Message(ctx, old))
	assert.True(t, string(m.Payload) == `"kept"` && m.State == "ready" && m.HistoryTruncated &&
		!m.Erased, "the live message: %+v", m)
	// Where the beginning of history is gone, that is said, and nothing is taken for erased.
	must(n.AckOne(ctx, taken.LeaseID, wire.AckOne{}))
	m = must(n.Message(ctx, acked))
	assert.True(t, m.State == "acked" && m.HistoryTruncated && !m.Erased && m.EnqueuedAt != 0 &&
		m.Key == "k" && m.CorrelationID == "c" && string(m.Payload) == `"acked"`, "acked: %+v", m)
	// Its labels, and its worker's name, were carried with its content.
	begins := fmt.Sprint("index:", e.log.First())
	for _, q := range []client.EventQuery{
		{Key: "k"}, {Kind: "acked"}, {CorrelationID: "c"}, {Worker: "w"},
	} {
		q.From, q.Queue, q.Types = begins, "keyed", []string{"acked"}
		page := must(n.Events(ctx, q))
		assert.True(t, len(page.Events) == 1 && page.Events[0].MessageID == acked, "%+v: %+v", q, page)
	}
	undo := func(f wire.UndoFilter, dry bool) *wire.Undone {
		f.State, f.From = "acked", begins
		u, _, err := n.Undo(ctx, "keyed", client.UndoRequest{DryRun: dry, Filter: &f})
		require.NoError(t, err)
		return u
	}
	u := undo(wire.UndoFilter{Worker: new("w")}, true)
	assert.True(t, u.Matched == 1 && u.BroughtBack == 1, "undone of its worker: %+v", u)
	// So what was written under a key can be erased.
	must(n.AckOne(ctx, toErase.LeaseID, wire.AckOne{}))
	_, task, err := n.EraseKey(ctx, "keyed", client.EraseKeyRequest{Key: "e", Reason: "asked for"})
	require.NoError(t, err)
	must(n.WaitTask(ctx, task.ID))
	assert.True(t, must(n.Message(ctx, erased)).Erased, "the content that was carried is erased")
	// What had left before has none, and that is said.
	u = undo(wire.UndoFilter{Worker: new("e")}, true)
	assert.True(t, u.Matched == 0 && u.HistoryBeginsAt != nil,
		"undone of a worker that history does not have: %+v", u)
	lost := must(n.Events(ctx, client.EventQuery{From: begins, Kind: "early"}))
	assert.True(t, len(lost.Events) == 0 && lost.HistoryBeginsAt != nil, "%+v", lost)
	// Undone, it takes its idempotency_key again, which nobody else has taken.
	u = undo(wire.UndoFilter{Key: new("k")}, false)
	assert.Equal(t, u.BroughtBack, 1, "undone")
	back := must(n.Messages(ctx, "keyed", client.MessageQuery{})).Messages
	assert.True(t, len(back) == 1 && back[0].Key == "k" && back[0].Kind == "acked" &&
		back[0].CorrelationID == "c" && back[0].Origin.FirstMessageID == acked, "back: %+v", back)
	again := must(n.Produce(ctx, "keyed", wire.NewMessage{Payload: []byte(`2`), IdempotencyKey: "once"}))
	assert.Equal(t, again[0].Status, "duplicate")
	for _, from := range []string{"", "start", "index:1"} {
		page := must(n.Events(ctx, client.EventQuery{From: from, Limit: 1}))
		assert.True(t, page.HistoryBeginsAt != nil && len(page.Events) == 1, "from %q: %+v", from, page)
	}
	page := must(n.Events(ctx, client.EventQuery{From: fmt.Sprintf("index:%d", e.log.First())}))
	assert.True(t, page.HistoryBeginsAt == nil, "it is there from where history begins")
	_, err = n.Queue(ctx, "jobs", client.At(fmt.Sprintf("index:%d", first)))
	assert.ErrorIs(t, err, client.ErrHistoryExpired, "the state in deleted history:")
	// The past can be rebuilt from the oldest checkpoint on.
	metas := e.replica.Status().Checkpoints
	oldest := client.At(fmt.Sprintf("index:%d", metas[len(metas)-1].HeadIndex))
	_, err = n.Queue(ctx, "jobs", oldest)
	assert.NoError(t, err, "the state at the oldest checkpoint")
	for _, from := range []string{"start", "index:1"} {
		last := lines(t, "replay", "--addr", n.addr, "--from", from, "-o", "json")
		assert.Contains(t, fmt.Sprint(last[len(last)-1]), "history_begins_at", "from %s:", from)
	}
	said := lines(t, "replay", "--addr", n.addr, "--from", begins, "--kind", "early", "-o", "json")
	assert.Contains(t, fmt.Sprint(said[len(said)-1]), "history_begins_at", "of a label that is gone:")
	whole := lines(t, "replay", "--addr", n.addr, "--from", fmt.Sprint("index:", e.log.First()), "-o", "json")
	assert.True(t, !strings.Contains(fmt.Sprint(whole[len(whole)-1]), "history_begins_at"), "from its beginning")
	n.stop()
	kept := lines(t, "replay", "--data-dir", n.dir, "--from", begins, "--kind", "early", "-o", "json")
	assert.Contains(t, fmt.Sprint(kept[len(kept)-1]), "history_begins_at", "of a label that is gone:")
	start := lines(t, "replay", "--data-dir", n.dir, "--to", "start", "-o", "json")
	assert.Contains(t, fmt.Sprint(start), "queues:map[]", "nothing, before the first event:")
	assert.Contains(t, fmt.Sprint(start), "history_begins_at", "where the log begins:")
	for _, from := range []string{"1h", "index:1"} {
		last := lines(t, "replay", "--data-dir", n.dir, "--from", from, "-o", "json")
		assert.Contains(t, fmt.Sprint(last[len(last)-1]), "history_begins_at", "from %s:", from)
	}
	report, err := replay.Verify(ctx, vfs.OS{}, n.dir, nil, nil)
	require.True(t, err == nil && report.Checkpoints > 0 && report.From > 0, "%+v, %v", report, err)
	n = startTest(t, n.dir)
	defer n.stop()
	leased := n.lease("jobs", client.LeaseOptions{Kinds: []string{"old"}})
	assert.True(t, len(leased) == 1 && string(leased[0].Payload) == `"kept"`, "restarted: %+v", leased)
	dead := n.lease("fails.dlq", client.LeaseOptions{})
	assert.True(t, len(dead) == 1 && string(dead[0].Payload) == `"dead"` &&
		dead[0].Dead.Error == "why it died", "the dead letter after a restart: %+v", dead)
}

// Nobody else reads what is in a data directory, whatever an older program, or a copy, has left.
func TestDataDirectoryIsPrivate(t *testing.T) {
	t.Parallel()
	dir := ""
	for range 2 {
		n := startTest(t, dir, func(c *Config) { c.LogSegmentBytes, c.CheckpointEntries = 65536, 1 })
		dir = n.dir
		n.put("jobs", `{}`)
		n.produce("jobs", client.JSON(strings.Repeat("x", 60_000)), client.JSON(1))
		require.NoError(t, n.engine().replica.Snapshot())
		must(0, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			mode := must(d.Info()).Mode().Perm()
			assert.Equal(t, mode, want, "mode of "+name)
			return errors.Join(err, os.Chmod(name, mode|0o055))
		}))
		n.stop()
	}
}

// A copy's clock continues from its instant: a lease that has run out since has not in it.
func TestCopyContinuesFromItsInstant(t *testing.T) {
	t.Parallel()
	n := startTest(t, "")
	ctx := t.Context()
	n.put("jobs", `{}`)
	n.produce("jobs", client.JSON(1))
	const lease = 4 * time.Second
	m := n.lease("jobs", client.LeaseOptions{Lease: lease})[0]
	index := n.engine().log.Head()
	for e, err := range n.Follow(ctx, client.EventQuery{From: "start", Types: []string{"lease_expired"}}) {
		require.True(t, err == nil && e.LeaseID == m.LeaseID, "%+v, %v", e, err)
		break
	}
	began := time.Now()
	copied := n.into(index)
	defer copied.stop()
	n.stop()
	r, err := copied.AckOne(ctx, m.LeaseID, wire.AckOne{})
	clock := time.UnixMilli(copied.engine().replica.Clock())
	took := time.Since(began)
	assert.True(t, err == nil && r.Status == "acked" || took >= lease,
		"the lease ran out in the copy: %+v, %v", r, err)
	since := clock.Sub(m.LeaseExpiresAt.Time().Add(-lease))
	assert.True(t, since < took+lease,
		"the copy's clock is %s after its instant, %s after it was made", since, took)
}

// A copy made in the middle of a replay continues it, knows the webhooks, and pushes nothing to
// whom the original delivers to.
func TestCopyHasTasksAndWebhooksAndPushesNothing(t *testing.T) {
	t.Parallel()
	pushed := make(chan struct{}, 100)
	target := httptest.NewServer(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { pushed <- struct{}{} }))
	defer target.Close()
	n := startTest(t, "", func(c *Config) { c.PushAllowPrivate = true })
	ctx := t.Context()
	n.put("jobs", `{"delivery":{"dead_letter_queue":"auto"}}`)
	n.call("PUT", "/v1/webhooks/pager",
		`{"queue":"jobs","idempotency_key":"string(payload.id)"}`, nil)
	const dead = 20
	for i := range dead {
		n.produce("jobs", client.JSON(i))
	}
	for _, m := range n.lease("jobs", client.LeaseOptions{Max: dead}) {
		n.die(m, "no")
	}
	// What waits to be pushed at the copy's instant; the original pushes it later.
	n.put("outbox", fmt.Sprintf(`{"push":{"url":%q}}`, target.URL))
	require.NoError(t, n.PauseQueue(ctx, "outbox"))
	n.produce("outbox", wire.NewMessage{Payload: []byte("1"), DelayMS: new(int64(700))})

	var task wire.Task
	n.call("POST", "/v1/queues/jobs/dead/replay", `{"filter":{},"rate_per_second":10}`, &task)
	var index uint64 // at which the task has begun
	for e, err := range n.Follow(ctx, client.EventQuery{From: "start", Types: []string{"replayed"}}) {
		require.NoError(t, err)
		index = e.Index
		break
	}
	if err := n.CancelTask(ctx, task.ID); err != nil && !errors.Is(err, client.ErrConflict) {
		t.Error(err) // a conflict: it is over already
	}
	require.NoError(t, n.ResumeQueue(ctx, "outbox"))
	<-pushed
	copied := n.into(index, func(c *Config) { c.PushAllowPrivate = true })
	n.stop()

	ended := must(copied.WaitTask(ctx, task.ID))
	q := must(copied.Queue(ctx, "jobs"))
	assert.True(t, ended.Status == wire.TaskCompleted && ended.Done == dead && q.Stats.Depth == dead,
		"%d of %d were replayed, %s: %+v", ended.Done, dead, ended.Status, q.Stats)
	copied.call("POST", "/hook/pager", `{"id":7}`, nil)
	assert.Equal(t, must(copied.Queue(ctx, "jobs")).Stats.Depth, dead+1, "after the webhook")
	// It comes due in the copy, whose clock continues from then, and waits.
	require.NoError(t, copied.ResumeQueue(ctx, "outbox"))
	copied.until("what would be pushed to come due and stay", func() bool {
		return must(copied.Explain(ctx, "outbox", "", nil)).Reasons[0].Code == "push_off"
	})
	got := copied.lease("outbox", client.LeaseOptions{})
	assert.True(t, len(got) == 1 && got[0].Attempt == 1, "it was leased before: %+v", got)
	copied.stop() // waits for what is being pushed
	assert.Equal(t, len(pushed), 0, "the copy has pushed")
	// The task ended in the copy's log; in the original it was cancelled.
	r := lines(t, "replay", "--data-dir", copied.dir, "--verify", "-o", "json")
	assert.Equal(t, r[0]["verify"].(map[string]any)["ok"], true, "%v", r)
}

// A node stops with an admin listener and a long poll, and leaves a log that is whole.
func TestShutdownEndsLongPollsAndKeepsEverything(t *testing.T) {
	t.Parallel()
	n := startTest(t, "", func(c *Config) { c.AdminAddr = "127.0.0.1:0" })
	ctx := t.Context()
	n.put("jobs", `{}`)
	once := must(client.New(n.addr, client.WithRetry(client.Retry{Attempts: 1})))
	waiting := make(chan error, 1)
	go func() {
		_, err := once.Lease(ctx, "jobs", client.LeaseOptions{Wait: time.Minute})
		waiting <- err
	}()
	n.until("the lease to wait", func() bool {
		_, b, err := n.Raw(ctx, "GET", "/metrics", nil, nil)
		return err == nil && bytes.Contains(b, []byte("\nqlogd_lease_waiters 1\n"))
	})
	began := time.Now()
	n.stop()
	assert.True(t, time.Since(began) < 50*time.Second, "it took %s", time.Since(began))
	<-waiting // answered or refused
	d := must(replay.Open(n.dir))
	defer d.Close()
	assert.True(t, d.Log.Tail() == nil, "%+v", d.Log.Tail())
	_, _, err := d.StateAt(ctx, event.Instant{Kind: event.InstantNow})
	assert.NoError(t, err)
}

// Raft's metrics and the api's have names of their own: whichever comes first must not keep
// the other from being registered, nor the node from starting. docs/reference/metrics.md lists
// all but those that the libraries name.
func TestMetrics(t *testing.T) {
	n := startTest(t, "")
	defer n.stop()
	n.put("jobs", `{}`)
	hashi.IncrCounterWithLabels([]string{"raft", "some", "thing"}, 1,
		[]hashi.Label{{Name: "peer_id", Value: "n2"}})
	resp, b, err := n.Raw(t.Context(), "GET", "/metrics", nil, nil)
	require.NoError(t, err)
	require.Equal(t, resp.StatusCode, http.StatusOK)
	for _, want := range []string{`qlogd_commit_seconds_count{class="settle"} `,
		"qlogd_entry_seconds_count ", "qlogd_entry_commands_count ", "qlogd_raft_apply_total ",
		"qlogd_raft_fsm_apply_batch_count ", `qlogd_raft_some_thing_total{peer_id="n2"} 1`} {
		assert.True(t, bytes.Contains(b, []byte("\n"+want)), "/metrics lacks %s", want)
	}
	doc, err := os.ReadFile("../docs/reference/metrics.md")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^# HELP (qlogd_\w+)`).FindAllSubmatch(b, -1) {
		name := string(m[1])
		documented := regexp.MustCompile("`" + name + "[`{]").Match(doc)
		assert.True(t, documented || strings.HasPrefix(name, "qlogd_raft_"),
			"docs/reference/metrics.md lacks %s", name)
	}
}

// Messages that leave with their queue or key do so in an entry of their own; once the call is
// answered, their history shows it all the same.
func TestBulkChangesAreInTheHistoryOnceAnswered(t *testing.T) {
	t.Parallel()
	n := startTest(t, "")
	defer n.stop()
	ctx := t.Context()
	last := func(id, want string) {
		t.Helper()
		events := must(n.History(ctx, id))
		e := events[len(events)-1]
		require.Equal(t, e.Type+" "+e.Reason, want)
	}
	n.put("k", `{"ordering":"per_key",
		"delivery":{"on_dead":"dead_letter_key","dead_letter_queue":"auto"}}`)
	for i := range 3 {
		n.put("q", `{}`)
		id := n.produce("q", client.JSON(1))[0]
		must(n.PurgeQueue(ctx, "q"))
		last(id, "discarded purged")
		id = n.produce("q", client.JSON(1))[0]
		require.NoError(t, n.DeleteQueue(ctx, "q", true))
		last(id, "discarded queue_deleted")
		// And a key's others, that follow their dead one.
		m := client.JSON(1)
		m.Key = fmt.Sprint(i)
		second := n.produce("k", m, m)[1]
		n.die(n.lease("k", client.LeaseOptions{})[0], "")
		last(second, "dead_lettered key_dead")
	}
}

// A log whose first segments were lost, not deleted by retention, is not served: its live
// messages would have no payload.
func TestLostBeginningIsRefused(t *testing.T) {
	t.Parallel()
	n := startTest(t, "", func(c *Config) { c.LogSegmentBytes = 65536 })
	n.put("q", `{}`)
	for range 20 {
		n.produce("q", client.JSON(strings.Repeat("x", 10_000)))
	}
	require.NoError(t, n.engine().replica.Snapshot())
	n.stop()
	files, _ := filepath.Glob(filepath.Join(n.dir, "log/*.seg"))
	require.True(t, len(files) >= 3, "%v", files)
	index := strings.TrimSuffix(files[0], ".seg") + ".idx"
	require.NoError(t, errors.Join(os.Remove(files[0]), os.Remove(index)))
	_, err := Start(testConfig(n.dir), slog.New(slog.DiscardHandler))
	assert.ErrorContains(t, err, "first segments are lost")
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/replay"
)

// call sends a request to a node and decodes the answer, which must be a
// success, into out.
func call(t *testing.T, n *node, method, path, body string, out any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.httpLis.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %d %s %v", method, path, res.StatusCode, b, err)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			t.Fatal(err)
		}
	}
}

// until asks again and again, for at most ten seconds.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// TestCopyHasTasksAndWebhooksAndPushesNothing: a copy made in the middle of a
// replay goes on with it where it stood, knows the webhooks, and leaves alone
// whom the original delivers to.
func TestCopyHasTasksAndWebhooksAndPushesNothing(t *testing.T) {
	var pushed atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { pushed.Add(1) }))
	defer target.Close()
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir, "--push-allow-private")
	ctx := t.Context()
	call(t, n, "PUT", "/v1/queues/jobs", `{"delivery":{"dead_letter_queue":"auto"}}`, nil)
	call(t, n, "PUT", "/v1/webhooks/pager", `{"queue":"jobs","idempotency_key":"string(payload.id)"}`, nil)
	const dead = 20
	for i := range dead {
		must[[]wire.Produced](t)(c.Produce(ctx, "jobs", client.JSON(i)))
	}
	for _, m := range must[[]wire.LeasedMessage](t)(c.Lease(ctx, "jobs", client.LeaseOptions{Max: dead})) {
		must[*wire.SettleResult](t)(c.DeadLetterOne(ctx, m.LeaseID, wire.DeadLetterOne{Error: "no"}))
	}
	// What waits to be pushed at the copy's instant; the original pushes it later.
	call(t, n, "PUT", "/v1/queues/outbox", fmt.Sprintf(`{"push":{"url":%q}}`, target.URL), nil)
	must[[]wire.Produced](t)(c.Produce(ctx, "outbox", wire.NewMessage{Payload: []byte("1"), DelayMS: 700}))

	var task wire.Task
	var progress wire.Task
	call(t, n, "POST", "/v1/queues/jobs/dead/replay", `{"filter":{},"rate_per_second":10}`, &task)
	until(t, "the task to begin", func() bool {
		call(t, n, "GET", "/v1/tasks/"+task.ID, "", &progress)
		return progress.Done > 0
	})
	index := n.engine().log.Head()
	call(t, n, "DELETE", "/v1/tasks/"+task.ID, "", nil)
	until(t, "the push", func() bool { return pushed.Load() == 1 })

	d := must[*replay.Dir](t)(replay.Open(dir))
	defer d.Close()
	then := filepath.Join(t.TempDir(), "then")
	card := must[*datadir.Node](t)(d.Into(ctx, event.Instant{Kind: event.InstantIndex, Index: index}, then, seed, nil))
	if !card.PushOff() {
		t.Error("the copy's card lets it push")
	}
	stopNode(t, n)

	copied, cc := testNode(t, then, "--push-allow-private")
	until(t, "the copy's task to end", func() bool {
		call(t, copied, "GET", "/v1/tasks/"+task.ID, "", &progress)
		return progress.Status == "completed"
	})
	if progress.Done != dead {
		t.Errorf("%d of %d were replayed", progress.Done, dead)
	}
	q := must[*wire.Queue](t)(cc.Queue(ctx, "jobs"))
	if q.Stats.Depth != dead {
		t.Errorf("%+v", q.Stats)
	}
	w := must[*wire.Webhook](t)(cc.Webhook(ctx, "pager"))
	if w.Name != "pager" {
		t.Errorf("%+v", w)
	}
	call(t, copied, "POST", "/hook/pager", `{"id":7}`, nil)
	if q = must[*wire.Queue](t)(cc.Queue(ctx, "jobs")); q.Stats.Depth != dead+1 {
		t.Errorf("after the webhook: %+v", q.Stats)
	}
	// It came due in the copy, whose clock went on from then, and waits.
	until(t, "what would be pushed to come due", func() bool {
		return must[*wire.Queue](t)(cc.Queue(ctx, "outbox")).Stats.Depth == 1
	})
	time.Sleep(300 * time.Millisecond) // a push would be made within milliseconds
	if n := pushed.Load(); n != 1 {
		t.Errorf("the copy has pushed: %d", n)
	}
	stopNode(t, copied)
	// The task ended in the copy's log; in the original it was cancelled.
	if r := lines(t, "replay", "--data-dir", then, "--verify", "-o", "json"); r[0]["verify"].(map[string]any)["ok"] != true {
		t.Errorf("%v", r)
	}
}

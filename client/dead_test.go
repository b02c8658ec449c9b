package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// A replay answers in two shapes: what was done, or the task that does it.
func TestReplayShapes(t *testing.T) {
	status, body, sent := 0, "", ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		sent = r.Method + " " + r.URL.String() + " " + string(b)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer srv.Close()
	c, err := New(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	status, body = 200, `{"replayed":1,"messages":[{"message_id":"a","new_message_id":"b"}],"skipped":[{"message_id":"c","code":"leased"}]}`
	done, task, err := c.Replay(t.Context(), "q", wire.ReplayRequest{Filter: &wire.DeadFilter{}})
	if err != nil || task != nil || done.Replayed != 1 || done.Messages[0].NewMessageID != "b" || done.Skipped[0].Code != "leased" {
		t.Fatalf("%+v %+v %v", done, task, err)
	}
	if sent != `POST /v1/queues/q/dead/replay {"filter":{}}` {
		t.Fatal(sent)
	}
	status, body = 202, `{"id":"t","task_id":"t","status":"running","total":7,"skipped":3}`
	done, task, err = c.Replay(t.Context(), "q", wire.ReplayRequest{MessageIDs: []string{"a"}})
	if err != nil || done != nil || task.ID != "t" || task.Total != 7 || task.Skipped != 3 {
		t.Fatalf("%+v %+v %v", done, task, err)
	}
	status, body = 200, `{"dry_run":true,"purged":2,"count":2,"messages":[],"skipped":[]}`
	purged, task, err := c.PurgeDead(t.Context(), "q", wire.PurgeRequest{DryRun: true, Filter: &wire.DeadFilter{}})
	if err != nil || task != nil || purged.Purged != 2 {
		t.Fatalf("%+v %+v %v", purged, task, err)
	}
	key := ""
	status, body = 200, `{"dead":[]}`
	if _, err := c.Dead(t.Context(), "q", DeadQuery{DeadFilter: wire.DeadFilter{Key: &key, Error: "x"}, Limit: 3}); err != nil || sent != "GET /v1/queues/q/dead?error=x&key=&limit=3 " {
		t.Fatalf("%q %v", sent, err)
	}
	if _, err := c.AwaitTask(t.Context(), "t", 20*time.Second); err != nil || sent != "GET /v1/tasks/t?wait_ms=20000 " {
		t.Fatalf("%q %v", sent, err)
	}
}

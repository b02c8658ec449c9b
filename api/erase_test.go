package api

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/log/vfs"
)

// eraser carries erasures out for a cluster of the one node that there is.
func (m *machine) eraser() *erasure.Eraser {
	return &erasure.Eraser{
		Log: m.log, State: m, Propose: m.Propose, Members: func() []string { return []string{"n1/a"} },
	}
}

func (m *machine) erasures(dir string) erasure.NodeOptions {
	return erasure.NodeOptions{
		Log: m.log, FS: vfs.OS{}, DataDir: dir, Self: func() string { return "n1/a" }, Tasks: m.Tasks,
		Erased: m.TakeErased, Propose: m.Propose,
		Fetched: func() error { return nil }, Shed: func(context.Context, uint64) error { return nil },
	}
}

func TestErase(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", "")
	one := h.put("q", "k", `"secret 1"`)
	h.die("q", "secret 2")
	other := h.put("q", "k", `"secret 3"`)
	kept := h.put("q", "l", `"kept"`)

	a := h.do("POST", "/v1/messages/"+one+"/erase", `{"dry_run":true}`).want(200)
	if a.get("dry_run") != true || a.get("messages") != 1.0 || a.get("live") != 1.0 || a.get("contents") != 2.0 || a.str("message_ids.0") != one {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("POST", "/v1/queues/q/erase", `{"key":"k","dry_run":true,"reason":"r"}`).want(200)
	if a.get("messages") != 2.0 || a.get("live") != 2.0 || a.get("contents") != 3.0 {
		t.Fatalf("%s", a.Body)
	}
	if a = h.do("GET", "/v1/tasks", "").want(200); len(a.each("tasks", "id")) != 0 {
		t.Fatalf("a dry run began %s", a.Body)
	}

	a = h.do("POST", "/v1/messages/"+one+"/erase", `{"reason":"request 1"}`, "Idempotency-Key: e").want(202)
	id, first := a.str("task_id"), a.Body.String()
	if a.Header().Get("Location") != "/v1/tasks/"+id || a.str("id") != id || a.str("type") != "erase" || a.get("total") != 1.0 {
		t.Fatalf("%v %s", a.Header(), a.Body)
	}
	if again := h.do("POST", "/v1/messages/"+one+"/erase", `{"reason":"request 1"}`, "Idempotency-Key: e").want(202); again.str("id") != id {
		t.Errorf("another task: %s", again.Body)
	}
	a = h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200)
	if a.str("status") != "completed" || a.get("done") == 0.0 || a.str("nodes.0.node") != "n1" || a.get("nodes.0.complete") != true || a.str("nodes.0.at") == "" {
		t.Fatalf("%s", a.Body)
	}
	// The first answer, though the task has ended.
	if again := h.do("POST", "/v1/messages/"+one+"/erase", `{"reason":"request 1"}`, "Idempotency-Key: e").want(202); again.Body.String() != first {
		t.Errorf("%s\n%s", first, again.Body)
	}
	a = h.do("GET", "/v1/messages/"+one, "").want(200)
	if a.get("erased") != true || a.get("payload") != nil || strings.Contains(a.Body.String(), "secret") {
		t.Errorf("%s", a.Body)
	}
	events := h.do("GET", "/v1/messages/"+one+"/history", "").want(200)
	if types := events.each("events", "type"); !slices.Contains(types, "erased") || !slices.Contains(types, "discarded") || !slices.Contains(events.each("events", "why"), "request 1") {
		t.Errorf("%s", events.Body)
	}
	h.do("POST", "/v1/messages/"+one+"/resurrect", "").wantProblem(409, "conflict")

	id = h.do("POST", "/v1/queues/q/erase", `{"key":"k","reason":"request 2"}`).want(202).str("id")
	h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200)
	if a = h.do("GET", "/v1/messages/"+other, "").want(200); a.get("erased") != true {
		t.Errorf("%s", a.Body)
	}
	if a = h.do("GET", "/v1/messages/"+kept, "").want(200); a.get("payload") != "kept" {
		t.Errorf("%s", a.Body)
	}
}

func TestEraseIsRefused(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", "")
	id := h.put("q", "k", "1")
	long := strings.Repeat("x", 1025)
	for _, c := range []struct {
		path, body, field string
		status            int
		code              string
	}{
		{"/v1/messages/" + id + "/erase", `{}`, "reason", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase", `{"reason":""}`, "reason", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase", `{"reason":"` + long + `"}`, "reason", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase", `{"dry_run":true,"reason":"` + long + `"}`, "reason", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase", `{"reason":1}`, "reason", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase", `{"reason":"r","force":true}`, "force", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase?dry_run=true", `{"reason":"r"}`, "dry_run", 400, "invalid_argument"},
		{"/v1/messages/" + id + "/erase", ``, "", 400, "invalid_json"},
		{"/v1/messages/x/erase", `{"reason":"r"}`, "id", 400, "invalid_argument"},
		{"/v1/messages/" + aULID + "/erase", `{"reason":"r"}`, "id", 404, "message_not_found"},
		{"/v1/messages/" + aULID + "/erase", `{"dry_run":true}`, "id", 404, "message_not_found"},
		{"/v1/queues/q/erase", `{"reason":"r"}`, "key", 400, "invalid_argument"},
		{"/v1/queues/q/erase", `{"key":"","reason":"r"}`, "key", 400, "invalid_argument"},
		{"/v1/queues/q/erase", `{"key":"` + long + `","reason":"r"}`, "key", 400, "invalid_argument"},
		{"/v1/queues/q/erase", `{"key":"k"}`, "reason", 400, "invalid_argument"},
		{"/v1/queues/nope/erase", `{"key":"k","reason":"r"}`, "queue", 404, "queue_not_found"},
		{"/v1/queues/nope/erase", `{"key":"k","dry_run":true}`, "queue", 404, "queue_not_found"},
	} {
		for _, header := range [][]string{nil, {"Idempotency-Key: k"}} { // a key makes nothing be there
			a := h.do("POST", c.path, c.body, header...)
			if a.Code != c.status || a.str("code") != c.code || a.str("field") != c.field {
				t.Errorf("%s %.60s %v: %d %s", c.path, c.body, header, a.Code, a.Body)
			}
		}
	}
	if a := h.do("GET", "/v1/tasks", "").want(200); len(a.each("tasks", "id")) != 0 {
		t.Errorf("%s", a.Body)
	}
	if a := h.do("GET", "/v1/messages/"+id, "").want(200); a.get("payload") != 1.0 {
		t.Errorf("%s", a.Body)
	}
}

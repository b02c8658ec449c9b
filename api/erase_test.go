package api

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// newEraser returns what carries erasures out for a cluster of the one node that there is.
func (m *machine) newEraser() *erasure.Eraser {
	disk := memdisk.New()
	err := disk.MkdirAll("/data")
	if err == nil {
		m.eraser, err = erasure.New(erasure.Options{
			Log: m.log, State: m.Machine, FS: disk, DataDir: "/data", Propose: m.Propose,
			Self:     func() string { return "n1/a" },
			Members:  func() []string { return []string{"n1/a"} },
			Fetched:  func() error { return nil },
			PurgeLog: func(context.Context, uint64) error { return nil },
			Logger:   slog.New(slog.DiscardHandler),
		})
	}
	if err != nil {
		panic(err)
	}
	return m.eraser
}

func TestErase(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", "")
	one := h.put("q", "k", `"secret 1"`)
	h.die("q", "secret 2")
	other := h.put("q", "k", `"secret 3"`)
	kept := h.put("q", "l", `"kept"`)
	erase := "/v1/messages/" + one + "/erase"

	h.do("POST", erase, `{"dry_run":true}`).want(200).with("dry_run", true, "messages", 1.0,
		"live", 1.0, "contents", 2.0, "message_ids.0", one)
	h.do("POST", "/v1/queues/q/erase", `{"key":"k","dry_run":true,"reason":"r"}`).want(200).
		with("messages", 2.0, "live", 2.0, "contents", 3.0)
	h.do("GET", "/v1/tasks", "").want(200).with("tasks.0", nil)

	reason := `{"reason":"request 1"}`
	first := h.do("POST", erase, reason, "Idempotency-Key: e").want(202)
	id := first.with("type", "erase", "total", 1.0).str("task_id")
	require.Equal(t, first.with("id", id).Header().Get("Location"), "/v1/tasks/"+id,
		"%v", first.Header())
	h.do("POST", erase, reason, "Idempotency-Key: e").repeats(first)
	a := h.ended(id, "completed").with("nodes.0.node", "n1", "nodes.0.complete", true)
	if a.get("done") == 0.0 || a.str("nodes.0.at") == "" {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", erase, reason, "Idempotency-Key: e").repeats(first) // though it has ended
	a = h.do("GET", "/v1/messages/"+one, "").want(200).with("erased", true, "payload", nil)
	assert.False(t, strings.Contains(a.Body.String(), "secret"), "%s", a.Body)
	events := h.do("GET", "/v1/messages/"+one+"/history", "").want(200)
	types, why := events.each("events", "type"), events.each("events", "why")
	if !slices.Contains(types, "erased") || !slices.Contains(types, "discarded") ||
		!slices.Contains(why, "request 1") {
		t.Errorf("%s", events.Body)
	}
	h.do("POST", "/v1/messages/"+one+"/resurrect", "").wantProblem(409, "conflict")

	a = h.do("POST", "/v1/queues/q/erase", `{"key":"k","reason":"request 2"}`).want(202)
	h.ended(a.str("id"), "completed")
	h.do("GET", "/v1/messages/"+other, "").want(200).with("erased", true)
	h.do("GET", "/v1/messages/"+kept, "").want(200).with("payload", "kept")
}

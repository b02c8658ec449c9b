package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections/store"
)

// replay and purge move dead letters of queue q.
func (h *harness) replay(body string, headers ...string) answer {
	h.Helper()
	return h.do("POST", "/v1/queues/q/dead/replay", body, headers...)
}

func (h *harness) purge(body string, headers ...string) answer {
	h.Helper()
	return h.do("POST", "/v1/queues/q/dead/purge", body, headers...)
}

// named names messages.
func named(ids ...string) string { return `"message_ids":["` + strings.Join(ids, `","`) + `"]` }

// repeats fails unless the answer is that of the first request.
func (a answer) repeats(first answer) {
	a.t.Helper()
	again, index := a.Header().Get("Idempotent-Replayed"), first.Header().Get("X-Qlogd-Index")
	if a.Code != first.Code || a.Body.String() != first.Body.String() || again != "true" ||
		a.Header().Get("X-Qlogd-Index") != index {
		a.t.Fatalf("%d %s, then %d %s", first.Code, first.Body, a.Code, a.Body)
	}
}

// died enqueues these payloads into q, one entry each, dead-letters them, and returns their ids in
// the dead-letter queue.
func (h *harness) died(payloads ...string) []string {
	h.Helper()
	for _, p := range payloads {
		h.put("q", "", p)
	}
	for range payloads {
		h.die("q", "e")
	}
	return h.dead("q", "", "id")
}

// ended waits for the end of a task.
func (h *harness) ended(id, status string) answer {
	h.Helper()
	return h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200).with("status", status)
}

// TestTask: what is more than fits one entry is done by a task.
func TestTask(t *testing.T) { synctest.Test(t, testTask) }

func testTask(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", `,"retention":{"max_depth":0}`)
	const n, keys = 1203, 97
	for i := 0; i < n; i += 401 {
		var b strings.Builder
		for j := i; j < i+401; j++ {
			fmt.Fprintf(&b, `,{"key":"k%d","payload":%d}`, j%keys, j)
		}
		h.do("POST", "/v1/queues/q/messages", `{"messages":[`+b.String()[1:]+`]}`).want(201)
	}
	// die leases all heads and dead-letters them, until there are none, in the order of their keys.
	die := func() {
		last := map[int]int{}
		for died := 0; died < n; {
			a := h.do("POST", "/v1/queues/q/lease", `{"max_messages":1000}`).want(200)
			var items []string
			payloads := a.each("messages", "payload")
			for j, lease := range a.each("messages", "lease_id") {
				i, err := strconv.Atoi(payloads[j])
				require.NoError(t, err)
				if prev, ok := last[i%keys]; ok && prev+keys != i {
					t.Fatalf("%d after %d", i, prev)
				}
				last[i%keys] = i
				items = append(items, fmt.Sprintf(`{"lease_id":%q}`, lease))
			}
			died += len(items)
			h.do("POST", "/v1/queues/q/dead-letter",
				`{"items":[`+strings.Join(items, ",")+`]}`).want(200)
		}
	}
	die()
	first := h.replay(`{"filter":{}}`, "Idempotency-Key: x").want(202)
	id := first.str("id")
	first.with("task_id", id, "type", "replay", "total", float64(n))
	require.Equal(t, first.Header().Get("Location"), "/v1/tasks/"+id, "%v", first.Header())
	if h.ended(id, "completed").with("done", float64(n), "skipped", 0.0).str("ended_at") == "" {
		t.Fatal("ended at no time")
	}
	h.replay(`{"filter":{}}`, "Idempotency-Key: x").repeats(first)
	require.EqualSlices(t, h.dead("q", "", "id"), nil)
	h.do("DELETE", "/v1/tasks/"+id, "").want(409)
	h.do("POST", "/v1/tasks/"+id+"/resume", "").want(409)
	list := h.do("GET", "/v1/tasks?status=completed&limit=1", "").want(200)
	require.EqualSlices(t, list.each("tasks", "id"), []string{id})
	h.do("GET", "/v1/tasks?status=running", "").want(200).with("tasks.0", nil)
	h.do("GET", "/v1/tasks/"+unknownID, "").want(404)

	// A purge of many is a task as well. The messages come in the order of their keys.
	die()
	a := h.purge(`{"filter":{},"dry_run":true}`).want(200).with("count", float64(n))
	if m, s := a.each("messages", "message_id"), a.each("sample", "id"); len(m) != dryMessages ||
		len(s) != drySample {
		t.Fatalf("%d messages, %d whole", len(m), len(s))
	}
	id = h.purge(`{"filter":{}}`).want(202).str("task_id")
	h.ended(id, "completed").with("type", "purge", "done", float64(n))
	require.EqualSlices(t, h.dead("q", "", "id"), nil)
}

// TestSlowTask is paced, cancelled, resumed and waits for room at its target.
func TestSlowTask(t *testing.T) { synctest.Test(t, slowTask) }

func slowTask(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "fifo", "")
	h.do("PUT", "/v1/queues/small", `{"ordering":"fifo","retention":{"max_depth":2}}`).want(201)
	const n = 6
	h.died("0", "1", "2", "3", "4", "5")
	a := h.replay(`{"filter":{},"rate_per_second":1}`).want(202).
		with("rate_per_second", 1.0, "status", "running")
	id := a.str("id")
	h.do("DELETE", "/v1/tasks/"+id, "").want(204)
	h.do("DELETE", "/v1/tasks/"+id, "").want(204)
	h.ended(id, "cancelled")
	left := len(h.dead("q", "", "id"))
	require.True(t, left >= n-2, "%d left of %d, at 1 a second", left, n)
	// The others by another task, into a queue with little room.
	second := h.replay(`{"filter":{},"to":"small","rate_per_second":3}`).want(202).str("id")
	var got []string
	for len(got) < left {
		got = append(got, h.leaseOne("small"))
	}
	h.ended(second, "completed").with("done", float64(left))
	require.True(t, slices.IsSorted(got), "%v", got)
	h.do("POST", "/v1/tasks/"+id+"/resume", "").want(200)
	h.ended(id, "completed").with("done", float64(n-left))
}

// leaseOne waits for a message, acks it and returns its payload.
func (h *harness) leaseOne(queue string) string {
	h.Helper()
	a := h.do("POST", "/v1/queues/"+queue+"/lease", `{"max_messages":1,"wait_ms":10000}`).want(200)
	lease := a.str("messages.0.lease_id")
	require.NotEqual(h, lease, "", "nothing came")
	h.do("POST", "/v1/queues/"+queue+"/ack", fmt.Sprintf(`{"lease_ids":[%q]}`, lease)).want(200)
	return fmt.Sprint(a.get("messages.0.payload"))
}

// The state keeps a thousand ended tasks; an answer is kept for a day.
func TestTaskIsAnsweredAgainWhenItIsForgotten(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "unordered", "")
	h.died("1", "1")
	begin := func() answer {
		return h.replay(`{"filter":{},"rate_per_second":1}`, "Idempotency-Key: a")
	}
	a := begin().want(202)
	h.do("DELETE", "/v1/tasks/"+a.str("id"), "").want(204)
	create := &event.Command{CreateTask: &event.CreateTask{Kind: event.TaskErase}}
	var fail []*event.Command
	for _, answer := range m.Begin(create, slices.Repeat([]*event.Command{create}, 999)) {
		res, err := answer(t.Context())
		require.NoError(t, err)
		update := &event.UpdateTask{ID: res.ID, Op: event.TaskOpFail}
		fail = append(fail, &event.Command{UpdateTask: update})
	}
	m.Begin(fail[0], fail[1:])
	h.do("GET", "/v1/tasks/"+a.str("id"), "").want(404)
	begin().repeats(a)
}

// Another request may be faster after the messages were found: the answer says which one is gone.
func TestReplayWhileAnotherPurges(t *testing.T) {
	h := setup(t)
	h.queue("q", "fifo", "")
	ids := h.died("1", "2")
	faster := func() {
		h.fake.before = func() {
			h.fake.before = nil
			h.purge(`{`+named(ids[1])+`}`).want(200).with("purged", 1.0)
		}
	}
	faster()
	a := h.replay(`{`+named(ids...)+`}`).want(404).with("code", "message_not_found",
		"field", "message_ids", "index", 1.0, "outcome", "not_applied")
	assert.Contains(t, a.str("detail"), "discarded (purged)")
	ids = append(ids[:1], ids[0])
	faster()
	h.do("DELETE", "/v1/queues/q/dead/"+ids[0], "").want(404).
		with("field", "message_id", "index", nil)
}

// replaysGone are replays of which history has let go of all but the newest; the
// read model does not know that yet.
type replaysGone struct {
	Models
	gone, kept []event.ID
	upTo       uint64
}

func (f *replaysGone) Position() (uint64, int64) { return f.upTo, 0 }

func (f *replaysGone) Replayed(_ string, after event.ID, limit int) (out []store.Replayed,
	err error) {
	for _, id := range slices.Concat(f.gone, f.kept) {
		if id.Compare(after) > 0 && len(out) < limit {
			out = append(out, store.Replayed{ID: id})
		}
	}
	return out, nil
}

// A page of nothing but what is gone is not the end, nor is it read for ever.
func TestReplayedThatAreGone(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "unordered", "")
	h.put("q", "", "1")
	h.die("q", "e")
	a := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`).want(200)
	kept, err := event.ParseID(a.str("messages.0.new_message_id"))
	require.NoError(t, err)
	f := &replaysGone{kept: []event.ID{kept}, upTo: m.log.Head()}
	for i := range uint32(450) { // numbers that no entry has: as good as gone
		f.gone = append(f.gone, event.NewID(1, 1, 1000+i))
	}
	m.s.deps.Models = f
	if got := h.dead("q", "?state=replayed", "new_message_id"); !slices.Equal(got,
		[]string{kept.String()}) {
		t.Fatal(got)
	}
}

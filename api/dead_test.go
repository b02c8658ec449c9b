package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
)

func TestDeadListing(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "per_key", "")
	h.do("GET", "/v1/queues/nothing/dead", "").want(404)
	if got := h.dead("q", "", "id"); len(got) != 0 {
		t.Fatal(got)
	}
	var ids []string
	for i, text := range []string{"timeout after 30s", "Timeout after 7s", "no such user \"ann\""} {
		h.put("q", fmt.Sprint("k", i), fmt.Sprint(i))
		m.pass(time.Second)
		ids = append(ids, h.die("q", text))
	}
	a := h.do("GET", "/v1/queues/q/dead", "").want(200)
	if got := a.each("dead", "dead.message_id"); !slices.Equal(got, ids) {
		t.Fatalf("%v, want %v", got, ids)
	}
	if a.str("dead.0.queue") != "q.dlq" || a.str("dead.0.dead.queue") != "q" || a.str("dead.0.dead.error") != "timeout after 30s" ||
		a.str("dead.0.dead.reason") != "rejected" || a.get("dead.0.payload") != 0.0 || a.get("dead.0.attempt") != 0.0 {
		t.Fatalf("%s", a.Body)
	}
	third := a.str("dead.2.dead.failed_at")
	index := a.str("dead.1.id")
	for query, want := range map[string][]string{
		"?error=TIMEOUT":                         ids[:2],
		"?error=nothing":                         {},
		"?key=k1":                                ids[1:2],
		"?kind=":                                 ids,
		"?kind=x":                                {},
		"?reason=rejected":                       ids,
		"?reason=expired":                        {},
		"?from=" + third:                         ids[2:],
		"?to=" + third:                           ids,
		"?from=start&to=now":                     ids,
		"?to=start":                              {},
		"?from=" + index:                         ids[1:],
		"?to=" + index:                           ids[:2],
		"?from=index:1&to=index:2":               {},
		"?limit=2":                               ids[:2],
		"?limit=1&cursor=" + a.str("dead.0.id"):  ids[1:2],
		"?error=timeout&limit=1&reason=rejected": ids[:1],
		"?at=now":                                ids,
	} {
		if got := h.dead("q", query, "dead.message_id"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	first := h.do("GET", "/v1/queues/q/dead?limit=2", "").want(200)
	next := first.str("next_cursor")
	if next == "" {
		t.Fatalf("%s", first.Body)
	}
	if rest := h.do("GET", "/v1/queues/q/dead?limit=2&cursor="+next, "").want(200); rest.get("next_cursor") != nil || len(rest.each("dead", "id")) != 1 {
		t.Fatalf("%s", rest.Body)
	}

	g := h.do("GET", "/v1/queues/q/dead/groups", "").want(200)
	if g.get("total") != 2.0 || g.get("groups.0.count") != 2.0 || g.str("groups.0.error") != "Timeout after 7s" || g.str("groups.0.pattern") != "timeout after <n>s" ||
		g.str("groups.0.message_ids.0") != index || g.str("groups.1.pattern") != "no such user <str>" || g.str("groups.0.first_failed_at") != a.str("dead.0.dead.failed_at") {
		t.Fatalf("%s", g.Body)
	}
	if got := h.dead("q", "?fingerprint="+g.str("groups.0.fingerprint"), "dead.message_id"); !slices.Equal(got, ids[:2]) {
		t.Fatal(got)
	}
	if g = h.do("GET", "/v1/queues/q/dead/groups?key=k2", "").want(200); g.get("total") != 1.0 {
		t.Fatalf("%s", g.Body)
	}

	for _, id := range []string{ids[1], index} { // either id
		if one := h.do("GET", "/v1/queues/q/dead/"+id, "").want(200); one.str("id") != index || one.str("dead.error") != "Timeout after 7s" {
			t.Fatalf("%s", one.Body)
		}
	}
	for _, bad := range []struct{ query, field string }{
		{"?reason=purged", "reason"}, {"?from=yesterday", "from"}, {"?to=2999-01-01T00:00:00Z", "to"}, {"?limit=0", "limit"}, {"?cursor=x", "cursor"},
		{"?state=gone", "state"}, {"?fingerprint=xyz", "fingerprint"}, {"?from=", "from"}, {"?x=1", "x"}, {"?key=" + strings.Repeat("k", 257), "key"},
	} {
		if a := h.do("GET", "/v1/queues/q/dead"+bad.query, "").want(400); a.str("field") != bad.field {
			t.Errorf("%s: %s", bad.query, a.Body)
		}
	}
	if a := h.do("GET", "/metrics", "").want(200); !strings.Contains(a.Body.String(), "qlogd_queue_dead{queue=\"q\"} 3\n") {
		t.Error("metrics do not tell that 3 died")
	}
}

func TestReplayByName(t *testing.T) {
	for _, ordering := range []string{"unordered", "fifo", "per_key"} {
		t.Run(ordering, func(t *testing.T) {
			h, m := onMachine(t)
			h.queue("q", ordering, "")
			var old []string
			for i := range 6 {
				old = append(old, h.put("q", "k", fmt.Sprint(i)))
			}
			for range 3 {
				h.die("q", "e")
			}
			dead := h.dead("q", "", "id")
			before := m.proposals()
			a := h.do("POST", "/v1/queues/q/dead/replay", fmt.Sprintf(`{"message_ids":[%q,%q],"dry_run":true}`, dead[2], old[0])).want(200)
			if m.proposals() != before || a.get("dry_run") != true || a.get("replayed") != 2.0 || a.get("count") != 2.0 || a.str("sample.0.dead.error") != "e" || len(a.each("messages", "message_id")) != 2 {
				t.Fatalf("%s", a.Body)
			}
			// By the ids of both kinds, and not in their order.
			a = h.do("POST", "/v1/queues/q/dead/replay", fmt.Sprintf(`{"message_ids":[%q,%q]}`, dead[2], old[0])).want(200)
			if a.get("replayed") != 2.0 || len(a.each("skipped", "code")) != 0 {
				t.Fatalf("%s", a.Body)
			}
			named := a.each("messages", "message_id")
			want := []string{"0", "2", "3", "4", "5"}
			if ordering == "unordered" {
				want = []string{"3", "4", "5", "2", "0"} // as they were given, behind the others
			} else if !slices.Equal(named, []string{dead[0], dead[2]}) {
				t.Fatalf("%v, want %v and %v", named, dead[0], dead[2])
			}
			if got := h.payloads("q"); !slices.Equal(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
			if got := h.dead("q", "", "id"); !slices.Equal(got, dead[1:2]) {
				t.Fatal(got)
			}
			// It stays listed.
			r := h.do("GET", "/v1/queues/q/dead?state=replayed", "").want(200)
			if got := r.each("dead", "replay_result"); !slices.Equal(got, []string{"acked", "acked"}) || r.str("dead.0.replayed_at") == "" ||
				r.str("dead.0.new_message_id") != a.str("messages.0.new_message_id") || r.str("dead.0.dead.error") != "e" {
				t.Fatalf("%s", r.Body)
			}
			if got := h.dead("q", "?state=replayed&error=x", "id"); len(got) != 0 {
				t.Fatal(got)
			}
			page := h.do("GET", "/v1/queues/q/dead?state=replayed&limit=1", "").want(200)
			if got := h.dead("q", "?state=replayed&cursor="+page.str("next_cursor"), "id"); len(got) != 1 || got[0] == page.str("dead.0.id") {
				t.Fatal(got)
			}
			h.do("GET", "/v1/queues/q/dead/"+dead[0], "").want(200)
			// No longer dead: by its place in the list, and what became of it.
			a = h.do("POST", "/v1/queues/q/dead/replay", fmt.Sprintf(`{"message_ids":[%q,%q]}`, dead[1], old[2])).want(404)
			if a.str("code") != "message_not_found" || a.str("field") != "message_ids" || a.get("index") != 1.0 || !strings.Contains(a.str("detail"), "was acked") {
				t.Fatalf("%s", a.Body)
			}
			if got := h.dead("q", "", "id"); len(got) != 1 {
				t.Fatal("something was replayed all the same")
			}
		})
	}
}

func TestReplayRefused(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "fifo", "")
	h.put("q", "", "1")
	h.die("q", "e")
	id := h.dead("q", "", "id")[0]
	before := m.proposals()
	for body, field := range map[string]string{
		`{}`:                                                         "message_ids",
		`{"message_ids":[],"filter":{}}`:                             "filter",
		`{"message_ids":[]}`:                                         "message_ids",
		`{"message_ids":["x"]}`:                                      "message_ids",
		`{"filter":{"reason":"x"}}`:                                  "filter.reason",
		`{"filter":{"x":1}}`:                                         "filter.x",
		`{"filter":{},"order":"first"}`:                              "order",
		`{"filter":{},"to":".."}`:                                    "to",
		`{"filter":{},"rate_per_second":0}`:                          "rate_per_second",
		`{"filter":{},"rate_per_second":10001}`:                      "rate_per_second",
		`{"filter":{},"max_replays":-1}`:                             "max_replays",
		`{"filter":{},"edit":{"x":{"payload":1}}}`:                   "edit",
		`{"filter":{"key":"x"},"edit":{"` + id + `":{"payload":1}}}`: "edit",
		`{"filter":{},"edit":{"` + id + `":{}}}`:                     "edit." + id,
		`{"filter":{},"edit":{"` + id + `":{"payload":1,"payload_base64":""}}}`: "edit." + id + ".payload",
	} {
		if a := h.do("POST", "/v1/queues/q/dead/replay", body).want(400); a.str("field") != field || a.str("outcome") != "not_applied" {
			t.Errorf("%s: %s", body, a.Body)
		}
	}
	if a := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{},"to":"nowhere"}`).want(404); a.str("code") != "queue_not_found" || a.str("field") != "to" {
		t.Errorf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/nowhere/dead/replay", `{"filter":{}}`).want(404)
	if a := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{"error":"nothing"}}`).want(200); a.get("replayed") != 0.0 {
		t.Errorf("%s", a.Body)
	}
	if m.proposals() != before {
		t.Error("left an entry")
	}
}

func TestReplayEdited(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", `,"message_schema":{"type":"object","required":["n"]}`)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":{"n":1,"tags":["a"]},"headers":{"h":"v"},"correlation_id":"c"},{"payload":{"n":2}}]}`).want(201)
	h.die("q", "e")
	h.die("q", "e")
	ids := h.dead("q", "", "id")
	replay := "/v1/queues/q/dead/replay"
	if a := h.do("POST", replay, fmt.Sprintf(`{"message_ids":[%q,%q],"edit":{%q:{"payload":{}}}}`, ids[0], ids[1], ids[1])).want(400); a.str("code") != "schema_mismatch" || a.get("index") != 1.0 {
		t.Fatalf("%s", a.Body)
	}
	a := h.do("POST", replay, fmt.Sprintf(`{"filter":{},"dry_run":true,"edit":{%q:{"payload":{}}}}`, ids[1])).want(200)
	if a.get("count") != 1.0 || a.str("skipped.0.code") != "schema_mismatch" {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("POST", replay, fmt.Sprintf(`{"filter":{},"edit":{%q:{"payload":{}},%q:{"payload":{"n":7,"tags":["a","b"]}}}}`, ids[1], ids[0])).want(200)
	if a.get("replayed") != 1.0 || a.str("skipped.0.code") != "schema_mismatch" || a.str("skipped.0.message_id") != ids[1] {
		t.Fatalf("%s", a.Body)
	}
	l := h.do("POST", "/v1/queues/q/lease", `{}`).want(200)
	if l.get("messages.0.payload.n") != 7.0 || l.str("messages.0.headers.h") != "v" || l.str("messages.0.correlation_id") != "c" {
		t.Fatalf("%s", l.Body)
	}
	e := h.do("GET", "/v1/messages/"+a.str("messages.0.new_message_id")+"/edits", "").want(200)
	if e.get("edits.0.before.payload.n") != 1.0 || e.get("edits.0.after.payload.n") != 7.0 || !slices.Equal(e.each("edits.0.changes", "path"), []string{"/payload/n", "/payload/tags/1"}) ||
		!slices.Equal(e.each("edits.0.changes", "op"), []string{"replace", "add"}) || e.get("edits.0.changes.0.old") != 1.0 {
		t.Fatalf("%s", e.Body)
	}
	// What is gone elsewhere is checked there, too.
	h.do("PUT", "/v1/queues/strict", `{"message_schema":{"type":"string"}}`).want(201)
	if a := h.do("POST", replay, fmt.Sprintf(`{"message_ids":[%q],"to":"strict"}`, ids[1])).want(400); a.str("code") != "schema_mismatch" {
		t.Fatalf("%s", a.Body)
	}
	h.do("PUT", "/v1/queues/open", ``).want(201)
	h.do("POST", replay, fmt.Sprintf(`{"message_ids":[%q],"to":"open","edit":{%q:{"payload_base64":"AAE=","content_type":"x/y","headers":{}}}}`, ids[1], ids[1])).want(200)
	if l = h.do("POST", "/v1/queues/open/lease", `{}`).want(200); l.str("messages.0.payload_base64") != "AAE=" || l.str("messages.0.content_type") != "x/y" {
		t.Fatalf("%s", l.Body)
	}
}

func TestReplayTwice(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "fifo", "")
	h.put("q", "", "1")
	h.die("q", "e")
	body := fmt.Sprintf(`{"message_ids":[%q],"max_replays":2}`, h.dead("q", "", "id")[0])
	a := h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: a").want(200)
	b := h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: a").want(200)
	if a.Body.String() != b.Body.String() || b.Header().Get("Idempotent-Replayed") != "true" {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
	h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: b").want(404)
	h.die("q", "again") // the same message, by its first id, is dead again
	if a := h.do("GET", "/v1/queues/q/dead", "").want(200); a.get("dead.0.dead.replay_count") != 1.0 {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/q/dead/replay", body).want(200)
	h.die("q", "and again")
	before := m.proposals()
	if a := h.do("POST", "/v1/queues/q/dead/replay", strings.Replace(body, "}", `,"dry_run":true}`, 1)).want(200); a.get("count") != 0.0 || a.str("skipped.0.code") != "max_replays" || m.proposals() != before {
		t.Fatalf("%s", a.Body)
	}
	if a := h.do("POST", "/v1/queues/q/dead/replay", body).want(200); a.get("replayed") != 0.0 || a.str("skipped.0.code") != "max_replays" {
		t.Fatalf("%s", a.Body)
	}
	// The whole of a filter, twice.
	a = h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`, "Idempotency-Key: c").want(200)
	b = h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`, "Idempotency-Key: c").want(200)
	if a.get("replayed") != 1.0 || a.Body.String() != b.Body.String() {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
}

func TestPurgeDead(t *testing.T) {
	h, m := onMachine(t)
	h.do("PUT", "/v1/queues/q", `{"ordering":"per_key","delivery":{"dead_letter_queue":"auto","on_dead":"hold_key","max_attempts":1}}`).want(201)
	var old []string
	for i := range 4 {
		old = append(old, h.put("q", fmt.Sprint("k", i%2), fmt.Sprint(i)))
	}
	h.die("q", "a")
	h.die("q", "b")
	if got := h.payloads("q"); len(got) != 0 {
		t.Fatalf("%v although the keys are held", got)
	}
	before := m.proposals()
	if a := h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{},"dry_run":true}`).want(200); a.get("purged") != 2.0 || a.get("count") != 2.0 || m.proposals() != before {
		t.Fatalf("%s", a.Body)
	}
	if a := h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{"error":"A"}}`).want(200); a.get("purged") != 1.0 {
		t.Fatalf("%s", a.Body)
	}
	if got := h.payloads("q"); !slices.Equal(got, []string{"2"}) {
		t.Fatal(got)
	}
	h.do("DELETE", "/v1/queues/q/dead/"+old[1], "", "Idempotency-Key: x").want(204)
	h.do("DELETE", "/v1/queues/q/dead/"+old[1], "", "Idempotency-Key: x").want(204)
	if a := h.do("DELETE", "/v1/queues/q/dead/"+old[1], "").want(404); a.str("code") != "message_not_found" || !strings.Contains(a.str("detail"), "purged") {
		t.Fatalf("%s", a.Body)
	}
	if got := h.payloads("q"); !slices.Equal(got, []string{"3"}) {
		t.Fatal(got)
	}
	if a := h.do("POST", "/v1/queues/q/dead/purge", `{"message_ids":["`+old[0]+`"]}`).want(404); a.get("index") != 0.0 {
		t.Fatalf("%s", a.Body)
	}
	// A key makes no queue be there, and helps one that repeats when it has gone.
	h.do("POST", "/v1/queues/nowhere/dead/purge", `{"filter":{}}`, "Idempotency-Key: y").wantProblem(404, "queue_not_found")
	first := h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{}}`, "Idempotency-Key: z").want(200)
	h.do("DELETE", "/v1/queues/q?force=true", "").want(204)
	h.do("DELETE", "/v1/queues/q.dlq?force=true", "").want(204)
	if again := h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{}}`, "Idempotency-Key: z").want(200); again.Body.String() != first.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%v %s", again.Header(), again.Body)
	}
}

// What somebody works on in the dead-letter queue is passed over.
func TestLeasedDead(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "unordered", "")
	h.put("q", "", "1")
	h.die("q", "e")
	h.do("POST", "/v1/queues/q.dlq/lease", "{}").want(200)
	id := h.dead("q", "", "id")[0]
	if a := h.do("POST", "/v1/queues/q/dead/replay", fmt.Sprintf(`{"message_ids":[%q]}`, id)).want(200); a.get("replayed") != 0.0 || a.str("skipped.0.code") != "leased" {
		t.Fatalf("%s", a.Body)
	}
	h.do("DELETE", "/v1/queues/q/dead/"+id, "").want(409)
	h.do("POST", "/admin/queues/q/dlq/"+id+"/replay", "").want(409)
}

// TestTask: what is more than fits one entry is done by a task.
func TestTask(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "per_key", `,"retention":{"max_depth":0}`)
	const n, keys = 1203, 7
	for i := 0; i < n; i += 400 {
		var b strings.Builder
		for j := i; j < min(i+400, n); j++ {
			fmt.Fprintf(&b, `,{"key":"k%d","payload":%d}`, j%keys, j)
		}
		h.do("POST", "/v1/queues/q/messages", `{"messages":[`+b.String()[1:]+`]}`).want(201)
	}
	for range n {
		h.die("q", "e")
	}
	a := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`, "Idempotency-Key: x").want(202)
	id := a.str("id")
	if a.Header().Get("Location") != "/v1/tasks/"+id || a.str("task_id") != id || a.str("type") != "replay" || a.get("total") != float64(n) {
		t.Fatalf("%v %s", a.Header(), a.Body)
	}
	a = h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200)
	if a.str("status") != "completed" || a.get("done") != float64(n) || a.get("skipped") != 0.0 || a.str("ended_at") == "" {
		t.Fatalf("%s", a.Body)
	}
	if b := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`, "Idempotency-Key: x").want(202); b.str("id") != id || b.Header().Get("Idempotent-Replayed") != "true" {
		t.Fatalf("%s", b.Body)
	}
	if got := h.dead("q", "", "id"); len(got) != 0 {
		t.Fatalf("%d left", len(got))
	}
	last := map[int]int{}
	for _, p := range h.payloads("q") {
		var i int
		fmt.Sscan(p, &i)
		if prev, ok := last[i%keys]; ok && prev+keys != i {
			t.Fatalf("%d after %d", i, prev)
		}
		last[i%keys] = i
	}
	for k, i := range last {
		if i+keys < n {
			t.Errorf("key %d ends at %d", k, i)
		}
	}
	h.do("DELETE", "/v1/tasks/"+id, "").want(409)
	h.do("POST", "/v1/tasks/"+id+"/resume", "").want(409)
	if got := h.do("GET", "/v1/tasks?status=completed&limit=1", "").want(200).each("tasks", "id"); !slices.Equal(got, []string{id}) {
		t.Fatal(got)
	}
	if got := h.do("GET", "/v1/tasks?status=running", "").want(200).each("tasks", "id"); len(got) != 0 {
		t.Fatal(got)
	}
	h.do("GET", "/v1/tasks/"+h.put("q", "", "1"), "").want(404)
	_ = m
}

// TestSlowTask is paced, cancelled, resumed and waits for room at its target.
func TestSlowTask(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "fifo", "")
	h.do("PUT", "/v1/queues/small", `{"ordering":"fifo","retention":{"max_depth":2}}`).want(201)
	const n = 6
	for i := range n {
		h.put("q", "", fmt.Sprint(i))
	}
	for range n {
		h.die("q", "e")
	}
	a := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{},"rate_per_second":1}`).want(202)
	id := a.str("id")
	if a.get("rate_per_second") != 1.0 || a.str("status") != "running" {
		t.Fatalf("%s", a.Body)
	}
	h.do("DELETE", "/v1/tasks/"+id, "").want(204)
	h.do("DELETE", "/v1/tasks/"+id, "").want(204)
	if a = h.do("GET", "/v1/tasks/"+id+"?wait_ms=10000", "").want(200); a.str("status") != "cancelled" {
		t.Fatalf("%s", a.Body)
	}
	left := len(h.dead("q", "", "id"))
	if left < n-2 {
		t.Fatalf("%d left of %d, at 1 a second", left, n)
	}
	// The others by another task, into a queue with little room.
	a = h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{},"to":"small","rate_per_second":3}`).want(202)
	second := a.str("id")
	var got []string
	for len(got) < left {
		got = append(got, h.leaseOne("small"))
	}
	if a = h.do("GET", "/v1/tasks/"+second+"?wait_ms=20000", "").want(200); a.str("status") != "completed" || a.get("done") != float64(left) {
		t.Fatalf("%s", a.Body)
	}
	if !slices.IsSorted(got) {
		t.Fatal(got)
	}
	h.do("POST", "/v1/tasks/"+id+"/resume", "").want(200)
	if a = h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200); a.str("status") != "completed" || a.get("done") != float64(n-left) {
		t.Fatalf("%s", a.Body)
	}
}

// leaseOne waits for a message, acks it and returns its payload.
func (h *harness) leaseOne(queue string) string {
	h.Helper()
	a := h.do("POST", "/v1/queues/"+queue+"/lease", `{"max_messages":1,"wait_ms":10000}`).want(200)
	lease := a.str("messages.0.lease_id")
	if lease == "" {
		h.Fatal("nothing came")
	}
	h.do("POST", "/v1/queues/"+queue+"/ack", fmt.Sprintf(`{"lease_ids":[%q]}`, lease)).want(200)
	return fmt.Sprint(a.get("messages.0.payload"))
}

// A task whose target is gone fails and says so.
func TestTaskFails(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "fifo", "")
	h.do("PUT", "/v1/queues/b", `{"retention":{"max_depth":1}}`).want(201)
	for i := range 3 {
		h.put("q", "", fmt.Sprint(i))
	}
	for range 3 {
		h.die("q", "e")
	}
	id := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{},"to":"b","rate_per_second":2}`).want(202).str("id")
	h.leaseOne("b")
	h.do("DELETE", "/v1/queues/b?force=true", "").want(204)
	a := h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200)
	if a.str("status") != "failed" || !strings.Contains(a.str("error"), "queue b does not exist") {
		t.Fatalf("%s", a.Body)
	}
}

// TestFirstDesign holds the shapes of contract.md section 8 literally.
func TestFirstDesign(t *testing.T) {
	h, m := onMachine(t)
	h.do("PUT", "/v1/queues/other", "").want(201)
	h.do("PUT", "/v1/queues/q", `{"namespace":"acme","delivery":{"dead_letter_queue":"other"}}`).want(201)
	for i := range 3 {
		h.put("q", "", fmt.Sprintf(`{"n":%d,"text":%q}`, i, strings.Repeat("ä", 300)))
	}
	first := h.die("q", "boom 0")
	m.pass(time.Second)
	h.die("q", "boom 1")
	a := h.do("GET", "/admin/queues?tenant_id=acme", "").want(200)
	if got, want := strings.TrimSpace(a.Body.String()), `{"queues":[{"name":"q","depth":1,"in_flight":0,"oldest_message_age_seconds":`; !strings.HasPrefix(got, want) {
		t.Fatalf("%s", got)
	}
	if !strings.HasSuffix(a.Body.String(), `,"messages_per_minute":0,"dlq_size":2}]}`) {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("GET", "/admin/queues/q/dlq", "").want(200)
	dead := h.dead("q", "", "id")
	if got := a.each("dead_letters", "id"); !slices.Equal(got, []string{dead[1], dead[0]}) {
		t.Fatalf("%v, want %v", got, dead)
	}
	at := h.do("GET", "/v1/queues/q/dead", "").str("dead.1.dead.failed_at")
	when, err := time.Parse(time.RFC3339, at)
	if err != nil {
		t.Fatal(err)
	}
	preview := a.str("dead_letters.0.preview")
	if a.get("dead_letters.0.failed_at") != float64(when.Unix()) || a.str("dead_letters.0.error") != "boom 1" || a.get("dead_letters.0.attempts") != 1.0 ||
		len([]rune(preview)) != 200 || !strings.HasPrefix(preview, `{"n":1,"text":"ä`) {
		t.Fatalf("%s", a.Body)
	}
	a = h.do("POST", "/admin/queues/q/dlq/"+first+"/replay", "").want(200)
	if id := a.str("new_message_id"); a.Body.String() != fmt.Sprintf(`{"ok":true,"new_message_id":%q}`, id) || len(id) != 26 {
		t.Fatalf("%s", a.Body)
	}
	if a = h.do("DELETE", "/admin/queues/q/dlq/"+dead[1], "").want(200); a.Body.String() != `{"ok":true}` {
		t.Fatalf("%s", a.Body)
	}
	if a = h.do("DELETE", "/admin/queues/q/dlq/"+dead[1], "").want(404); a.str("code") != "message_not_found" || a.str("outcome") != "not_applied" || a.str("field") != "message_id" {
		t.Fatalf("%s", a.Body)
	}
	h.do("GET", "/admin/queues/nowhere/dlq", "").want(404)
	h.do("POST", "/admin/queues/q/dlq/x/replay", "").want(400)
	h.do("GET", "/admin/queues?x=1", "").want(400)
}

// A task edits as a replay at once does, and passes over what does not fit.
func TestTaskEdits(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "fifo", "")
	h.do("PUT", "/v1/queues/b", `{"ordering":"fifo","message_schema":{"type":"object"}}`).want(201)
	for _, p := range []string{"1", `{"n":2}`, "3"} {
		h.put("q", "", p)
	}
	for range 3 {
		h.die("q", "e")
	}
	ids := h.dead("q", "", "id")
	id := h.do("POST", "/v1/queues/q/dead/replay", fmt.Sprintf(`{"filter":{},"to":"b","rate_per_second":2,"edit":{%q:{"payload":{"n":3}}}}`, ids[2])).want(202).str("id")
	if a := h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200); a.str("status") != "completed" || a.get("done") != 2.0 || a.get("skipped") != 1.0 {
		t.Fatalf("%s", a.Body)
	}
	if got := h.payloads("b"); !slices.Equal(got, []string{"map[n:2]", "map[n:3]"}) {
		t.Fatal(got)
	}
	if got := h.dead("q", "", "id"); !slices.Equal(got, ids[:1]) {
		t.Fatal(got)
	}
	// By name, and purged by a task where they are many: here one is enough to see both ways.
	id = h.do("POST", "/v1/queues/q/dead/replay", fmt.Sprintf(`{"message_ids":[%q],"rate_per_second":1}`, ids[0])).want(200).str("messages.0.new_message_id")
	if len(id) != 26 {
		t.Fatal(id)
	}
}

// TestPurgeTask: a purge of many is a task as well.
func TestPurgeTask(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "unordered", "")
	const n = 1001
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,{"payload":%d}`, i)
	}
	msgs := b.String()[1:]
	at := strings.LastIndex(msgs, ",")
	h.do("POST", "/v1/queues/q/messages", `{"messages":[`+msgs[:at]+`]}`).want(201)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[`+msgs[at+1:]+`]}`).want(201)
	for range n {
		h.die("q", "e")
	}
	if a := h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{},"dry_run":true}`).want(200); a.get("count") != float64(n) || len(a.each("messages", "message_id")) != dryMessages || len(a.each("sample", "id")) != drySample {
		t.Fatalf("%.300s", a.Body)
	}
	id := h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{}}`).want(202).str("task_id")
	if a := h.do("GET", "/v1/tasks/"+id+"?wait_ms=20000", "").want(200); a.str("status") != "completed" || a.str("type") != "purge" || a.get("done") != float64(n) {
		t.Fatalf("%s", a.Body)
	}
	if got := h.dead("q", "", "id"); len(got) != 0 {
		t.Fatal(len(got))
	}
}

// A repeated replay into a queue with a schema has nothing left to check against
// it: it gets its first answer.
func TestReplayTwiceIntoSchema(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "unordered", "")
	h.do("PUT", "/v1/queues/strict", `{"message_schema":{"type":"integer"}}`).want(201)
	h.put("q", "", "1")
	h.die("q", "e")
	body := fmt.Sprintf(`{"message_ids":[%q],"to":"strict"}`, h.dead("q", "", "id")[0])
	a := h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: a").want(200)
	b := h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: a").want(200)
	if a.get("replayed") != 1.0 || a.Body.String() != b.Body.String() || b.Header().Get("Idempotent-Replayed") != "true" {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
	h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: b").want(404)
}

// An Idempotency-Key that comes for the first time hides no mistake.
func TestReplayKeyHidesNothing(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "unordered", "")
	var gone []string
	for range 3 {
		h.put("q", "k", "1")
		gone = append(gone, h.die("q", "e"))
	}
	last := h.dead("q", "", "id")[2]
	h.do("POST", "/v1/queues/q/dead/purge", fmt.Sprintf(`{"message_ids":[%q,%q]}`, gone[0], gone[1])).want(200)
	before := m.proposals()
	for i, c := range []struct {
		body   string
		status int
	}{
		// As a task, which would not say that nothing of it is there.
		{fmt.Sprintf(`{"message_ids":[%q,%q],"rate_per_second":1}`, gone[0], gone[1]), 404},
		{fmt.Sprintf(`{"filter":{"key":"other"},"edit":{%q:{"payload":2}}}`, last), 400},
		{fmt.Sprintf(`{"filter":{},"edit":{%q:{"payload":2}}}`, gone[0]), 404},
		{`{"filter":{},"to":"nowhere"}`, 404},
	} {
		if a := h.do("POST", "/v1/queues/q/dead/replay", c.body, fmt.Sprint("Idempotency-Key: ", i)); a.Code != c.status || m.proposals() != before {
			t.Errorf("%s: %d %s", c.body, a.Code, a.Body)
		}
	}
	// And a task that began is told to who asks again, though nothing is left.
	h.put("q", "k", "1")
	h.die("q", "e")
	body := `{"filter":{},"rate_per_second":1}`
	a := h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: t").want(202)
	h.do("GET", "/v1/tasks/"+a.str("id")+"?wait_ms=20000", "").want(200)
	b := h.do("POST", "/v1/queues/q/dead/replay", body, "Idempotency-Key: t").want(202)
	if done := h.do("GET", "/v1/tasks/"+a.str("id"), "").want(200); a.Body.String() != b.Body.String() || done.get("done") != 2.0 {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
}

// Of tasks that have ended the state keeps a thousand; an answer is kept for a day.
func TestTaskIsToldAgainWhenItIsForgotten(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "unordered", "")
	for range 2 {
		h.put("q", "", "1")
		h.die("q", "e")
	}
	begin := func() answer {
		return h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{},"rate_per_second":1}`, "Idempotency-Key: a").want(202)
	}
	a := begin()
	h.do("DELETE", "/v1/tasks/"+a.str("id"), "").want(204)
	for range 1000 {
		res, err := m.Propose(t.Context(), &event.Command{CreateTask: &event.CreateTask{Kind: event.TaskErase}})
		if err == nil {
			_, err = m.Propose(t.Context(), &event.Command{UpdateTask: &event.UpdateTask{ID: res.ID, Op: event.TaskOpFail}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h.do("GET", "/v1/tasks/"+a.str("id"), "").want(404)
	if b := begin(); a.Body.String() != b.Body.String() {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
}

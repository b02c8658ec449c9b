package api

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// why explains, and returns the codes.
func (h *harness) why(queue, query string) (answer, []string) {
	h.Helper()
	a := h.do("GET", "/v1/queues/"+queue+"/explain"+query, "").want(200)
	return a, a.each("reasons", "code")
}

func TestExplain(t *testing.T) {
	h, m := onMachine(t)
	h.do("PUT", "/v1/queues/q", `{"ordering":"per_key","delivery":{"dead_letter_queue":"auto","on_dead":"hold_key","max_attempts":3}}`).want(201)
	if a, codes := h.why("q", ""); !slices.Equal(codes, []string{"not_in_queue"}) || a.get("message_id") != nil || a.get("key") != nil || a.get("deliverable") != false {
		t.Fatalf("%s", a.Body)
	}
	first := h.put("q", "k", "1")
	second := h.put("q", "k", "2")
	if a, codes := h.why("q", "?key=k"); !slices.Equal(codes, []string{"no_waiting_worker"}) || a.str("message_id") != first || a.get("deliverable") != true || a.get("reasons.0.waiters") != 0.0 {
		t.Fatalf("%s", a.Body)
	}
	if a, codes := h.why("q", "?message_id="+second); !slices.Equal(codes, []string{"behind_message"}) || a.str("reasons.0.message_id") != first || a.str("reasons.0.state") != "ready" || a.str("key") != "k" {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/q/pause", "").want(200)
	if a, codes := h.why("q", "?message_id="+first); !slices.Equal(codes, []string{"queue_paused"}) || a.get("deliverable") != false {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/q/resume", "").want(200)

	l := h.do("POST", "/v1/queues/q/lease", `{"max_messages":1,"worker":"host-1"}`).want(200)
	lease, until := l.str("messages.0.lease_id"), l.str("messages.0.lease_expires_at")
	if a, codes := h.why("q", "?message_id="+first); !slices.Equal(codes, []string{"leased"}) || a.str("reasons.0.lease_id") != lease || a.str("reasons.0.worker") != "host-1" || a.str("reasons.0.until") != until {
		t.Fatalf("%s", a.Body)
	}
	if a, codes := h.why("q", "?message_id="+second); !slices.Equal(codes, []string{"behind_message"}) || a.str("reasons.0.state") != "leased" || a.str("reasons.0.lease_id") != lease || a.str("reasons.0.worker") != "host-1" {
		t.Fatalf("%s", a.Body)
	}
	if a, codes := h.why("q", "?key=k"); !slices.Equal(codes, []string{"leased"}) || a.str("message_id") != first {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/q/retry", fmt.Sprintf(`{"items":[{"lease_id":%q,"delay_ms":60000}]}`, lease)).want(200)
	if a, codes := h.why("q", "?key=k"); !slices.Equal(codes, []string{"scheduled"}) || a.str("message_id") != first || !strings.Contains(a.str("reasons.0.text"), "attempt 1 failed") {
		t.Fatalf("%s", a.Body)
	}
	if a, codes := h.why("q", "?message_id="+second); !slices.Equal(codes, []string{"behind_message"}) || a.str("reasons.0.state") != "scheduled" || a.str("reasons.0.until") == "" {
		t.Fatalf("%s", a.Body)
	}
	m.pass(2 * time.Minute)
	h.die("q", "e")
	dead := h.dead("q", "", "id")[0]
	for _, query := range []string{"?key=k", "?message_id=" + second} {
		if a, codes := h.why("q", query); !slices.Equal(codes, []string{"held_by_dead"}) || !slices.Equal([]any{dead}, a.get("reasons.0.message_ids").([]any)) || a.get("deliverable") != false {
			t.Fatalf("%s: %s", query, a.Body)
		}
	}
	if a, codes := h.why("q", "?message_id="+first); !slices.Equal(codes, []string{"not_in_queue"}) || !strings.Contains(a.str("reasons.0.text"), "it died in queue q and is in queue q.dlq as "+dead) {
		t.Fatalf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{}}`).want(200)
	if a, codes := h.why("q", "?message_id="+first); !slices.Equal(codes, []string{"not_in_queue"}) || !strings.Contains(a.str("reasons.0.text"), "discarded (purged)") {
		t.Fatalf("%s", a.Body)
	}
	h.payloads("q")
	delayed := h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":3,"key":"late & later","delay_ms":60000}]}`).want(201).str("messages.0.id")
	if a, codes := h.why("q", "?key="+url.QueryEscape("late & later")); !slices.Equal(codes, []string{"scheduled"}) || a.str("message_id") != delayed || !strings.Contains(a.str("reasons.0.text"), "delay") {
		t.Fatalf("%s", a.Body)
	}
	if _, codes := h.why("q", "?key=none"); !slices.Equal(codes, []string{"not_in_queue"}) {
		t.Fatal(codes)
	}
	if _, codes := h.why("q", "?message_id="+unknownID); !slices.Equal(codes, []string{"not_in_queue"}) {
		t.Fatal(codes)
	}
	h.do("GET", "/v1/queues/q/explain?key=a&message_id="+first, "").want(400)
	h.do("GET", "/v1/queues/q/explain?message_id=x", "").want(400)
	h.do("GET", "/v1/queues/nowhere/explain", "").want(404)
}

// Leases that wait are counted here and at the other nodes, by what they take.
func TestExplainCountsWaiters(t *testing.T) {
	h, _ := onMachine(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.node.askOthers = func(_ context.Context, name string, body []byte) [][]byte {
		answer, err := h.s.Answers()[name](t.Context(), body)
		if err != nil {
			t.Error(err)
		}
		return [][]byte{answer, []byte("x"), []byte("2")}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.do("POST", "/v1/queues/q/lease", `{"wait_ms":20000,"kinds":["red"]}`)
	}()
	for h.s.waiters.count("q", "red") == 0 {
		time.Sleep(time.Millisecond)
	}
	if n := h.s.clusterWaiters(t.Context(), "q", "red"); n != 4 { // this node is asked twice
		t.Errorf("%d wait", n)
	}
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"kind":"blue"}]}`).want(201)
	if a, codes := h.why("q", ""); !slices.Equal(codes, []string{"ready"}) || a.get("reasons.0.waiters") != 2.0 {
		t.Errorf("%s", a.Body)
	}
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"kind":"red"}]}`).want(201)
	<-done
}

package api

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// why explains, and fails unless the one reason has this code.
func (h *harness) why(queue, query, code string) answer {
	h.Helper()
	a := h.do("GET", "/v1/queues/"+queue+"/explain"+query, "").want(200)
	return a.with("reasons.0.code", code, "reasons.1", nil)
}

// saying fails unless the text of the reason contains part.
func (a answer) saying(part string) {
	a.t.Helper()
	if !strings.Contains(a.str("reasons.0.text"), part) {
		a.t.Fatalf("does not say %q: %s", part, a.Body)
	}
}

func TestExplain(t *testing.T) {
	h, m := onMachine(t)
	h.do("PUT", "/v1/queues/q", `{"ordering":"per_key","delivery":{"dead_letter_queue":"auto",
		"on_dead":"hold_key","max_attempts":3}}`).want(201)
	h.why("q", "", "not_in_queue").with("message_id", nil, "key", nil, "deliverable", false)
	first := h.put("q", "k", "1")
	second := h.put("q", "k", "2")
	one, two := "?message_id="+first, "?message_id="+second
	h.why("q", "?key=k", "no_waiting_worker").with("message_id", first, "deliverable", true,
		"reasons.0.waiters", 0.0)
	h.why("q", two, "behind_message").with("reasons.0.message_id", first,
		"reasons.0.state", "ready", "key", "k")
	h.do("POST", "/v1/queues/q/pause", "").want(200)
	h.why("q", one, "queue_paused").with("deliverable", false)
	h.do("POST", "/v1/queues/q/resume", "").want(200)

	l := h.do("POST", "/v1/queues/q/lease", `{"max_messages":1,"worker":"host-1"}`).want(200)
	lease, until := l.str("messages.0.lease_id"), l.str("messages.0.lease_expires_at")
	h.why("q", one, "leased").with("reasons.0.lease_id", lease, "reasons.0.worker", "host-1",
		"reasons.0.until", until)
	h.why("q", two, "behind_message").with("reasons.0.state", "leased",
		"reasons.0.lease_id", lease, "reasons.0.worker", "host-1")
	h.why("q", "?key=k", "leased").with("message_id", first)
	h.do("POST", "/v1/queues/q/retry",
		fmt.Sprintf(`{"items":[{"lease_id":%q,"delay_ms":60000}]}`, lease)).want(200)
	h.why("q", "?key=k", "scheduled").with("message_id", first).saying("attempt 1 failed")
	if h.why("q", two, "behind_message").with("reasons.0.state", "scheduled").
		str("reasons.0.until") == "" {
		t.Fatal("does not say until when")
	}
	m.pass(2 * time.Minute)
	h.die("q", "e")
	dead := h.dead("q", "", "id")[0]
	for _, query := range []string{"?key=k", two} {
		h.why("q", query, "held_by_dead").with("deliverable", false,
			"reasons.0.message_ids.0", dead, "reasons.0.message_ids.1", nil)
	}
	h.why("q", one, "not_in_queue").saying("it died in queue q and is in queue q.dlq as " + dead)
	h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{}}`).want(200)
	h.why("q", one, "not_in_queue").saying("discarded (purged)")
	h.payloads("q")
	delayed := h.do("POST", "/v1/queues/q/messages",
		`{"messages":[{"payload":3,"key":"late & later","delay_ms":60000}]}`).want(201)
	h.why("q", "?key="+url.QueryEscape("late & later"), "scheduled").
		with("message_id", delayed.str("messages.0.id")).saying("delay")
	h.why("q", "?key=none", "not_in_queue")
	h.why("q", "?message_id="+unknownID, "not_in_queue")
	h.do("GET", "/v1/queues/q/explain?key=a&message_id="+first, "").want(400)
	h.do("GET", "/v1/queues/q/explain?message_id=x", "").want(400)
	h.do("GET", "/v1/queues/nowhere/explain", "").want(404)
}

// Leases that wait are counted here and at the other nodes, by what they take.
func TestExplainCountsWaiters(t *testing.T) { synctest.Test(t, explainCountsWaiters) }

func explainCountsWaiters(t *testing.T) {
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
	synctest.Wait()                                               // it waits
	if n := h.s.clusterWaiters(t.Context(), "q", "red"); n != 4 { // this node is asked twice
		t.Errorf("%d wait", n)
	}
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"kind":"blue"}]}`).want(201)
	h.why("q", "", "ready").with("reasons.0.waiters", 2.0)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1,"kind":"red"}]}`).want(201)
	<-done
}

package api

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// TestAckAndProduce: acks and what follows from them are one entry, or nothing.
func TestAckAndProduce(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("PUT", "/v1/queues/next", "").want(201)
	h.do("PUT", "/v1/queues/other", "").want(201)
	take := func(queue string) string {
		h.do("POST", "/v1/queues/"+queue+"/messages", oneMessage).want(201)
		return h.do("POST", "/v1/queues/"+queue+"/lease", `{"max_messages":1}`).want(200).str("messages.0.lease_id")
	}
	next := `"produce":[{"queue":"next","messages":[{"payload":{"a":1},"key":"k"},{"payload":2}]}]`

	l := take("q")
	a := h.do("POST", "/v1/queues/q/ack", `{"lease_ids":["`+l+`"],"result":1,`+next+`}`, "Idempotency-Key: once").want(200)
	if a.str("results.0.status") != "acked" || a.str("results.0.lease_id") != l || a.str("messages.1.status") != "enqueued" || a.str("messages.0.id") == "" {
		t.Fatalf("%s", a.Body)
	}
	if again := h.do("POST", "/v1/queues/q/ack", `{"lease_ids":["`+l+`"],"result":1,`+next+`}`, "Idempotency-Key: once").want(200); again.Body.String() != a.Body.String() {
		t.Errorf("%s, then %s", a.Body, again.Body)
	}
	depth := func(want float64) {
		t.Helper()
		assert.Equal(t, h.do("GET", "/v1/queues/next", "").want(200).get("stats.depth"), any(want),
			"next holds")
	}
	depth(2)
	l = take("q")
	a = h.do("POST", "/v1/leases/"+l+"/ack", `{`+next+`}`).want(200)
	if a.str("results.0.status") != "acked" || a.str("messages.0.status") != "enqueued" {
		t.Errorf("%s", a.Body)
	}
	depth(4)

	good, foreign := take("q"), take("other")
	for name, c := range map[string]struct {
		path, body, code, field string
		status                  int
		index                   any
	}{
		"lost":            {"/v1/queues/q/ack", `{"lease_ids":["` + good + `","` + l + `"],` + next + `}`, "lease_lost", "lease_ids", 409, 1.0},
		"never was":       {"/v1/queues/q/ack", `{"lease_ids":["` + good + `","` + aULID + `"],` + next + `}`, "lease_lost", "lease_ids", 409, 1.0},
		"of another":      {"/v1/queues/q/ack", `{"lease_ids":["` + foreign + `"],` + next + `}`, "lease_lost", "lease_ids", 409, 0.0},
		"one lost":        {"/v1/leases/" + l + "/ack", `{` + next + `}`, "lease_lost", "lease_id", 409, nil},
		"no such queue":   {"/v1/queues/q/ack", `{"lease_ids":["` + good + `"],"produce":[{"queue":"nope","messages":[{"payload":1}]}]}`, "queue_not_found", "produce.queue", 404, 0.0},
		"bad queue":       {"/v1/queues/q/ack", `{"lease_ids":["` + good + `"],"produce":[{"queue":"a b","messages":[{"payload":1}]}]}`, "invalid_argument", "produce.queue", 400, 0.0},
		"bad message":     {"/v1/leases/" + good + "/ack", `{"produce":[{"queue":"next","messages":[{"payload":1},{"payload":1,"priority":11}]}]}`, "invalid_argument", "produce[0].messages.priority", 400, 1.0},
		"no messages":     {"/v1/leases/" + good + "/ack", `{"produce":[{"queue":"next","messages":[]}]}`, "invalid_argument", "produce[0].messages", 400, nil},
		"twice":           {"/v1/queues/q/ack", `{"lease_ids":["` + good + `","` + good + `"],` + next + `}`, "invalid_argument", "lease_ids", 400, 1.0},
		"unknown field":   {"/v1/leases/" + good + "/ack", `{"produce":[{"queue":"next","message":[]}]}`, "invalid_argument", "produce[0].message", 400, nil},
		"too many of all": {"/v1/queues/q/ack", `{"lease_ids":["` + good + `"],"produce":[{"queue":"next","messages":[` + strings.Repeat(`{"payload":1},`, 999) + `{"payload":1}]}]}`, "invalid_argument", "produce", 400, nil},
	} {
		a := h.do("POST", c.path, c.body).want(c.status)
		if a.str("code") != c.code || a.str("field") != c.field || a.get("index") != c.index {
			t.Errorf("%s: %s, want %s of %s at %v", name, a.Body, c.code, c.field, c.index)
		}
	}
	depth(4)
	if a := h.do("GET", "/v1/queues/q", "").want(200); a.get("stats.in_flight") != 1.0 {
		t.Errorf("something was acked: %s", a.Body)
	}
	// None is an ack as ever.
	if a := h.do("POST", "/v1/queues/q/ack", `{"lease_ids":["`+good+`","`+l+`"],"produce":[]}`).want(200); a.str("results.1.status") != "acked" && a.str("results.1.status") != "rejected" || a.get("messages") != nil {
		t.Errorf("%s", a.Body)
	}
}

// TestAckAndProduceNeedsBoth: a token that may not produce there acks nothing.
func TestAckAndProduceNeedsBoth(t *testing.T) {
	h, tok, _, _ := withAuth(t, "admin", "consume *", "produce,consume a.*")
	admin := tok["admin"]
	for _, q := range []string{"a.1", "b"} {
		h.as(admin, "PUT", "/v1/queues/"+q, "").want(201)
	}
	h.as(admin, "POST", "/v1/queues/a.1/messages", oneMessage).want(201)
	lease := h.as(admin, "POST", "/v1/queues/a.1/lease", `{}`).want(200).str("messages.0.lease_id")
	to := func(queue string) string { return `"produce":[{"queue":"` + queue + `","messages":[{"payload":1}]}]` }
	for _, who := range []string{"consume *", "produce,consume a.*"} {
		h.as(tok[who], "POST", "/v1/queues/a.1/ack", `{"lease_ids":["`+lease+`"],`+to("b")+`}`).want(403)
		h.as(tok[who], "POST", "/v1/leases/"+lease+"/ack", `{`+to("b")+`}`).want(403)
	}
	h.as(tok["produce,consume a.*"], "POST", "/v1/leases/"+lease+"/ack", `{`+to("a.1")+`}`).want(200)
}

// pushes is a Push that takes some URLs.
type pushes struct{ reason *wire.PushReason }

func (p pushes) Check(v *wire.Push) error {
	if !strings.HasPrefix(v.URL, "https://") {
		return event.Problemf(event.CodeInvalidArgument, "push.url", "push.url must be https")
	}
	v.TimeoutMS = 7
	return nil
}

func (p pushes) Reason(string) *wire.PushReason { return p.reason }

func (p pushes) Unready() []string { return []string{"secret_missing: push of queue q: x"} }

// TestPushPolicy: push is checked, told, replaced whole, and taken away.
func TestPushPolicy(t *testing.T) {
	h := setup(t)
	h.s.deps.Push = pushes{}
	h.do("PUT", "/v1/queues/answers", "").want(201)
	a := h.do("PUT", "/v1/queues/q", `{"push":{"url":"https://a/","secret_env":"A","answer_to":"answers"}}`).want(201)
	want := map[string]any{"url": "https://a/", "timeout_ms": 7.0, "max_in_flight": 0.0, "rate_per_second": 0.0, "format": "", "secret_env": "A", "answer_to": "answers"}
	assert.Equal(t, cmp.Diff(want, a.get("push")), "")
	h.do("PATCH", "/v1/queues/q", `{"description":"d"}`).want(200)
	if a := h.do("GET", "/v1/queues/q", "").want(200); a.str("push.answer_to") != "answers" {
		t.Errorf("a merge lost it: %s", a.Body)
	}
	if a := h.do("PATCH", "/v1/queues/q", `{"push":{"url":"https://b/"}}`).want(200); a.str("push.url") != "https://b/" || a.get("push.answer_to") != nil {
		t.Errorf("not replaced whole: %s", a.Body)
	}
	if a := h.do("PATCH", "/v1/queues/q", `{"push":null}`).want(200); a.get("push") != nil {
		t.Errorf("not taken away: %s", a.Body)
	}
	for body, field := range map[string]string{
		`{"push":{"url":"http://a/"}}`:                             "push.url",
		`{"push":{"url":"https://a/","uri":1}}`:                    "push.uri",
		`{"push":{"url":"https://a/","timeout_ms":"1"}}`:           "push.timeout_ms",
		`{"push":{"url":"https://a/","answer_to":"nope"}}`:         "push.answer_to",
		`{"push":{"url":"https://a/","answer_to":"q"}}`:            "push.answer_to",
		`{"push":{"url":"https://a/","input":{"a":1}}}`:            "push.input.a",
		`{"push":{"url":"https://a/","headers":{"a":["b"]}}}`:      "push.headers.a",
		`{"push":"https://a/"}`:                                    "push",
		`{"push":{"url":"https://a/","url":"https://b/"}}`:         "push",
		`{"push":{"url":"https://a/","rate_per_second":"many"}}`:   "push.rate_per_second",
		`{"push":{"url":"https://a/","max_in_flight":1.5}}`:        "push.max_in_flight",
		`{"push":{"url":"https://a/","secret_file":{"a":"b"}}}`:    "push.secret_file",
		`{"push":{"url":"https://a/","secret_env":["A",{"b":1}]}}`: "push.secret_env[1]",
	} {
		for _, method := range []string{"PUT", "PATCH"} {
			if a := h.do(method, "/v1/queues/q", body).want(400); !strings.HasPrefix(a.str("field"), field) {
				t.Errorf("%s %s: %s", method, body, a.Body)
			}
		}
	}
	if got := h.do("GET", "/readyz", "").want(200).str("reasons.0"); !strings.HasPrefix(got, "secret_missing") {
		t.Errorf("readyz: %q", got)
	}
}

// TestAnswersInACircle: answers that come back are refused, in a call of their own
// and in a document.
func TestAnswersInACircle(t *testing.T) {
	h := setup(t)
	h.s.deps.Push = pushes{}
	push := func(to string) string { return `"push":{"url":"https://a/","answer_to":"` + to + `"}` }
	for _, name := range []string{"a", "b", "c", "end"} {
		h.do("PUT", "/v1/queues/"+name, "").want(201)
	}
	h.do("PATCH", "/v1/queues/c", "{"+push("end")+"}").want(200)
	h.do("PATCH", "/v1/queues/b", "{"+push("c")+"}").want(200)
	h.do("PATCH", "/v1/queues/a", "{"+push("b")+"}").want(200)
	for _, method := range []string{"PUT", "PATCH"} {
		h.do(method, "/v1/queues/c", "{"+push("a")+"}").want(400).refused("invalid_argument", "push.answer_to")
	}
	h.do("PUT", "/v1/definitions", `{"queues":[{"name":"c",`+push("a")+`}]}`).want(400).refused("invalid_argument", "queues[0].push.answer_to")
	a := h.do("PUT", "/v1/definitions", `{"queues":[{"name":"x",`+push("y")+`},{"name":"y",`+push("x")+`}]}`).want(400)
	if a.str("errors.0.field") != "queues[0].push.answer_to" || a.str("errors.1.field") != "queues[1].push.answer_to" {
		t.Error(a.Body)
	}
	// What opens the circle in the same document may stand anywhere.
	h.do("PUT", "/v1/definitions?dry_run=true", `{"queues":[{"name":"c",`+push("a")+`},{"name":"b"}]}`).want(200)
}

// TestSettleHereCountsLostLeases as it does those of workers.
func TestSettleHereCountsLostLeases(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/answers", "").want(201)
	lost := event.SettleItem{Op: event.OpAck, Lease: event.NewID(1, 1, 0)}
	if v, err := h.s.SettleHere(t.Context(), "push", lost, "", nil); err != nil || v.Status != event.StatusRejected {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := h.s.SettleHere(t.Context(), "push", lost, "answers", &wire.NewMessage{Payload: []byte("1")}); err == nil {
		t.Errorf("%+v", v)
	}
	if told := h.do("GET", "/metrics", "").want(200).Body.String(); !strings.Contains(told, "\nqlogd_lease_lost_total 2\n") {
		t.Error("they are not counted")
	}
}

// TestPushReason: who does not lead asks who does.
func TestPushReason(t *testing.T) {
	h := setup(t)
	down := &wire.PushReason{Code: "push_target_down", Detail: "d", LastError: "e", NextProbe: 1000}
	h.s.deps.Push = pushes{down}
	v := &event.QueueView{Name: "q"}
	if r := h.s.PushReason(t.Context(), v); r != nil {
		t.Errorf("a queue without push: %+v", r)
	}
	v.Policy.Push = []byte(`{"url":"https://a/"}`)
	assert.Equal(t, h.s.PushReason(t.Context(), v), down)
	leader := setup(t)
	leader.s.deps.Push = pushes{down}
	h.s.deps.Push = pushes{}
	h.node.leader = "elsewhere"
	h.node.askLeader = func(ctx context.Context, name string, body []byte) ([]byte, error) {
		if name != askPush || string(body) != `"q"` {
			t.Errorf("asked %s %q", name, body)
		}
		return leader.s.Answers()[name](ctx, body)
	}
	if r := h.s.PushReason(t.Context(), v); !cmp.Equal(r, down) {
		t.Errorf("%+v", r)
	}
	leader.s.deps.Push = pushes{}
	if r := h.s.PushReason(t.Context(), v); r != nil {
		t.Errorf("%+v", r)
	}
}

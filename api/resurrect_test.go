package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestResurrect(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", "")
	acked := h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":{"n":1},"key":"k",
		"kind":"x","priority":2,"headers":{"h":"v"}}]}`).want(201).str("messages.0.id")
	resurrect := func(id, body string, headers ...string) answer {
		t.Helper()
		return h.do("POST", "/v1/messages/"+id+"/resurrect", body, headers...)
	}
	resurrect(acked, "").want(409).with("code", "conflict", "outcome", "not_applied")
	h.payloads("q")
	a := resurrect(acked, "", "Idempotency-Key: a").want(201).with("message_id", acked, "queue", "q")
	resurrect(acked, "", "Idempotency-Key: a").repeats(a)
	h.do("GET", "/v1/messages/"+a.str("new_message_id"), "").want(200).with("key", "k", "kind", "x",
		"priority", 2.0, "headers.h", "v", "payload.n", 1.0, "origin.from_message_id", acked)

	// By the id before it died: it is what was purged, and goes where it died.
	h.payloads("q")
	old := h.put("q", "k", `{"n":2}`)
	h.die("q", "e")
	resurrect(old, "").want(409)
	h.purge(`{"filter":{}}`).want(200)
	resurrect(old, `{"edit":{"payload":{"n":3}}}`).want(201).with("queue", "q")
	same(t, h.payloads("q"), "map[n:3]")
	h.do("GET", "/v1/messages/"+old+"/edits", "").want(200).with("edits.0.type", "resurrected",
		"edits.0.changes.0.old", 2.0, "edits.0.changes.0.value", 3.0)

	h.do("PUT", "/v1/queues/strict", `{"message_schema":{"type":"string"}}`).want(201)
	resurrect(acked, `{"queue":"strict"}`).want(400)
	resurrect(acked, `{"queue":"strict","edit":{"payload":"x"}}`).want(201)
	resurrect(acked, `{"queue":".."}`).want(400).with("field", "queue")
	resurrect(acked, `{"edit":{}}`).want(400).with("field", "edit")
	resurrect(acked, `{"x":1}`).want(400).with("field", "x")
	// Not again while what it became exists, even dead; a repeated request has the first answer.
	resurrect(acked, "").want(409)
	h.payloads("strict")
	a = resurrect(acked, "", "Idempotency-Key: b").want(201)
	h.die("q", "e")
	resurrect(acked, "").want(409)
	resurrect(acked, "", "Idempotency-Key: c").want(409)
	resurrect(acked, "", "Idempotency-Key: b").repeats(a)
	h.replay(`{"filter":{}}`).want(200)
	resurrect(acked, "").want(409)
	h.payloads("q")
	resurrect(acked, `{"queue":"nowhere"}`).want(404)
	resurrect(unknownID, "").want(404)
	h.do("GET", "/v1/messages/"+unknownID+"/edits", "").want(404)
	h.do("GET", "/v1/messages/"+h.put("q", "", "1")+"/edits", "").want(200).with("edits.0", nil)
}

func TestImport(t *testing.T) {
	h, _ := onMachine(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	url := "/v1/queues/q/messages/import"
	a := h.do("POST", url, `{"messages":[{"payload":1,"source_id":"a","key":"k"},
		{"payload":2,"source_id":"b"}]}`).want(201).with("imported", 2.0, "ignored", 0.0)
	same(t, a.each("messages", "source_id"), "a", "b")
	h.do("POST", url, `{"messages":[{"payload":9,"source_id":"b"},{"payload":3,"source_id":"c"}]}`).
		want(201).with("imported", 1.0, "ignored", 1.0, "messages.0.status", "duplicate",
		"messages.0.id", a.str("messages.1.id"))
	again := `{"messages":[{"payload":9,"source_id":"a"}]}`
	h.do("POST", url, again).want(200)
	m := h.do("GET", "/v1/queues/q/messages", "").want(200).with("messages.0.key", "k")
	same(t, m.each("messages", "source_id"), "a", "b", "c")
	e := h.do("GET", "/v1/events?type=enqueued", "").want(200)
	same(t, e.each("events", "source_id"), "a", "b", "c")
	same(t, h.payloads("q"), "1", "2", "3")
	// Also once it has left, and a message's idempotency_key is another thing.
	h.do("POST", url, again).want(200)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":4,"idempotency_key":"a"}]}`).
		want(201)
	for body, field := range map[string]string{
		`{}`:                           "messages",
		`{"messages":[]}`:              "messages",
		`{"messages":[{"payload":1}]}`: "source_id",
		`{"messages":[{"payload":1,"source_id":""}]}`:                                 "source_id",
		`{"messages":[{"payload":1,"source_id":"` + strings.Repeat("x", 257) + `"}]}`: "source_id",
		`{"messages":[{"payload":1,"source_id":"x","idempotency_key":"y"}]}`:          "idempotency_key",
		`{"messages":[{"payload":1,"source_id":"x","priority":11}]}`:                  "priority",
		`{"messages":[{"source_id":"x"}]}`:                                            "payload",
	} {
		h.do("POST", url, body).want(400).with("field", field)
	}
	h.do("POST", "/v1/queues/nowhere/messages/import",
		`{"messages":[{"payload":1,"source_id":"a"}]}`).want(404)
}

func TestJSONPatch(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{`1`, `1`, ``},
		{`1`, `1.0`, `replace  1.0`},
		{`"é"`, `"\u00e9"`, ``},
		{`{"a":1,"b":{"c":[1,2,3]},"~/":null}`, `{"b":{"c":[1,4],"d":true},"~/":0}`,
			`remove /a ;replace /b/c/1 4;remove /b/c/2 ;add /b/d true;replace /~0~1 0`},
		{`[]`, `[1,{"a":2}]`, `add /0 1;add /1 {"a":2}`},
		{`{"a":[1]}`, `{"a":{"0":1}}`, `replace /a {"0":1}`},
		{`null`, `false`, `replace  false`},
		{`{"a" : [ 1 ]}`, `{"a":[1]}`, ``},
	} {
		got := jsonPatch(jsontext.Value(c.before), jsontext.Value(c.after))
		var words []string
		for _, ch := range got {
			words = append(words, fmt.Sprintf("%s %s %s", ch.Op, ch.Path, string(ch.Value)))
		}
		assert.Equal(t, strings.Join(words, ";"), c.want, "%s to %s", c.before, c.after)
	}
	var long strings.Builder
	for i := range maxChanges + 1 {
		fmt.Fprintf(&long, ",%d", i)
	}
	got := jsonPatch(jsontext.Value(`[]`), jsontext.Value("["+long.String()[1:]+"]"))
	if len(got) != 1 || got[0].Op != "replace" || got[0].Path != "" {
		t.Errorf("%d changes", len(got))
	}
}

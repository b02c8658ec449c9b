package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestResurrect(t *testing.T) {
	h, _ := onMachine(t)
	h.queue("q", "per_key", "")
	acked := h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":{"n":1},"key":"k","kind":"x","priority":2,"headers":{"h":"v"}}]}`).want(201).str("messages.0.id")
	if a := h.do("POST", "/v1/messages/"+acked+"/resurrect", "").want(409); a.str("code") != "conflict" || a.str("outcome") != "not_applied" {
		t.Fatalf("%s", a.Body)
	}
	h.payloads("q")
	a := h.do("POST", "/v1/messages/"+acked+"/resurrect", "", "Idempotency-Key: a").want(201)
	if a.str("message_id") != acked || a.str("queue") != "q" || len(a.str("new_message_id")) != 26 {
		t.Fatalf("%s", a.Body)
	}
	if b := h.do("POST", "/v1/messages/"+acked+"/resurrect", "", "Idempotency-Key: a").want(201); b.Body.String() != a.Body.String() {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
	m := h.do("GET", "/v1/messages/"+a.str("new_message_id"), "").want(200)
	if m.str("key") != "k" || m.str("kind") != "x" || m.get("priority") != 2.0 || m.str("headers.h") != "v" || m.get("payload.n") != 1.0 || m.str("origin.from_message_id") != acked {
		t.Fatalf("%s", m.Body)
	}

	// By the id before it died: it is what was purged, and goes where it died.
	h.payloads("q")
	old := h.put("q", "k", `{"n":2}`)
	h.die("q", "e")
	h.do("POST", "/v1/messages/"+old+"/resurrect", "").want(409)
	h.do("POST", "/v1/queues/q/dead/purge", `{"filter":{}}`).want(200)
	a = h.do("POST", "/v1/messages/"+old+"/resurrect", `{"edit":{"payload":{"n":3}}}`).want(201)
	if a.str("queue") != "q" {
		t.Fatalf("%s", a.Body)
	}
	if got := h.payloads("q"); !slices.Equal(got, []string{"map[n:3]"}) {
		t.Fatal(got)
	}
	e := h.do("GET", "/v1/messages/"+old+"/edits", "").want(200)
	if e.str("edits.0.type") != "resurrected" || e.get("edits.0.changes.0.old") != 2.0 || e.get("edits.0.changes.0.value") != 3.0 {
		t.Fatalf("%s", e.Body)
	}

	h.do("PUT", "/v1/queues/strict", `{"message_schema":{"type":"string"}}`).want(201)
	h.do("POST", "/v1/messages/"+acked+"/resurrect", `{"queue":"strict"}`).want(400)
	h.do("POST", "/v1/messages/"+acked+"/resurrect", `{"queue":"strict","edit":{"payload":"x"}}`).want(201)
	for body, field := range map[string]string{`{"queue":".."}`: "queue", `{"edit":{}}`: "edit", `{"x":1}`: "x"} {
		if a := h.do("POST", "/v1/messages/"+acked+"/resurrect", body).want(400); a.str("field") != field {
			t.Errorf("%s: %s", body, a.Body)
		}
	}
	// Not again while what it became is there, were it dead; what was asked twice is told twice.
	h.do("POST", "/v1/messages/"+acked+"/resurrect", "").want(409)
	h.payloads("strict")
	a = h.do("POST", "/v1/messages/"+acked+"/resurrect", "", "Idempotency-Key: b").want(201)
	h.die("q", "e")
	h.do("POST", "/v1/messages/"+acked+"/resurrect", "").want(409)
	h.do("POST", "/v1/messages/"+acked+"/resurrect", "", "Idempotency-Key: c").want(409)
	if b := h.do("POST", "/v1/messages/"+acked+"/resurrect", "", "Idempotency-Key: b").want(201); b.Body.String() != a.Body.String() {
		t.Fatalf("%s, then %s", a.Body, b.Body)
	}
	h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`).want(200)
	h.do("POST", "/v1/messages/"+acked+"/resurrect", "").want(409)
	h.payloads("q")
	h.do("POST", "/v1/messages/"+acked+"/resurrect", `{"queue":"nowhere"}`).want(404)
	h.do("POST", "/v1/messages/"+unknownID+"/resurrect", "").want(404)
	h.do("GET", "/v1/messages/"+unknownID+"/edits", "").want(404)
	if e := h.do("GET", "/v1/messages/"+h.put("q", "", "1")+"/edits", "").want(200); e.Body.String() != `{"edits":[]}` {
		t.Fatalf("%s", e.Body)
	}
}

func TestImport(t *testing.T) {
	h, _ := onMachine(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	url := "/v1/queues/q/messages/import"
	a := h.do("POST", url, `{"messages":[{"payload":1,"source_id":"a","key":"k"},{"payload":2,"source_id":"b"}]}`).want(201)
	if a.get("imported") != 2.0 || a.get("ignored") != 0.0 || !slices.Equal(a.each("messages", "source_id"), []string{"a", "b"}) {
		t.Fatalf("%s", a.Body)
	}
	b := h.do("POST", url, `{"messages":[{"payload":9,"source_id":"b"},{"payload":3,"source_id":"c"}]}`).want(201)
	if b.get("imported") != 1.0 || b.get("ignored") != 1.0 || b.str("messages.0.status") != "duplicate" || b.str("messages.0.id") != a.str("messages.1.id") {
		t.Fatalf("%s", b.Body)
	}
	h.do("POST", url, `{"messages":[{"payload":9,"source_id":"a"}]}`).want(200)
	m := h.do("GET", "/v1/queues/q/messages", "").want(200)
	if !slices.Equal(m.each("messages", "source_id"), []string{"a", "b", "c"}) || m.str("messages.0.key") != "k" {
		t.Fatalf("%s", m.Body)
	}
	if e := h.do("GET", "/v1/events?type=enqueued", "").want(200); !slices.Equal(e.each("events", "source_id"), []string{"a", "b", "c"}) {
		t.Fatalf("%s", e.Body)
	}
	if got := h.payloads("q"); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Fatal(got)
	}
	// Also once it has left, and a message's idempotency_key is another thing.
	h.do("POST", url, `{"messages":[{"payload":9,"source_id":"a"}]}`).want(200)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":4,"idempotency_key":"a"}]}`).want(201)
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
		if a := h.do("POST", url, body).want(400); a.str("field") != field {
			t.Errorf("%s: %s", body, a.Body)
		}
	}
	h.do("POST", "/v1/queues/nowhere/messages/import", `{"messages":[{"payload":1,"source_id":"a"}]}`).want(404)
}

func TestJSONPatch(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{`1`, `1`, ``},
		{`1`, `1.0`, `replace  1.0`},
		{`"é"`, `"\u00e9"`, ``},
		{`{"a":1,"b":{"c":[1,2,3]},"~/":null}`, `{"b":{"c":[1,4],"d":true},"~/":0}`, `remove /a ;replace /b/c/1 4;remove /b/c/2 ;add /b/d true;replace /~0~1 0`},
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
		if strings.Join(words, ";") != c.want {
			t.Errorf("%s to %s: %s, want %s", c.before, c.after, strings.Join(words, ";"), c.want)
		}
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

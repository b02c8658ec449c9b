package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/webhook"
)

const (
	ceType  = "Content-Type: " + webhook.CloudEventType
	ceBatch = "Content-Type: " + webhook.CloudBatchType
	ceWant  = "Accept: " + webhook.CloudBatchType
)

// leaseEvent leases one message as a CloudEvent.
func (h *harness) leaseEvent() answer {
	h.Helper()
	a := h.do("POST", "/v1/queues/q/lease", `{"max_messages":1}`, ceWant).want(200)
	assert.Equal(h, a.Header().Get("Content-Type"), webhook.CloudBatchType+"; charset=utf-8",
		"Content-Type")
	return a
}

func (a answer) has(want map[string]any) {
	a.t.Helper()
	for path, v := range want {
		if got := a.get(path); fmt.Sprint(got) != fmt.Sprint(v) {
			a.t.Errorf("%s is %v, want %v: %s", path, got, v, a.Body)
		}
	}
}

// An event comes in each of the three ways and is the same message.
func TestCloudEventsIn(t *testing.T) {
	const one = `{"specversion":"1.0","id":"A1","source":"/sensors/7","type":"com.example.warm","subject":"roof","time":"2026-01-31T12:00:00.5Z",
		"dataschema":"https://example.com/s","datacontenttype":"application/json","partitionkey":"k","urgent":true,"level":-7,"gone":null,"traceparent":"00-x-y-01","data":{"c":21.50}}`
	binary := []string{"Ce-Specversion: 1.0", "Ce-Id: A1", "Ce-Source: /sensors/7", "Ce-Type: com.example.warm", "Ce-Subject: roof", "Ce-Time: 2026-01-31T12:00:00.5Z",
		"Ce-Dataschema: https://example.com/s", "Content-Type: application/json", "Ce-Partitionkey: k", "Ce-Urgent: true", "Ce-Level: -7", "Ce-Traceparent: 00-x-y-01"}
	for name, send := range map[string]func(h *harness) answer{
		"structured": func(h *harness) answer { return h.do("POST", "/v1/queues/q/messages", one, ceType+"; charset=UTF-8") },
		"batched":    func(h *harness) answer { return h.do("POST", "/v1/queues/q/messages", "["+one+"]", ceBatch) },
		"binary":     func(h *harness) answer { return h.do("POST", "/v1/queues/q/messages", `{"c":21.50}`, binary...) },
	} {
		t.Run(name, func(t *testing.T) {
			h := setup(t)
			h.do("PUT", "/v1/queues/q", "").want(201)
			id := send(h).want(201).str("messages.0.id")
			// Source and id say that it is the same, however it comes.
			h.do("POST", "/v1/queues/q/messages", one, ceType).want(200).has(map[string]any{"messages.0.status": "duplicate", "messages.0.id": id})

			a := h.do("GET", "/v1/messages/"+id, "").want(200)
			a.has(map[string]any{
				"kind": "com.example.warm", "key": "k", "headers.ce-specversion": "1.0", "headers.ce-id": "A1", "headers.ce-source": "/sensors/7",
				"headers.ce-type": "com.example.warm", "headers.ce-subject": "roof", "headers.ce-time": "2026-01-31T12:00:00.5Z",
				"headers.ce-dataschema": "https://example.com/s", "headers.ce-datacontenttype": "application/json", "headers.ce-urgent": "true",
				"headers.ce-level": "-7", "headers.ce-gone": nil, "headers.traceparent": "00-x-y-01",
			})
			assert.Contains(t, a.Body.String(), `"payload":{"c":21.50}`,
				"the payload is not as it came: %s", a.Body)
			a = h.do("GET", "/v1/messages/"+id, "", "Accept: "+webhook.CloudEventType).want(200)
			a.has(map[string]any{"id": "A1", "messageid": id, "data.c": 21.5, "leaseid": nil})
			a = h.leaseEvent()
			a.has(map[string]any{
				"0.specversion": "1.0", "0.id": "A1", "0.source": "/sensors/7", "0.type": "com.example.warm", "0.subject": "roof",
				"0.time": "2026-01-31T12:00:00.5Z", "0.partitionkey": "k", "0.urgent": "true", "0.data.c": 21.5, "0.datacontenttype": "application/json",
				"0.messageid": id, "0.queue": "q", "0.attempt": 1, "0.maxattempts": 5, "0.priority": 5, "0.traceparent": "00-x-y-01",
			})
			// The lease is a lease.
			h.do("POST", "/v1/leases/"+a.str("0.leaseid")+"/ack", "").want(200)
			// What is gone can be told as an event still.
			h.do("GET", "/v1/messages/"+id, "", ceWant).want(200).has(map[string]any{"0.id": "A1", "0.messageid": id, "0.data.c": 21.5})
			if got := h.do("POST", "/v1/queues/q/lease", `{}`, ceWant).want(200).Body.String(); got != "[]" {
				t.Errorf("nothing to lease: %s", got)
			}
		})
	}
}

func TestCloudEventsData(t *testing.T) {
	const head = `{"specversion":"1.0","id":"1","source":"s","type":"t"`
	in := func(rest string) (string, []string) { return head + rest + "}", []string{ceType} }
	bin := func(body string, headers ...string) (string, []string) {
		return body, append([]string{"Ce-Specversion: 1.0", "Ce-Id: 1", "Ce-Source: s", "Ce-Type: t"}, headers...)
	}
	for _, c := range []struct {
		name string
		how  func() (string, []string)
		want map[string]any // of the message
		out  string         // the end of the event
	}{
		{"none", func() (string, []string) { return in(``) }, map[string]any{"payload": nil}, `"queue":"q"}`},
		{"null", func() (string, []string) { return in(`,"data":null`) }, map[string]any{"payload": nil}, `"queue":"q"}`},
		{"text", func() (string, []string) { return in(`,"data":"x"`) }, map[string]any{"payload": "x"}, `,"data":"x"}`},
		{"bytes", func() (string, []string) { return in(`,"data_base64":"AP8="`) }, map[string]any{"payload_base64": "AP8=", "content_type": nil}, `,"data_base64":"AP8="}`},
		{"no bytes", func() (string, []string) { return in(`,"data_base64":""`) }, map[string]any{"payload_base64": ""}, `,"data_base64":""}`},
		{"xml", func() (string, []string) { return in(`,"datacontenttype":"text/xml","data":"<a/>"`) },
			map[string]any{"payload_base64": "PGEvPg==", "content_type": "text/xml", "headers.ce-datacontenttype": nil}, `,"data_base64":"PGEvPg=="}`},
		{"other JSON", func() (string, []string) { return in(`,"datacontenttype":"application/x+json","data":"<a/>"`) },
			map[string]any{"payload": "<a/>", "headers.ce-datacontenttype": "application/x+json"}, `,"data":"<a/>"}`},
		{"JSON as bytes", func() (string, []string) { return in(`,"datacontenttype":"application/json","data_base64":"MQ=="`) },
			map[string]any{"payload_base64": "MQ==", "content_type": "application/json"}, `,"data_base64":"MQ=="}`},
		{"binary xml", func() (string, []string) { return bin("<a/>", "Content-Type: text/xml") },
			map[string]any{"payload_base64": "PGEvPg==", "content_type": "text/xml"}, `,"data_base64":"PGEvPg=="}`},
		{"binary JSON untold", func() (string, []string) { return bin("[1]") }, map[string]any{"payload.0": 1}, `,"data":[1]}`},
		{"binary nothing", func() (string, []string) { return bin("", "Content-Type: text/xml") },
			map[string]any{"payload": nil, "headers.ce-datacontenttype": "text/xml"}, `"queue":"q"}`},
		{"binary msgpack", func() (string, []string) { return bin("\x80", "Content-Type: application/msgpack") },
			map[string]any{"payload_base64": "gA==", "content_type": "application/msgpack"}, `,"data_base64":"gA=="}`},
		{"no percent", func() (string, []string) { return bin("1", "Ce-Subject: 100%a%zz%") }, map[string]any{"headers.ce-subject": "100%a%zz%"}, `"subject":"100%a%zz%","data":1}`},
		{"percent", func() (string, []string) { return bin("1", `Ce-Subject: "a%20\"%E2%82%AC"`) }, map[string]any{"headers.ce-subject": `a "€`}, `,"subject":"a \"€","data":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := setup(t)
			h.do("PUT", "/v1/queues/q", "").want(201)
			body, headers := c.how()
			id := h.do("POST", "/v1/queues/q/messages", body, headers...).want(201).str("messages.0.id")
			h.do("GET", "/v1/messages/"+id, "").want(200).has(c.want)
			if got := h.do("GET", "/v1/messages/"+id, "", "Accept: "+webhook.CloudEventType).want(200).Body.String(); !strings.HasSuffix(got, c.out) {
				t.Errorf("told as %s, want it to end in %s", got, c.out)
			}
		})
	}
}

// What an event does not say is in the query, and nothing else is.
func TestCloudEventsQuery(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	ev := func(id, more string) string {
		return `{"specversion":"1.0","id":"` + id + `","source":"s","type":"t"` + more + `}`
	}
	h.do("POST", "/v1/queues/q/messages?key=a&priority=2&delay_ms=60000&correlation_id=c", "["+ev("1", "")+","+ev("2", `,"partitionkey":"b"`)+"]", ceBatch).want(201)
	a := h.do("GET", "/v1/queues/q/messages", "").want(200)
	a.has(map[string]any{"messages.0.key": "a", "messages.1.key": "b", "messages.0.priority": 2, "messages.1.state": "scheduled", "messages.0.correlation_id": "c"})
	// A key of its own in place of source and id.
	h.do("POST", "/v1/queues/q/messages?idempotency_key=x", ev("3", ""), ceType).want(201)
	h.do("POST", "/v1/queues/q/messages?idempotency_key=x", ev("4", ""), ceType).want(200)
	h.do("POST", "/v1/queues/q/messages?idempotency_key=y", ev("3", ""), ceType).want(201)
	// Another source, the same id.
	h.do("POST", "/v1/queues/q/messages", strings.Replace(ev("1", ""), `"s"`, `"s2"`, 1), ceType).want(201)
	h.do("POST", "/v1/queues/q/messages", ev("5", ""), ceType, "Traceparent: 00-a-b-00").want(201)
	h.do("GET", "/v1/queues/q/messages?limit=1000", "").want(200).has(map[string]any{"messages.5.headers.traceparent": "00-a-b-00"})
}

func TestCloudEventsRefused(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	before := h.proposals()
	full := map[string]string{"specversion": `"1.0"`, "id": `"1"`, "source": `"s"`, "type": `"t"`}
	ev := func(name, v string) string {
		var b strings.Builder
		for k, old := range full {
			if k != name {
				fmt.Fprintf(&b, "%q:%s,", k, old)
			}
		}
		if v != "" {
			fmt.Fprintf(&b, "%q:%s,", name, v)
		}
		return "{" + strings.TrimSuffix(b.String(), ",") + "}"
	}
	for _, c := range []struct{ name, v, field, code string }{
		{"specversion", "", "specversion", ""}, {"id", "", "id", ""}, {"source", "", "source", ""}, {"type", "", "type", ""},
		{"specversion", `"0.3"`, "specversion", ""}, {"specversion", `1.0`, "specversion", ""}, {"id", `""`, "id", ""}, {"id", `" "`, "id", ""}, {"id", `7`, "id", ""}, {"id", "null", "id", ""},
		{"source", `""`, "source", ""}, {"source", `"%zz"`, "source", ""}, {"type", `"` + strings.Repeat("t", 129) + `"`, "type", ""},
		{"time", `"yesterday"`, "time", ""}, {"time", `""`, "time", ""}, {"dataschema", `"relative"`, "dataschema", ""}, {"subject", `""`, "subject", ""},
		{"datacontenttype", `"no type"`, "datacontenttype", ""}, {"subject", `"a\u0007"`, "subject", ""}, {"id", `"\ufdd0"`, "id", ""},
		{"Ext", `"v"`, `"Ext"`, ""}, {"my-ext", `"v"`, `"my-ext"`, ""}, {"my_ext", `"v"`, `"my_ext"`, ""}, {"", `"v"`, `""`, ""}, {strings.Repeat("n", 62), `"v"`, "nnn", ""},
		{"ext", `{}`, "ext", ""}, {"ext", `[1]`, "ext", ""}, {"ext", `1.5`, "ext", ""}, {"ext", `2147483648`, "ext", ""}, {"ext", `"` + strings.Repeat("v", 4097) + `"`, "ext", ""},
		{"partitionkey", `"` + strings.Repeat("k", 257) + `"`, "partitionkey", ""}, {"data_base64", `"!"`, "data_base64", ""}, {"data_base64", `1`, "data_base64", ""},
	} {
		for media, body := range map[string]string{ceType: ev(c.name, c.v), ceBatch: "[" + ev("ok", `"v"`) + "," + ev(c.name, c.v) + "]"} {
			a := h.do("POST", "/v1/queues/q/messages", body, media).want(400)
			if a.str("code") != "invalid_argument" || !strings.Contains(a.str("field"), strings.Trim(c.field, `"`)) || !strings.Contains(a.str("detail"), strings.Trim(c.field, `"`)) {
				t.Errorf("%s: %s", body, a.Body)
			}
			if c.name != "" && strings.Contains(a.str("field"), `"`) {
				t.Errorf("%s: the field is not a name of the event: %s", body, a.Body)
			}
			if idx := a.get("index"); media == ceBatch && fmt.Sprint(idx) != "1" || media == ceType && idx != nil {
				t.Errorf("%s: index %v", body, idx)
			}
		}
	}
	binary := []string{"Ce-Specversion: 1.0", "Ce-Id: 1", "Ce-Source: s", "Ce-Type: t"}
	with := func(h ...string) []string { return append(append([]string(nil), binary...), h...) }
	for _, c := range []struct {
		body    string
		headers []string
		status  int
		field   string
	}{
		{"1", []string{"Ce-Id: 1"}, 400, "specversion"},
		{"1", []string{"Ce-Type: 1", "Content-Type: text/plain"}, 400, "specversion"},
		{"1", binary[:3], 400, "type"},
		{"1", with("Ce-Id: 2"), 400, "id"},
		{"1", with("Ce-Datacontenttype: text/xml"), 400, "datacontenttype"},
		{"1", with("Ce-Data: 1"), 400, "data"},
		{"1", with("Ce-My-Ext: 1"), 400, "my-ext"},
		{"1", with("Ce-Subject: %ff"), 400, "subject"},
		{"{", with(), 400, ""},
		{`{"a":1,"a":2}`, with("Content-Type: application/json"), 400, ""},
		{strings.Repeat("[", 100) + strings.Repeat("]", 100), with(), 400, "data"},
		{"a=b", with("Content-Type: application/x-www-form-urlencoded"), 415, "Content-Type"},
		{"a=b", with("Content-Type: multipart/form-data; boundary=x"), 415, "Content-Type"},
		{ev("", ""), []string{ceType + "; charset=latin1"}, 415, "Content-Type"},
		{"", []string{ceType}, 400, ""}, {"[]", []string{ceType}, 400, ""}, {"{}", []string{ceBatch}, 400, ""}, {"[]", []string{ceBatch}, 400, "events"}, {"[1]", []string{ceBatch}, 400, "0"},
		{`{"specversion":"1.0","specversion":"1.0"}`, []string{ceType}, 400, "specversion"},
		{ev("data", `1,"data_base64":"AA=="`), []string{ceType}, 400, "data_base64"},
	} {
		a := h.do("POST", "/v1/queues/q/messages", c.body, c.headers...).want(c.status)
		assert.Contains(t, a.str("field"), c.field, "%v %s: %s", c.headers, c.body, a.Body)
	}
	h.do("POST", "/v1/queues/q/messages?kind=x", ev("ok", `"v"`), ceType).want(400)
	h.do("POST", "/v1/queues/q/messages?idempotency_key=x", "["+ev("ok", `"v"`)+"]", ceBatch).want(400)
	h.do("POST", "/v1/queues/q/messages", ev("data", `"`+strings.Repeat("x", 1<<20)+`"`), ceType).want(413)
	if n := h.proposals(); n != before {
		t.Errorf("%d of them reached the Proposer", n-before)
	}
}

// A message that did not come as an event is told as one.
func TestCloudEventsOut(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	id := h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":{"a":1},"kind":"order","key":"k","correlation_id":"c","headers":{"tenant":"t1","x-y":"no","id":"no","ce-id":"7","ce-my":"no"}}]}`).want(201).str("messages.0.id")
	a := h.leaseEvent()
	a.has(map[string]any{
		"0.id": id, "0.source": "/queues/q", "0.type": "order", "0.partitionkey": "k", "0.correlationid": "c", "0.tenant": "t1",
		"0.x-y": nil, "0.my": nil, "0.data.a": 1, "0.messageid": id, "0.attempt": 1,
	})
	if a.str("0.time") != a.str("0.enqueuedat") || a.str("0.time") == "" {
		t.Errorf("%s", a.Body)
	}
	id = h.do("POST", "/v1/queues/q/messages?kind=%07", "x", "Content-Type: text/plain; charset=utf-8").want(201).str("messages.0.id")
	h.leaseEvent().has(map[string]any{"0.id": id, "0.type": "qlogd.message", "0.datacontenttype": "text/plain; charset=utf-8", "0.data_base64": "eA=="})
	h.log.erased = true
	h.do("GET", "/v1/messages/"+id, "", "Accept: "+webhook.CloudEventType).want(200).has(map[string]any{"id": id, "erased": true, "data": nil, "data_base64": nil})
	// Somebody who takes anything gets qlogd's own JSON.
	h.do("GET", "/v1/messages/"+id, "", "Accept: */*, application/json").want(200).has(map[string]any{"state": "leased"})
}

// What Of makes of any message is an event that FromJSON and FromBinding take.
func FuzzCloudEventsOf(f *testing.F) {
	f.Add("q", "kind", "key", "ce-id", "7", "corr", []byte("1"), false, "")
	f.Add("q", "", "", "ce-specversion", "1.0", "", []byte{0xff}, true, "text/plain")
	f.Fuzz(func(t *testing.T, queue, kind, key, header, value, correlation string, payload []byte, binary bool, contentType string) {
		if !event.ValidName(queue) || !binary && !jsonOK(payload) {
			t.Skip()
		}
		m := &event.MessageView{ID: event.NewID(1, 2, 3), Queue: queue, Kind: kind, Key: key, Priority: 5, EnqueuedAt: 1}
		c := &event.Content{Payload: payload, Binary: binary, ContentType: contentType, CorrelationID: correlation, Headers: []event.Header{
			{Name: header, Value: value}, {Name: "ce-source", Value: value}, {Name: "ce-type", Value: "t"}, {Name: "ce-id", Value: "1"}, {Name: "ce-specversion", Value: "1.0"}}}
		e := webhook.CloudEventOf(m, c)
		e.Deliver(m.ID, 5, 1, 5)
		members := membersOf(t, e.AppendJSON(nil))
		got, err := webhook.CloudEventFromJSON(members)
		if err != nil {
			t.Fatalf("%s: %v", e.AppendJSON(nil), err)
		}
		require.Equal(t, string(got.AppendJSON(nil)), string(e.AppendJSON(nil)),
			"%s\n%s", got.AppendJSON(nil), e.AppendJSON(nil))
		headers := map[string][]string{}
		hs, ct, body := e.Binding()
		for _, h := range hs {
			headers[h.Name] = []string{h.Value}
		}
		if ct != "" {
			headers["Content-Type"] = []string{ct}
		}
		got, err = webhook.CloudEventFromHeaders(headers, body)
		if err != nil {
			t.Fatalf("%v: %v", headers, err)
		}
		for name := range e.Attributes {
			require.Equal(t, got.Get(name), e.Get(name), "%s", name)
		}
	})
}

func jsonOK(b []byte) bool {
	var v jsontext.Value
	return wire.Decode(b, &v) == nil
}

func membersOf(t *testing.T, b []byte) map[string]jsontext.Value {
	t.Helper()
	var members map[string]jsontext.Value
	if err := wire.Decode(b, &members); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return members
}

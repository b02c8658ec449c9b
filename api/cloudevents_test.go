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
		require.NoError(t, err, "%s", e.AppendJSON(nil))
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
		require.NoError(t, err, "%v", headers)
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
	require.NoError(t, wire.Decode(b, &members), "%s", b)
	return members
}

package api

import (
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/transcode"
	"github.com/qlogd/qlogd/webhook"
)

func packed(t testing.TB, v any) string {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMsgpackInAndOut(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	in, out := "Content-Type: application/msgpack", "Accept: application/msgpack"
	body := packed(t, map[string]any{"messages": []any{
		map[string]any{"payload": map[string]any{"a": []any{1, -2, 3.5, nil, true, "é", uint64(1 << 63), int64(-1 << 40)}}, "key": "k"},
		map[string]any{"payload_base64": []byte{0, 1, 2}, "content_type": "x/y"},
	}})
	a := h.do("POST", "/v1/queues/q/messages", body, in, out).want(201)
	if a.Header().Get("Content-Type") != typeMsgpack {
		t.Fatalf("%v", a.Header())
	}
	a = h.do("POST", "/v1/queues/q/lease", packed(t, map[string]any{"max_messages": 2}), in, out).want(200)
	var got struct {
		Messages []map[string]any `msgpack:"messages"`
	}
	if err := msgpack.Unmarshal(a.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Messages) != 2 || got.Messages[1]["payload_base64"] != "AAEC" {
		t.Fatalf("%v", got.Messages)
	}
	list := got.Messages[0]["payload"].(map[string]any)["a"].([]any)
	if list[2] != 3.5 || list[3] != nil || list[5] != "é" || list[6] != uint64(1<<63) || list[7] != int64(-1<<40) {
		t.Fatalf("%#v", list)
	}
	lease := got.Messages[0]["lease_id"].(string)
	a = h.do("POST", "/v1/queues/q/ack", packed(t, map[string]any{"lease_ids": []string{lease}}), in).want(200)
	if a.str("results.0.status") != "acked" { // JSON, unless Accept asks for msgpack
		t.Fatalf("%s", a.Body)
	}
	a = h.do("POST", "/v1/leases/"+got.Messages[1]["lease_id"].(string)+"/ack", packed(t, map[string]any{}), in, out).want(200)
	if err := msgpack.Unmarshal(a.Body.Bytes(), &map[string]any{}); err != nil {
		t.Fatal(err)
	}
	// A problem is always JSON.
	h.do("POST", "/v1/queues/nope/lease", "\x80", in, out).want(404)

	n := h.proposals()
	for name, bad := range map[string]string{
		"empty": "", "cut": "\x81", "trailing": "\x80\x80", "ext": "\x81\xa8messages\xd4\x01\x01", "reserved": "\xc1",
		"huge array": "\x81\xa8messages\xdd\xff\xff\xff\xff", "huge map": "\xdf\xff\xff\xff\xff", "huge str": "\xdb\xff\xff\xff\xff",
		"key": "\x81\x01\x01", "twice": "\x82\xa8messages\x90\xa8messages\x90", "utf8": "\x81\xa1\xff\x01",
		"nan":  "\x81\xa8messages\x91\x81\xa7payload\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
		"deep": "\x81\xa8messages" + strings.Repeat("\x91", 10_000) + "\xc0",
	} {
		if a := h.do("POST", "/v1/queues/q/messages", bad, in).want(400); a.str("code") != "invalid_msgpack" {
			t.Errorf("%s: %s", name, a.Body)
		}
	}
	if a := h.do("POST", "/v1/queues/q/messages", packed(t, map[string]any{"messages": []any{map[string]any{"payload": 1, "priority": "5"}}}), in).want(400); a.str("code") != "invalid_argument" || a.str("field") != "priority" {
		t.Errorf("%s", a.Body)
	}
	if h.proposals() != n {
		t.Error("bad msgpack reached the proposer")
	}
}

// FuzzBody puts bodies, as JSON and as msgpack, to every call that takes one:
// no panic, no 5xx, and what is refused leaves no command.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"payload":{"a":1},"key":"k","headers":{"h":"v"},"delay_ms":5}]}`, `{"max_messages":1,"kinds":["a"]}`,
		`{"lease_ids":["` + aULID + `"],"result":1}`, `{"items":[{"lease_id":"` + aULID + `","error":"x","delay_ms":null}]}`,
		`{"delivery":{"backoff_schedule_ms":[1,2],"dead_letter_queue":"auto"},"message_schema":{"type":"object"}}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","partitionkey":"k","datacontenttype":"text/xml","data":"<a/>"}`,
		`[{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AA=="}]`,
		`{"queues":[{"name":"a","dead_letter_queue":"b","delivery":{"on_dead":"hold_key"}},{"name":"b"}],"webhooks":[{"name":"w","queue":"a","filter":"payload.a"}]}`,
		`{"ack":["` + aULID + `"],"produce":[{"queue":"q","messages":[{"payload":null}]}]}`, "\x81\xa8messages\x91\x81\xa7payload\xc0", "",
	} {
		f.Add([]byte(s), uint8(len(s)), len(s) == 0 || s[0] == '\x81')
	}
	calls := []string{
		"POST /v1/queues/q/messages", "POST /v1/queues/q/lease", "POST /v1/lease", "PUT /v1/queues/q", "PATCH /v1/queues/q",
		"POST /v1/queues/q/ack", "POST /v1/queues/q/retry", "POST /v1/queues/q/dead-letter", "POST /v1/queues/q/extend",
		"POST /v1/queues/q/release", "POST /v1/leases/" + aULID + "/ack", "POST /v1/leases/" + aULID + "/retry", "POST /v1/transactions",
		"POST /v1/queues/q/purge", "PUT /v1/definitions",
		"POST /v1/queues/q/messages " + webhook.CloudEventType, "POST /v1/queues/q/messages " + webhook.CloudBatchType,
	}
	shared := build()
	f.Cleanup(shared.close)
	f.Fuzz(func(t *testing.T, body []byte, call uint8, pack bool) {
		if strings.Contains(string(body), "wait_ms") {
			t.Skip("would wait")
		}
		if len(body) > 0 && strings.TrimSpace(string(body)) == "" {
			t.Skip("white space alone is taken for no body, which the document can't say")
		}
		h := &harness{T: t, fake: shared.fake, s: shared.s, h: shared.h}
		h.forget()
		h.do("PUT", "/v1/queues/q", "").want(201)
		before := h.proposals()
		method, target, _ := strings.Cut(calls[int(call)%len(calls)], " ")
		target, media, _ := strings.Cut(target, " ")
		var headers []string
		if media != "" {
			headers = []string{"Content-Type: " + media}
		} else if pack {
			headers = []string{"Content-Type: application/msgpack", "Accept: application/msgpack"}
		}
		a := h.do(method, target, string(body), headers...)
		if a.Code >= 500 {
			t.Fatalf("%d %s", a.Code, a.Body)
		}
		if a.Code >= 400 && a.Code != 409 && a.Code != 404 && h.proposals() != before {
			t.Fatalf("%d, yet proposed: %s", a.Code, a.Body)
		}
		if a.Code < 300 && pack {
			if _, err := transcode.ToJSON(a.Body.Bytes(), 1<<20); err != nil && a.Header().Get("Content-Type") == typeMsgpack {
				t.Fatalf("%v: %x", err, a.Body)
			}
		}
	})
}

// The same request gets the same problem, as JSON and as msgpack.
func TestMsgpackProblems(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	for _, c := range []struct {
		path string
		body any
	}{
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload": 1}, map[string]any{"payload": 1, "priority": 11}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload": 1}, map[string]any{"payload": 1, "priority": "5"}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload": 1, "prioritty": 5}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload_base64": "*"}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload_base64": 5}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload": 1, "payload_base64": "AAAA"}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{map[string]any{"payload": 1, "deliver_at": "soon"}}}},
		{"/v1/queues/q/messages", map[string]any{"messages": []any{nil}}},
		{"/v1/queues/q/messages", map[string]any{"messages": nil}},
		{"/v1/queues/q/messages", map[string]any{"messages": make([]any, 1001)}},
		{"/v1/queues/q/messages", []any{}},
		{"/v1/queues/q/lease", map[string]any{"max_messages": 0}},
		{"/v1/queues/q/lease", map[string]any{"queues": []any{}}},
		{"/v1/queues/q/lease", map[string]any{"kinds": []any{"a", strings.Repeat("x", 200)}}},
		{"/v1/lease", map[string]any{"queues": []any{"q", "q"}}},
		{"/v1/queues/q/ack", map[string]any{"lease_ids": []any{aULID, "x"}}},
		{"/v1/queues/q/ack", map[string]any{"lease_ids": []any{}}},
		{"/v1/queues/q/retry", map[string]any{"items": []any{map[string]any{"lease_id": aULID, "delay_ms": -1}}}},
		{"/v1/queues/q/extend", map[string]any{"items": []any{map[string]any{"lease_id": aULID, "lease_ms": 1}}}},
		{"/v1/leases/" + aULID + "/retry", map[string]any{"error": 1}},
		{"/v1/transactions", map[string]any{"produce": []any{map[string]any{"queue": "q", "messages": []any{map[string]any{"payload": 1, "ttl_ms": -1}}}}}},
	} {
		text, err := wire.Marshal(c.body)
		if err != nil {
			t.Fatal(err)
		}
		a := h.do("POST", c.path, string(text)).want(400)
		b := h.do("POST", c.path, packed(t, c.body), "Content-Type: application/msgpack").want(400)
		for _, field := range []string{"code", "field", "index", "detail"} {
			if a.str(field) != b.str(field) {
				t.Errorf("%s %s: %s is %q, in msgpack %q", c.path, text, field, a.str(field), b.str(field))
			}
		}
	}
}

package api

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/coding"
	"github.com/qlogd/qlogd/webhook/cloudevents"
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
		"POST /v1/queues/q/messages " + cloudevents.TypeEvent, "POST /v1/queues/q/messages " + cloudevents.TypeBatch,
	}
	shared := build()
	f.Cleanup(shared.s.Close)
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
			if _, err := coding.ToJSON(nil, a.Body.Bytes(), 1<<20); err != nil && a.Header().Get("Content-Type") == typeMsgpack {
				t.Fatalf("%v: %x", err, a.Body)
			}
		}
	})
}

// FuzzTranscode: what comes out is JSON, and comes back the same.
func FuzzTranscode(f *testing.F) {
	f.Add([]byte(packed(f, map[string]any{"a": []any{1, "x", 2.5, nil, []byte{1}}})))
	f.Add([]byte("\xdf\x00\x00\x00\x01\xa1a\xca\x7f\x80\x00\x00"))
	f.Add([]byte("\x81\xa1a\xc7\x05\x4a[1,2]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := coding.ToJSON(nil, b, 1<<20)
		if err != nil || !jsontext.Value(j).IsValid() { // a name twice is left to the decoder
			return
		}
		m, err := coding.AppendJSON(nil, j)
		if err != nil {
			t.Fatalf("%s: %v", j, err)
		}
		again, err := coding.ToJSON(nil, m, 2<<20)
		if err != nil || !bytes.Equal(canonical(t, j), canonical(t, again)) {
			t.Fatalf("%s became %s: %v", j, again, err)
		}
	})
}

func canonical(t *testing.T, b []byte) []byte {
	v := jsontext.Value(bytes.Clone(b))
	if err := v.Canonicalize(); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

// requests are all that msgpack can ask.
var requests = []func() any{
	func() any { return new(wire.ProduceRequest) }, func() any { return new(wire.LeaseRequest) }, func() any { return new(wire.AckRequest) },
	func() any { return new(wire.RetryRequest) }, func() any { return new(wire.DeadLetterRequest) }, func() any { return new(wire.ExtendRequest) },
	func() any { return new(wire.ReleaseRequest) }, func() any { return new(wire.AckOne) }, func() any { return new(wire.RetryOne) },
	func() any { return new(wire.DeadLetterOne) }, func() any { return new(wire.ExtendOne) }, func() any { return new(wire.ReleaseOne) },
	func() any { return new(wire.TransactionRequest) },
}

// byWayOfJSON reads msgpack as all but the hot calls did for ever.
func byWayOfJSON(b []byte, v any) error {
	text, err := coding.ToJSON(nil, b, 1<<20)
	if err == nil && coding.TooDeep(text, coding.MaxDepth) {
		err = errors.New("too deep")
	}
	if err != nil {
		return err
	}
	return wire.Decode(text, v)
}

// sameBothWays: what is read directly is what JSON would have made of it.
func sameBothWays(t *testing.T, b []byte) (taken bool) {
	t.Helper()
	for _, make := range requests {
		direct, slow := make(), make()
		if wire.DecodeMsgpack(b, direct) != nil {
			if !reflect.DeepEqual(direct, make()) {
				t.Fatalf("%x: an error, yet %+v", b, direct)
			}
			continue
		}
		taken = true
		if err := byWayOfJSON(b, slow); err != nil {
			t.Fatalf("%T: %x is taken directly, but: %v", direct, b, err)
		}
		if !reflect.DeepEqual(direct, slow) {
			t.Fatalf("%x\ndirectly %+v\nby JSON %+v", b, direct, slow)
		}
	}
	return taken
}

// strange are bodies at the edges; want says whether they are read directly.
var strange = []struct {
	body string
	want bool
}{
	{"\x81\xa8messages\x91\x81\xa7payload\xc0", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa8priority\xc0", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa8priority\xca\x40\xa0\x00\x00", false}, // 5.0
	{"\x81\xa8messages\x91\x81\xaepayload_base64\xc4\x03\x00\x01\x02", true},
	{"\x81\xa8messages\x91\x81\xaepayload_base64\xc4\x00", true},
	{"\x81\xa8messages\x91\x81\xaepayload_base64\xa4AAEC", true},
	{"\x81\xa8messages\x91\x81\xaepayload_base64\xa3AAE", true},
	{"\x81\xa8messages\x91\x81\xaepayload_base64\xa4A*EC", false},
	{"\x81\xa8messages\x91\x81\xaepayload_base64\xc0", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa7headers\x82\xa1a\xa1b\xa1c\xc0", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa7headers\x80", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa7headers\xc0", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa7headers\x82\xa1a\xa1b\xa1a\xc0", false}, // a name twice
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa7payload\x02", false},
	{"\x81\xa8messages\x91\x81\xa7payload\x82\xa1a\x01\xa1a\x02", false},
	{"\x81\xa8messages\x91\x81\xa7payload\x82\xa1a\x01\xa1b\x81\xa1a\x02", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xa3key\xc4\x01\x00", false}, // bin counts as base64
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xaadeliver_at\xb42026-01-31T13:00:00Z", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xaadeliver_at\xc0", true},
	{"\x81\xa8messages\x91\x82\xa7payload\x01\xaadeliver_at\xa4soon", false},
	{"\x81\xa8messages\x91\x81\xa7payload\xc7\x07\x4a {\"a\":1}"[:28], false}, // cut
	{"\x81\xa8messages\x91\x81\xa7payload\xc7\x09\x4a {\"a\":1} ", true},
	{"\x81\xa8messages\x91\x81\xa7payload\xc7\x07\x4a1,\"b\":2", false},
	{"\x81\xa8messages\x91\x81\xa7payload\xc7\x0d\x4a{\"a\":1,\"a\":2}", false},
	{"\x81\xa8messages\x91\x81\xa7payload\xc7\x00\x4a", false},
	{"\x81\xa8messages\x91\x81\xa7payload\xd4\x4a7", true},
	{"\x81\xa8messages\x91\x81\xa7payload\xd4\x49\x01", false}, // another extension
	{"\x81\xa8messages\x91\x81\xa7payload\x92\xd4\x4a7\xd4\x4a8", true},
	{"\x81\xa8messages\x91\xc0", false},
	{"\x81\xa8messages\xc0", true},
	{"\x81\xa8messages\x90", true},
	{"\x81\xa6queues\x90", true},
	{"\x81\xa6queues\x92\xa1a\xa1b", true},
	{"\x81\xa6queues\x92\xa1a\xc0", false},
	{"\x81\xa5kinds\x92\xa1a\xa1\xff", false},
	{"\x81\xa7wait_ms\xcf\x80\x00\x00\x00\x00\x00\x00\x00", false},
	{"\x81\xa7wait_ms\xd3\xff\xff\xff\xff\xff\xff\xff\xff", true},
	{"\x81\xa7wait_ms\xd0\x80", true},
	{"\x81\xa9lease_ids\x91\xa1x", true},
	{"\x81\xa6result\x81\xa1a\x90", true},
	{"\x80", true}, {"\xc0", false}, {"\x80\x80", false}, {"", false}, {"\x81\xa1", false},
	{"\x81\xa8messages\xdd\xff\xff\xff\xff", false},
	{"\xdf\xff\xff\xff\xff", false},
}

func TestUnpackIsAsJSON(t *testing.T) {
	for _, c := range strange {
		if got := sameBothWays(t, []byte(c.body)); got != c.want {
			t.Errorf("%q: read directly %v, want %v", c.body, got, c.want)
		}
	}
	// Depth is counted from the outermost bracket, whichever way a payload comes.
	for depth, ok := range map[int]bool{61: true, 62: false} {
		nested := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		values := "\x81\xa8messages\x91\x81\xa7payload" + strings.Repeat("\x91", depth-1) + "\x90"
		text := string(coding.AppendJSONText([]byte("\x81\xa8messages\x91\x81\xa7payload"), []byte(nested)))
		for _, body := range []string{values, text} {
			if got := sameBothWays(t, []byte(body)); got != ok {
				t.Errorf("%d deep: %v", depth, got)
			}
		}
	}
	all := wire.TransactionRequest{
		Ack: []string{aULID}, Retry: []wire.RetryItem{{LeaseID: "x", Error: "é", DelayMS: new(int64), Retryable: new(bool)}, {LeaseID: "y"}},
		DeadLetter: []wire.DeadLetterItem{{LeaseID: "z", Error: "e"}}, Extend: []wire.ExtendItem{{LeaseID: "z", LeaseMS: 70_000}},
		Produce: []wire.TransactionProduce{{Queue: "q", Messages: []wire.NewMessage{
			{Payload: jsontext.Value(`{"a":[1,2.50,1e400]}`), Key: "k", Priority: new(int64), Headers: map[string]string{"b": "1", "a": strings.Repeat("x", 300)},
				IdempotencyKey: "i", DelayMS: 1 << 40, DeliverAt: 1, TTLMS: 300, Kind: "k", CorrelationID: "c"},
			{PayloadBytes: bytes.Repeat([]byte{0xff}, 70_000), ContentType: "x/y"},
		}}},
	}
	b, err := wire.AppendMsgpack(nil, &all)
	if err != nil {
		t.Fatal(err)
	}
	if !sameBothWays(t, b) {
		t.Fatal("not taken")
	}
	var got, viaJSON wire.TransactionRequest
	if err := wire.DecodeMsgpack(b, &got); err != nil || !reflect.DeepEqual(got, all) {
		t.Fatalf("%v %+v", err, got)
	}
	text, err := wire.Marshal(&all)
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.Decode(text, &viaJSON); err != nil || !reflect.DeepEqual(viaJSON, all) {
		t.Fatalf("%v %+v", err, viaJSON)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, c := range strange {
		f.Add([]byte(c.body))
	}
	f.Fuzz(func(t *testing.T, b []byte) { sameBothWays(t, b) })
}

// sameText: JSON that is read in one pass is what the strict decoder makes of it.
func sameText(t *testing.T, b []byte) (taken bool) {
	t.Helper()
	for _, make := range requests {
		quick, slow := make(), make()
		var memory []byte
		if !wire.DecodeRequest(b, quick, false, &memory) {
			if !reflect.DeepEqual(quick, make()) {
				t.Fatalf("%q: not taken, yet %+v", b, quick)
			}
			continue
		}
		taken = true
		err := wire.Decode(b, slow)
		if err == nil && coding.TooDeep(b, coding.MaxDepth) {
			err = errors.New("too deep")
		}
		if err != nil {
			t.Fatalf("%T: %q is taken quickly, but: %v", quick, b, err)
		}
		if !reflect.DeepEqual(quick, slow) {
			t.Fatalf("%q\nquickly %+v\nslowly %+v", b, quick, slow)
		}
	}
	return taken
}

// strangeText are JSON bodies at the edges; want says whether they are read in one
// pass.
var strangeText = []struct {
	body string
	want bool
}{
	{`{"messages":[{"payload":{"a":[1,-0,0.5,1e9,-1.5E+10,true,false,null,"x"]},"key":"k"}]}`, true},
	{" {\t\"messages\" :\r\n[ { \"payload\" : [ ] , \"key\" : \"k\" } , {} ] } ", true},
	{`{"messages":[{"payload":"\u00e9\ud83d\ude00\n\/é😀"}]}`, true},
	{`{"messages":[{"payload":"\ud83d"}]}`, false},
	{`{"messages":[{"payload":"\x"}]}`, false},
	{`{"messages":[{"payload":"\`, false}, {`{"messages":[{"payload":"\"`, false},
	{"{\"messages\":[{\"payload\":\"a\nb\"}]}", false}, {"{\"messages\":[{\"payload\":\"12345678\x1f\"}]}", false},
	{"{\"messages\":[{\"payload\":\"1234567\x1f\"}]}", false}, {"{\"messages\":[{\"payload\":\"\xff\"}]}", false}, {"{\"messages\":[{\"payload\":\"\x7f\"}]}", true},
	{`{"messages":[{"payload":{"a":1,"a":2}}]}`, false}, {`{"messages":[{"payload":{"a":1,"\u0061":2}}]}`, false},
	{`{"messages":[{"payload":{"a":1,"b":{"a":2}}}]}`, true},
	{`{"messages":[{"payload":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1}}]}`, true},
	{`{"messages":[{"payload":{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"c":1}}]}`, false},
	{`{"messages":[{"\u0070ayload":1}]}`, true}, {`{"messages":[{"payload":1,"\u0070ayload":1}]}`, false},
	{`{"messages":[{"payload":1,}]}`, false}, {`{"messages":[{"payload":1},]}`, false}, {`{"messages":[,]}`, false}, {`{"messages":[{,}]}`, false},
	{`{"messages":[{"payload":01}]}`, false}, {`{"messages":[{"payload":1.}]}`, false}, {`{"messages":[{"payload":.1}]}`, false},
	{`{"messages":[{"payload":-}]}`, false}, {`{"messages":[{"payload":1e}]}`, false}, {`{"messages":[{"payload":+1}]}`, false},
	{`{"messages":[{"payload":nul}]}`, false}, {`{"messages":[{"payload":truex}]}`, false}, {`{"messages":[{"payload":}]}`, false},
	{`{"messages":[{"payload_base64":""}]}`, true}, {`{"messages":[{"payload_base64":"AAEC"}]}`, true}, {`{"messages":[{"payload_base64":"AAE="}]}`, true},
	{`{"messages":[{"payload_base64":"AAE"}]}`, true}, {`{"messages":[{"payload_base64":"AAEC=="}]}`, false}, {`{"messages":[{"payload_base64":"A"}]}`, false},
	{`{"messages":[{"payload_base64":"\u0041AEC"}]}`, true}, {`{"messages":[{"payload_base64":"AA\nEC"}]}`, true}, {`{"messages":[{"payload_base64":null}]}`, true},
	{`{"messages":[{"payload":null,"priority":null,"headers":null,"key":null,"delay_ms":null,"deliver_at":null}]}`, true},
	{`{"messages":[{"payload":1,"headers":{"a":"b","c":null}}]}`, true}, {`{"messages":[{"payload":1,"headers":{"a":"b","a":"c"}}]}`, false},
	{`{"messages":[{"payload":1,"priority":5.0}]}`, false}, {`{"messages":[{"payload":1,"priority":-0}]}`, true}, {`{"messages":[{"payload":1,"priority":"5"}]}`, false},
	{`{"messages":[{"payload":1,"delay_ms":999999999999999999}]}`, true}, {`{"messages":[{"payload":1,"delay_ms":9223372036854775807}]}`, false},
	{`{"messages":[{"payload":1,"delay_ms":1e3}]}`, false}, {`{"messages":[{"payload":1,"deliver_at":"2026-01-31T13:00:00+01:00"}]}`, true},
	{`{"messages":null}`, true}, {`{"messages":[null]}`, false}, {`{"messages":{}}`, false}, {`{"unknown":1}`, false}, {`null`, false}, {`[]`, false}, {``, false},
	{`{}`, true}, {`{} x`, false}, {`{}{}`, false}, {"\ufeff{}", false},
	{`{"queues":["a","b"],"kinds":[],"max_messages":5,"wait_ms":0,"worker":"w"}`, true}, {`{"queues":["a","\u0062"]}`, false}, {`{"queues":["a",null]}`, false},
	{`{"items":[{"lease_id":"x","error":"e","delay_ms":null,"retryable":false}]}`, true}, {`{"items":[{"lease_id":"x","retryable":null}]}`, true},
	{`{"items":[{"lease_id":"x","retryable":0}]}`, false}, {`{"lease_ids":["x"],"result":{"a":[]}}`, true}, {`{"lease_ids":["x"],"result":null}`, true},
	{`{"ack":["x"],"produce":[{"queue":"q","messages":[{"payload":1}]}]}`, true},
}

func TestTextIsAsJSON(t *testing.T) {
	for _, c := range strangeText {
		if got := sameText(t, []byte(c.body)); got != c.want {
			t.Errorf("%q: read in one pass %v, want %v", c.body, got, c.want)
		}
	}
	for depth, ok := range map[int]bool{61: true, 62: false} {
		body := `{"messages":[{"payload":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}]}`
		if got := sameText(t, []byte(body)); got != ok {
			t.Errorf("%d deep: %v", depth, got)
		}
	}
	many := `{"lease_ids":["x"` + strings.Repeat(`,"x"`, 1000) + `]}`
	if sameText(t, []byte(many)) || !sameText(t, []byte(strings.Replace(many, `"x",`, "", 1))) {
		t.Error("a list of 1000 is taken, and no longer one")
	}
}

// What is decoded lies in memory that is used again, and does not overlap.
func TestMemoryIsUsedAgain(t *testing.T) {
	var memory []byte
	var in wire.ProduceRequest
	for n := range 20 {
		body := `{"messages":[`
		for i := range n + 1 {
			body += fmt.Sprintf(`{"payload_base64":%q,"key":"\u006b"},`, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(i)}, 100*n)))
		}
		body = strings.TrimSuffix(body, ",") + `]}`
		if !wire.DecodeRequest([]byte(body), &in, false, &memory) {
			t.Fatal(body)
		}
		for i, m := range in.Messages {
			if len(in.Messages) != n+1 || m.Key != "k" || !bytes.Equal(m.PayloadBytes, bytes.Repeat([]byte{byte(i)}, 100*n)) {
				t.Fatalf("%d of %d: %+v", i, n, m)
			}
		}
	}
}

func FuzzText(f *testing.F) {
	for _, c := range strangeText {
		f.Add([]byte(c.body))
	}
	f.Fuzz(func(t *testing.T, b []byte) { sameText(t, b) })
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

// Answers say the same in each form.
func TestMsgpackAnswers(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	big := strings.Repeat("é", 40_000)
	accept := func(v string) *request {
		r := httptest.NewRequest("POST", "/v1/queues/q/lease", nil)
		r.Header.Set("Accept", v)
		return &request{Request: r, s: h.s, path: "/v1/queues/{queue}/lease"}
	}
	for v, want := range map[string]form{
		"": asJSON, "*/*": asJSON, "application/json, application/x-msgpack": asMsgpack, "Application/Msgpack;q=1": asMsgpack,
		wire.AcceptMsgpack: asKept, "application/json, application/msgpack;q=0.5;Payload=\"bin\"": asKept, "application/msgpack;payload=base64": asMsgpack,
	} {
		if got := accept(v).form(); got != want {
			t.Errorf("%q: form %d", v, got)
		}
	}
	for _, v := range []event.Settled{
		{Lease: event.NewID(5, 6, 7), Status: event.StatusAcked}, {Lease: event.NewID(5, 6, 7), Status: event.StatusRejected, Code: event.CodeLeaseLost},
		{Lease: event.NewID(5, 6, 7), Status: event.StatusRetried, NextAt: 1_700_000_000_123},
		{Lease: event.NewID(5, 6, 7), Status: event.StatusExtended, ExpiresAt: 1_700_000_000_000},
	} {
		want := wire.SettleResult{LeaseID: v.Lease.String(), Status: v.Status, Code: v.Code, NextAt: wire.Time(v.NextAt), LeaseExpiresAt: wire.Time(v.ExpiresAt)}
		var text, packed wire.SettleResult
		if err := wire.Decode(appendSettled(nil, asJSON, &v), &text); err != nil || text != want {
			t.Errorf("%v %+v", err, text)
		}
		if err := wire.DecodeMsgpack(appendSettled(nil, asMsgpack, &v), &packed); err != nil || packed != want {
			t.Errorf("%v %+v", err, packed)
		}
	}
	m := event.LeasedMessage{MessageView: event.MessageView{
		ID: event.NewID(5, 6, 7), Queue: "q", Key: "k\"é", Attempt: 300, Priority: 5, Kind: "x", EnqueuedAt: 1_700_000_000_123,
		Lease: event.NewID(5, 6, 8), LeaseExpiresAt: 1_700_000_030_123,
	}, MaxAttempts: 5}
	for _, c := range []*event.Content{
		nil, {}, {Payload: []byte(`{"a": [1, 2.5, "x"]}`), CorrelationID: "c", Headers: []event.Header{{Name: "h", Value: big}}},
		{Payload: []byte(big), Binary: true}, {Payload: []byte{1, 2, 255}, Binary: true, ContentType: "x/y"}, {Binary: true},
	} {
		b, err := h.s.appendLeased(nil, &m, c)
		if err != nil {
			t.Fatal(err)
		}
		var want wire.LeasedMessage
		if err := wire.Decode(b, &want); err != nil {
			t.Fatal(err)
		}
		for _, form := range []form{asMsgpack, asKept} {
			p, err := h.s.packLeased(nil, form, &m, c)
			if err != nil {
				t.Fatal(err)
			}
			text, err := coding.ToJSON(nil, p, 1<<20)
			if err != nil || !bytes.Equal(canonical(t, text), canonical(t, b)) {
				t.Errorf("form %d: %v\n%s\n%s", form, err, text, b)
			}
			p = append(coding.AppendArray(coding.AppendStr(coding.AppendMap(nil, 1), "messages"), 1), p...)
			var list wire.LeaseResponse
			if err := wire.DecodeMsgpack(p, &list); err != nil {
				t.Fatal(err)
			}
			got, want := list.Messages[0], want
			if form == asMsgpack && want.Payload != nil { // written anew
				got.Payload, want.Payload = canonical(t, got.Payload), canonical(t, want.Payload)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("form %d:\n%+v\n%+v", form, got, want)
			}
		}
	}
}

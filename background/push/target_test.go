package push

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/webhook"
)

// TestKeys: the keys in secrets, and the signatures with them (the test vector of Standard
// Webhooks).
func TestKeys(t *testing.T) {
	const id, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", `{"test": 2432232314}`
	at := time.Unix(1614265330, 0)
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	keys, err := keysOf([]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	must(t, err)
	signed := func(keys [][]byte) string {
		header := http.Header{}
		webhook.SignStandard(header, keys, id, at, []byte(body))
		return header.Get("Webhook-Signature")
	}
	assert.Equal(t, signed(keys), want)
	// Without its prefix it may be meant as base64 or as it is.
	keys, err = keysOf([]string{"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	must(t, err)
	got := strings.Fields(signed(keys))
	assert.True(t, len(got) == 2 && got[0] == want, "got %s", got)
	// Several, while they are exchanged.
	keys, err = keysOf([]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n another-0123456!",
		"another-0123456!,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	require.True(t, err == nil && len(keys) == 2, "%q, %v", keys, err)
	// A sentence is one: its words would be found one by one.
	keys, err = keysOf([]string{"correct horse battery staple"})
	require.True(t, err == nil && len(keys) == 1 &&
		string(keys[0]) == "correct horse battery staple", "%q, %v", keys, err)
	for _, bad := range [][]string{nil, {""}, {" \n"}, {"whsec_"}, {"whsec_n?tbase64"}} {
		_, err := keysOf(bad)
		assert.True(t, err != nil && !strings.Contains(err.Error(), "n?t"), "%q: %v", bad, err)
	}
}

// made returns the target of a push, and the request for a message.
func made(t *testing.T, p wire.Push, c event.Content, limit int) (headers map[string]string,
	body string, err error) {
	t.Helper()
	p.URL = "https://example.com/"
	must(t, Check(&p, false))
	text, err := wire.Marshal(&p)
	must(t, err)
	target, err := newTarget(&event.Policy{Push: text})
	must(t, err)
	m := event.LeasedMessage{MessageView: event.MessageView{
		ID: event.NewID(1_700_000_000_000, 5,
			0), Queue: "q", Key: "k", Kind: "note", Attempt: 2, EnqueuedAt: 1_700_000_000_000,
		Priority: 5, State: event.StateLeased,
	}, MaxAttempts: 5}
	r, err := target.request(&m, &c, nil, time.Unix(1_700_000_001, 0), limit)
	if err != nil {
		return nil, "", err
	}
	headers = map[string]string{}
	for name, v := range r.Header {
		headers[name] = strings.Join(v, "|")
	}
	return headers, string(r.Body), nil
}

func TestRequest(t *testing.T) {
	id := event.NewID(1_700_000_000_000, 5, 0).String()
	base := func(more ...string) map[string]string {
		h := map[string]string{"Idempotency-Key": id, "Webhook-Id": id,
			"Webhook-Timestamp": "1700000001", "Qlogd-Queue": "q", "Qlogd-Attempt": "2", "Qlogd-Hops": "1", "Content-Type": "application/json"}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = more[i+1]
		}
		return h
	}
	for name, c := range map[string]struct {
		push    wire.Push
		content event.Content
		headers map[string]string
		body    string
	}{
		"payload": {wire.Push{}, event.Content{Payload: []byte(`{"a": 1}`),
			Headers: []event.Header{{Name: "x", Value: "y"}}}, base(), `{"a": 1}`},
		"no payload": {wire.Push{}, event.Content{}, base(), `null`},
		"bytes": {wire.Push{}, event.Content{Payload: []byte{0, 1}, Binary: true,
			ContentType: "image/png"}, base("Content-Type", "image/png"), "\x00\x01"},
		"bytes, no type": {wire.Push{}, event.Content{Payload: []byte{0, 1}, Binary: true},
			base("Content-Type", "application/octet-stream"), "\x00\x01"},
		"own headers": {wire.Push{Headers: map[string]string{"content-type": "application/x+json",
			"authorization": "Bearer t"}}, event.Content{Payload: []byte(`1`)},
			base("Content-Type", "application/x+json", "Authorization", "Bearer t"), `1`},
		"trace": {wire.Push{}, event.Content{Payload: []byte(`1`),
			Headers: []event.Header{{Name: "traceparent",
				Value: "00-a-b-01"}}}, base("Traceparent", "00-a-b-01"), `1`},
		"mapped": {wire.Push{Input: map[string]string{"t": "payload.a[1] + kind",
			"at": "enqueued_at"}}, event.Content{Payload: []byte(`{"a":["b","c"]}`)}, base(),
			`{"at":"2023-11-14T22:13:20Z","t":"cnote"}`},
		"bytes, mapped": {wire.Push{Input: map[string]string{"p": "payload", "id": "id"}},
			event.Content{Payload: []byte{0}, Binary: true,
				ContentType: "image/png"}, base(), `{"id":"` + id + `","p":null}`},
		"mapped to none": {wire.Push{Input: map[string]string{}},
			event.Content{Payload: []byte(`1`)}, base(), `{}`},
	} {
		headers, body, err := made(t, c.push, c.content, 1000)
		must(t, err, name)
		assert.Equal(t, body, c.body, name)
		assert.Equal(t, cmp.Diff(c.headers, headers), "", name)
	}
	for name, c := range map[string]struct {
		input, payload, want string
	}{
		"missing field": {"payload.b", `{"a":1}`, "push.input.x: "},
		"too large": {"payload.a + payload.a", `{"a":"` + strings.Repeat("x", 600) + `"}`,
			"too large"},
		"odd payload": {"payload", `{"a":1,"a":2}`, "push.input: the payload"},
	} {
		_, _, err := made(t, wire.Push{Input: map[string]string{"x": c.input}},
			event.Content{Payload: []byte(c.payload)}, 1000)
		assert.ErrorContains(t, err, c.want, name)
	}
}

// TestRequestCloudEvents: both modes, with the mapped payload as data.
func TestRequestCloudEvents(t *testing.T) {
	content := event.Content{Payload: []byte(`{"a":1}`)}
	headers, body, err := made(t, wire.Push{Format: "cloudevents"}, content, 1000)
	must(t, err)
	var e map[string]any
	must(t, json.Unmarshal([]byte(body), &e))
	assert.True(t, headers["Content-Type"] == "application/cloudevents+json" &&
		e["specversion"] == "1.0" && e["type"] == "note" && e["attempt"] == 2.0 &&
		cmp.Equal(e["data"], map[string]any{"a": 1.0}), "%v\n%s", headers, body)
	headers, body, err = made(t, wire.Push{Format: "cloudevents_binary",
		Input: map[string]string{"b": "payload.a"}}, content, 1000)
	must(t, err)
	assert.True(t, headers["Content-Type"] == "application/json" &&
		headers["Ce-Specversion"] == "1.0" && headers["Ce-Type"] == "note" && body == `{"b":1}`,
		"%v\n%s", headers, body)
	assert.True(t, headers["Idempotency-Key"] != "" &&
		headers["Webhook-Id"] == headers["Idempotency-Key"], "%v", headers)
}

// must fails the test on an error.
var must = require.NoError

func TestCheck(t *testing.T) {
	p := wire.Push{URL: "https://example.com/hook",
		Headers: map[string]string{"Authorization": "Bearer x",
			"content-type": "application/x+json"},
		Input: map[string]string{"title": "payload.title", "at": "enqueued_at",
			"who": "headers.?who.orValue(id + key + queue + kind)", "n": "attempt"}}
	must(t, Check(&p, false))
	assert.True(t, p.TimeoutMS == defaultTimeoutMS && p.MaxInFlight == defaultInFlight &&
		p.Format == formatPayload, "defaults: %+v", p)
	again := p
	assert.NoError(t, Check(&again, false), "what was checked is refused")
	long := map[string]string{}
	for i := range event.MaxHeaders + 1 {
		long["X-"+strings.Repeat("x", i+1)] = ""
	}
	headers, err := json.Marshal(long)
	must(t, err)
	for field, bad := range map[string][]string{
		"push.url": {
			`"url":""`, `"url":"http://127.0.0.1:1/"`, `"url":"http://a:b@example.com/"`,
		},
		"push.timeout_ms":      {`"timeout_ms":99`, `"timeout_ms":600001`},
		"push.max_in_flight":   {`"max_in_flight":-1`, `"max_in_flight":1001`},
		"push.rate_per_second": {`"rate_per_second":-1`, `"rate_per_second":1e-9`},
		"push.format":          {`"format":"xml"`},
		"push.secret_env": {
			`"secret_env":["A","whsec_abc="]`, `"secret_env":["","","","","","","","",""]`,
		},
		"push.secret_file": {`"secret_file":"../secret"`, `"secret_file":"/etc/shadow"`},
		"push.answer_to":   {`"answer_to":"a b"`},
		"push.headers": {
			`"headers":{"Host":"x"}`, `"headers":{"content-length":"1"}`,
			`"headers":{"webhook-id":"1"}`, `"headers":{"idempotency-key":"1"}`,
			`"headers":{"x y":"1"}`, `"headers":{"x":"a\r\nHost: b"}`,
			`"headers":{"x":"1","X":"2"}`, `"headers":` + string(headers),
		},
		"push.input.title": {
			`"input":{"title":"payload."}`, `"input":{"title":"body.title"}`,
			`"input":{"title":""}`,
		},
	} {
		for _, text := range bad {
			p := wire.Push{URL: "https://example.com/hook"}
			must(t, json.Unmarshal([]byte("{"+text+"}"), &p))
			err := Check(&p, false)
			problem, ok := err.(*event.Problem)
			assert.True(t, ok && problem.Code == event.CodeInvalidArgument &&
				problem.Field == field && strings.HasPrefix(problem.Detail, field+" "),
				"%s: %v, want a problem of %s", text, err, field)
			assert.False(t, err != nil && strings.Contains(err.Error(), "whsec_abc"),
				"a secret is repeated: %v", err)
		}
	}
}

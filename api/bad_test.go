package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"html"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"

	"github.com/qlogd/qlogd/internal/transcode"
)

const aULID = "01JABCDEFGHJKMNPQRSTVWXYZ0"

// TestBadInput is the list of reliability.md section 5 as far as it is HTTP's:
// each is answered as a problem and none reaches the Proposer.
func TestBadInput(t *testing.T) {
	deep := strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000)
	msg := func(fields string) string { return `{"messages":[{"payload":1},{"payload":2,` + fields + `}]}` }
	many := func(n int, one string) string { return `[` + strings.TrimSuffix(strings.Repeat(one+`,`, n), ",") + `]` }
	headers := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"h%d":"v",`, i)
		}
		return `"headers":{` + strings.TrimSuffix(b.String(), ",") + `}`
	}
	const produce = "POST /v1/queues/q/messages"
	for _, c := range []struct {
		name, call, body string
		status           int
		code, field      string
		index            int // -1: none
		headers          string
	}{
		{"empty body", produce, "", 400, "invalid_json", "", -1, ""},
		{"blank body", produce, " \n", 400, "invalid_json", "", -1, ""},
		{"truncated", produce, `{"messages":[{"payload":"a`, 400, "invalid_json", "", -1, ""},
		{"array for object", produce, `[]`, 400, "invalid_argument", "", -1, ""},
		{"null for object", produce, `null`, 400, "invalid_argument", "messages", -1, ""},
		{"trailing", produce, `{"messages":[{"payload":1}]} x`, 400, "invalid_json", "", -1, ""},
		{"name twice", produce, msg(`"ttl_ms":1,"ttl_ms":9`), 400, "invalid_json", "ttl_ms", 1, ""},
		{"name twice in a payload", produce, `{"messages":[{"payload":{"a":1,"a":2}}]}`, 400, "invalid_json", "", -1, ""},
		{"unknown field", produce, msg(`"prioritty":1`), 400, "invalid_argument", "prioritty", 1, ""},
		{"case matters", produce, msg(`"Priority":1`), 400, "invalid_argument", "Priority", 1, ""},
		{"deep", produce, `{"messages":[{"payload":` + deep + `}]}`, 400, "invalid_json", "", -1, ""},
		{"bad UTF-8", produce, "{\"messages\":[{\"payload\":\"\xff\"}]}", 400, "invalid_json", "", -1, ""},
		{"lone surrogate", produce, `{"messages":[{"payload":"\ud800"}]}`, 400, "invalid_json", "", -1, ""},
		{"BOM", produce, "\xef\xbb\xbf" + `{"messages":[{"payload":1}]}`, 400, "invalid_json", "", -1, ""},
		{"NaN", produce, `{"messages":[{"payload":NaN}]}`, 400, "invalid_json", "", -1, ""},
		{"form", produce, "a=b", 415, "unsupported_media_type", "Content-Type", -1, "Content-Type: application/x-www-form-urlencoded"},
		{"multipart", produce, "a=b", 415, "unsupported_media_type", "Content-Type", -1, "Content-Type: multipart/form-data; boundary=x"},
		{"odd type", produce, "a=b", 415, "unsupported_media_type", "Content-Type", -1, "Content-Type: ;;;"},
		{"charset", produce, `{"messages":[{"payload":1}]}`, 415, "unsupported_media_type", "Content-Type", -1, "Content-Type: application/json; charset=utf-16"},
		{"type of a lease", "POST /v1/queues/q/lease", `{}`, 415, "unsupported_media_type", "Content-Type", -1, "Content-Type: text/html"},
		{"msgpack to a queue", "PUT /v1/queues/q", "\x80", 415, "unsupported_media_type", "Content-Type", -1, "Content-Type: application/msgpack"},
		{"gzip", produce, "\x1f\x8b", 415, "unsupported_media_type", "Content-Encoding", -1, "Content-Encoding: gzip"},
		{"payload too large", produce, msg(`"payload_base64":null`)[:12] + `[{"payload":"` + strings.Repeat("x", 1<<20) + `"}]}`, 413, "payload_too_large", "payload", 0, ""},
		{"bytes too large", produce, `{"messages":[{"payload_base64":"` + base64.StdEncoding.EncodeToString(make([]byte, 1<<20+1)) + `"}]}`, 413, "payload_too_large", "payload", 0, ""},
		{"raw too large", produce, strings.Repeat("x", 1<<20+1), 413, "payload_too_large", "", -1, "Content-Type: text/plain"},
		{"raw empty", produce, "", 400, "invalid_argument", "payload", -1, "Content-Type: text/plain"},
		{"raw priority", produce + "?priority=11", "x", 400, "invalid_argument", "priority", -1, "Content-Type: text/plain"},
		{"raw unknown", produce + "?prio=1", "x", 400, "invalid_argument", "prio", -1, "Content-Type: text/plain"},
		{"raw twice", produce + "?key=1&key=2", "x", 400, "invalid_argument", "key", -1, "Content-Type: text/plain"},
		{"raw key", produce + "?key=%ff", "x", 400, "invalid_argument", "key", -1, "Content-Type: text/plain"},
		{"raw deliver_at", produce + "?deliver_at=soon", "x", 400, "invalid_argument", "deliver_at", -1, "Content-Type: text/plain"},
		{"parameter with JSON", produce + "?key=a", `{"messages":[{"payload":1}]}`, 400, "invalid_argument", "key", -1, ""},
		{"bad query", produce + "?a=%zz", `{}`, 400, "invalid_argument", "query", -1, ""},
		{"replay of a missing queue", "POST /v1/queues/nope/dead/replay", `{}`, 404, "queue_not_found", "queue", -1, ""},
		{"replay to a missing queue", "POST /v1/queues/q/dead/replay", `{"to":"nope"}`, 404, "queue_not_found", "to", -1, ""},
		{"missing task", "POST /v1/tasks/" + aULID + "/resume", `{`, 404, "not_found", "id", -1, ""},
		{"missing queue", "POST /v1/queues/nope/messages", `{"messages":[{"payload":1}]}`, 404, "queue_not_found", "queue", -1, ""},
		{"batch of 0", produce, `{"messages":[]}`, 400, "invalid_argument", "messages", -1, ""},
		{"batch of 1001", produce, `{"messages":` + many(1001, `{"payload":1}`) + `}`, 400, "invalid_argument", "messages", -1, ""},
		{"no payload", produce, `{"messages":[{"payload":1},{}]}`, 400, "invalid_argument", "payload", 1, ""},
		{"both payloads", produce, msg(`"payload_base64":"eA=="`), 400, "invalid_argument", "payload", 1, ""},
		{"bad base64", produce, `{"messages":[{"payload_base64":"!"}]}`, 400, "invalid_argument", "payload_base64", 0, ""},
		{"content_type of JSON", produce, msg(`"content_type":"a/b"`), 400, "invalid_argument", "content_type", 1, ""},
		{"key", produce, msg(`"key":"` + strings.Repeat("k", 257) + `"`), 400, "invalid_argument", "key", 1, ""},
		{"kind", produce, msg(`"kind":"` + strings.Repeat("k", 129) + `"`), 400, "invalid_argument", "kind", 1, ""},
		{"priority 0", produce, msg(`"priority":0`), 400, "invalid_argument", "priority", 1, ""},
		{"priority 11", produce, msg(`"priority":11`), 400, "invalid_argument", "priority", 1, ""},
		{"priority 261", produce, msg(`"priority":261`), 400, "invalid_argument", "priority", 1, ""},
		{"priority text", produce, msg(`"priority":"5"`), 400, "invalid_argument", "priority", 1, ""},
		{"priority 5.5", produce, msg(`"priority":5.5`), 400, "invalid_argument", "priority", 1, ""},
		{"delay -1", produce, msg(`"delay_ms":-1`), 400, "invalid_argument", "delay_ms", 1, ""},
		{"delay 5s", produce, msg(`"delay_ms":"5s"`), 400, "invalid_argument", "delay_ms", 1, ""},
		{"delay 1e300", produce, msg(`"delay_ms":1e300`), 400, "invalid_argument", "delay_ms", 1, ""},
		{"delay 11 years", produce, msg(`"delay_ms":347000000000`), 400, "invalid_argument", "delay_ms", 1, ""},
		{"ttl overflow", produce, msg(`"ttl_ms":9223372036854775807`), 400, "invalid_argument", "ttl_ms", 1, ""},
		{"ttl over overflow", produce, msg(`"ttl_ms":9223372036854775808`), 400, "invalid_argument", "ttl_ms", 1, ""},
		{"deliver_at number", produce, msg(`"deliver_at":5`), 400, "invalid_argument", "deliver_at", 1, ""},
		{"deliver_at year 0", produce, msg(`"deliver_at":"0000-01-01T00:00:00Z"`), 400, "invalid_argument", "deliver_at", 1, ""},
		{"deliver_at far", produce, msg(`"deliver_at":"9999-01-01T00:00:00Z"`), 400, "invalid_argument", "deliver_at", 1, ""},
		{"deliver_at and delay", produce, msg(`"deliver_at":"2030-01-01T00:00:00Z","delay_ms":5`), 400, "invalid_argument", "deliver_at", 1, ""},
		{"65 headers", produce, msg(headers(65)), 400, "invalid_argument", "headers", 1, ""},
		{"header name CR LF", produce, msg(`"headers":{"a\r\nb":"v"}`), 400, "invalid_argument", "headers", 1, ""},
		{"header value LF", produce, msg(`"headers":{"a":"v\nw"}`), 400, "invalid_argument", "headers", 1, ""},
		{"header name 65", produce, msg(`"headers":{"` + strings.Repeat("n", 65) + `":"v"}`), 400, "invalid_argument", "headers", 1, ""},
		{"header value 4097", produce, msg(`"headers":{"a":"` + strings.Repeat("v", 4097) + `"}`), 400, "invalid_argument", "headers", 1, ""},
		{"header number", produce, msg(`"headers":{"a":1}`), 400, "invalid_argument", "headers.a", 1, ""},
		{"Idempotency-Key empty", produce, `{"messages":[{"payload":1}]}`, 400, "invalid_argument", "Idempotency-Key", -1, "Idempotency-Key: "},
		{"Idempotency-Key long", produce, `{"messages":[{"payload":1}]}`, 400, "invalid_argument", "Idempotency-Key", -1, "Idempotency-Key: " + strings.Repeat("k", 300)},
		{"Idempotency-Key odd", produce, `{"messages":[{"payload":1}]}`, 400, "invalid_argument", "Idempotency-Key", -1, "Idempotency-Key: a\tb"},

		{"name with NUL", "PUT /v1/queues/a%00b", "", 400, "invalid_argument", "queue", -1, ""},
		{"name with U+202E", "PUT /v1/queues/a%E2%80%AEb", "", 400, "invalid_argument", "queue", -1, ""},
		{"name ..", "PUT /v1/queues/..", "", 400, "invalid_argument", "queue", -1, ""},
		{"name .", "PUT /v1/queues/.", "", 400, "invalid_argument", "queue", -1, ""},
		{"name empty", "PUT /v1/queues/", "", 400, "invalid_argument", "queue", -1, ""},
		{"name empty, messages", "POST /v1/queues//messages", `{}`, 400, "invalid_argument", "queue", -1, ""},
		{"name ../../etc/passwd", "PUT /v1/queues/../../etc/passwd", "", 400, "invalid_argument", "queue", -1, ""},
		{"name ..%2f..%2f", "PUT /v1/queues/..%2f..%2f", "", 400, "invalid_argument", "queue", -1, ""},
		{"name %252e%252e", "PUT /v1/queues/%252e%252e", "", 400, "invalid_argument", "queue", -1, ""},
		{"name %2e%2e", "PUT /v1/queues/%2e%2e", "", 400, "invalid_argument", "queue", -1, ""},
		{"name 129", "PUT /v1/queues/" + strings.Repeat("n", 129), "", 400, "invalid_argument", "queue", -1, ""},
		{"name _internal", "PUT /v1/queues/_internal", "", 400, "invalid_argument", "queue", -1, ""},
		{"path with NUL", "POST /v1/%00", "", 400, "invalid_argument", "path", -1, ""},
		{"unknown path", "POST /v1/nope", "", 404, "not_found", "", -1, ""},
		{"unknown method", "POST /v1/queues/q", "", 405, "method_not_allowed", "", -1, ""},

		{"ordering", "PUT /v1/queues/q", `{"ordering":"lifo"}`, 400, "invalid_argument", "ordering", -1, ""},
		{"unknown policy", "PUT /v1/queues/q", `{"orderin":"fifo"}`, 400, "invalid_argument", "orderin", -1, ""},
		{"lease_ms text", "PUT /v1/queues/q", `{"delivery":{"lease_ms":"30s"}}`, 400, "invalid_argument", "delivery.lease_ms", -1, ""},
		{"lease_ms 1", "PUT /v1/queues/q", `{"delivery":{"lease_ms":1}}`, 400, "invalid_argument", "delivery.lease_ms", -1, ""},
		{"multiplier", "PUT /v1/queues/q", `{"delivery":{"backoff_multiplier":0.5}}`, 400, "invalid_argument", "delivery.backoff_multiplier", -1, ""},
		{"multiplier 1e300", "PUT /v1/queues/q", `{"delivery":{"backoff_multiplier":1e300}}`, 400, "invalid_argument", "delivery.backoff_multiplier", -1, ""},
		{"multiplier 1e400", "PUT /v1/queues/q", `{"delivery":{"backoff_multiplier":1e400}}`, 400, "invalid_argument", "delivery.backoff_multiplier", -1, ""},
		{"jitter", "PUT /v1/queues/q", `{"delivery":{"backoff_jitter":1.1}}`, 400, "invalid_argument", "delivery.backoff_jitter", -1, ""},
		{"attempts", "PUT /v1/queues/q", `{"delivery":{"max_attempts":-1}}`, 400, "invalid_argument", "delivery.max_attempts", -1, ""},
		{"attempts 2^32", "PUT /v1/queues/q", `{"delivery":{"max_attempts":4294967296}}`, 400, "invalid_argument", "delivery.max_attempts", -1, ""},
		{"schedule", "PUT /v1/queues/q", `{"delivery":{"backoff_schedule_ms":[1,-1]}}`, 400, "invalid_argument", "delivery.backoff_schedule_ms[1]", -1, ""},
		{"dlq itself", "PUT /v1/queues/q", `{"delivery":{"dead_letter_queue":"q"}}`, 400, "invalid_argument", "delivery.dead_letter_queue", -1, ""},
		{"hold_key", "PUT /v1/queues/q", `{"ordering":"fifo","delivery":{"on_dead":"hold_key"}}`, 400, "invalid_argument", "delivery.on_dead", -1, ""},
		{"window over history", "PUT /v1/queues/q", `{"deduplication":{"window_seconds":604801}}`, 400, "invalid_argument", "deduplication.window_seconds", -1, ""},
		{"schema broken", "PUT /v1/queues/q", `{"message_schema":{"type":5}}`, 400, "invalid_argument", "message_schema", -1, ""},
		{"schema text", "PUT /v1/queues/q", `{"message_schema":"x"}`, 400, "invalid_argument", "message_schema", -1, ""},
		{"schema remote", "PUT /v1/queues/q", `{"message_schema":{"$ref":"http://169.254.169.254/x"}}`, 400, "invalid_argument", "message_schema", -1, ""},
		{"schema file", "PUT /v1/queues/q", `{"message_schema":{"$ref":"file:///etc/passwd"}}`, 400, "invalid_argument", "message_schema", -1, ""},
		{"schema pattern", "PUT /v1/queues/q", `{"message_schema":{"pattern":"("}}`, 400, "invalid_argument", "message_schema", -1, ""},
		{"PATCH missing", "PATCH /v1/queues/nope", `{}`, 404, "queue_not_found", "queue", -1, ""},
		{"DELETE missing", "DELETE /v1/queues/nope", ``, 404, "queue_not_found", "queue", -1, ""},
		{"DELETE force", "DELETE /v1/queues/q?force=yes", ``, 400, "invalid_argument", "force", -1, ""},
		{"pause with a body", "POST /v1/queues/q/pause", `{"paused":true}`, 400, "invalid_argument", "paused", -1, ""},

		{"max 0", "POST /v1/queues/q/lease", `{"max_messages":0}`, 400, "invalid_argument", "max_messages", -1, ""},
		{"max -5", "POST /v1/queues/q/lease", `{"max_messages":-5}`, 400, "invalid_argument", "max_messages", -1, ""},
		{"max 1e6", "POST /v1/queues/q/lease", `{"max_messages":1000000}`, 400, "invalid_argument", "max_messages", -1, ""},
		{"lease 99 ms", "POST /v1/queues/q/lease", `{"lease_ms":99}`, 400, "invalid_argument", "lease_ms", -1, ""},
		{"lease 13 h", "POST /v1/queues/q/lease", `{"lease_ms":46800000}`, 400, "invalid_argument", "lease_ms", -1, ""},
		{"wait", "POST /v1/queues/q/lease", `{"wait_ms":60001}`, 400, "invalid_argument", "wait_ms", -1, ""},
		{"wait -1", "POST /v1/queues/q/lease", `{"wait_ms":-1}`, 400, "invalid_argument", "wait_ms", -1, ""},
		{"lease missing", "POST /v1/queues/nope/lease", `{}`, 404, "queue_not_found", "queue", -1, ""},
		{"lease queues", "POST /v1/lease", `{"queues":[]}`, 400, "invalid_argument", "queues", -1, ""},
		{"lease queue name", "POST /v1/lease", `{"queues":["q",".."]}`, 400, "invalid_argument", "queues", 1, ""},
		{"lease queues twice", "POST /v1/lease", `{"queues":["q","q"]}`, 400, "invalid_argument", "queues", 1, ""},
		{"lease empty msgpack", "POST /v1/queues/q/lease", "\xdd\xff\xff\xff\xff", 400, "invalid_msgpack", "", -1, "Content-Type: application/msgpack"},

		{"ack no list", "POST /v1/queues/q/ack", `{}`, 400, "invalid_argument", "lease_ids", -1, ""},
		{"ack malformed", "POST /v1/queues/q/ack", `{"lease_ids":["` + aULID + `","nope"]}`, 400, "invalid_argument", "lease_ids", 1, ""},
		{"ack 1001", "POST /v1/queues/q/ack", `{"lease_ids":` + many(1001, `"`+aULID+`"`) + `}`, 400, "invalid_argument", "lease_ids", -1, ""},
		{"retry delay", "POST /v1/queues/q/retry", `{"items":[{"lease_id":"` + aULID + `","delay_ms":-1}]}`, 400, "invalid_argument", "delay_ms", 0, ""},
		{"retry delay max", "POST /v1/queues/q/retry", `{"items":[{"lease_id":"` + aULID + `","delay_ms":900000000000}]}`, 400, "invalid_argument", "delay_ms", 0, ""},
		{"extend past", "POST /v1/queues/q/extend", `{"items":[{"lease_id":"` + aULID + `","lease_ms":-5}]}`, 400, "invalid_argument", "lease_ms", 0, ""},
		{"one malformed", "POST /v1/leases/nope/ack", ``, 400, "invalid_argument", "lease_id", -1, ""},
		{"transaction empty", "POST /v1/transactions", `{}`, 400, "invalid_argument", "", -1, ""},
		{"transaction item", "POST /v1/transactions", `{"retry":[{"lease_id":"x"}]}`, 400, "invalid_argument", "retry.lease_id", 0, ""},
		{"transaction twice", "POST /v1/transactions", `{"ack":["` + aULID + `"],"extend":[{"lease_id":"` + aULID + `"}]}`, 400, "invalid_argument", "extend", 0, ""},
		{"transaction message", "POST /v1/transactions", `{"produce":[{"queue":"q","messages":[{"payload":1,"priority":0}]}]}`, 400, "invalid_argument", "produce[0].messages.priority", 0, ""},
		{"transaction queue", "POST /v1/transactions", `{"produce":[{"queue":"nope","messages":[{"payload":1}]}]}`, 404, "queue_not_found", "produce.queue", 0, ""},
		{"delete malformed", "DELETE /v1/messages/nope", ``, 400, "invalid_argument", "id", -1, ""},
		{"delete unknown", "DELETE /v1/messages/" + aULID, ``, 404, "message_not_found", "id", -1, ""},

		{"GET malformed", "GET /v1/messages/nope", ``, 400, "invalid_argument", "id", -1, ""},
		{"GET unknown", "GET /v1/messages/" + aULID, ``, 404, "message_not_found", "id", -1, ""},
		{"history unknown", "GET /v1/messages/" + aULID + "/history", ``, 404, "message_not_found", "id", -1, ""},
		{"consistency", "GET /v1/queues?consistency=banana", ``, 400, "invalid_argument", "consistency", -1, ""},
		{"consistency empty", "GET /v1/queues?consistency=", ``, 400, "invalid_argument", "consistency", -1, ""},
		{"at", "GET /v1/queues/q?at=yesterday", ``, 400, "invalid_argument", "at", -1, ""},
		{"at future", "GET /v1/queues/q?at=9999-01-01T00:00:00Z", ``, 400, "invalid_argument", "at", -1, ""},
		{"at beyond", "GET /v1/queues/q?at=index:99", ``, 400, "invalid_argument", "at", -1, ""},
		{"limit", "GET /v1/queues?limit=0", ``, 400, "invalid_argument", "limit", -1, ""},
		{"limit text", "GET /v1/queues?limit=x", ``, 400, "invalid_argument", "limit", -1, ""},
		{"cursor", "GET /v1/queues?cursor=..", ``, 400, "invalid_argument", "cursor", -1, ""},
		{"peek state", "GET /v1/queues/q/messages?state=acked", ``, 400, "invalid_argument", "state", -1, ""},
		{"peek cursor", "GET /v1/queues/q/messages?cursor=-1", ``, 400, "invalid_argument", "cursor", -1, ""},
		{"peek unknown", "GET /v1/queues/q/messages?offset=1", ``, 400, "invalid_argument", "offset", -1, ""},
		{"events type", "GET /v1/events?type=nope", ``, 400, "invalid_argument", "type", -1, ""},
		{"events after", "GET /v1/events?after=nope", ``, 400, "invalid_argument", "after", -1, ""},
		{"events beyond", "GET /v1/events?after=" + aULID, ``, 400, "invalid_argument", "after", -1, ""},
		{"events queue", "GET /v1/events?queue=..", ``, 400, "invalid_argument", "queue", -1, ""},
		{"events limit", "GET /v1/events?limit=1001", ``, 400, "invalid_argument", "limit", -1, ""},
		{"events follow JSON", "GET /v1/events?follow=true", ``, 400, "invalid_argument", "follow", -1, ""},
		{"operations key", "GET /v1/operations/%00", ``, 400, "invalid_argument", "path", -1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := setup(t)
			h.do("PUT", "/v1/queues/q", "").want(201)
			before := h.proposals()
			method, target, _ := strings.Cut(c.call, " ")
			var hs []string
			if c.headers != "" {
				hs = append(hs, c.headers)
			}
			a := h.do(method, target, c.body, hs...).want(c.status)
			if n := h.proposals() - before; n != 0 {
				t.Errorf("%d commands reached the proposer", n)
			}
			var p wire.Problem
			if err := wire.Decode(a.Body.Bytes(), &p); err != nil {
				t.Fatalf("%s: %v", a.Body, err)
			}
			if p.Code != c.code || c.field != "" && p.Field != c.field || p.Status != c.status || p.Title == "" || p.Detail == "" {
				t.Errorf("%s", a.Body)
			}
			if c.index >= 0 && (p.Index == nil || *p.Index != c.index) {
				t.Errorf("no index %d: %s", c.index, a.Body)
			}
			if want := map[bool]string{true: "", false: "not_applied"}[method == "GET"]; p.Outcome != want {
				t.Errorf("outcome %q: %s", p.Outcome, a.Body)
			}
			if ct := a.Header().Get("Content-Type"); ct != "application/problem+json" || a.Header().Get("X-Request-Id") == "" {
				t.Errorf("%v", a.Header())
			}
			if a.Body.Len() > 1500 {
				t.Errorf("%d bytes of answer", a.Body.Len())
			}
		})
	}
}

func TestMethodsAndRequestIDs(t *testing.T) {
	h := setup(t)
	if a := h.do("POST", "/v1/queues/q", "").want(405); a.Header().Get("Allow") != "GET, PUT, PATCH, DELETE, HEAD" {
		t.Errorf("Allow: %s", a.Header().Get("Allow"))
	}
	if a := h.do("GET", "/healthz", "", "X-Request-Id: abc-1").want(200); a.Header().Get("X-Request-Id") != "abc-1" {
		t.Errorf("%v", a.Header())
	}
	if a := h.do("GET", "/healthz", "", "X-Request-Id: a b").want(200); len(a.Header().Get("X-Request-Id")) < 16 {
		t.Errorf("%v", a.Header())
	}
	if a := h.do("HEAD", "/healthz", "").want(200); a.Body.Len() != 0 {
		t.Errorf("%s", a.Body)
	}
	h.do("GET", "/", "").want(404)
}

func TestPanicTellsNothing(t *testing.T) {
	h := setup(t)
	h.fake.before = func() { panic("secret") }
	a := h.do("PUT", "/v1/queues/q", "").want(500)
	if a.str("code") != "internal" || strings.Contains(a.Body.String(), "secret") || strings.Contains(a.Body.String(), ".go") {
		t.Errorf("%s", a.Body)
	}
}

func TestEchoIsShort(t *testing.T) {
	h := setup(t)
	long := strings.Repeat("z", 120)
	for _, a := range []answer{
		h.do("GET", "/v1/queues?"+long+"=1", "").want(400),
		h.do("PUT", "/v1/queues/q", `{"`+long+`":1}`).want(400),
		h.do("PUT", "/v1/queues/q", `{"ordering":"`+long+`"}`).want(400),
		h.do("PUT", "/v1/queues/"+long+long, ``).want(400),
		h.do("GET", "/v1/messages/"+long, ``).want(400),
		h.do("POST", "/v1/queues/q/lease", `{"lease_ms":`+strings.Repeat("9", 200)+`}`).want(400),
	} {
		if strings.Contains(a.Body.String(), long[:65]) || strings.Contains(a.Body.String(), strings.Repeat("9", 65)) {
			t.Errorf("%s", a.Body)
		}
	}
}

// TestDeepBodyIsFlat shows that a bomb of brackets is refused before it is
// decoded.
func TestDeepBodyIsFlat(t *testing.T) {
	body := bytes.Repeat([]byte("["), 8<<20)
	if n := testing.AllocsPerRun(1, func() {
		if !transcode.TooDeep(body, transcode.MaxDepth) {
			t.Fatal("not too deep")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	h := setup(t)
	r := httptest.NewRequest("POST", "/v1/queues/q/messages", bytes.NewReader(body))
	h.send(r).want(400)
	ok := strings.Repeat(`[`, 61) + strings.Repeat(`]`, 61)
	h.do("PUT", "/v1/queues/q", "").want(201)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":`+ok+`}]}`).want(201)
	h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":[`+ok+`]}]}`).want(400)
}

// TestProblemPages: a problem's type is a page of the node that explains it.
func TestProblemPages(t *testing.T) {
	h := setup(t)
	a := h.do("GET", "/v1/queues/none", "").want(404)
	if a.str("type") != "/problems/queue_not_found" {
		t.Errorf("%s", a.Body)
	}
	for code, st := range statuses() {
		a := h.do("GET", "/problems/"+code, "").want(200)
		if !strings.Contains(a.Body.String(), html.EscapeString(st.Title)) || st.Advice == "" {
			t.Errorf("%s: %s", code, a.Body)
		}
	}
	h.do("GET", "/problems/none", "").want(404)
}

package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/transcode"
	"github.com/qlogd/qlogd/webhook"
)

const (
	topSecret = "It's a Secret to Everybody"
	opened    = `{"action":"opened","issue":{"number":1347,"title":"Broken"},"urgency":"high"}`
)

func sign(secret, body string) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(body))
	return hex.EncodeToString(m.Sum(nil))
}

// hook posts a body from an address; headers are "Name: value".
func (h *harness) hook(name, from, body string, headers ...string) answer {
	h.Helper()
	r := httptest.NewRequest("POST", "/hook/"+name, strings.NewReader(body))
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(from), 40000).String()
	for _, line := range headers {
		k, v, _ := strings.Cut(line, ": ")
		r.Header.Add(k, v)
	}
	return h.send(r)
}

// github has the contract's webhook, as gh, and its secret.
func github(t *testing.T, opts ...func(*Options)) *harness {
	h := setup(t, opts...)
	h.secrets = map[string]string{"GITHUB_WEBHOOK_SECRET": topSecret}
	h.do("PUT", "/v1/queues/WebhookIngress", "").want(201)
	h.do("PUT", "/v1/webhooks/gh", contractWebhook).want(201)
	return h
}

func signed(body string) string { return "X-Hub-Signature-256: sha256=" + sign(topSecret, body) }

// TestHook is the contract's own example.
func TestHook(t *testing.T) {
	h := github(t)
	a := h.hook("gh", "52.1.2.3", opened, signed(opened), "X-GitHub-Event: issues", "X-GitHub-Delivery: d1", "Authorization: Bearer xyz",
		"Cookie: a=b", "X-Hub-Signature: sha1=00", "Idempotency-Key: theirs", "Source-Ip: 6.6.6.6", "X-Api-Key: k", "Connection: X-Hop", "X-Hop: 1").want(202)
	id := a.str("message_id")
	a.is(`{"ok":true,"queued":true,"idempotency_key":"1347","message_id":"` + id + `"}`)
	m := h.do("GET", "/v1/messages/"+id, "").want(200)
	if got, want := string(m.raw("payload")), `{"severity":"critical","title":"[GitHub] Broken"}`; got != want {
		t.Error(got)
	}
	assert.Equal(t, string(m.raw("original")), opened)
	assert.Equal(t, m.str("key"), "gh", "%v", m.Body)
	l := h.do("POST", "/v1/queues/WebhookIngress/lease", "").want(200)
	assert.Equal(t, string(l.raw("messages.0.original")), opened)
	headers, _ := l.get("messages.0.headers").(map[string]any)
	at, err := time.Parse(wire.TimeFormat, fmt.Sprint(headers["received-at"]))
	if err != nil || time.Since(at) > time.Minute || headers["webhook"] != "gh" || headers["source-ip"] != "52.1.2.3" || headers["x-github-event"] != "issues" || headers["x-github-delivery"] != "d1" {
		t.Error(headers)
	}
	for _, name := range []string{"authorization", "cookie", "x-hub-signature", "x-hub-signature-256", "x-api-key", "connection", "x-hop"} {
		if v, ok := headers[name]; ok {
			t.Errorf("%s: %v", name, v)
		}
	}
	// The same lease in msgpack.
	h.do("POST", "/v1/queues/WebhookIngress/release", `{"lease_ids":["`+l.str("messages.0.lease_id")+`"]}`).want(200)
	packed := h.do("POST", "/v1/queues/WebhookIngress/lease", "", "Accept: application/msgpack").want(200)
	var out wire.LeaseResponse
	err = transcode.Decode(packed.Body.Bytes(), &out, 1<<20)
	if err != nil || len(out.Messages) != 1 || !sameJSON(out.Messages[0].Original, opened) {
		t.Errorf("%v %+v", err, out)
	}
	lease := out.Messages[0].LeaseID
	again := func() answer { return h.hook("gh", "52.1.2.3", opened, signed(opened)).want(200) }
	again().is(`{"ok":true,"duplicate":true,"idempotency_key":"1347","message_id":"` + id + `","state":"leased"}`)
	h.do("POST", "/v1/leases/"+lease+"/ack", `{"result":{"ticket":7}}`).want(200)
	again().is(`{"ok":true,"duplicate":true,"idempotency_key":"1347","message_id":"` + id + `","state":"acked","result":{"ticket":7}}`)
}

func sameJSON(a jsontext.Value, b string) bool {
	v := jsontext.Value(b)
	a = a.Clone()
	return a.Canonicalize() == nil && v.Canonicalize() == nil && string(a) == string(v)
}

// raw returns a member's JSON as it stands in the answer.
func (a answer) raw(path string) jsontext.Value {
	a.t.Helper()
	var v any
	require.NoError(a.t, wire.Unmarshal(a.Body.Bytes(), &v))
	b, err := wire.Marshal(a.get(path))
	require.NoError(a.t, err)
	return b
}

// TestHookOrder: of two things that are wrong the contract's first is told, and
// nothing of it is proposed.
func TestHookOrder(t *testing.T) { synctest.Test(t, hookOrder) }

func hookOrder(t *testing.T) {
	full := `{"retention":{"max_depth":1}}`
	h := github(t)
	h.do("PUT", "/v1/queues/full", full).want(201)
	now := time.Now().Unix()
	stripe := func(body string, at int64) string {
		return fmt.Sprintf("Stripe-Signature: t=%d,v1=%s", at, sign(topSecret, fmt.Sprintf("%d.%s", at, body)))
	}
	def := `{"queue":"full","verify_hmac":{"scheme":"stripe","secret_env":"%s"},"allow_ips":["10.0.0.0/8"],"filter":"payload.type != 'ping'",
		"idempotency_key":"payload.id","payload_schema":{"properties":{"n":{"type":"integer"}}}}`
	h.do("PUT", "/v1/webhooks/w", fmt.Sprintf(def, "GITHUB_WEBHOOK_SECRET")).want(201)
	h.do("PUT", "/v1/webhooks/lacking", fmt.Sprintf(def, "NOBODY_HAS_IT")).want(201)
	good := `{"type":"x","id":"1","n":1}`
	h.hook("w", "10.1.1.1", good, stripe(good, now)).want(202)
	n := h.proposals()
	for _, c := range []struct {
		name, from, body, signature string
		status                      int
		code                        string
	}{
		// each line has all that the lines below it have wrong
		{"nobody", "11.1.1.1", "x", "", 404, "webhook_not_found"},
		{"-", "11.1.1.1", "x", "", 404, "webhook_not_found"},
		{"w", "11.1.1.1", "x", "", 403, "ip_not_allowed"},
		{"lacking", "11.1.1.1", "x", "", 403, "ip_not_allowed"},
		{"lacking", "10.1.1.1", "x", "", 503, "secret_missing"},
		{"w", "10.1.1.1", "x", "", 401, "invalid_signature"},
		{"w", "10.1.1.1", "x", stripe("y", now-3600), 401, "invalid_signature"},
		{"w", "10.1.1.1", "x", stripe("x", now-301), 401, "stale_timestamp"},
		{"w", "10.1.1.1", "x", stripe("x", now+400), 401, "stale_timestamp"},
		{"w", "10.1.1.1", "x", stripe("x", now), 400, "invalid_json"},
		{"w", "10.1.1.1", `{"type":"x"} {}`, stripe(`{"type":"x"} {}`, now), 400, "invalid_json"},
		{"w", "10.1.1.1", `{"id":"1","n":"x"}`, stripe(`{"id":"1","n":"x"}`, now), 200, "filtered"},
		{"w", "10.1.1.1", `{"type":"x","n":"x"}`, stripe(`{"type":"x","n":"x"}`, now), 400, "invalid_argument"},
		{"w", "10.1.1.1", `{"type":"x","id":1}`, stripe(`{"type":"x","id":1}`, now), 400, "invalid_argument"},
		{"w", "10.1.1.1", `{"type":"ping","n":"x"}`, stripe(`{"type":"ping","n":"x"}`, now), 200, "filtered"},
		{"w", "10.1.1.1", `{"type":"x","id":"1","n":"x"}`, stripe(`{"type":"x","id":"1","n":"x"}`, now), 200, "duplicate"},
		{"w", "10.1.1.1", `{"type":"x","id":"2","n":"x"}`, stripe(`{"type":"x","id":"2","n":"x"}`, now), 400, "schema_mismatch"},
	} {
		var headers []string
		if c.signature != "" {
			headers = []string{c.signature}
		}
		a := h.hook(c.name, c.from, c.body, headers...).want(c.status)
		switch {
		case c.status == 200:
			if a.get("ok") != true || a.get(c.code) != true {
				t.Errorf("%s: %s", c.body, a.Body)
			}
		case a.str("code") != c.code || a.get("ok") != nil || a.str("outcome") != "not_applied":
			t.Errorf("%s %s: %s, want %s", c.name, c.body, a.Body, c.code)
		}
		assert.Equal(t, c.status == 503, a.Header().Get("Retry-After") != "",
			"%s: Retry-After %q", c.code, a.Header().Get("Retry-After"))
	}
	assert.Equal(t, h.proposals(), n, "something of this was proposed")
	// These come to deciding: a full queue, and a duplicate although it is full.
	other := `{"type":"x","id":"2","n":1}`
	a := h.hook("w", "10.1.1.1", other, stripe(other, now)).want(503)
	if a.str("code") != "queue_full" || a.Header().Get("Retry-After") != "1" || a.get("retryable") != true {
		t.Error(a.Body, a.Header())
	}
	if a := h.hook("w", "10.1.1.1", good, stripe(good, now)).want(200); a.get("duplicate") != true || a.str("state") != "ready" {
		t.Error(a.Body)
	}
	// A queue that was deleted by force: to be tried again, not for ever gone.
	h.do("DELETE", "/v1/queues/full?force=true", "").want(204)
	if a := h.hook("w", "10.1.1.1", other, stripe(other, now)).want(503); a.str("code") != "queue_not_found" || a.Header().Get("Retry-After") == "" {
		t.Error(a.Body)
	}
}

// TestHookTellsWhatFailed: an expression that fails on a request names itself.
func TestHookTellsWhatFailed(t *testing.T) {
	h := github(t)
	from := func(body string) answer { return h.hook("gh", "52.1.1.1", body, signed(body)).want(400) }
	for body, want := range map[string][2]string{
		`[]`:                  {"filter", "failed on this request"},
		`{"action":"opened"}`: {"idempotency_key", "no such key: issue"},
		`{"action":"opened","issue":{"number":1}}`:             {"map_to.input.severity", "no such key"},
		`{"action":"opened","issue":{"number":1},"urgency":1}`: {"map_to.input.title", "no such key: title"},
	} {
		if a := from(body).refused("invalid_argument", want[0]); !strings.Contains(a.str("detail"), want[1]) {
			t.Error(body, a.Body)
		}
	}
	// GitHub's first request, before any event: it has no action.
	if a := h.hook("gh", "52.1.1.1", `{"zen":"Keep it logically awesome."}`, signed(`{"zen":"Keep it logically awesome."}`)).want(200); a.Body.String() != `{"ok":true,"filtered":true}` {
		t.Error(a.Body)
	}
	form := "payload=%7B%7D"
	if a := h.hook("gh", "52.1.1.1", form, signed(form), "Content-Type: application/x-www-form-urlencoded").want(400); !strings.Contains(a.str("detail"), "application/json") {
		t.Error(a.Body)
	}
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	h.hook("gh", "52.1.1.1", deep, signed(deep)).want(400).refused("invalid_json", "")
	h.do("PUT", "/v1/webhooks/gh", strings.Replace(contractWebhook, `"webhook"`, `"payload.k"`, 1)).want(200)
	long := `{"action":"opened","issue":{"number":1,"title":"x"},"urgency":"x","k":"` + strings.Repeat("k", 257) + `"}`
	from(long).refused("invalid_argument", "key")
	large := `{"a":"` + strings.Repeat("x", 1<<20) + `"}`
	h.hook("gh", "52.1.1.1", large, signed(large)).want(413).refused("payload_too_large", "")
}

// TestHookBehindProxies: who sends is read from the right, as far as those who
// wrote it are trusted.
func TestHookBehindProxies(t *testing.T) {
	h := github(t, func(o *Options) {
		o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	})
	other := `{"action":"x"}`
	for _, c := range []struct {
		remote    string
		forwarded []string
		ok        bool
	}{
		{"52.1.1.1", nil, true},
		{"9.9.9.9", []string{"X-Forwarded-For: 52.1.1.1"}, false},
		{"10.0.0.1", []string{"X-Forwarded-For: 52.1.1.1"}, true},
		{"10.0.0.1", nil, false},
		{"fd00::1", []string{"X-Forwarded-For: 52.1.1.1, 10.9.9.9"}, true},
		{"10.0.0.1", []string{"X-Forwarded-For: 52.1.1.1, 9.9.9.9"}, false},
		{"10.0.0.1", []string{"X-Forwarded-For: 9.9.9.9, 52.1.1.1"}, true},
		{"10.0.0.1", []string{"X-Forwarded-For: 9.9.9.9", "X-Forwarded-For: 52.1.1.1:1234, 10.0.0.2"}, true},
		{"10.0.0.1", []string{"X-Forwarded-For: 52.1.1.1, nonsense"}, false},
		{"10.0.0.1", []string{"X-Forwarded-For: [::ffff:52.1.1.1]"}, true},
	} {
		want := 403
		if c.ok {
			want = 200
		}
		h.hook("gh", c.remote, other, append(c.forwarded, signed(other))...).want(want)
	}
}

// TestHookSecretMissing: what a node lacks is said in /readyz, which stays ready:
// one definition must not take all nodes out of service.
func TestHookSecretMissing(t *testing.T) {
	h := github(t)
	h.do("GET", "/readyz", "").want(200).is(`{"status":"ready"}`)
	h.secrets = nil
	h.do("GET", "/readyz", "").want(200).is(`{"status":"ready","reasons":["secret_missing: webhook gh: environment variable GITHUB_WEBHOOK_SECRET is not set"]}`)
	if a := h.hook("gh", "52.1.1.1", opened, signed(opened)).want(503); a.Header().Get("Retry-After") != "60" {
		t.Error(a.Header())
	}
	h.node.unready = []string{"no leader"}
	if a := h.do("GET", "/readyz", "").want(503); !strings.Contains(a.Body.String(), "no leader") || !strings.Contains(a.Body.String(), "secret_missing") {
		t.Error(a.Body)
	}
}

// TestHookChanges: a definition that was put anew counts at once, the old one no
// more.
func TestHookChanges(t *testing.T) {
	h := github(t)
	h.hook("gh", "52.1.1.1", opened, signed(opened)).want(202)
	h.do("PUT", "/v1/webhooks/gh", `{"queue":"WebhookIngress","kind":"headers['x-github-event']","priority":"payload.urgency == 'high' ? 1 : 9"}`).want(200)
	a := h.hook("gh", "99.1.1.1", opened, "X-GitHub-Event: issues").want(202)
	if a.get("idempotency_key") != nil {
		t.Error(a.Body)
	}
	m := h.do("GET", "/v1/messages/"+a.str("message_id"), "").want(200)
	if m.str("kind") != "issues" || m.get("priority") != 1.0 || m.get("original") != nil || !sameJSON(m.raw("payload"), opened) {
		t.Error(m.Body)
	}
	h.do("DELETE", "/v1/webhooks/gh", "").want(204)
	h.hook("gh", "52.1.1.1", opened, signed(opened)).want(404)
	h.do("PUT", "/v1/webhooks/gh", contractWebhook).want(201)
	h.hook("gh", "99.1.1.1", opened).want(403)
}

// TestHookForwards: without a queue the target's answer is the answer.
func TestHookForwards(t *testing.T) {
	h := setup(t)
	h.secrets = map[string]string{"S": topSecret}
	h.do("PUT", "/v1/webhooks/sync", `{"target":"https://example.com/in?token=x","verify_hmac":{"scheme":"github","secret_env":"S"},
		"filter":"payload.action != 'ping'","idempotency_key":"string(payload.issue.number)","map_to":{"input":{"t":"payload.issue.title"}},"payload_schema":{"required":["urgency"]}}`).want(201)
	n := h.proposals()
	post := func(body string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/hook/sync", strings.NewReader(body))
		r.Header.Set("X-Hub-Signature-256", "sha256="+sign(topSecret, body))
		for _, line := range headers {
			k, v, _ := strings.Cut(line, ": ")
			r.Header.Add(k, v)
		}
		w := httptest.NewRecorder()
		h.h.ServeHTTP(w, r)
		return w
	}
	h.target.answer = &webhook.Answer{
		Status: 418, Header: http.Header{"Content-Type": {"text/plain"}}, Body: []byte("short and stout"),
	}
	w := post(opened, "Cookie: a=b", "X-GitHub-Event: issues", "Content-Type: application/json")
	if w.Code != 418 || w.Body.String() != "short and stout" || w.Header().Get("Content-Type") != "text/plain" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "sandbox") {
		t.Error(w.Code, w.Body, w.Header())
	}
	got, header := h.target.got, h.target.got.Header
	if got.URL != "https://example.com/in?token=x" || string(got.Body) != `{"t":"Broken"}` ||
		header.Get("X-GitHub-Event") != "issues" || header.Get("Idempotency-Key") != "1347" ||
		header.Get("Content-Type") != "application/json" || header.Get("Cookie") != "" ||
		header.Get("X-Hub-Signature-256") != "" {
		t.Errorf("%+v", got)
	}
	h.target.answer = &webhook.Answer{Status: 204}
	if w := post(opened); w.Code != 204 || w.Body.Len() != 0 {
		t.Error(w.Code, w.Body)
	}
	for _, c := range []struct {
		answer *webhook.Answer
		err    error
		status int
		code   string
		came   string
	}{
		{&webhook.Answer{Status: 200, Body: []byte("x"), Cut: true}, nil, 502, "target_failed", "unknown"},
		{nil, fmt.Errorf("reset by secret.internal"), 502, "target_failed", "unknown"},
		{nil, webhook.CheckURL("http://secret.internal", false), 502, "target_failed", "not_applied"},
		{nil, fmt.Errorf("answer: %w", os.ErrDeadlineExceeded), 504, "target_timeout", "unknown"},
		{&webhook.Answer{Status: 999}, nil, 502, "target_failed", "unknown"},
	} {
		h.target.answer, h.target.err = c.answer, c.err
		if w := post(opened); w.Code != c.status || !strings.Contains(w.Body.String(), c.code) || !strings.Contains(w.Body.String(), `"outcome":"`+c.came+`"`) || strings.Contains(w.Body.String(), "secret.internal") {
			t.Error(w.Code, w.Body)
		}
	}
	h.target.got.URL = ""
	for body, status := range map[string]int{`{"action":"ping"}`: 200, `{"action":"x","issue":{"number":1,"title":""}}`: 400} {
		if w := post(body); w.Code != status {
			t.Error(w.Code, w.Body)
		}
	}
	assert.Equal(t, h.target.got.URL, "", "what was refused was forwarded")
	assert.Equal(t, h.proposals(), n, "a target's webhook left an entry")
}

// TestHookIsCounted: by webhook and outcome, and not by what a stranger names.
func TestHookIsCounted(t *testing.T) {
	h := github(t)
	h.hook("gh", "52.1.1.1", opened, signed(opened)).want(202)
	h.hook("gh", "52.1.1.1", opened, signed(opened)).want(200)
	h.hook("gh", "52.1.1.1", `{"action":"closed"}`, signed(`{"action":"closed"}`)).want(200)
	h.hook("gh", "52.1.1.1", opened, "X-Hub-Signature-256: sha256=00").want(401)
	h.hook("gh", "1.1.1.1", opened).want(403)
	h.hook("nobody", "1.1.1.1", opened).want(404)
	told := h.do("GET", "/metrics", "").want(200).Body.String()
	for _, outcome := range []string{"queued", "duplicate", "filtered", "invalid_signature", "ip_not_allowed"} {
		if line := `qlogd_webhook_requests_total{outcome="` + outcome + `",webhook="gh"} 1`; !strings.Contains(told, line) {
			t.Errorf("there is no %s", line)
		}
	}
	assert.False(t, strings.Contains(told, "nobody"), "a stranger's name is a label")
	h.do("DELETE", "/v1/webhooks/gh", "").want(204)
	if told := h.do("GET", "/metrics", "").want(200).Body.String(); strings.Contains(told, `webhook="gh"`) {
		t.Error("a deleted webhook is told of")
	}
}

// TestHookSaysNothingElse: what a stranger learns of a webhook.
func TestHookSaysNothingElse(t *testing.T) {
	h := github(t)
	for _, a := range []answer{
		h.hook("gh", "52.1.1.1", opened), h.hook("gh", "52.1.1.1", opened, "X-Hub-Signature-256: sha256=00"),
		h.hook("gh", "52.1.1.1", opened, "X-Hub-Signature-256: sha256="+sign("x", opened)), h.hook("gh", "1.1.1.1", opened),
	} {
		for _, word := range []string{topSecret, "GITHUB_WEBHOOK_SECRET", "WebhookIngress", "52.0.0.0", sign(topSecret, opened)} {
			assert.False(t, strings.Contains(a.Body.String(), word), "%s is told: %s", word, a.Body)
		}
	}
	for _, c := range h.commands {
		if b := event.EncodeCommand(c); strings.Contains(string(b), topSecret) {
			t.Errorf("the secret is in a command: %q", b)
		}
	}
	if w := h.do("GET", "/hook/gh", "").want(405); w.Header().Get("Allow") != "POST" {
		t.Error(w.Header())
	}
}

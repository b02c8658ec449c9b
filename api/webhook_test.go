package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/webhook"
)

// fakeTarget is what webhooks are forwarded to.
type fakeTarget struct {
	answer *webhook.Answer
	err    error
	got    webhook.Outgoing
}

func (f *fakeTarget) AllowPrivate() bool { return false }

func (f *fakeTarget) Do(_ context.Context, r webhook.Outgoing) (*webhook.Answer, error) {
	f.got = r
	return f.answer, f.err
}

// contractWebhook is contract.md section 9's.
const contractWebhook = `{"queue": "WebhookIngress",
 "verify_hmac": {"scheme": "github", "header": "X-Hub-Signature-256", "secret_env": "GITHUB_WEBHOOK_SECRET"},
 "max_age_seconds": 300, "allow_ips": ["52.0.0.0/8"],
 "filter": "payload.action == 'opened'",
 "idempotency_key": "string(payload.issue.number)", "key": "webhook",
 "payload_schema": {},
 "map_to": {"input": {"title": "'[GitHub] ' + payload.issue.title", "severity": "payload.urgency == 'high' ? 'critical' : 'high'"}},
 "target": null}`

func TestWebhooks(t *testing.T) {
	h := setup(t)
	h.do("GET", "/v1/webhooks", "").want(200).is(`{"webhooks":[]}`)
	h.do("PUT", "/v1/webhooks/gh", contractWebhook).want(400).refused("invalid_argument", "queue")
	h.do("PUT", "/v1/queues/WebhookIngress", "").want(201)
	h.do("PUT", "/v1/queues/other", "").want(201)
	first := h.do("PUT", "/v1/webhooks/gh", contractWebhook).want(201).Body.String()
	for _, part := range []string{`"name":"gh"`, `"queue":"WebhookIngress"`, `"secret_env":"GITHUB_WEBHOOK_SECRET"`, `"max_age_seconds":300`, `"key":"webhook"`, `"allow_ips":["52.0.0.0/8"]`, `"payload_schema":{}`} {
		if !strings.Contains(first, part) {
			t.Errorf("%s is not in %s", part, first)
		}
	}
	if got := h.do("GET", "/v1/webhooks/gh", "").want(200).Body.String(); got != first {
		t.Errorf("%s\n%s", got, first)
	}
	h.do("PUT", "/v1/webhooks/gh", contractWebhook).want(200)
	h.do("PUT", "/v1/webhooks/a", `{"queue":"other"}`).want(201)
	if got := h.do("GET", "/v1/webhooks?limit=1", "").want(200).Body.String(); !strings.Contains(got, `"next_cursor":"a"`) || strings.Contains(got, `"gh"`) {
		t.Error(got)
	}
	if got := h.do("GET", "/v1/webhooks?cursor=a", "").want(200).Body.String(); !strings.Contains(got, `"gh"`) || strings.Contains(got, `"name":"a"`) {
		t.Error(got)
	}
	h.do("DELETE", "/v1/webhooks/gh", "").want(204)
	h.do("GET", "/v1/webhooks/gh", "").want(404).refused("webhook_not_found", "name")
	n := len(h.commands)
	h.do("DELETE", "/v1/webhooks/gh", "").want(404).refused("webhook_not_found", "name")
	if len(h.commands) != n {
		t.Error("what was refused was proposed")
	}
	h.do("GET", "/v1/webhooks/-", "").want(400).refused("invalid_argument", "name")
	// The same call again, by its key, as it was answered first.
	for range 2 {
		h.do("PUT", "/v1/webhooks/gh", contractWebhook, "Idempotency-Key: k1").want(201)
	}
	h.do("DELETE", "/v1/webhooks/gh", "", "Idempotency-Key: k2").want(204)
	h.do("DELETE", "/v1/webhooks/gh", "", "Idempotency-Key: k2").want(204)
}

// TestWebhooksRefused: each mistake by its field, and nothing is proposed.
func TestWebhooksRefused(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	n := len(h.commands)
	verify := func(v string) string { return `{"queue":"q","verify_hmac":` + v + `}` }
	for _, c := range []struct{ body, code, field, says string }{
		{`{`, "invalid_json", "", ""},
		{``, "invalid_json", "", "empty"},
		{`{"queue":"q","nobody":1}`, "invalid_argument", "nobody", "unknown field"},
		{`{}`, "invalid_argument", "queue", "must name the queue"},
		{`{"queue":"-"}`, "invalid_argument", "queue", "must match"},
		{`{"queue":"q","target":"https://example.com"}`, "invalid_argument", "target", "in place of queue"},
		{`{"target":"http://127.0.0.1/"}`, "invalid_argument", "target", "names an address"},
		{`{"target":"https://example.com","key":"webhook"}`, "invalid_argument", "key", "makes none"},
		{verify(`{"scheme":"gitlab","secret_env":"S"}`), "invalid_argument", "verify_hmac.scheme", "must be github"},
		{verify(`{"scheme":"generic","secret_env":"S"}`), "invalid_argument", "verify_hmac.header", "must name the header"},
		{verify(`{"scheme":"standard","header":"X","secret_env":"S"}`), "invalid_argument", "verify_hmac.header", "can't be chosen"},
		{verify(`{"scheme":"generic","header":"a b","secret_env":"S"}`), "invalid_argument", "verify_hmac.header", "header's name"},
		{verify(`{"scheme":"github","prefix":"x","secret_env":"S"}`), "invalid_argument", "verify_hmac.prefix", "generic"},
		{verify(`{"scheme":"github"}`), "invalid_argument", "verify_hmac.secret_env", "must name the environment variable"},
		{verify(`{"scheme":"github","secret_env":"top secret!"}`), "invalid_argument", "verify_hmac.secret_env", "does not belong here"},
		{verify(`{"scheme":"github","secret_file":"../x"}`), "invalid_argument", "verify_hmac.secret_file", "below"},
		{verify(`{"scheme":"github","secret_file":"/etc/passwd"}`), "invalid_argument", "verify_hmac.secret_file", "below"},
		{verify(`{"scheme":"github","secret":"topsecret"}`), "invalid_argument", "verify_hmac.secret", "unknown field"},
		{`{"queue":"q","max_age_seconds":-1}`, "invalid_argument", "max_age_seconds", "must be from 0"},
		{`{"queue":"q","max_age_seconds":"5m"}`, "invalid_argument", "max_age_seconds", "whole number"},
		{`{"queue":"q","allow_ips":["10.0.0.0/8","10.0.0.1/8"]}`, "invalid_argument", "allow_ips[1]", "10.0.0.0/8"},
		{`{"queue":"q","allow_ips":["example.com"]}`, "invalid_argument", "allow_ips[0]", "must be an address"},
		{`{"queue":"q","filter":"payload.a =="}`, "invalid_argument", "filter", "line 1, column"},
		{`{"queue":"q","filter":"payloda.a"}`, "invalid_argument", "filter", "line 1, column 1: undeclared reference to 'payloda'"},
		{`{"queue":"q","filter":"'x'"}`, "invalid_argument", "filter", "must give true or false"},
		{`{"queue":"q","key":"1"}`, "invalid_argument", "key", "string(…)"},
		{`{"queue":"q","idempotency_key":"size(payload)"}`, "invalid_argument", "idempotency_key", "must give a string"},
		{`{"queue":"q","kind":"true"}`, "invalid_argument", "kind", "must give a string"},
		{`{"queue":"q","priority":11}`, "invalid_argument", "priority", "from 1 to 10"},
		{`{"queue":"q","priority":"'x'"}`, "invalid_argument", "priority", "whole number"},
		{`{"queue":"q","priority":[1]}`, "invalid_argument", "priority", "whole number"},
		{`{"queue":"q","payload_schema":{"type":"nothing"}}`, "invalid_argument", "payload_schema", "not a JSON Schema"},
		{`{"queue":"q","map_to":{}}`, "invalid_argument", "map_to.input", "must have"},
		{`{"queue":"q","map_to":{"input":{"a":"1","title":"payload.x +"}}}`, "invalid_argument", "map_to.input.title", "line 1, column"},
		{`{"queue":"q","map_to":{"input":{"a":1}}}`, "invalid_argument", "map_to.input.a", "a string"},
		{`{"queue":"q","map_to":{"output":{}}}`, "invalid_argument", "map_to.output", "unknown field"},
	} {
		a := h.do("PUT", "/v1/webhooks/w", c.body).want(400).refused(c.code, c.field)
		if !strings.Contains(a.Body.String(), c.says) || strings.Contains(a.Body.String(), "topsecret") || strings.Contains(a.Body.String(), "top secret!") {
			t.Errorf("%s: %s", c.body, a.Body)
		}
	}
	if len(h.commands) != n {
		t.Error("a wrong definition was proposed")
	}
}

// TestWebhooksAreKeptAlike: what means the same is stored as the same bytes.
func TestWebhooksAreKeptAlike(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	var first string
	for i, body := range []string{
		`{"queue":"q","verify_hmac":{"secret_env":["S"],"header":"X-Hub-Signature-256"},"map_to":{"input":{"a":"1","b":"2"}},"payload_schema":{"type": "object"},"priority":3}`,
		`{ "priority": 3, "map_to":{"input":{"b":"2","a":"1"}},"max_age_seconds":300,"verify_hmac":{"scheme":"github","header":"X-Hub-Signature-256","secret_env":"S"},"payload_schema": {"type":"object"},"queue":"q","target":null,"key":null}`,
	} {
		h.do("PUT", fmt.Sprintf("/v1/webhooks/w%d", i), body).want(201)
		v, _ := h.Webhook(fmt.Sprintf("w%d", i))
		if first == "" {
			first = string(v.Definition)
		}
		if string(v.Definition) != first {
			t.Errorf("%s\n%s", v.Definition, first)
		}
	}
}

// is fails unless the body is this one.
func (a answer) is(body string) answer {
	a.t.Helper()
	if a.Body.String() != body {
		a.t.Errorf("%s, want %s", a.Body, body)
	}
	return a
}

// refused fails unless the answer is a problem with this code and field.
func (a answer) refused(code, field string) answer {
	a.t.Helper()
	if a.str("code") != code || a.str("field") != field {
		a.t.Errorf("want %s of %q: %s", code, field, a.Body)
	}
	return a
}

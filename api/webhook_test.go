package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
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

// TestWebhooksRefused: each mistake by its field, and nothing is proposed.
func TestWebhooksRefused(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	n := len(h.commands)
	for _, c := range table(t, "webhooks", 3) {
		code, field, _ := strings.Cut(c[0], " ")
		text := h.do("PUT", "/v1/webhooks/w", c[2]).want(400).refused(code, field).Body.String()
		if !strings.Contains(text, c[1]) || strings.Contains(text, "topsecret") ||
			strings.Contains(text, "top secret!") {
			t.Errorf("%s: %s", c[2], text)
		}
	}
	assert.Equal(t, len(h.commands), n, "a wrong definition was proposed")
}

// TestWebhooksAreKeptAlike: what means the same is stored as the same bytes.
func TestWebhooksAreKeptAlike(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	var first string
	for i, body := range []string{
		`{"queue":"q","verify_hmac":{"secret_env":["S"],"header":"X-Hub-Signature-256"},
			"map_to":{"input":{"a":"1","b":"2"}},"payload_schema":{"type": "object"},"priority":3}`,
		`{ "priority": 3, "map_to":{"input":{"b":"2","a":"1"}},"max_age_seconds":300,
			"verify_hmac":{"scheme":"github","header":"X-Hub-Signature-256","secret_env":"S"},
			"payload_schema": {"type":"object"},"queue":"q","target":null,"key":null}`,
	} {
		h.do("PUT", fmt.Sprintf("/v1/webhooks/w%d", i), body).want(201)
		v, _ := h.Webhook(fmt.Sprintf("w%d", i))
		if first == "" {
			first = string(v.Definition)
		}
		assert.Equal(t, string(v.Definition), first, "%s", v.Definition)
	}
}

// is fails unless the body is this one.
func (a answer) is(body string) answer {
	a.t.Helper()
	assert.Equal(a.t, a.Body.String(), body, "%s", a.Body)
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

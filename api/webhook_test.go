package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
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

// refused fails unless the answer is a problem with this code and field.
func (a answer) refused(code, field string) answer {
	a.t.Helper()
	assert.True(a.t, a.str("code") == code && a.str("field") == field,
		"want %s of %q: %s", code, field, a.Body)
	return a
}

const opened = `{"action":"opened","issue":{"number":1347,"title":"Broken"},"urgency":"high"}`

func sameJSON(a jsontext.Value, b string) bool {
	v := jsontext.Value(b)
	a = a.Clone()
	return a.Canonicalize() == nil && v.Canonicalize() == nil && string(a) == string(v)
}

// TestHookBroken: a stranger learns nothing of a definition that this program cannot compile, such
// as a newer one's.
func TestHookBroken(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	_, err := h.Propose(t.Context(), &event.Command{PutWebhook: &event.PutWebhook{
		Name: "w", Queue: "q", Definition: []byte(`{"queue":"q","filter":"newer(topsecret)"}`),
	}})
	require.NoError(t, err)
	text := h.do("POST", "/hook/w", "{}").want(500).with("code", "internal").Body.String()
	assert.False(t, strings.Contains(text, "newer") || strings.Contains(text, "filter"), "%s", text)
}

// TestHookForwards: without a queue the target's answer is the answer.
func TestHookForwards(t *testing.T) {
	h := setup(t)
	h.secrets = map[string]string{"S": topSecret}
	h.do("PUT", "/v1/webhooks/sync", `{"target":"https://example.com/in?token=x",
		"verify_hmac":{"scheme":"github","secret_env":"S"},
		"filter":"payload.action != 'ping'","idempotency_key":"string(payload.issue.number)",
		"map_to":{"input":{"t":"payload.issue.title"}},
		"payload_schema":{"required":["urgency"]}}`).want(201)
	n := h.proposals()
	post := func(body string, headers ...string) *httptest.ResponseRecorder {
		headers = append(headers, "X-Hub-Signature-256: sha256="+sign(topSecret, body))
		w := httptest.NewRecorder()
		h.h.ServeHTTP(w, requestOf(t.Context(), "POST", "/hook/sync", body, headers...))
		return w
	}
	h.target.answer = &webhook.Answer{
		Status: 418, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: []byte("short and stout"),
	}
	w := post(opened, "Cookie: a=b", "X-GitHub-Event: issues", "Content-Type: application/json")
	if w.Code != 418 || w.Body.String() != "short and stout" ||
		w.Header().Get("Content-Type") != "text/plain" ||
		!strings.Contains(w.Header().Get("Content-Security-Policy"), "sandbox") {
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
		{&webhook.Answer{Status: 200, Cut: true}, nil, 502, "target_failed", "unknown"},
		{nil, fmt.Errorf("reset by secret.internal"), 502, "target_failed", "unknown"},
		{nil, webhook.CheckURL("http://secret.internal", false), 502, "target_failed",
			"not_applied"},
		{nil, fmt.Errorf("answer: %w", os.ErrDeadlineExceeded), 504, "target_timeout", "unknown"},
		{&webhook.Answer{Status: 999}, nil, 502, "target_failed", "unknown"},
	} {
		h.target.answer, h.target.err = c.answer, c.err
		a := answer{post(opened), t}.want(c.status).with("code", c.code, "outcome", c.came)
		assert.False(t, strings.Contains(a.Body.String(), "secret.internal"), "%s", a.Body)
	}
	h.target.got.URL = ""
	answer{post(`{"action":"ping"}`), t}.want(200)
	answer{post(`{"action":"x","issue":{"number":1,"title":""}}`), t}.want(400)
	assert.Equal(t, h.target.got.URL, "", "what was refused was forwarded")
	assert.Equal(t, h.proposals(), n, "a target's webhook left an entry")
}

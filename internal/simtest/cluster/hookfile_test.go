package cluster_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// TestWebhookExample applies examples/webhooks/qlogd.yaml and sends what PagerDuty
// and GitHub send: the two webhooks of the first design.
func TestWebhookExample(t *testing.T) {
	n := cluster.Start(t, cluster.Options{Env: []string{"PAGERDUTY_WEBHOOK_SECRET=pd", "GITHUB_WEBHOOK_SECRET=gh"}})
	const file = "../../../examples/webhooks/qlogd.yaml"
	for _, args := range [][]string{{"apply", "-f", file, "--dry-run"}, {"apply", "-f", file}} {
		out, err := n.Run(args...)
		if err != nil || !strings.Contains(string(out), "4 ") {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	out, err := n.Run("apply", "-f", file)
	if err != nil || !strings.Contains(string(out), "0 created, 0 updated, 4 unchanged") {
		t.Fatalf("again: %v\n%s", err, out)
	}

	send := func(webhook, body string, want map[string]any, headers ...string) string {
		t.Helper()
		secret, name, prefix := "pd", "X-PagerDuty-Signature", "v1="
		if webhook == "github" {
			secret, name, prefix = "gh", "X-Hub-Signature-256", "sha256="
		}
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(body))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.URL()+"/hook/"+webhook, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(name, prefix+hex.EncodeToString(mac.Sum(nil)))
		for _, h := range headers {
			name, v, _ := strings.Cut(h, ": ")
			req.Header.Set(name, v)
		}
		resp, err := n.HTTP().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got := map[string]any{"status": float64(resp.StatusCode)}
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s is %v, want %v: %v", k, got[k], v, got)
			}
		}
		id, _ := got["message_id"].(string)
		return id
	}
	const pagerduty = `{"event":{"event_type":"incident.triggered"},"incident":{"id":"PD-123","title":"db-1 is down","urgency":"high","html_url":"https://acme.pagerduty.com/incidents/PD-123"}}`
	alert := send("pagerduty", pagerduty, map[string]any{"status": 202., "ok": true, "queued": true, "idempotency_key": "PD-123"})
	send("pagerduty", pagerduty, map[string]any{"status": 200., "duplicate": true, "state": "ready", "message_id": alert})
	low := send("pagerduty", strings.NewReplacer("PD-123", "PD-124", `"high"`, `"low"`).Replace(pagerduty), map[string]any{"status": 202.})
	send("pagerduty", strings.Replace(pagerduty, "triggered", "resolved", 1), map[string]any{"status": 200., "filtered": true})

	var issues, rest int
	var opened string
	for _, b := range deliveries(t) {
		var what struct{ Action string }
		_ = json.Unmarshal(b.body, &what) // not all have an action
		switch {
		case b.event == "issues" && what.Action == "opened" && issues == 0:
			issues++
			opened = string(b.body)
		case b.event == "issues" && what.Action != "opened" || b.event == "push":
			rest++
			send("github", string(b.body), map[string]any{"status": 200., "filtered": true}, "X-GitHub-Event: "+b.event)
		}
	}
	if issues != 1 || rest < 10 {
		t.Fatalf("%d issues, %d others among the bodies", issues, rest)
	}
	var body struct {
		Issue struct {
			Number  json.Number
			Title   string
			HTMLURL string `json:"html_url"`
		}
	}
	if err := json.Unmarshal([]byte(opened), &body); err != nil {
		t.Fatal(err)
	}
	issue := send("github", opened, map[string]any{"status": 202., "idempotency_key": body.Issue.Number.String()}, "X-GitHub-Event: issues")

	c := n.Client()
	want := map[string]struct {
		payload map[string]any
		body    string
	}{
		alert: {map[string]any{"title": "db-1 is down", "severity": "critical", "source": "pagerduty", "url": "https://acme.pagerduty.com/incidents/PD-123"}, pagerduty},
		low:   {map[string]any{"title": "db-1 is down", "severity": "high", "source": "pagerduty", "url": "https://acme.pagerduty.com/incidents/PD-124"}, ""},
		issue: {map[string]any{"title": "[GitHub] " + body.Issue.Title, "severity": "high", "source": "github", "url": body.Issue.HTMLURL}, opened},
	}
	for len(want) > 0 {
		messages, err := c.Lease(t.Context(), "WebhookIngress", client.LeaseOptions{Max: 10})
		if err != nil || len(messages) == 0 {
			t.Fatalf("%d of them, %v; to come %v", len(messages), err, want)
		}
		for _, m := range messages {
			w := want[m.ID]
			delete(want, m.ID)
			if !reflect.DeepEqual(anyOf(t, m.Payload), any(w.payload)) {
				t.Errorf("%s: %s, want %v", m.ID, m.Payload, w.payload)
			}
			if w.body != "" && !reflect.DeepEqual(anyOf(t, m.Original), anyOf(t, []byte(w.body))) {
				t.Errorf("%s: the original is %.200s", m.ID, m.Original)
			}
			if m.Key != m.Headers["webhook"] || m.Key == "" {
				t.Errorf("%s: key %q, headers %v", m.ID, m.Key, m.Headers)
			}
			if _, err := c.Ack(t.Context(), "WebhookIngress", m.LeaseID); err != nil {
				t.Error(err)
			}
		}
	}
	send("pagerduty", pagerduty, map[string]any{"status": 200., "duplicate": true, "state": "acked"})
}

func anyOf(t *testing.T, text []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

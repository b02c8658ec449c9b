package cluster_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

const pagerduty = `{"event":{"event_type":"incident.triggered"},` +
	`"incident":{"id":"PD-123","title":"db-1 is down","urgency":"high",` +
	`"html_url":"https://acme.pagerduty.com/incidents/PD-123"}}`

// TestWebhookExample applies examples/webhooks/qlogd.yaml and sends what PagerDuty
// and GitHub send.
func TestWebhookExample(t *testing.T) {
	t.Parallel()
	n := cluster.Start(t, cluster.Options{Env: []string{"PAGERDUTY_WEBHOOK_SECRET=pd",
		"GITHUB_WEBHOOK_SECRET=gh"}})
	for _, want := range []string{"4 created", "0 created, 0 updated, 4 unchanged"} {
		out, err := n.Run("apply", "-f", "../../../examples/webhooks/qlogd.yaml")
		require.True(t, err == nil && strings.Contains(string(out), want), "%v\n%s", err, out)
	}
	send := func(s hookSender, hook, body string, want hookAnswer, headers ...string) string {
		t.Helper()
		got, err := s.send(t.Context(), n, hook, []byte(body), headers...)
		id := got.MessageID
		if want.MessageID == "" {
			got.MessageID = ""
		}
		assert.True(t, err == nil && got == want, "%s: %+v %v, want %+v", hook, got, err, want)
		return id
	}
	pd := hookSender{"X-PagerDuty-Signature", "v1=", "pd"}
	alert := send(pd, "pagerduty", pagerduty, hookAnswer{Queued: true, Key: "PD-123", status: 202})
	send(pd, "pagerduty", pagerduty, hookAnswer{Duplicate: true, Key: "PD-123", State: "ready",
		MessageID: alert, status: 200})
	other := strings.NewReplacer("PD-123", "PD-124", `"high"`, `"low"`).Replace(pagerduty)
	low := send(pd, "pagerduty", other, hookAnswer{Queued: true, Key: "PD-124", status: 202})
	send(pd, "pagerduty", strings.Replace(pagerduty, "triggered", "resolved", 1),
		hookAnswer{Filtered: true, status: 200})

	gh := hookSender{"X-Hub-Signature-256", "sha256=", "gh"}
	var opened string
	filtered := 0
	for _, d := range deliveries(t) {
		var what struct{ Action string }
		_ = json.Unmarshal(d.body, &what) // not all have an action
		switch {
		case d.event == "issues" && what.Action == "opened":
			opened = string(d.body)
		case d.event == "issues" || d.event == "push":
			filtered++
			send(gh, "github", string(d.body), hookAnswer{Filtered: true, status: 200},
				"X-GitHub-Event", d.event)
		}
	}
	var body struct {
		Issue struct {
			Number  json.Number
			Title   string
			HTMLURL string `json:"html_url"`
		}
	}
	if err := json.Unmarshal([]byte(opened), &body); err != nil || filtered < 10 {
		t.Fatal(err, filtered)
	}
	issue := send(gh, "github", opened, hookAnswer{Queued: true, Key: body.Issue.Number.String(),
		status: 202}, "X-GitHub-Event", "issues")

	want := map[string]struct {
		payload map[string]any
		body    string
	}{
		alert: {map[string]any{
			"title": "db-1 is down", "severity": "critical", "source": "pagerduty",
			"url": "https://acme.pagerduty.com/incidents/PD-123",
		}, pagerduty},
		low: {map[string]any{
			"title": "db-1 is down", "severity": "high", "source": "pagerduty",
			"url": "https://acme.pagerduty.com/incidents/PD-124",
		}, other},
		issue: {map[string]any{
			"title": "[GitHub] " +
				body.Issue.Title, "severity": "high", "source": "github", "url": body.Issue.HTMLURL,
		}, opened},
	}
	c := n.Client()
	for len(want) > 0 { // the second alert waits for the first, of its key
		messages, err := c.Lease(t.Context(), "WebhookIngress", client.LeaseOptions{Max: 10})
		require.True(t, err == nil && len(messages) != 0,
			"%d of them, %v; missing %v", len(messages), err, want)
		for _, m := range messages {
			w := want[m.ID]
			delete(want, m.ID)
			assert.True(t, reflect.DeepEqual(anyOf(t, m.Payload), any(w.payload)) && m.Key != "" &&
				m.Key == m.Headers["webhook"],
				"%s: %s, key %q, headers %v, want %v", m.ID, m.Payload, m.Key, m.Headers, w.payload)
			assert.DeepEqual(t, anyOf(t, m.Original), anyOf(t, []byte(w.body)),
				"%s: the original is %.200s", m.ID, m.Original)
			if _, err := c.Ack(t.Context(), "WebhookIngress", m.LeaseID); err != nil {
				t.Error(err)
			}
		}
	}
	send(pd, "pagerduty", pagerduty, hookAnswer{Duplicate: true, Key: "PD-123", State: "acked",
		MessageID: alert, status: 200})
}

func anyOf(t *testing.T, text []byte) (v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(text, &v), "%s", text)
	return v
}

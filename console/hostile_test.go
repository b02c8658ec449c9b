package console_test

import (
	"html"
	"net/url"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// jobs is a queue whose messages die at once.
var jobs = wire.PolicyUpdate{Delivery: wire.Some(wire.DeliveryUpdate{
	DeadLetterQueue: wire.Some("auto"), MaxAttempts: wire.Some[int64](1),
})}

// What users wrote is text on every page, and characters that would hide or reorder others are seen.
func testHostileContent(t *testing.T, b *browser) {
	b.queue("jobs")
	evil := `"><script>alert(1)</script><img src=x onerror=alert(2)>'{{.}}` + "\u202e\u2066\x07"
	escaped := url.QueryEscape(evil)
	_, err := b.api.UpdateQueue(t.Context(), "jobs", wire.PolicyUpdate{
		Description: wire.Some(evil), Namespace: wire.Some("n"),
	})
	require.NoError(t, err)
	m := client.JSON(map[string]string{"evil": evil})
	m.Key, m.Kind = evil, "kind<b>\u202e"
	m.Headers = map[string]string{"h": strings.TrimSuffix(evil, "\x07")}
	ids := b.enqueue("jobs", m, m)
	b.dies("jobs", evil, evil)
	require.NoError(t, b.api.PauseKey(t.Context(), "jobs", evil, client.Reason(evil)))
	for _, path := range []string{"", "queues/jobs", "queues/jobs/policy", "queues/jobs/workers",
		"queues/jobs/explain?message_id=" + ids[1], "queues/jobs/explain?key=" + escaped,
		"queues/jobs.dlq", "queues/jobs?key=" + escaped, "queues/jobs/resume?key=" + escaped,
		"queues/jobs/pause?key=" + escaped, "dead", "queues/jobs/dead",
		"queues/jobs/dead?error=" + escaped,
		"messages/" + ids[0], "messages/" + ids[1], "messages/" + ids[1] + "?as=text",
		"messages/" + ids[1] + "/delete", "messages/" + ids[1] + "/erase", "attention", "tasks",
		"queues/jobs/dead/replay?id=" + ids[0], "queues/jobs/dead/purge",
		"queues/jobs/dead/replay?error=" + escaped + "&key=" + escaped + "&to=now",
		"queues/jobs/undo?state=acked&from=%3Cscript%3E&worker=" + escaped,
		"queues/" + url.PathEscape(evil), "?at=" + escaped, "?name=" + escaped,
		"past/difference?from=start&queue=jobs"} {
		a := b.do("GET", path, nil)
		a.text += b.do("GET", path+"?part=changes", nil, "HX-Request: true").text
		for _, bad := range []string{"<script>", "<img src=x", "kind<b>"} {
			assert.False(t, strings.Contains(a.text, bad), "%s has %s", path, bad)
		}
		if strings.Contains(path, "replay?id=") {
			continue // its payload is edited: it is what it is
		}
		shown := html.UnescapeString(tag.ReplaceAllString(a.text, " "))
		assert.False(t, strings.ContainsAny(shown, "\u202e\u2066\x07"), "%s hides something", path)
	}
}

package console_test

import (
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

// What users wrote is text on every page.
func TestHostileContentIsText(t *testing.T) {
	t.Parallel()
	b := open(t)
	ctx := t.Context()
	evil := `"><script>alert(1)</script><img src=x onerror=alert(2)>'` + "\u202e{{.}}"
	_, _, err := b.api.PutQueue(ctx, "jobs", jobs)
	require.NoError(t, err)
	m := client.JSON(map[string]string{"evil": evil})
	m.Key, m.Kind, m.Headers = evil, "kind<b>", map[string]string{"h": evil}
	done, err := b.api.Produce(ctx, "jobs", m, m)
	require.NoError(t, err)
	leased, err := b.api.Lease(ctx, "jobs", client.LeaseOptions{Worker: evil})
	require.NoError(t, err)
	_, err = b.api.DeadLetterOne(ctx, leased[0].LeaseID, wire.DeadLetterOne{Error: evil})
	require.NoError(t, err)
	require.NoError(t, b.api.PauseKey(ctx, "jobs", evil, client.Reason(evil)))
	for _, path := range []string{"", "queues/jobs", "queues/jobs/policy",
		"queues/jobs/workers", "queues/jobs/explain?message_id=" + done[1].ID, "queues/jobs.dlq",
		"queues/jobs/resume?key=" + url.QueryEscape(evil), "queues/jobs?key=" + url.QueryEscape(evil), "dead", "queues/jobs/dead",
		"messages/" + done[0].ID, "messages/" + done[1].ID, "attention", "tasks",
		"messages/" + done[1].ID + "?as=text", "messages/" + done[1].ID + "/delete",
		"messages/" + done[1].ID + "/erase", "queues/jobs/dead/replay?id=" + done[0].ID,
		"queues/jobs/dead/replay?error=%3Cscript%3E&key=%22%3E%3Cscript%3E&to=now",
		"queues/jobs/dead?error=%3Cscript%3E", "queues/jobs/dead/purge",
		"queues/jobs/undo?state=acked&from=%3Cscript%3E&worker=%3Cscript%3E",
		"queues/" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "?at=%3Cscript%3E",
		"?name=%22%3E%3Cscript%3E"} {
		a := b.do("GET", path, nil)
		a.text += b.do("GET", path+"?part=changes", nil, "HX-Request: true").text
		for _, bad := range []string{"<script>", "<img src=x", "kind<b>"} {
			assert.False(t, strings.Contains(a.text, bad), "%s has %s", path, bad)
		}
	}
}

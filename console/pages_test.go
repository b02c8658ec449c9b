package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Attention is grouped by severity; each item links to what it is about and says what to do.
func testAttention(t *testing.T, b *browser) {
	b.signIn("root")
	assert.Contains(t, b.get("attention"), "Nothing needs attention")
	_, _, err := b.api.PutQueue(t.Context(), "small", wire.PolicyUpdate{
		Retention: wire.Some(wire.RetentionUpdate{MaxDepth: wire.Some[int64](2)}),
	})
	require.NoError(t, err)
	_, err = b.api.Produce(t.Context(), "small", client.JSON(1), client.JSON(2))
	require.NoError(t, err)
	b.queue("jobs")
	b.enqueue("jobs", client.JSON(1))
	b.dies("jobs", "w", "no route to host")

	var text string
	cluster.Until(t, func() error { // the node counts deaths when it has read its log
		if text = b.get("attention"); !strings.Contains(text, "./queues/jobs/dead") {
			return errors.New("no dead letters")
		}
		return nil
	})
	assert.Contains(t, text, `href="./queues/small"`)
	assert.Contains(t, text, "2 of 2, the limit of retention.max_depth")
	assert.Contains(t, text, "raise the limit")
	assert.Contains(t, text, "1 messages died within the last 10 minutes")
	worst, next := strings.Index(text, "Something does not work"), strings.Index(text, "Look at it soon")
	assert.True(t, 0 < worst && worst < next, "not by severity: %d, %d", worst, next)

	b.fresh()
	b.signIn("ann")
	text = b.get("attention")
	assert.Contains(t, text, "jobs")
	assert.False(t, strings.Contains(text, "queues/small"), "another's queue")
}

// A page of very many items shows the first of each severity, and all of them when it is asked to.
func testMuchAttention(t *testing.T, b *browser) {
	full := wire.PolicyUpdate{
		Retention: wire.Some(wire.RetentionUpdate{MaxDepth: wire.Some[int64](1)}),
	}
	for i := range 105 {
		q, _, err := b.api.PutQueue(t.Context(), fmt.Sprint("q", i), full)
		require.NoError(t, err)
		_, err = b.api.Produce(t.Context(), q.Name, client.JSON(1))
		require.NoError(t, err)
	}
	text := b.get("attention")
	assert.Equal(t, strings.Count(text, `<li class="sev1"`), 100)
	assert.Contains(t, text, "5 more</a>")
	assert.Equal(t, strings.Count(b.get("attention?all=1"), `<li class="sev1"`), 105)
}

// A task's page shows how far it is; it is cancelled and resumed with a confirmation.
func testTask(t *testing.T, b *browser) {
	b.signIn("root")
	assert.Contains(t, b.get("tasks"), "No tasks")
	b.queue("jobs")
	for range 20 {
		b.enqueue("jobs", client.JSON(1))
		b.dies("jobs", "w", "boom")
	}
	_, task, err := b.api.Replay(t.Context(), "jobs",
		wire.ReplayRequest{Filter: &wire.DeadFilter{}, RatePerSecond: new(int64(1))})
	require.NoError(t, err)
	require.True(t, task != nil, "no task")

	path := "tasks/" + task.ID
	assert.Contains(t, b.get("tasks"), task.ID)
	assert.Contains(t, b.get("tasks?status=running"), task.ID)
	assert.False(t, strings.Contains(b.get("tasks?status=failed"), task.ID), "it has not failed")
	text := b.get(path)
	assert.Contains(t, text, "Replay in jobs")
	assert.Contains(t, text, `hx-trigger="every 1s`)
	part := b.do("GET", path+"?part=task", nil, "HX-Request: true")
	assert.Equal(t, part.StatusCode, 200)

	a := b.submit(path + "/cancel")
	assert.Equal(t, a.StatusCode, 303, "%.300s", a.text)
	got, err := b.api.Task(t.Context(), task.ID)
	require.NoError(t, err)
	assert.Equal(t, got.Status, wire.TaskCancelled)
	part = b.do("GET", path+"?part=task", nil, "HX-Request: true")
	assert.Equal(t, part.StatusCode, 286, "htmx stops to ask")
	assert.Contains(t, b.get(path), "Cancelled: Replay in jobs.") // the flash, once
	assert.False(t, strings.Contains(b.get(path), "Cancelled: Replay"), "again")

	a = b.submit(path + "/resume")
	assert.Equal(t, a.StatusCode, 303, "%.300s", a.text)
	got, err = b.api.Task(t.Context(), task.ID)
	require.NoError(t, err)
	assert.Equal(t, got.Status, wire.TaskRunning)
	assert.Equal(t, b.do("GET", path+"/erase", nil).StatusCode, 404)
	assert.Equal(t, b.do("GET", "tasks/01J00000000000000000000000", nil).StatusCode, 404)

	b.fresh()
	b.signIn("ann")
	assert.False(t, strings.Contains(b.get(path), path+"/cancel"), "offered to who may not")
}

// A webhook's page has what it checks, and why each request was refused.
func testWebhook(t *testing.T, b *browser) {
	b.queue("jobs")
	_, _, err := b.api.PutWebhook(t.Context(), "github", wire.WebhookDefinition{
		Queue: "jobs", Filter: "payload.n > 1", Key: "string(payload.n)",
		PayloadSchema: jsontext.Value(`{"type":"object"}`),
		MapTo:         &wire.MapTo{Input: map[string]string{"title": "'<b>' + string(payload.n)"}},
	})
	require.NoError(t, err)
	post := func(body string, status int) {
		resp, _, err := b.api.Raw(t.Context(), "POST", "/hook/github",
			http.Header{"Content-Type": {"application/json"}}, []byte(body))
		require.NoError(t, err)
		assert.Equal(t, resp.StatusCode, status)
	}
	post(`{"n":2}`, 202)
	post(`{"n":1}`, 200)
	post(`{`, 400)

	assert.Contains(t, b.get("webhooks"), `hx-get="./webhooks/github/recent"`)
	recent := b.do("GET", "webhooks/github/recent", nil, "HX-Request: true").text
	assert.Contains(t, recent, "3 requests")
	assert.Contains(t, recent, "1 refused")
	text := b.get("webhooks/github")
	for _, want := range []string{"payload.n &gt; 1", "&#39;&lt;b&gt;&#39; &#43; string(payload.n)",
		b.node.URL() + "/hook/github", "The body is not valid JSON", "filtered",
		`href="../../problems/invalid_json"`, "127.0.0.1", "not required"} {
		assert.Contains(t, text, want)
	}
	resp := b.do("GET", "/problems/invalid_json", nil)
	assert.Equal(t, resp.StatusCode, 200)

	a := b.submit("webhooks/github/delete", "typed=gitlab")
	assert.Equal(t, a.StatusCode, 400)
	assert.Contains(t, a.text, "Nothing was changed")
	_, err = b.api.Webhook(t.Context(), "github")
	require.NoError(t, err)
	a = b.submit("webhooks/github/delete", "typed=github")
	assert.Equal(t, a.StatusCode, 303, "%.300s", a.text)
	_, err = b.api.Webhook(t.Context(), "github")
	assert.Contains(t, err.Error(), "does not exist")
	assert.Equal(t, b.do("GET", "webhooks/github", nil).StatusCode, 404)
	created, err := b.api.Events(t.Context(), client.EventQuery{
		From: "start", Types: []string{"webhook_created"},
	})
	require.NoError(t, err)
	past := b.get("webhooks/github?at=" + created.Events[0].EventID)
	assert.Contains(t, past, "payload.n &gt; 1")
	assert.False(t, strings.Contains(past, "/delete"), "the past is read only")
}

// The cluster's page compares the nodes, and its forms act on them.
func testCluster(b *browser, c *cluster.Cluster) {
	t := b.T
	c.WaitVoters()
	b.node = c.Node(1)
	var text string
	cluster.Until(t, func() error { // nodes exchange what they know once a second
		text = b.get("cluster")
		for _, want := range []string{"equal to n1, n2", "equal to n1, n3", "equal to n2, n3"} {
			if !strings.Contains(text, want) {
				return errors.New("not yet " + want)
			}
		}
		return nil
	})
	for _, want := range []string{"this node", "leader", "free of"} {
		assert.Contains(t, text, want)
	}
	v, err := b.api.Cluster(t.Context())
	require.NoError(t, err)
	to := "n1"
	if v.LeaderID == to {
		to = "n3"
	}
	a := b.submit("cluster/transfer", "to="+to)
	assert.Equal(t, a.StatusCode, 303, "%.500s", a.text)
	cluster.Until(t, func() error {
		v, err := b.api.Cluster(t.Context())
		if err == nil && v.LeaderID != to {
			err = fmt.Errorf("the leader is %s", v.LeaderID)
		}
		return err
	})
	a = b.submit("cluster/checkpoint")
	assert.Equal(t, a.StatusCode, 303, "%.500s", a.text)
	assert.Contains(t, b.get("cluster"), "Took checkpoints: n1 at index")

	a = b.submit("cluster/nodes/n2/verify")
	require.Equal(t, a.StatusCode, 303, "%.500s", a.text)
	tasks, err := b.api.Tasks(t.Context(), "")
	require.NoError(t, err)
	_, err = b.api.WaitTask(t.Context(), tasks[0].ID)
	require.NoError(t, err)
	assert.Contains(t, b.get("tasks/"+tasks[0].ID), "every checkpoint are right")

	gone := "n3"
	if to == gone {
		gone = "n1"
	}
	a = b.submit("cluster/nodes/"+gone+"/remove", "typed=n")
	assert.Equal(t, a.StatusCode, 400, "not typed")
	a = b.submit("cluster/nodes/"+gone+"/remove", "typed="+gone)
	assert.Equal(t, a.StatusCode, 303, "%.500s", a.text)
	assert.False(t, regexp.MustCompile(`id="n-`+gone).MatchString(b.get("cluster")), "still there")
	assert.Equal(t, b.do("GET", "cluster/nodes/"+gone+"/remove", nil).StatusCode, 404)
}

// Links of a fragment are relative to the page that shows it.
func testLinksInDialog(t *testing.T, b *browser) {
	a := b.do("GET", "cluster/checkpoint", nil, "HX-Request: true",
		"HX-Current-URL: "+b.node.URL()+"/ui/cluster")
	assert.Contains(t, a.text, `action="./cluster/checkpoint"`)
	a = b.do("GET", "cluster/checkpoint", nil, "HX-Request: true",
		"HX-Current-URL: https://example.com/ops/qlogd/ui/queues/a/dead")
	assert.Contains(t, a.text, `action="../../cluster/checkpoint"`)
	assert.Contains(t, b.get("cluster/checkpoint"), `action="../cluster/checkpoint"`)
}

// The difference lists queues that differ, with their policies, and the messages of one.
func testDifference(t *testing.T, b *browser) {
	b.queue("jobs")
	b.queue("still")
	done, err := b.api.Produce(t.Context(), "jobs", client.JSON(1), client.JSON(2))
	require.NoError(t, err)
	head, err := b.api.LogHead(t.Context())
	require.NoError(t, err)
	from := fmt.Sprintf("from=index:%d", head.Index)

	assert.Contains(t, b.get("past/difference"), "Compare two instants")
	assert.Contains(t, b.get("past/difference?to=now&"+from), "No queue differs")

	_, err = b.api.UpdateQueue(t.Context(), "jobs", wire.PolicyUpdate{
		Delivery: wire.Some(wire.DeliveryUpdate{MaxAttempts: wire.Some[int64](7)}),
	})
	require.NoError(t, err)
	_, _, err = b.api.PutQueue(t.Context(), "more", wire.PolicyUpdate{})
	require.NoError(t, err)
	leased, err := b.api.Lease(t.Context(), "jobs", client.LeaseOptions{Max: 1})
	require.NoError(t, err)
	_, err = b.api.Ack(t.Context(), "jobs", leased[0].LeaseID)
	require.NoError(t, err)
	later, err := b.api.Produce(t.Context(), "jobs", client.JSON(3))
	require.NoError(t, err)

	text := b.get("past/difference?to=now&" + from)
	for _, want := range []string{"delivery.max_attempts", "1 →", "<b>7</b>", "more", "created"} {
		assert.Contains(t, text, want)
	}
	assert.False(t, strings.Contains(text, "still"), "a queue that does not differ")
	text = b.get("past/difference?queue=jobs&to=now&" + from)
	for _, want := range []string{leased[0].ID, later[0].ID, "s-acked", "not there", "queue updated"} {
		assert.Contains(t, text, want)
	}
	for _, m := range done {
		if m.ID != leased[0].ID {
			assert.False(t, strings.Contains(text, m.ID), "a message that does not differ")
		}
	}
	assert.Contains(t, b.get("?at=index:3"), "past/difference?from=index%3a3")
	assert.Equal(t, b.do("GET", "past/difference?from=nonsense", nil).StatusCode, 400)
}

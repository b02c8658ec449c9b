package console_test

import (
	"html"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// events returns the events of a queue of one type.
func (b *browser) events(queue, kind string) []wire.Event {
	b.Helper()
	list, err := b.api.Events(b.Context(), client.EventQuery{
		From: "start", Queue: queue, Types: []string{kind},
	})
	require.NoError(b, err)
	return list.Events
}

// part loads a part of a page as htmx does.
func (b *browser) part(path string) string {
	b.Helper()
	a := b.do("GET", path, nil, "HX-Request: true")
	require.Equal(b, a.StatusCode, 200, "%s: %.300s", path, a.text)
	return a.text
}

// Each action does what its form says, once, with the actor and the reason in the log.
func testQueueActions(t *testing.T, b *browser) {
	ctx := t.Context()
	_, _, err := b.api.PutQueue(ctx, "jobs", wire.PolicyUpdate{})
	require.NoError(t, err)
	b.signIn("root")
	a := b.submit("queues/jobs/produce", `payload={"a":1}`, "key=k", "kind=test", "priority=2",
		"delay=1h", "headers=X-One: 1\nx-two: 2")
	require.Equal(t, a.StatusCode, 303, "%.500s", a.text)
	assert.Equal(t, a.Header.Get("Location"), "../../queues/jobs")
	assert.Contains(t, b.get("queues/jobs"), "Enqueued message")
	assert.False(t, strings.Contains(b.get("queues/jobs"), "Enqueued message"), "shown twice")
	list, err := b.api.Messages(ctx, "jobs", client.MessageQuery{State: "scheduled"})
	require.NoError(t, err)
	m := list.Messages[0]
	assert.Equal(t, string(m.Payload), `{"a":1}`)
	assert.Equal(t, m.Key+m.Kind+m.Headers["X-One"]+m.Headers["x-two"], "ktest12")
	assert.Equal(t, m.Priority, 2)

	for _, bad := range [][]string{{"payload={"}, {"payload=1", "priority=x"},
		{"payload=1", "priority=11"}, {"payload=1", "delay=3600"}, {"payload=1", "headers=x"}} {
		a := b.submit("queues/jobs/produce", bad...)
		assert.Equal(t, a.StatusCode, 400, "%v", bad)
		assert.Contains(t, a.text, `role="alert"`)
		assert.Contains(t, html.UnescapeString(a.text), bad[0][len("payload="):])
	}
	a = b.submit("queues/jobs/produce", "payload=plain <b>", "format=text")
	assert.Equal(t, a.StatusCode, 303)

	a = b.submit("queues/jobs/pause", "reason=lunch <i>")
	assert.Equal(t, a.StatusCode, 303)
	paused := b.events("jobs", "queue_paused")
	require.Equal(t, len(paused), 1)
	assert.Equal(t, paused[0].Actor+" "+paused[0].Reason, "root lunch <i>")
	assert.Equal(t, b.submit("queues/jobs/resume", "reason=").StatusCode, 303)
	assert.Equal(t, b.submit("queues/jobs/pause", "key=k").StatusCode, 303)
	q, err := b.api.Queue(ctx, "jobs")
	require.NoError(t, err)
	assert.False(t, q.Paused, "paused")
	assert.Equal(t, strings.Join(q.PausedKeys, ","), "k")
	assert.Equal(t, b.submit("queues/jobs/resume?key=k", "key=k").StatusCode, 303)

	assert.Contains(t, b.get("queues/jobs/purge"), "Discards 2 messages: 1 ready and 1 scheduled")
	assert.Equal(t, b.submit("queues/jobs/purge", "typed=other").StatusCode, 400)
	require.Equal(t, len(b.events("jobs", "queue_purged")), 0, "purged without confirmation")
	assert.Equal(t, b.submit("queues/jobs/purge", "typed=jobs", "reason=clean").StatusCode, 303)
	purged := b.events("jobs", "queue_purged")
	require.Equal(t, len(purged), 1)
	assert.Equal(t, purged[0].Reason, "clean")
	assert.Contains(t, b.get("queues/jobs"), "Purged 2 messages of jobs.")

	// Each token is offered what it may do, and the API refuses the rest.
	for who, offered := range map[string]string{"ann": "", "pat": "none"} {
		b.fresh()
		b.signIn(who)
		a := b.do("GET", "queues/jobs", nil)
		if who == "pat" {
			assert.Equal(t, a.StatusCode, 403)
			continue
		}
		for _, action := range []string{"produce", "pause", "purge", "undo"} {
			assert.Equal(t, strings.Contains(a.text, "queues/jobs/"+action), offered != "",
				"%s is offered %s", who, action)
		}
		assert.Equal(t, b.do("GET", "queues/jobs/purge", nil).StatusCode, 403)
		form := url.Values{"csrf": {csrf.FindStringSubmatch(a.text)[1]}, "typed": {"jobs"}}
		assert.Equal(t, b.do("POST", "queues/jobs/purge", form).StatusCode, 403)
	}
	assert.Equal(t, len(b.events("jobs", "queue_purged")), 1)
}

// A queue is shown as it was: its numbers, messages and policy, without anything that changes it.
func testQueueInThePast(t *testing.T, b *browser) {
	ctx := t.Context()
	_, _, err := b.api.PutQueue(ctx, "jobs", wire.PolicyUpdate{})
	require.NoError(t, err)
	done, err := b.api.Produce(ctx, "jobs", client.JSON("first"))
	require.NoError(t, err)
	_, err = b.api.UpdateQueue(ctx, "jobs", wire.PolicyUpdate{Delivery: wire.Some(
		wire.DeliveryUpdate{MaxAttempts: wire.Some[int64](7)})})
	require.NoError(t, err)
	_, err = b.api.PurgeQueue(ctx, "jobs")
	require.NoError(t, err)
	at := "?at=" + done[0].ID
	then := b.get("queues/jobs" + at)
	assert.Contains(t, then, "&#34;first&#34;")
	assert.Contains(t, then, "read only")
	for _, form := range []string{"produce", "pause", "purge"} {
		assert.Equal(t, b.do("GET", "queues/jobs/"+form+"?at=start", nil).StatusCode, 409)
	}
	for _, no := range []string{"queues/jobs/purge", "hx-trigger=\"every", "data-chart",
		`method="post"`} {
		assert.False(t, strings.Contains(then, no), "the past has %s", no)
	}
	assert.False(t, strings.Contains(b.get("queues/jobs"), "first"), "it was purged")
	policy := b.get("queues/jobs/policy" + at)
	assert.Contains(t, policy, `delivery.max_attempts: 5"`)
	assert.Contains(t, b.get("queues/jobs/policy"), `delivery.max_attempts: 7"`)
	changes := b.part("queues/jobs/policy?part=changes")
	assert.Contains(t, changes, "<del>5</del>")
	assert.Contains(t, changes, "queue purged")
	assert.Contains(t, b.part("past/bar"), "m-queue_updated")
	assert.Contains(t, b.get(at), ">jobs</a>")
	assert.Contains(t, b.get("?at=start"), "There were no queues")
	for _, links := range []string{b.get(at), then} {
		assert.Contains(t, links, done[0].ID)
	}
	a := b.do("GET", "?at=soon", nil)
	assert.Equal(t, a.StatusCode, 400)
	assert.Equal(t, b.do("GET", "queues/jobs?at=start", nil).StatusCode, 404)
	ago := b.get("queues/jobs?at=1ms")
	assert.Contains(t, ago, "at="+time.Now().UTC().Format("2006-01-02")) // links stay at that time
}

// The messages are found by state, key, kind and header, page by page; large payloads are left out.
func testPeek(t *testing.T, b *browser) {
	ctx := t.Context()
	_, _, err := b.api.PutQueue(ctx, "jobs", wire.PolicyUpdate{})
	require.NoError(t, err)
	var messages []wire.NewMessage
	for range 60 {
		messages = append(messages, client.JSON("needle-a"))
	}
	other := client.JSON("needle-b")
	other.Key, other.Kind, other.Headers = "a/b ?&", "k", map[string]string{"h": "v=1"}
	large := client.JSON(strings.Repeat("x", 500_000))
	_, err = b.api.Produce(ctx, "jobs", append(messages, other, large)...)
	require.NoError(t, err)
	page := b.get("queues/jobs")
	assert.Equal(t, strings.Count(page, "needle-a"), 25)
	pages := 1
	for strings.Contains(page, `rel="next"`) {
		before, _, _ := strings.Cut(page, `" rel="next"`)
		link := before[strings.LastIndex(before, `"`)+1:]
		page = b.get("queues/jobs" + html.UnescapeString(link))
		pages++
	}
	assert.Equal(t, pages, 3)
	assert.Contains(t, page, "(large)")
	assert.True(t, len(page) < 100_000, "%d bytes with a payload of 500,000", len(page))
	for _, query := range []string{"key=a%2Fb+%3F%26", "kind=k", "header=h%3Dv%3D1",
		"key=a%2Fb+%3F%26&state=ready"} {
		page := b.get("queues/jobs?" + query)
		assert.Contains(t, page, "needle-b", "%s:", query)
		assert.False(t, strings.Contains(page, "needle-a"), "%s finds others", query)
	}
	assert.Contains(t, b.get("queues/jobs?state=leased"), "No message matches")
	assert.Contains(t, b.get("queues/jobs/explain?key=a%2Fb+%3F%26"), "--key &#39;a/b ?&amp;&#39;")
	_, err = b.api.Lease(ctx, "jobs", client.LeaseOptions{Worker: "w<1>"})
	require.NoError(t, err)
	_, err = b.api.QueueStats(ctx, "jobs", 1) // waits until all of that is counted
	require.NoError(t, err)
	assert.Contains(t, b.part("queues/jobs?part=chart"), "&#34;total&#34;:62")
	assert.Contains(t, b.get("queues/jobs/workers"), "w&lt;1&gt;")
}

// The overview finds queues by name and namespace, page by page, from many.
func testOverview(t *testing.T, b *browser) {
	ctx := t.Context()
	for i := range 60 {
		name := "q-" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		_, _, err := b.api.PutQueue(ctx, name, wire.PolicyUpdate{Namespace: wire.Some("n" + name[2:3])})
		require.NoError(t, err)
	}
	page := b.get("")
	assert.Equal(t, strings.Count(page, `<tr id="q-`), 50)
	assert.Contains(t, page, `rel="next"`)
	assert.Equal(t, strings.Count(b.get("?after=q-bx"), `<tr id="q-`), 10)
	assert.Equal(t, strings.Count(b.get("?name=Q-C"), `<tr id="q-`), 8)
	assert.Equal(t, strings.Count(b.get("?namespace=na"), `<tr id="q-`), 26)
	assert.Contains(t, b.get("?name=zzz"), "No queue matches")
	part := b.part("?part=queues&name=q-a")
	assert.Equal(t, strings.Count(part, `<tr id="q-`), 26)
	assert.False(t, strings.Contains(part, "<html"), "a part is not a page")
}

package console_test

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var (
	hiddenInput = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`)
	planAction  = regexp.MustCompile(`<form class="action[^"]*" method="post" action="([^"]*)"`)
)

// plan is a page whose form says what it would do before it does it.
type plan struct {
	path, action string
	text         string // as a person reads it
	form         url.Values
}

// plan reads the form of such a page.
func (b *browser) plan(path, page string) *plan {
	b.Helper()
	p := &plan{path: path, text: read(page), form: url.Values{}}
	for _, m := range hiddenInput.FindAllStringSubmatch(page, -1) {
		p.form.Add(m[1], html.UnescapeString(m[2]))
	}
	action := planAction.FindStringSubmatch(page)
	require.True(b, action != nil, "no form in %s: %.2000s", path, page)
	base, err := url.Parse("/ui/" + path)
	require.NoError(b, err)
	to, err := base.Parse(html.UnescapeString(action[1]))
	require.NoError(b, err)
	p.action = strings.TrimPrefix(to.RequestURI(), "/ui/")
	return p
}

// send fills in the form and sends it.
func (b *browser) send(p *plan, fields ...string) answer {
	b.Helper()
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		p.form.Set(name, value)
	}
	return b.do("POST", p.action, p.form)
}

// dead returns the ids of what is dead in a queue.
func (b *browser) dead(queue string) (ids []string) {
	b.Helper()
	for m, err := range b.api.AllDead(b.Context(), queue, client.DeadQuery{}) {
		require.NoError(b, err)
		ids = append(ids, m.ID)
	}
	return ids
}

// depth returns how many messages of a queue are ready.
func (b *browser) depth(queue string) int64 {
	b.Helper()
	q, err := b.api.Queue(b.Context(), queue)
	require.NoError(b, err)
	return q.Stats.Depth
}

// withDead has three messages that died of one thing, and one that died of another.
func withDead(b *browser) {
	b.Helper()
	b.signIn("root")
	b.queue("jobs")
	b.queue("idle")
	for i := range 4 {
		m := client.JSON(map[string]any{"n": i})
		m.Key, m.Kind = fmt.Sprintf("k%d", i), "charge"
		b.enqueue("jobs", m)
		why := fmt.Sprintf("bank-%d answered 502", i)
		if i == 3 {
			why = "card declined"
		}
		b.dies("jobs", "w", why)
	}
}

// Dead letters are listed by queue, by what went wrong, and one by one; groups and filters select.
func testDeadLetters(t *testing.T, b *browser) {
	withDead(b)
	text := b.get("dead")
	assert.Contains(t, text, `href="./queues/jobs/dead"`)
	assert.False(t, strings.Contains(text, `href="./queues/idle/dead"`), "a queue without any")

	ids := b.dead("jobs")
	page := b.get("queues/jobs/dead")
	text = read(page)
	assert.Contains(t, text, "4 messages in 2 groups")
	assert.Contains(t, text, "bank-<n> answered <n>")
	for _, id := range ids {
		assert.Contains(t, page, `value="`+id+`"`)
	}
	group := regexp.MustCompile(`fingerprint=([0-9a-f]{12})`).FindStringSubmatch(page)[1]
	page = b.get("queues/jobs/dead?fingerprint=" + group)
	assert.Contains(t, page, ids[0])
	assert.False(t, strings.Contains(page, ids[3]), "the other group")
	for _, filter := range []string{"error=declined", "key=k3", "from=start&error=CARD"} {
		page = b.get("queues/jobs/dead?" + filter)
		assert.Contains(t, page, ids[3])
		assert.False(t, strings.Contains(page, ids[0]), "%s selects another", filter)
	}
	assert.Contains(t, read(b.get("queues/jobs/dead?kind=none")), "Nothing matches")
	assert.Equal(t, b.do("GET", "queues/jobs/dead?from=soon", nil).StatusCode, 400)

	// As it was before one of them died; and for who may only read.
	died := b.last(ids[3]).EventID
	index := fmt.Sprintf("index:%d", b.last(ids[3]).Index-1)
	page = b.get("queues/jobs/dead?at=" + index)
	assert.Contains(t, page, ids[0])
	assert.False(t, strings.Contains(page, died), "what died later")
	assert.False(t, strings.Contains(page, `name="id"`), "something to select in the past")
	assert.Equal(t, b.do("GET", "queues/jobs/dead/replay?at="+index, nil).StatusCode, 409)
	b.fresh()
	b.signIn("ann")
	page = b.get("queues/jobs/dead")
	assert.False(t, strings.Contains(page, "dead/replay"), "a replay is offered")
	assert.Equal(t, b.do("GET", "queues/jobs/dead/replay", nil).StatusCode, 403)
	assert.Equal(t, b.do("POST", "queues/jobs/dead/purge", url.Values{
		"csrf": {csrf.FindStringSubmatch(page)[1]},
	}).StatusCode, 403)
	assert.Equal(t, len(b.dead("jobs")), 4)
}

// A replay is what was previewed: a group, some selected by hand, one with another payload.
func testReplay(t *testing.T, b *browser) {
	withDead(b)
	ids := b.dead("jobs")

	// By filter. The preview changes nothing, and other options are previewed first.
	path := "queues/jobs/dead/replay?error=bank"
	p := b.plan(path, b.get(path))
	assert.Contains(t, p.text, "3 messages would be enqueued again in jobs")
	assert.Contains(t, p.text, "qlogd dead replay jobs --yes --error bank")
	a := b.send(p, "target=idle")
	assert.Equal(t, a.StatusCode, 200)
	assert.Contains(t, read(a.text), "nothing has changed yet")
	assert.Contains(t, read(a.text), "enqueued again in idle")
	assert.Equal(t, len(b.dead("jobs")), 4)
	a = b.send(b.plan(path, a.text), "target=idle", "why=the bank is back")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	assert.Contains(t, read(b.get("queues/jobs/dead")), "Replayed 3 messages of jobs.")
	assert.Equal(t, b.depth("idle"), int64(3))
	e := b.last(ids[0])
	assert.Equal(t, e.Type, "replayed")
	assert.Equal(t, e.Actor, "root")
	assert.Equal(t, e.Reason, "the bank is back")
	assert.Contains(t, b.get("queues/jobs/dead?state=replayed"), e.NewMessageID)

	// What dies after the preview is not replayed.
	path = "queues/jobs/dead/replay"
	p = b.plan(path, b.get(path))
	b.enqueue("jobs", client.JSON("later"))
	b.dies("jobs", "w", "later")
	a = b.send(p)
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	assert.Equal(t, len(b.dead("jobs")), 1)
	assert.Equal(t, b.depth("jobs"), int64(1))

	// One with another payload, by hand.
	path = "queues/jobs/dead/replay?id=" + b.dead("jobs")[0]
	p = b.plan(path, b.get(path))
	crafted := url.Values{"csrf": p.form["csrf"], "seen": p.form["seen"], "payload": {"1"}}
	assert.Equal(t, b.do("POST", "queues/jobs/dead/replay", crafted).StatusCode, 200, "no ids")
	a = b.send(p, "payload={")
	assert.Contains(t, read(a.text), "The payload is not JSON.")
	a = b.send(b.plan(path, a.text), `payload={"fixed":true}`)
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	id := regexp.MustCompile(`messages/(\w+)`).FindStringSubmatch(a.Header.Get("Location"))[1]
	m, err := b.api.Message(t.Context(), id)
	require.NoError(t, err)
	assert.Equal(t, string(m.Payload), `{"fixed":true}`)
	assert.Contains(t, read(b.get("messages/"+id)), "Edited")

	for _, wrong := range []string{"rate=0", "rate=x", "target=none", "max_replays=x"} {
		p = b.plan("queues/jobs/dead/replay", b.get("queues/jobs/dead/replay"))
		a = b.send(p, wrong, "preview=1")
		assert.True(t, a.StatusCode >= 400 && a.StatusCode < 500, "%s: %d", wrong, a.StatusCode)
		assert.Contains(t, a.text, `role="alert"`)
	}
}

// With a rate, a task replays; purged ones are gone, and by hand means only those.
func testReplayTaskAndPurge(t *testing.T, b *browser) {
	withDead(b)
	ids := b.dead("jobs")
	path := "queues/jobs/dead/purge?id=" + ids[0] + "&id=" + ids[3]
	p := b.plan(path, b.get(path))
	assert.Contains(t, p.text, "2 messages would be discarded")
	a := b.send(p, "why=a test")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	assert.Equal(t, strings.Join(b.dead("jobs"), " "), ids[1]+" "+ids[2])
	assert.Equal(t, b.last(ids[3]).Why, "a test")

	path = "queues/jobs/dead/replay?rate=1"
	p = b.plan(path, b.get(path))
	assert.Contains(t, p.text, "A task does it, in about")
	a = b.send(p, "rate=1", "max_replays=100")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	task := regexp.MustCompile(`tasks/(\w+)`).FindStringSubmatch(a.Header.Get("Location"))[1]
	done, err := b.api.WaitTask(t.Context(), task)
	require.NoError(t, err)
	assert.Equal(t, done.Done, int64(2))
	assert.Equal(t, b.depth("jobs"), int64(2))
}

// An undo brings back exactly what was previewed.
func testUndo(t *testing.T, b *browser) {
	b.signIn("root")
	b.queue("jobs")
	for i := range 3 {
		b.enqueue("jobs", client.JSON(i))
		m := b.lease("jobs", fmt.Sprintf("v%d", min(i, 1)+1))
		_, err := b.api.AckOne(t.Context(), m.LeaseID, wire.AckOne{})
		require.NoError(t, err)
	}
	page := b.get("queues/jobs/undo")
	assert.False(t, strings.Contains(page, "Bring back 3"), "before a preview")
	p := b.plan("queues/jobs/undo", page)
	a := b.send(p, "state=acked", "from=start", "worker=v2", "preview=1")
	require.Equal(t, a.StatusCode, 200, "%.2000s", a.text)
	assert.Contains(t, read(a.text), "2 messages matched. 2 messages would be enqueued again")
	assert.Contains(t, read(a.text), "qlogd undo jobs --yes --state acked --from start")
	assert.Equal(t, b.depth("jobs"), int64(0))

	p = b.plan("queues/jobs/undo", a.text)
	a = b.send(p, "state=acked", "from=start", "worker=v1") // not what was previewed
	assert.Contains(t, read(a.text), "nothing has changed yet")
	p = b.plan("queues/jobs/undo", a.text)
	a = b.send(p, "state=acked", "from=start", "worker=v1", "why=v1 was wrong")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	assert.Equal(t, b.depth("jobs"), int64(1))
	events, err := b.api.Events(t.Context(), client.EventQuery{Types: []string{"resurrected"}})
	require.NoError(t, err)
	assert.Equal(t, len(events.Events), 1)
	assert.Equal(t, events.Events[0].Reason, "v1 was wrong")

	a = b.do("GET", "queues/jobs/undo?state=acked&from=start", nil)
	assert.Contains(t, read(a.text), "1 passed over: resurrected")
	for _, wrong := range []string{"state=gone&from=start", "state=acked", "state=acked&from=soon",
		"state=discarded&from=start&worker=w", "state=acked&from=start&reason=purged"} {
		a = b.do("GET", "queues/jobs/undo?"+wrong, nil)
		assert.Equal(t, a.StatusCode, 400, "%s", wrong)
		assert.Contains(t, a.text, `role="alert"`)
	}
	assert.Equal(t, b.do("GET", "queues/jobs/undo?at=start", nil).StatusCode, 409)
	b.fresh()
	b.signIn("ann")
	assert.Equal(t, b.do("GET", "queues/jobs/undo", nil).StatusCode, 403)
}

package console_test

import (
	"errors"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// A form that is sent again, or twice at once, does what it says once. One that was changed is
// another one.
func testSentTwice(t *testing.T, b *browser) {
	b.signIn("root")
	b.queue("jobs")
	p := b.plan("queues/jobs/produce", b.get("queues/jobs/produce"))
	fields := []string{"payload=1", "headers=a: 1\nb: 2\nc: 3\nd: 4"}
	for range 3 {
		a := b.send(p, fields...)
		require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	}
	assert.Equal(t, b.depth("jobs"), int64(1))
	assert.Equal(t, b.send(p, "payload=2").StatusCode, 303)
	assert.Equal(t, b.depth("jobs"), int64(2))
	for range 2 { // two forms
		p = b.plan("queues/jobs/produce", b.get("queues/jobs/produce"))
		assert.Equal(t, b.send(p, fields...).StatusCode, 303)
	}
	assert.Equal(t, b.depth("jobs"), int64(4))
}

// The commands that a form shows are made of its values, and showing them changes nothing.
func testCommandsOfForms(t *testing.T, b *browser) {
	b.queue("jobs")
	id := b.enqueue("jobs", client.JSON(1))[0]
	for path, c := range map[string]struct {
		fields []string
		want   string
	}{
		"queues/jobs/produce": {[]string{"payload={\"a\": 1}", "key=it's", "delay=1d"},
			`qlogd enqueue jobs --as message '{"payload":{"a":1},"key":"it'\''s","delay_ms":86400000}'`},
		"queues/jobs/pause":          {[]string{"key=k", "reason=r s"}, "qlogd queue pause jobs --key k --reason 'r s'"},
		"queues/jobs/purge":          {[]string{"reason=r"}, `--json '{"reason":"r"}'`},
		"messages/" + id + "/delete": {[]string{"reason=r&s"}, "?reason=r%26s'"},
		"messages/" + id + "/erase":  {[]string{"reason=r"}, "erase " + id + " --yes --reason r"},
		"messages/" + id + "/reschedule": {[]string{"delay=2d"},
			"qlogd message reschedule " + id + " --delay 2d"},
		"queues/jobs/dead/replay": {[]string{"rate=7", "why=w"}, "--rate 7 --max-replays 100"},
		"queues/jobs/undo":        {[]string{"state=acked", "from=start", "key=k"}, "--from start"},
		"cluster/transfer":        {[]string{"to=n2"}, "qlogd cluster transfer n2"},
	} {
		page := b.get(path)
		p := b.plan(path, page)
		p.action += "?part=as"
		for _, f := range c.fields {
			name, value, _ := strings.Cut(f, "=")
			p.form.Set(name, value)
		}
		a := b.do("POST", p.action, p.form, "HX-Request: true")
		assert.Equal(t, a.StatusCode, 200, "%s", path)
		assert.Contains(t, read(a.text), c.want, "%s:", path)
		assert.False(t, strings.Contains(a.text, "<form"), "more than the commands")
	}
	head, err := b.api.LogHead(t.Context())
	require.NoError(t, err)
	q, err := b.api.Queue(t.Context(), "jobs")
	require.NoError(t, err)
	assert.Equal(t, q.Stats.Depth, int64(1), "at index %d", head.Index)
	assert.False(t, q.Paused || len(q.PausedKeys) > 0, "paused")
}

// A message's page is loaded again only when something has happened, and no more once it has left.
func testMessagePolls(t *testing.T, b *browser) {
	b.queue("jobs")
	id := b.enqueue("jobs", client.JSON(1))[0]
	poll := func(last string) int {
		return b.do("GET", "messages/"+id+"?part=life&last="+last, nil, "HX-Request: true").StatusCode
	}
	page := b.get("messages/" + id)
	last := b.last(id).EventID
	assert.Contains(t, page, `name="last" value="`+last+`"`)
	assert.Equal(t, poll(last), 204)
	m := b.lease("jobs", "w")
	assert.Equal(t, poll(last), 200)
	_, err := b.api.Ack(t.Context(), "jobs", m.LeaseID)
	require.NoError(t, err)
	assert.Equal(t, poll(last), 286, "htmx stops to ask")
	assert.False(t, strings.Contains(b.get("messages/"+id), `hx-get="?part=life"`), "it has left")
}

// Many dead letters are grouped and counted when a person asks for it, step by step; their page opens
// without that, and a search that finds nothing goes on by itself.
func testManyDead(t *testing.T, b *browser) {
	b.queue("jobs")
	ctx := t.Context()
	batch := make([]wire.NewMessage, 1000)
	for i := range batch {
		batch[i] = client.JSON(i)
	}
	for range 2 {
		b.enqueue("jobs", batch...)
		leased, err := b.api.Lease(ctx, "jobs", client.LeaseOptions{Max: 1000})
		require.NoError(t, err)
		items := make([]wire.DeadLetterItem, len(leased))
		for i := range leased {
			items[i] = wire.DeadLetterItem{LeaseID: leased[i].LeaseID, Error: "boom"}
		}
		_, err = b.api.DeadLetter(ctx, "jobs", items)
		require.NoError(t, err)
	}
	page := b.get("queues/jobs/dead")
	assert.False(t, strings.Contains(page, "1 group"), "grouped unasked")
	assert.False(t, strings.Contains(page, `hx-trigger="every`), "again and again")
	assert.Contains(t, page, "/dead?groups=")
	look := func() answer {
		return b.do("GET", "queues/jobs/dead?part=groups&groups=1", nil, "HX-Request: true")
	}
	groups := look()
	for groups.StatusCode == 200 {
		groups = look()
	}
	assert.Equal(t, groups.StatusCode, 286, "htmx stops to ask")
	assert.Contains(t, read(groups.text), "2,000 messages in 1 group")

	page = b.get("queues/jobs/dead?error=thunder")
	assert.Contains(t, page, "Nothing was found yet.")
	assert.Contains(t, page, `&amp;part=messages" hx-trigger="load`)
	path := "queues/jobs/dead/replay?error=boom"
	p := b.plan(path, b.get(path))
	assert.False(t, strings.Contains(p.text, "would be"), "counted unasked")
	assert.Contains(t, read(b.send(p, "preview=1").text), "2,000 messages would be enqueued again")
	assert.Contains(t, b.get("queues/jobs/dead/replay"), "Replay 2,000 messages")
}

// What a token may no longer read is not on the slider, though its marks were read before.
func TestNarrowedRights(t *testing.T) {
	t.Parallel()
	both := authFile(t, "root admin", "ann read *")
	n := cluster.Start(t, cluster.Options{Flags: []string{"--auth-file", both}, Token: token("root")})
	b := browse(t, n, token("root"))
	b.queue("jobs")
	b.queue("mail")
	b.signIn("ann")
	marks := func() int { return strings.Count(b.part("past/bar"), `<line class="m-queue_created"`) }
	assert.Equal(t, marks(), 4) // with two dead-letter queues
	less, err := os.ReadFile(authFile(t, "root admin", "ann read jobs"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(both, less, 0o600))
	require.NoError(t, syscall.Kill(n.Pid(), syscall.SIGHUP))
	cluster.Until(t, func() error {
		if b.do("GET", "queues/mail", nil).StatusCode == 200 {
			return errors.New("ann may still read mail")
		}
		return nil
	})
	assert.Equal(t, marks(), 1)
}

// Of several public URLs of one host, the one counts that the browser is at.
func TestPublicURLs(t *testing.T) {
	t.Parallel()
	b := openWith(t, []string{"--public-url", "https://ops.example.com/a",
		"--public-url", "https://ops.example.com/b/", "--public-url", "https://one.example.com/c"},
		"root admin")
	for host, path := range map[string]string{"ops.example.com/a": "/a", "ops.example.com/b": "/b",
		"one.example.com": "/c"} {
		name, _, _ := strings.Cut(host, "/")
		b.fresh()
		a := b.do("POST", "sign-in", url.Values{"token": {token("root")}}, "Host: "+name,
			"Origin: https://"+name, "Referer: https://"+host+"/ui/sign-in")
		require.Equal(t, a.StatusCode, 303, "%.300s", a.text)
		assert.Contains(t, a.Header.Get("Set-Cookie"), "Path="+path+"/ui/")
		assert.Contains(t, a.Header.Get("Set-Cookie"), "Secure")
	}
}

// Every answer has the id of its request, that of a proxy if it is one.
func testRequestIDs(t *testing.T, b *browser) {
	for path, given := range map[string]string{"": "", "nothing": "of-a-proxy", "cluster": "bad id"} {
		a := b.do("GET", path, nil, "X-Request-Id: "+given)
		id := a.Header.Get("X-Request-Id")
		assert.Equal(t, id == given, given == "of-a-proxy", "%q for %q", id, given)
		assert.True(t, id != "" && !strings.Contains(id, " "), "%q", id)
		assert.Equal(t, len(a.Header["X-Request-Id"]), 1)
	}
}

package console_test

import (
	"bytes"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// queue creates a queue whose messages die at the first failure.
func (b *browser) queue(name string) {
	b.Helper()
	_, _, err := b.api.PutQueue(b.Context(), name, jobs)
	require.NoError(b, err)
}

// enqueue returns the ids of new messages.
func (b *browser) enqueue(queue string, messages ...wire.NewMessage) (ids []string) {
	b.Helper()
	done, err := b.api.Produce(b.Context(), queue, messages...)
	require.NoError(b, err)
	for _, m := range done {
		ids = append(ids, m.ID)
	}
	return ids
}

// lease returns one message of a queue.
func (b *browser) lease(queue, worker string) wire.LeasedMessage {
	b.Helper()

	got, err := b.api.Lease(b.Context(), queue, client.LeaseOptions{Worker: worker, Max: 1})
	require.NoError(b, err)
	require.Equal(b, len(got), 1)
	return got[0]
}

// dies lets the first message of a queue die.
func (b *browser) dies(queue, worker, why string) {
	b.Helper()
	m := b.lease(queue, worker)
	_, err := b.api.DeadLetterOne(b.Context(), m.LeaseID, wire.DeadLetterOne{Error: why})
	require.NoError(b, err)
}

// last returns the newest event of a message.
func (b *browser) last(id string) wire.Event {
	b.Helper()
	events, err := b.api.History(b.Context(), id)
	require.NoError(b, err)
	return events[len(events)-1]
}

var tag = regexp.MustCompile(`<[^>]*>`)

// read is what a person reads on a page.
func read(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(tag.ReplaceAllString(page, " "))), " ")
}

// A message's page draws every event of its life, through a dead-letter queue and a replay, and the
// messages that came of it.
func testMessageLife(t *testing.T, b *browser) {
	b.signIn("root")
	b.queue("jobs")
	b.queue("mail")
	m := client.JSON(map[string]any{"n": 1, "text": "it's"})
	m.Key, m.Kind, m.CorrelationID, m.Headers = "k1", "ship", "order-7", map[string]string{"h": "v"}
	id := b.enqueue("jobs", m)[0]
	b.dies("jobs", "packer-1", "no paper")
	_, _, err := b.api.Replay(t.Context(), "jobs", wire.ReplayRequest{
		Filter: &wire.DeadFilter{}, Reason: "paper is here",
	})
	require.NoError(t, err)
	again := b.lease("jobs", "packer-2")
	done, err := b.api.Transaction(t.Context(), wire.TransactionRequest{
		Ack: []wire.AckItem{{LeaseID: again.LeaseID}},
		Produce: []wire.TransactionProduce{{
			Queue: "mail", Messages: []wire.NewMessage{client.JSON("shipped")},
		}},
	})
	require.NoError(t, err)
	sent := done.Messages[0].ID

	page := b.get("messages/" + id)
	events, err := b.api.History(t.Context(), id)
	require.NoError(t, err)
	for _, e := range events {
		assert.Contains(t, page, `href="#e-`+e.EventID+`"`)
		assert.Contains(t, page, `<tr id="e-`+e.EventID+`"`)
	}
	text := read(page)
	for _, want := range []string{"packer-1", "packer-2", "no paper", "paper is here",
		"died, now", "replayed as", "produced", "order-7", "attempt 1"} {
		assert.Contains(t, text, want)
	}
	for _, other := range []string{again.ID, sent} {
		assert.Contains(t, page, `/messages/`+other+`"`)
	}
	assert.Contains(t, read(b.get("messages/"+sent)), "jobs")

	// As commands, quoted, with a variable in place of the token.
	assert.Contains(t, text, `"text":"it'\''s"`)
	assert.Contains(t, text, `$QLOGD_TOKEN`)
	assert.False(t, strings.Contains(page, token("root")), "the token is on the page")

	// As it was before it died: read only.
	page = b.get("messages/" + id + "?at=" + events[1].EventID)
	text = read(page)
	assert.Contains(t, text, "▶ leased")
	for _, later := range []string{"no paper", "replayed as", `/delete"`, `/erase"`, "method=\"post\" action=\"../messages"} {
		assert.False(t, strings.Contains(page, later), "the past has %s", later)
	}
	assert.Equal(t, b.do("GET", "messages/"+id+"/delete?at="+events[1].EventID, nil).StatusCode, 409)
	assert.Equal(t, b.do("GET", "messages/"+id+"?at=start", nil).StatusCode, 404)
}

// What a person does on a message's page is in the log, with who did it and why.
func testMessageActions(t *testing.T, b *browser) {
	b.signIn("root")
	b.queue("jobs")
	ids := b.enqueue("jobs", client.JSON(1), client.JSON(2))
	page := "messages/" + ids[0]

	a := b.submit(page+"/reschedule", "delay=1h", "priority=2")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	m, err := b.api.Message(t.Context(), ids[0])
	require.NoError(t, err)
	assert.Equal(t, m.State, "scheduled")
	assert.Equal(t, m.Priority, int64(2))
	for _, wrong := range []string{"delay=soon", "when=tomorrow", "delay=-1s", "priority=99"} {
		a = b.submit(page+"/reschedule", wrong)
		assert.Equal(t, a.StatusCode, 400, "%s", wrong)
		assert.Contains(t, a.text, `role="alert"`)
	}

	a = b.submit(page+"/delete", "reason=a test")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	e := b.last(ids[0])
	assert.Equal(t, e.Type, "discarded")
	assert.Equal(t, e.Actor, "root")
	assert.Equal(t, e.Why, "a test")
	assert.Contains(t, read(b.get(page)), "Deleted the message from jobs.")

	a = b.submit(page+"/resurrect", "payload={\"edited\": true}", "reason=too early")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	e = b.last(ids[0])
	assert.Equal(t, e.Type, "resurrected")
	assert.Equal(t, e.Reason, "too early")
	m, err = b.api.Message(t.Context(), e.NewMessageID)
	require.NoError(t, err)
	assert.Equal(t, string(m.Payload), `{"edited":true}`)
	assert.Contains(t, read(b.get("messages/"+e.NewMessageID)), "Edited")
	assert.Equal(t, b.submit(page+"/resurrect").StatusCode, 409, "twice")

	erase := "messages/" + ids[1]
	end := ids[1][len(ids[1])-6:]
	for _, wrong := range []string{"typed=", "typed=nothing", "typed=" + end} { // the last has no reason
		assert.Equal(t, b.submit(erase+"/erase", wrong).StatusCode, 400, "%s", wrong)
	}
	m, err = b.api.Message(t.Context(), ids[1])
	require.NoError(t, err)
	assert.False(t, m.Erased, "erased without a confirmation")
	a = b.submit(erase+"/erase", "typed="+strings.ToLower(end), "reason=request 4711")
	require.Equal(t, a.StatusCode, 303, "%.2000s", a.text)
	task := regexp.MustCompile(`tasks/(\w+)`).FindStringSubmatch(a.Header.Get("Location"))[1]
	_, err = b.api.WaitTask(t.Context(), task)
	require.NoError(t, err)
	text := read(b.get(erase))
	assert.Contains(t, text, "The content was erased")
	assert.Contains(t, text, "request 4711")
	assert.Equal(t, b.do("GET", erase+"/payload", nil).StatusCode, 410)
}

// Who may not change messages is not offered it, and refused.
func testMessageRoles(t *testing.T, b *browser) {
	b.queue("jobs")
	id := b.enqueue("jobs", client.JSON(1))[0]
	b.signIn("ann")
	page := b.get("messages/" + id)
	csrf := csrf.FindStringSubmatch(page)[1]
	for _, action := range []string{"delete", "erase", "reschedule", "resurrect"} {
		assert.False(t, strings.Contains(page, "/"+action+`"`), "%s is offered", action)
		assert.Equal(t, b.do("GET", "messages/"+id+"/"+action, nil).StatusCode, 403)
		a := b.do("POST", "messages/"+id+"/"+action, url.Values{
			"csrf": {csrf}, "reason": {"r"}, "typed": {id[len(id)-6:]}, "delay": {"1h"}, "priority": {"1"},
		})
		assert.Equal(t, a.StatusCode, 403, "%s", action)
	}
	m, err := b.api.Message(t.Context(), id)
	require.NoError(t, err)
	assert.Equal(t, m.State, "ready")
	assert.Equal(t, len(m.History), 1)

	b.fresh()
	b.signIn("bob")
	for _, path := range []string{"", "/payload", "/delete"} {
		assert.Equal(t, b.do("GET", "messages/"+id+path, nil).StatusCode, 403)
	}
}

// An id that does not exist, and one that is none, have a clear page.
func testNoMessage(t *testing.T, b *browser) {
	a := b.do("GET", "messages/01JD8K2V3M4N5P6Q7R8S9T0VWX", nil)
	assert.Equal(t, a.StatusCode, 404)
	assert.Contains(t, read(a.text), "There is no such message")
	for _, bad := range []string{"x", "%3Cscript%3E", "..%2f..", strings.Repeat("0", 3000)} {
		a = b.do("GET", "messages/"+bad, nil)
		assert.Equal(t, a.StatusCode, 400, "%.100s", bad)
		assert.Contains(t, read(a.text), "This is no message id")
	}
}

// Whatever is in a payload, its page is bounded, shows it as text, and has the whole as a download.
func testPayloads(t *testing.T, b *browser) {
	b.queue("jobs")
	long := `{"a":"` + strings.Repeat("x", 1_000_000) + `"}`
	wide := "[" + strings.TrimSuffix(strings.Repeat("[[1,2],{}],", 90_000), ",") + "]"
	deep := strings.Repeat("[", 60) + strings.TrimSuffix(strings.Repeat("1,", 400_000), ",") +
		strings.Repeat("]", 60)
	binary := bytes.Repeat([]byte{0, 1, 0xff, '<', 'b', '>'}, 100_000)
	text := []byte("a\x00b\x1b[31m \u202e<script>alert(1)</script>")
	for name, c := range map[string]struct {
		m    wire.NewMessage
		want string
		body []byte
	}{
		"long":   {wire.NewMessage{Payload: []byte(long)}, `"a"`, []byte(long)},
		"wide":   {wire.NewMessage{Payload: []byte(wide)}, "[ [ [", []byte(wide)},
		"deep":   {wire.NewMessage{Payload: []byte(deep)}, "[ [ [", []byte(deep)},
		"binary": {wire.NewMessage{PayloadBytes: binary, ContentType: "image/png"}, "00 01 ff 3c", binary},
		"text": {wire.NewMessage{PayloadBytes: text, ContentType: "text/html"},
			"a␀b␛[31m �<script>alert(1)</script>", text},
		"empty": {wire.NewMessage{PayloadBytes: wire.Bytes{}, ContentType: "text/plain"}, "0 B", nil},
	} {
		id := b.enqueue("jobs", c.m)[0]
		for _, as := range []string{"", "?as=json", "?as=text", "?as=hex", "?as=%3Cb%3E"} {
			page := b.get("messages/" + id + as)
			assert.True(t, len(page) < 600_000, "%s%s has %d bytes", name, as, len(page))
			assert.False(t, strings.Contains(page, "<script>alert"), "%s%s: markup", name, as)
			assert.False(t, strings.ContainsAny(page, "\x00\x1b\u202e"), "%s%s: control", name, as)
			if as == "" {
				assert.Contains(t, read(strings.ReplaceAll(page, "</span>", "</span> ")), c.want)
			}
		}
		a := b.do("GET", "messages/"+id+"/payload", nil)
		assert.Equal(t, a.text, string(c.body), "%s", name)
		assert.Contains(t, a.Header.Get("Content-Disposition"), "attachment; filename=")
		assert.Equal(t, a.Header.Get("Content-Type"), "application/octet-stream")
		assert.Equal(t, a.Header.Get("X-Content-Type-Options"), "nosniff")
	}
}

// A life of many events is shown in pages, the newest first.
func testLongLife(t *testing.T, b *browser) {
	_, _, err := b.api.PutQueue(t.Context(), "jobs", wire.PolicyUpdate{
		Delivery: wire.Some(wire.DeliveryUpdate{MaxAttempts: wire.Some[int64](0)}),
	})
	require.NoError(t, err)
	id := b.enqueue("jobs", client.JSON(1))[0]
	for n := range 105 {
		m := b.lease("jobs", "w")
		_, err := b.api.RetryOne(t.Context(), m.LeaseID, wire.RetryOne{
			Error: fmt.Sprint("failure ", n), DelayMS: new(int64),
		})
		require.NoError(t, err)
	}
	page := b.get("messages/" + id)
	assert.Equal(t, strings.Count(page, `<tr id="e-`), 200)
	assert.Equal(t, strings.Count(page, "<circle"), 200)
	assert.Contains(t, page, "failure 104")
	assert.False(t, strings.Contains(page, "failure 0<"), "all events on one page")
	earlier := regexp.MustCompile(`href="(\?before=[^"]*)"`).FindStringSubmatch(page)
	page = b.get("messages/" + id + html.UnescapeString(earlier[1]))
	assert.Equal(t, strings.Count(page, `<tr id="e-`), 11)
	assert.Contains(t, page, "failure 0")
}

// A lease shows who has it, and until when.
func testLeasedMessage(t *testing.T, b *browser) {
	b.queue("jobs")
	id := b.enqueue("jobs", client.JSON(1))[0]
	m := b.lease("jobs", "packer <1>")
	text := read(b.get("messages/" + id))
	assert.Contains(t, text, "packer <1> has it until")
	assert.Contains(t, text, m.LeaseID)
	assert.True(t, m.LeaseExpiresAt.Time().After(time.Now()), "expired")
	part := b.do("GET", "messages/"+id+"?part=life", nil, "HX-Request: true")
	assert.False(t, strings.Contains(part.text, "<html"), "a part is not a page")
	assert.Contains(t, part.text, "<svg")
}

package push

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/webhook"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	header := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	retry := func(v verdict) verdict { v.op, v.delayMS = event.OpRetry, -1; return v }
	statuses := map[int]verdict{410: {op: event.OpDeadLetter, works: true}}
	for _, s := range []int{200, 204, 299} {
		statuses[s] = verdict{op: event.OpAck, works: true}
	}
	for _, s := range []int{400, 409, 422} {
		statuses[s] = retry(verdict{works: true})
	}
	for _, s := range []int{300, 302, 304, 401, 404, 408, 425, 429, 500, 503, 599} {
		statuses[s] = retry(verdict{down: true})
	}
	for status, want := range statuses {
		v := judge(&webhook.Answer{Status: status, Header: header()}, nil, now)
		assert.True(t, v.op == want.op && (v.delayMS == want.delayMS || v.op != event.OpRetry) &&
			v.works == want.works && v.down == want.down && !v.unreached, "status %d: %+v", status, v)
		assert.False(t, v.op != event.OpAck && !strings.HasPrefix(v.text, "status "),
			"status %d: text %q", status, v.text)
	}
	for after, want := range map[string]int64{
		"7": 7000, " 7 ": 7000, "86400": 3600_000, "0": -1, "-1": -1, "soon": -1, "": -1,
		"1.5": -1, "99999999999": -1,
		now.Add(90 * time.Second).Format(http.TimeFormat): 90_000,
		now.Add(-time.Minute).Format(http.TimeFormat):     -1,
		now.Add(48 * time.Hour).Format(http.TimeFormat):   3600_000,
	} {
		for _, status := range []int{429, 503} {
			v := judge(&webhook.Answer{Status: status, Header: header("Retry-After", after)}, nil, now)
			assert.Equal(t, v.delayMS, want, "%d with Retry-After %q", status, after)
			assert.Equal(t, v.hold > 0, want > 0, "%d with Retry-After %q", status, after)
		}
		v := judge(&webhook.Answer{Status: 500, Header: header("Retry-After", after)}, nil, now)
		assert.Equal(t, v.delayMS, -1, "500 with Retry-After %q", after)
	}
	v := judge(nil, errors.New("connection\nreset"), now)
	assert.True(t, v.op == event.OpRetry && v.delayMS == -1 && v.down && !v.unreached &&
		v.text == "connection reset", "%+v", v)
	v = judge(nil, webhook.CheckURL("http://127.0.0.1/", false), now)
	assert.True(t, v.op == event.OpRelease && v.down && v.unreached && v.refused &&
		strings.HasPrefix(v.safe, "target refused: "), "%+v", v)
	// What the target wrote is told to who may read the queue, and no more of it
	// than is useful.
	long := judge(&webhook.Answer{Status: 500, Header: header(),
		Body: []byte("secret\x00\r\n" + strings.Repeat("ä", 1000))}, nil, now)
	assert.True(t, strings.HasPrefix(long.text, "status 500 Internal Server Error: secret ä") &&
		len(long.text) <= 300 && !strings.Contains(long.safe, "secret"),
		"%q, told %q", long.text, long.safe)
}

func TestResult(t *testing.T) {
	for _, c := range []struct{ media, body, result, answer string }{
		{"application/json", `{ "a": 1 }`, `{"status":201,"answer":{"a":1}}`, `{"a":1}`},
		{"application/problem+json; charset=utf-8", `[1]`, `{"status":201,"answer":[1]}`, `[1]`},
		{"", `{"a":1}`, `{"status":201,"answer":{"a":1}}`, `{"a":1}`},
		{"text/html", `1`, `{"status":201}`, ``},
		{"application/json", `{"a":1,"a":2}`, `{"status":201}`, ``},
		{"application/json", "\"\xff\"", `{"status":201}`, ``},
		{"application/json", strings.Repeat("[", 64) + strings.Repeat("]", 64),
			`{"status":201,"answer":` + strings.Repeat("[", 64) + strings.Repeat("]",
				64) + `}`, strings.Repeat("[", 64) + strings.Repeat("]", 64)},
		{"application/json", strings.Repeat("[", 65) + strings.Repeat("]", 65), `{"status":201}`,
			``},
		{"application/json", ``, `{"status":201}`, ``},
		{"application/json", `"` + strings.Repeat("x", maxResult) + `"`, `{"status":201}`,
			`"` + strings.Repeat("x", maxResult) + `"`},
	} {
		h := http.Header{}
		if c.media != "" {
			h.Set("Content-Type", c.media)
		}
		v := judge(&webhook.Answer{Status: 201, Header: h, Body: []byte(c.body)}, nil, time.Now())
		assert.True(t, string(v.result) == c.result && string(v.answer) == c.answer,
			"%s %.40q: result %.60s, answer %.60s", c.media, c.body, v.result, v.answer)
	}
	v := judge(&webhook.Answer{Status: 200, Header: http.Header{}, Body: []byte(`{"a":1}`),
		Cut: true}, nil, time.Now())
	assert.True(t, v.answer == nil, "an answer that was cut is JSON: %s", v.answer)
}

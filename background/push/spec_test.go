package push

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestCheck(t *testing.T) {
	p := wire.Push{URL: "https://example.com/hook",
		Headers: map[string]string{"Authorization": "Bearer x",
			"content-type": "application/x+json"},
		Input: map[string]string{"title": "payload.title", "at": "enqueued_at",
			"who": "headers.?who.orValue(id + key + queue + kind)", "n": "attempt"}}
	must(t, Check(&p, false))
	assert.True(t, p.TimeoutMS == defaultTimeoutMS && p.MaxInFlight == defaultInFlight &&
		p.Format == formatPayload, "defaults: %+v", p)
	again := p
	assert.NoError(t, Check(&again, false), "what was checked is refused")
	long := map[string]string{}
	for i := range event.MaxHeaders + 1 {
		long["X-"+strings.Repeat("x", i+1)] = ""
	}
	headers, err := json.Marshal(long)
	must(t, err)
	for field, bad := range map[string][]string{
		"push.url": {
			`"url":""`, `"url":"http://127.0.0.1:1/"`, `"url":"http://a:b@example.com/"`,
		},
		"push.timeout_ms":      {`"timeout_ms":99`, `"timeout_ms":600001`},
		"push.max_in_flight":   {`"max_in_flight":-1`, `"max_in_flight":1001`},
		"push.rate_per_second": {`"rate_per_second":-1`, `"rate_per_second":1e-9`},
		"push.format":          {`"format":"xml"`},
		"push.secret_env": {
			`"secret_env":["A","whsec_abc="]`, `"secret_env":["","","","","","","","",""]`,
		},
		"push.secret_file": {`"secret_file":"../secret"`, `"secret_file":"/etc/shadow"`},
		"push.answer_to":   {`"answer_to":"a b"`},
		"push.headers": {
			`"headers":{"Host":"x"}`, `"headers":{"content-length":"1"}`,
			`"headers":{"webhook-id":"1"}`, `"headers":{"idempotency-key":"1"}`,
			`"headers":{"x y":"1"}`, `"headers":{"x":"a\r\nHost: b"}`,
			`"headers":{"x":"1","X":"2"}`, `"headers":` + string(headers),
		},
		"push.input.title": {
			`"input":{"title":"payload."}`, `"input":{"title":"body.title"}`,
			`"input":{"title":""}`,
		},
	} {
		for _, text := range bad {
			p := wire.Push{URL: "https://example.com/hook"}
			must(t, json.Unmarshal([]byte("{"+text+"}"), &p))
			err := Check(&p, false)
			problem, ok := err.(*event.Problem)
			assert.True(t, ok && problem.Code == event.CodeInvalidArgument &&
				problem.Field == field && strings.HasPrefix(problem.Detail, field+" "),
				"%s: %v, want a problem of %s", text, err, field)
			assert.False(t, err != nil && strings.Contains(err.Error(), "whsec_abc"),
				"a secret is repeated: %v", err)
		}
	}
}

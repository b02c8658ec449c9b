package push

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

func TestCheck(t *testing.T) {
	p := wire.Push{URL: "https://example.com/hook",
		Headers: map[string]string{"Authorization": "Bearer x",
			"content-type": "application/x+json"},
		Input: map[string]string{"title": "payload.title", "at": "enqueued_at",
			"who": "headers.?who.orValue(id + key + queue + kind)", "n": "attempt"}}
	if err := Check(&p, false); err != nil {
		t.Fatal(err)
	}
	if p.TimeoutMS != defaultTimeoutMS || p.MaxInFlight != defaultInFlight ||
		p.Format != formatPayload {
		t.Errorf("defaults: %+v", p)
	}
	again := p
	if err := Check(&again, false); err != nil {
		t.Errorf("what was checked is refused: %v", err)
	}
	long := map[string]string{}
	for i := range event.MaxHeaders + 1 {
		long["X-"+strings.Repeat("x", i+1)] = ""
	}
	for _, c := range []struct {
		name, field string
		set         func(*wire.Push)
	}{
		{"no url", "push.url", func(p *wire.Push) { p.URL = "" }},
		{"loopback", "push.url", func(p *wire.Push) { p.URL = "http://127.0.0.1:1/" }},
		{"credentials", "push.url", func(p *wire.Push) { p.URL = "http://a:b@example.com/" }},
		{"timeout", "push.timeout_ms", func(p *wire.Push) { p.TimeoutMS = 99 }},
		{"timeout", "push.timeout_ms", func(p *wire.Push) { p.TimeoutMS = 600_001 }},
		{"in flight", "push.max_in_flight", func(p *wire.Push) { p.MaxInFlight = -1 }},
		{"in flight", "push.max_in_flight", func(p *wire.Push) { p.MaxInFlight = 1001 }},
		{"rate", "push.rate_per_second", func(p *wire.Push) { p.RatePerSecond = -1 }},
		{"rate", "push.rate_per_second", func(p *wire.Push) { p.RatePerSecond = 1e-9 }},
		{"format", "push.format", func(p *wire.Push) { p.Format = "xml" }},
		{"a secret for its name", "push.secret_env",
			func(p *wire.Push) { p.SecretEnv = wire.Strings{"A", "whsec_abc="} }},
		{"file elsewhere", "push.secret_file",
			func(p *wire.Push) { p.SecretFile = wire.Strings{"../secret"} }},
		{"file elsewhere", "push.secret_file",
			func(p *wire.Push) { p.SecretFile = wire.Strings{"/etc/shadow"} }},
		{"many secrets", "push.secret_env",
			func(p *wire.Push) { p.SecretEnv = make(wire.Strings, 9) }},
		{"answer", "push.answer_to", func(p *wire.Push) { p.AnswerTo = "a b" }},
		{"header", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"Host": "x"} }},
		{"header", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"content-length": "1"} }},
		{"header", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"webhook-id": "1"} }},
		{"header", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"idempotency-key": "1"} }},
		{"header", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"x y": "1"} }},
		{"header", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"x": "a\r\nHost: b"} }},
		{"header twice", "push.headers",
			func(p *wire.Push) { p.Headers = map[string]string{"x": "1", "X": "2"} }},
		{"headers", "push.headers", func(p *wire.Push) { p.Headers = long }},
		{"syntax", "push.input.title",
			func(p *wire.Push) { p.Input = map[string]string{"title": "payload."} }},
		{"unknown name", "push.input.title",
			func(p *wire.Push) { p.Input = map[string]string{"title": "body.title"} }},
		{"empty", "push.input.title",
			func(p *wire.Push) { p.Input = map[string]string{"title": ""} }},
	} {
		p := wire.Push{URL: "https://example.com/hook"}
		c.set(&p)
		err := Check(&p, false)
		problem, ok := err.(*event.Problem)
		if !ok || problem.Code != event.CodeInvalidArgument || problem.Field != c.field ||
			!strings.HasPrefix(problem.Detail, c.field+" ") {
			t.Errorf("%s: %v, want a problem of %s", c.name, err, c.field)
		}
		if err != nil && strings.Contains(err.Error(), "whsec_abc") {
			t.Errorf("a secret is repeated: %v", err)
		}
	}
}

package push

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// The formats of a request.
const (
	formatPayload = "payload"            // the payload, or what input makes of it
	formatEvent   = "cloudevents"        // a CloudEvent with it as data, structured
	formatBinary  = "cloudevents_binary" // the same, with attributes as headers
)

// Defaults and limits.
const (
	defaultTimeoutMS = 30_000
	minTimeoutMS     = 100
	maxTimeoutMS     = 600_000
	defaultInFlight  = 10
	maxInFlight      = event.MaxBatch
	maxRate          = 100_000
	maxSources       = 8 // of secrets
)

// ownHeaders are set by the delivery; a policy can't.
var ownHeaders = []string{"Idempotency-Key", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"}

// env compiles input. Its variables are those of newVars.
var env = sync.OnceValue(func() *webhook.Env {
	return webhook.NewEnv(map[string]*cel.Type{
		"payload": cel.DynType, "headers": webhook.Strings, "id": cel.StringType,
		"key": cel.StringType, "queue": cel.StringType, "kind": cel.StringType,
		"attempt": cel.IntType, "enqueued_at": cel.TimestampType,
	})
})

// Check returns an *event.Problem, with a field that begins with "push", unless p is valid; it sets
// the defaults of what was left out.
func Check(p *wire.Push, allowPrivate bool) error {
	if err := webhook.CheckURL(p.URL, allowPrivate); err != nil {
		return bad("url", "%v", err)
	}
	p.TimeoutMS = cmp.Or(p.TimeoutMS, defaultTimeoutMS)
	p.MaxInFlight = cmp.Or(p.MaxInFlight, defaultInFlight)
	p.Format = cmp.Or(p.Format, formatPayload)
	formats := []string{formatPayload, formatEvent, formatBinary}
	switch r := p.RatePerSecond; {
	case p.TimeoutMS < minTimeoutMS || p.TimeoutMS > maxTimeoutMS:
		return bad("timeout_ms", "must be from %d to %d, or 0 for %d, not %d",
			minTimeoutMS, maxTimeoutMS, defaultTimeoutMS, p.TimeoutMS)
	case p.MaxInFlight < 1 || p.MaxInFlight > maxInFlight:
		return bad("max_in_flight", "must be from 1 to %d, or 0 for %d, not %d",
			maxInFlight, defaultInFlight, p.MaxInFlight)
	case r != 0 && !(r >= 0.001 && r <= maxRate):
		return bad("rate_per_second",
			"must be from 0.001 to %d, or 0 for no limit, not %g", maxRate, r)
	case !slices.Contains(formats, p.Format):
		return bad("format", "must be %s, %s or %s, not %.64q",
			formatPayload, formatEvent, formatBinary, p.Format)
	}
	if err := webhook.CheckSources("push.", p.SecretEnv, p.SecretFile, maxSources); err != nil {
		return err
	}
	if p.AnswerTo != "" && !event.ValidName(p.AnswerTo) {
		return bad("answer_to", "must match %s, not %.64q", event.Names, p.AnswerTo)
	}
	if err := checkHeaders(p.Headers); err != nil {
		return err
	}
	_, err := compile(p.Input)
	return err
}

func checkHeaders(headers map[string]string) error {
	if len(headers) > event.MaxHeaders {
		return bad("headers", "must be at most %d, not %d", event.MaxHeaders, len(headers))
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical := http.CanonicalHeaderKey(name)
		switch v := headers[name]; {
		case len(name) > event.MaxHeaderName || !webhook.ValidHeader(name, ""):
			return bad("headers", "has the name %.64q, which is not a header's "+
				"(1 to %d characters of a token)", name, event.MaxHeaderName)
		case len(v) > event.MaxHeaderValue || !webhook.ValidHeader(name, v):
			return bad("headers", "has a value of %.64q that must be at most %d bytes "+
				"without control characters", name, event.MaxHeaderValue)
		case seen[canonical]:
			return bad("headers", "has %.64q twice", canonical)
		case webhook.ReservedHeader(name), slices.Contains(ownHeaders, canonical):
			return bad("headers", "must not have %.64q: the delivery sets it", name)
		}
		seen[canonical] = true
	}
	return nil
}

// compile compiles the mapping, nil without one.
func compile(input map[string]string) (*webhook.Object, error) {
	if input == nil {
		return nil, nil
	}
	o, err := env().CompileObject("input", input)
	if wrong, ok := errors.AsType[*webhook.FieldError](err); ok {
		return nil, bad(event.Clip(wrong.Field, 80), "%v", wrong.Err)
	}
	return o, err
}

func bad(field, format string, args ...any) *event.Problem {
	field = "push." + field
	text := field + " " + fmt.Sprintf(format, args...)
	return event.Problemf(event.CodeInvalidArgument, field, "%s", text)
}

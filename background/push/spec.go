package push

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// ownHeaders are those that the delivery itself says; a policy can't.
var ownHeaders = []string{"Idempotency-Key", "Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"}

// env compiles what input has to say. Its variables are what newVars sets.
var env = sync.OnceValues(func() (*webhook.Env, error) {
	return webhook.NewEnv(map[string]*cel.Type{
		"payload": webhook.JSON, "headers": webhook.Strings, "id": webhook.String,
		"key": webhook.String, "queue": webhook.String, "kind": webhook.String,
		"attempt": webhook.Int, "enqueued_at": webhook.Timestamp,
	})
})

// Check returns an *event.Problem, with a field that begins with "push", unless
// p can be delivered by; it puts the defaults into what was left out.
func Check(p *wire.Push, allowPrivate bool) error {
	if err := webhook.CheckURL(p.URL, allowPrivate); err != nil {
		return bad("url", "%v", err)
	}
	if p.TimeoutMS == 0 {
		p.TimeoutMS = defaultTimeoutMS
	}
	if p.TimeoutMS < minTimeoutMS || p.TimeoutMS > maxTimeoutMS {
		return bad("timeout_ms", "must be from %d to %d, or 0 for %d, not %d", minTimeoutMS, maxTimeoutMS, defaultTimeoutMS, p.TimeoutMS)
	}
	if p.MaxInFlight == 0 {
		p.MaxInFlight = defaultInFlight
	}
	if p.MaxInFlight < 1 || p.MaxInFlight > maxInFlight {
		return bad("max_in_flight", "must be from 1 to %d, or 0 for %d, not %d", maxInFlight, defaultInFlight, p.MaxInFlight)
	}
	if !(p.RatePerSecond >= 0 && p.RatePerSecond <= maxRate) || p.RatePerSecond != 0 && p.RatePerSecond < 0.001 {
		return bad("rate_per_second", "must be from 0.001 to %d, or 0 for no limit, not %g", maxRate, p.RatePerSecond)
	}
	switch p.Format {
	case "":
		p.Format = formatPayload
	case formatPayload, formatEvent, formatBinary:
	default:
		return bad("format", "must be %s, %s or %s, not %.64q", formatPayload, formatEvent, formatBinary, p.Format)
	}
	if len(p.SecretEnv)+len(p.SecretFile) > maxSources {
		return bad("secret_env", "and secret_file must be at most %d together", maxSources)
	}
	for _, name := range p.SecretEnv {
		if !envName.MatchString(name) {
			return bad("secret_env", "must name an environment variable (%s); the secret itself does not belong here", envName)
		}
	}
	for _, name := range p.SecretFile {
		if name == "" || len(name) > 256 || !filepath.IsLocal(name) || !webhook.ValidHeader("x", name) {
			return bad("secret_file", "must be a path below the server's --secrets-dir, without .. and not absolute")
		}
	}
	if p.AnswerTo != "" && !event.ValidName(p.AnswerTo) {
		return bad("answer_to", "must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$, not %.64q", p.AnswerTo)
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
			return bad("headers", "has the name %.64q, which is none of a header (1 to %d characters of a token)", name, event.MaxHeaderName)
		case len(v) > event.MaxHeaderValue || !webhook.ValidHeader(name, v):
			return bad("headers", "has a value of %.64q that must be at most %d bytes without control characters", name, event.MaxHeaderValue)
		case seen[canonical]:
			return bad("headers", "has %.64q twice", canonical)
		case webhook.ReservedHeader(name), slices.Contains(ownHeaders, canonical):
			return bad("headers", "must not have %.64q: the delivery sets it", name)
		}
		seen[canonical] = true
	}
	return nil
}

// compile compiles the mapping, nil where there is none.
func compile(input map[string]string) (*webhook.Object, error) {
	if input == nil {
		return nil, nil
	}
	e, err := env()
	if err != nil {
		return nil, err
	}
	o, err := e.CompileObject(input)
	var wrong *webhook.ExprError
	if errors.As(err, &wrong) {
		field := "input"
		if wrong.Field != "" {
			field += "." + clip(wrong.Field, 64)
		}
		return nil, bad(field, "%v", wrong)
	}
	return o, err
}

func bad(field, format string, args ...any) *event.Problem {
	field = "push." + field
	return event.Problemf(event.CodeInvalidArgument, field, "%s", field+" "+fmt.Sprintf(format, args...))
}

// clip keeps at most n bytes of a text, whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

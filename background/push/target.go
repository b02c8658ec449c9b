package push

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

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

// env compiles input.
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

// target is a queue's push, ready for use.
type target struct {
	wire.Push
	input       *webhook.Object // nil: the payload as it is
	leaseMS     int64
	deadLetters bool // the queue has a dead-letter queue
}

// The shortest and the longest lease. It is extended at a third of it, and each extension is an
// entry, so it is not too short; and what was in flight when this node died waits for its end, so
// it is not too long.
const (
	minLeaseMS = 3_000
	maxLeaseMS = 15_000
)

// newTarget reads a policy's push, which Check has accepted.
func newTarget(p *event.Policy) (_ *target, err error) {
	t := &target{
		leaseMS:     min(max(p.LeaseMS, minLeaseMS), maxLeaseMS),
		deadLetters: p.DeadLetterQueue != "",
	}
	if err = wire.Decode(p.Push, &t.Push); err == nil {
		t.input, err = compile(t.Input)
	}
	return t, err
}

// request returns the request of a delivery. Its id, in Webhook-Id and in Idempotency-Key, is the
// message's in its queue: the same at each attempt, by any node, so that a target can recognise
// what it has already done. A replay asks for the work again, perhaps with another payload: it has
// another id.
func (t *target) request(m *event.LeasedMessage, c *event.Content, keys [][]byte, now time.Time,
	maxBody int) (r webhook.Outgoing, err error) {
	r = webhook.Outgoing{
		URL: t.URL, Header: http.Header{}, Timeout: time.Duration(t.TimeoutMS) * time.Millisecond,
	}
	for name, v := range t.Headers {
		r.Header.Set(name, v)
	}
	media, body := "application/json", c.Payload
	switch {
	case t.input != nil:
		if body, err = t.mapped(m, c, maxBody); err != nil {
			return r, fmt.Errorf("push.%w", err)
		}
	case c.Binary:
		media = cmp.Or(c.ContentType, "application/octet-stream")
	case len(body) == 0:
		body = []byte("null")
	}
	if t.Format != formatPayload {
		e := webhook.CloudEventOf(m, c)
		if t.input != nil {
			e.Data, e.Binary = body, false
			delete(e.Attributes, "datacontenttype")
		}
		if t.Format == formatEvent {
			media, body = webhook.CloudEventType, e.AppendJSON(nil)
		} else {
			media, body = e.Bind(r.Header)
		}
	}
	if media != "" && (r.Header.Get("Content-Type") == "" || t.Format != formatPayload) {
		r.Header.Set("Content-Type", media)
	}
	for _, h := range event.TraceOf(c.Headers) { // so that a trace continues at the target
		r.Header.Set(h.Name, h.Value)
	}
	id := m.ID.String()
	r.Header.Set("Idempotency-Key", id)
	webhook.SignStandard(r.Header, keys, id, now, body)
	r.Header.Set("Qlogd-Queue", m.Queue)
	own := headersOf(c)
	webhook.AddHop(r.Header, func(name string) string { return own[name] })
	r.Header.Set("Qlogd-Attempt", strconv.FormatUint(uint64(m.Attempt), 10))
	r.Body = body
	return r, nil
}

// headersOf returns a message's headers.
func headersOf(c *event.Content) map[string]string {
	headers := make(map[string]string, len(c.Headers))
	for _, h := range c.Headers {
		headers[h.Name] = h.Value
	}
	return headers
}

// mapped returns what input makes of a message. A payload of bytes is null there.
func (t *target) mapped(m *event.LeasedMessage, c *event.Content, maxBody int) (
	body []byte, err error) {
	var payload any
	if !c.Binary && len(c.Payload) > 0 {
		if payload, err = webhook.ParseJSON(c.Payload); err != nil {
			return nil, fmt.Errorf("input: the payload: %w", err)
		}
	}
	return t.input.Eval(map[string]any{ // the variables of env
		"payload": payload, "headers": headersOf(c), "id": m.ID.String(), "key": m.Key,
		"queue": m.Queue, "kind": m.Kind, "attempt": int64(m.Attempt),
		"enqueued_at": time.UnixMilli(m.EnqueuedAt).UTC(),
	}, maxBody)
}

// maxKeys bounds how many signatures a request has.
const maxKeys = 16

// keysOf reads the keys of Standard Webhooks in secrets, each of which may have several
// (webhook.Parts): a target looks for one signature that it knows. No error repeats any of them.
func keysOf(secrets []string) (keys [][]byte, err error) {
	for _, text := range secrets {
		for _, secret := range webhook.Parts(text) {
			found := webhook.StandardKeys(secret)
			if len(found) == 0 {
				return nil, errors.New("a secret is not base64 behind " + webhook.StandardPrefix)
			}
			for _, key := range found {
				same := func(k []byte) bool { return bytes.Equal(k, key) }
				if !slices.ContainsFunc(keys, same) {
					keys = append(keys, key)
				}
			}
		}
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("it is empty")
	case len(keys) > maxKeys:
		return nil, errors.New("there are too many secrets")
	}
	return keys, nil
}

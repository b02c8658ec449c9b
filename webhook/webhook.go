// Package webhook has the rules for HTTP that strangers send and receive: a webhook's definition
// with its signatures, secrets and CEL expressions, CloudEvents, and a client for addresses that
// users gave. It knows nothing of queues or the log.
package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Limits of a definition.
const (
	DefaultMaxAgeSeconds = 300
	maxMaxAgeSeconds     = 7 * 24 * 3600
	maxNetworks          = 1000
	maxSources           = 16 // of secrets
)

// bad returns an *event.Problem: the field's name, and what is wrong with it.
func bad(field, format string, args ...any) error {
	field = event.Clip(field, 120)
	text := field + " " + fmt.Sprintf(format, args...)
	return event.Problemf(event.CodeInvalidArgument, field, "%s", text)
}

// Webhook is a definition that was checked and compiled. It is safe for concurrent use.
type Webhook struct {
	Name string
	// Definition is as it was given, with defaults filled in: the same meaning gives the same JSON.
	Definition wire.WebhookDefinition

	scheme   *scheme // nil: nothing is signed
	networks []netip.Prefix
	maxAge   time.Duration // 0: no limit

	programs map[string]*Program // by field
	mapTo    *Object
}

// env compiles a webhook's expressions.
var env = sync.OnceValue(func() *Env {
	return NewEnv(map[string]*cel.Type{
		"payload": cel.DynType, "headers": Strings, "source_ip": cel.StringType,
		"received_at": cel.TimestampType, "webhook": cel.StringType,
	})
})

// Compile checks a definition. Whether its queue exists, its target may be reached and its
// payload_schema is a schema is for the caller to check. An error is an *event.Problem.
func Compile(name string, d *wire.WebhookDefinition) (*Webhook, error) {
	w := &Webhook{Name: name, Definition: *d, programs: map[string]*Program{}}
	switch {
	case d.Queue == "" && d.Target == "":
		return nil, bad("queue", "must name the queue that messages go to (or target, a URL)")
	case d.Queue != "" && d.Target != "":
		return nil, bad("target", "goes in place of queue, not with it")
	}
	if d.Target != "" {
		for _, f := range [...][2]string{
			{"key", d.Key}, {"kind", d.Kind}, {"priority", string(d.Priority)},
		} {
			if f[1] != "" && f[1] != "null" {
				return nil, bad(f[0], "is a message's, and a webhook with a target makes none")
			}
		}
	}
	age := *cmp.Or(d.MaxAgeSeconds, new(int64(DefaultMaxAgeSeconds)))
	if age < 0 || age > maxMaxAgeSeconds {
		return nil, bad("max_age_seconds", "must be from 0 to %d, not %d", maxMaxAgeSeconds, age)
	}
	w.Definition.MaxAgeSeconds, w.maxAge = &age, time.Duration(age)*time.Second
	if len(d.AllowIPs) > maxNetworks {
		return nil, bad("allow_ips", "must be at most %d", maxNetworks)
	}
	for i, text := range d.AllowIPs {
		p, err := ParseNetwork(text)
		if err != nil {
			return nil, bad(fmt.Sprintf("allow_ips[%d]", i), "%v", err)
		}
		w.networks = append(w.networks, p)
	}
	if err := w.checkVerify(); err != nil {
		return nil, err
	}
	if d.SignedAt != "" && w.scheme == nil {
		return nil, bad(signedAt, "needs verify_hmac: without a signature anyone can set the time")
	}
	return w, w.compile()
}

func (w *Webhook) checkVerify() error {
	if w.Definition.VerifyHMAC == nil {
		return nil
	}
	v := *w.Definition.VerifyHMAC // the caller's stays as it was
	w.Definition.VerifyHMAC = &v
	if v.Scheme == "" {
		v.Scheme = schemeOf(v.Header)
	}
	s, ok := schemes[v.Scheme]
	switch {
	case !ok:
		return bad("verify_hmac.scheme", "must be %s", schemeNames)
	case v.Header != "" && !s.anyHeader:
		return bad("verify_hmac.header", "can't be chosen with scheme %s", v.Scheme)
	case v.Header == "" && s.header == "":
		return bad("verify_hmac.header",
			"must name the header that has the signature, with scheme %s", v.Scheme)
	case v.Header != "" && (len(v.Header) > event.MaxHeaderName || !ValidHeader(v.Header, "")):
		return bad("verify_hmac.header", "must be a header's name of at most 64 characters")
	case v.Prefix != "" && v.Scheme != Generic:
		return bad("verify_hmac.prefix", "is for scheme %s", Generic)
	case len(v.Prefix) > 64:
		return bad("verify_hmac.prefix", "must be at most 64 bytes")
	case len(v.SecretEnv)+len(v.SecretFile) == 0:
		return bad("verify_hmac.secret_env", "must name the environment variable that has the "+
			"secret (or secret_file, a file below the server's --secrets-dir)")
	}
	used := *s
	used.header = cmp.Or(strings.ToLower(v.Header), s.header)
	used.prefix = cmp.Or(v.Prefix, s.prefix)
	w.scheme = &used
	return CheckSources("verify_hmac.", v.SecretEnv, v.SecretFile, maxSources)
}

// keyTypes are what a key may be given as. A whole number counts as its decimal string.
var keyTypes = []*cel.Type{cel.StringType, cel.IntType, cel.UintType}

const signedAt = "signed_at"

// timeTypes are what timeOf reads.
var timeTypes = []*cel.Type{
	cel.StringType, cel.TimestampType, cel.DoubleType, cel.IntType, cel.UintType,
}

func (w *Webhook) compile() error {
	d := &w.Definition
	priority, err := w.priority()
	if err != nil {
		return err
	}
	for _, f := range [...]struct {
		name, text string
		gives      []*cel.Type
	}{
		{"filter", d.Filter, []*cel.Type{cel.BoolType}},
		{"idempotency_key", d.IdempotencyKey, keyTypes}, {"key", d.Key, keyTypes},
		{"kind", d.Kind, []*cel.Type{cel.StringType}},
		{"priority", priority, []*cel.Type{cel.IntType}}, {signedAt, d.SignedAt, timeTypes},
	} {
		if f.text == "" {
			continue
		}
		if w.programs[f.name], err = env().Compile(f.text, f.gives...); err != nil {
			return bad(f.name, "is not an expression that can be used: %v", err)
		}
	}
	if p := w.programs[signedAt]; p != nil && !p.reads("payload") {
		return bad(signedAt, "must read the time from payload: nothing else is signed")
	}
	if isNull(d.PayloadSchema) {
		d.PayloadSchema = nil
	}
	if d.MapTo == nil {
		return nil
	}
	if d.MapTo.Input == nil {
		return bad("map_to.input",
			"must have an expression for each field of the message's payload")
	}
	w.mapTo, err = env().CompileObject("map_to.input", d.MapTo.Input)
	if wrong, ok := errors.AsType[*FieldError](err); ok {
		return bad(wrong.Field, "is not an expression that can be used: %v", wrong.Err)
	}
	return err
}

func isNull(v jsontext.Value) bool { return len(v) == 0 || v.Kind() == 'n' }

// priority returns the expression that gives the priority, "" for the default. A number is one.
func (w *Webhook) priority() (string, error) {
	v := w.Definition.Priority
	switch {
	case isNull(v):
		w.Definition.Priority = nil
		return "", nil
	case v.Kind() == '0':
		if n, err := strconv.ParseUint(string(v), 10, 8); err == nil && n >= 1 && n <= 10 {
			return string(v), nil
		}
	case v.Kind() == '"':
		if text, err := jsontext.AppendUnquote(nil, v); err == nil && len(text) > 0 {
			return string(text), nil
		}
	}
	return "", bad("priority",
		"must be a whole number from 1 to 10, or an expression that gives one")
}

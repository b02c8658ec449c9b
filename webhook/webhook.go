// Package webhook has the rules for HTTP that strangers send and receive: a webhook's
// definition with its signatures, secrets and CEL expressions, CloudEvents, and a client
// for addresses that users gave. It knows nothing of queues or the log.
package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
)

// Limits of a definition.
const (
	DefaultMaxAgeSeconds = 300
	maxMaxAgeSeconds     = 7 * 24 * 3600
	maxNetworks          = 1000
	maxSources           = 16 // of secrets
)

// Error says what is wrong with a definition. Text goes behind the field's name.
type Error struct {
	Field string
	Text  string
}

func (e *Error) Error() string { return e.Field + " " + e.Text }

func bad(field, format string, args ...any) error { return &Error{field, fmt.Sprintf(format, args...)} }

// Webhook is a definition that was checked and compiled. It is for use by any
// number of goroutines.
type Webhook struct {
	Name string
	// Definition is as it was given, with what was left out filled in where that
	// is not nothing: the same meaning gives the same JSON.
	Definition wire.WebhookDefinition

	scheme   *scheme // nil: nothing is signed
	networks []netip.Prefix
	maxAge   time.Duration // 0 no limit

	filter, idempotency, key, kind, priority *Program // nil: none
	fixed                                    uint8    // priority, 0: none or an expression
	mapTo                                    *Object
}

// env compiles a webhook's expressions.
var env = sync.OnceValues(func() (*Env, error) {
	return NewEnv(map[string]*cel.Type{
		"payload": JSON, "headers": Strings, "source_ip": String, "received_at": Timestamp,
		"webhook": String,
	})
})

// Compile checks a definition. Whether its queue exists, its target may be
// reached and its payload_schema is a schema are questions for others. An error
// is an *Error.
func Compile(name string, d *wire.WebhookDefinition) (*Webhook, error) {
	w := &Webhook{Name: name, Definition: *d}
	switch {
	case d.Queue == "" && d.Target == "":
		return nil, bad("queue", "must name the queue that messages go to (or target, a URL)")
	case d.Queue != "" && d.Target != "":
		return nil, bad("target", "goes in place of queue, not with it")
	}
	if d.Target != "" {
		for _, f := range [...]struct{ name, v string }{{"key", d.Key}, {"kind", d.Kind}, {"priority", string(d.Priority)}} {
			if f.v != "" && f.v != "null" {
				return nil, bad(f.name, "is a message's, and a webhook with a target makes none")
			}
		}
	}
	for _, check := range []func() error{w.checkVerify, w.checkAge, w.checkNetworks, w.compile} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *Webhook) checkAge() error {
	age := int64(DefaultMaxAgeSeconds)
	if v := w.Definition.MaxAgeSeconds; v != nil {
		age = *v
	}
	if age < 0 || age > maxMaxAgeSeconds {
		return bad("max_age_seconds", "must be from 0 to %d, not %d", maxMaxAgeSeconds, age)
	}
	w.Definition.MaxAgeSeconds = &age
	w.maxAge = time.Duration(age) * time.Second
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func (w *Webhook) checkVerify() error {
	if w.Definition.VerifyHMAC == nil {
		return nil
	}
	v := *w.Definition.VerifyHMAC // what was given stays as it was
	w.Definition.VerifyHMAC = &v
	if v.Scheme == "" {
		v.Scheme = schemeOf(v.Header)
	}
	s, ok := schemes[v.Scheme]
	if !ok {
		return bad("verify_hmac.scheme", "must be %s", schemeNames)
	}
	switch {
	case v.Header != "" && !s.anyHeader:
		return bad("verify_hmac.header", "can't be chosen with scheme %s", v.Scheme)
	case v.Header == "" && s.header == "":
		return bad("verify_hmac.header", "must name the header that has the signature, with scheme %s", v.Scheme)
	case v.Header != "" && !isToken(v.Header):
		return bad("verify_hmac.header", "must be a header's name of at most 64 characters")
	case v.Prefix != "" && v.Scheme != Generic:
		return bad("verify_hmac.prefix", "is for scheme %s", Generic)
	case len(v.Prefix) > 64:
		return bad("verify_hmac.prefix", "must be at most 64 bytes")
	case len(v.SecretEnv)+len(v.SecretFile) == 0:
		return bad("verify_hmac.secret_env", "must name the environment variable that has the secret (or secret_file, a file below the server's --secrets-dir)")
	case len(v.SecretEnv)+len(v.SecretFile) > maxSources:
		return bad("verify_hmac.secret_env", "and secret_file must be at most %d together", maxSources)
	}
	for _, name := range v.SecretEnv {
		if !envName.MatchString(name) {
			return bad("verify_hmac.secret_env", "must be an environment variable's name, %s: the secret itself is never given here", envName)
		}
	}
	for _, name := range v.SecretFile {
		if !localFile(name) {
			return bad("verify_hmac.secret_file", "must be a path below the server's --secrets-dir, without .. and not absolute")
		}
	}
	w.scheme = s.with(v.Header, v.Prefix)
	return nil
}

func (w *Webhook) checkNetworks() error {
	if len(w.Definition.AllowIPs) > maxNetworks {
		return bad("allow_ips", "must be at most %d", maxNetworks)
	}
	for i, text := range w.Definition.AllowIPs {
		p, err := ParseNetwork(text)
		if err != nil {
			return bad(fmt.Sprintf("allow_ips[%d]", i), "%v", err)
		}
		w.networks = append(w.networks, p)
	}
	return nil
}

func (w *Webhook) compile() error {
	env, err := env()
	if err != nil {
		return err
	}
	d := &w.Definition
	for _, f := range [...]struct {
		name  string
		text  string
		gives *cel.Type
		to    **Program
	}{
		{"filter", d.Filter, Bool, &w.filter},
		{"idempotency_key", d.IdempotencyKey, String, &w.idempotency},
		{"key", d.Key, String, &w.key},
		{"kind", d.Kind, String, &w.kind},
	} {
		if f.text == "" {
			continue
		}
		if *f.to, err = env.Compile(f.text, f.gives); err != nil {
			return bad(f.name, "is not an expression that can be used: %v", err)
		}
	}
	if err := w.compilePriority(env); err != nil {
		return err
	}
	if isNull(d.PayloadSchema) {
		d.PayloadSchema = nil
	}
	if d.MapTo == nil {
		return nil
	}
	if d.MapTo.Input == nil {
		return bad("map_to.input", "must have an expression for each field of the message's payload")
	}
	w.mapTo, err = env.CompileObject(d.MapTo.Input)
	var wrong *ExprError
	if errors.As(err, &wrong) {
		field := "map_to.input"
		if wrong.Field != "" {
			field += "." + wrong.Field
		}
		return bad(field, "is not an expression that can be used: %v", err)
	}
	return err
}

func isNull(v jsontext.Value) bool { return len(v) == 0 || v.Kind() == 'n' }

// compilePriority reads a number, or an expression that gives one.
func (w *Webhook) compilePriority(env *Env) error {
	v := w.Definition.Priority
	const want = "must be a whole number from 1 to 10, or an expression that gives one"
	switch {
	case isNull(v):
		w.Definition.Priority = nil
	case v.Kind() == '0':
		n, err := strconv.ParseUint(string(v), 10, 8)
		if err != nil || n < 1 || n > 10 {
			return bad("priority", want)
		}
		w.fixed = uint8(n)
	case v.Kind() == '"':
		text, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return bad("priority", want)
		}
		if w.priority, err = env.Compile(string(text), Int); err != nil {
			return bad("priority", "is not an expression that can be used: %v", err)
		}
	default:
		return bad("priority", want)
	}
	return nil
}

// JSON returns the definition as it is stored: always the same bytes for the same
// meaning.
func (w *Webhook) JSON() ([]byte, error) {
	d := w.Definition
	for _, v := range []*jsontext.Value{&d.Priority, &d.PayloadSchema} {
		if len(*v) > 0 {
			*v = slices.Clone(*v)
			if err := v.Compact(); err != nil {
				return nil, err
			}
		}
	}
	return wire.Marshal(&d)
}

// Parse compiles a definition that JSON returned.
func Parse(name string, text []byte) (*Webhook, error) {
	var d wire.WebhookDefinition
	if err := wire.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("webhook %s: %w", name, err)
	}
	w, err := Compile(name, &d)
	if err != nil {
		return nil, fmt.Errorf("webhook %s: %w", name, err)
	}
	return w, nil
}

// isToken reports whether v can name a header.
func isToken(v string) bool {
	if v == "" || len(v) > 64 {
		return false
	}
	for i := range len(v) {
		if c := v[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return true
}

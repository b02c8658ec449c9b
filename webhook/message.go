package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a message's headers (contract.md section 3).
const (
	maxHeaders     = 64
	maxHeaderName  = 64
	maxHeaderValue = 4096
)

// Request is what came, verified.
type Request struct {
	Body       []byte
	Headers    map[string]string // as Headers returns them
	Source     netip.Addr
	ReceivedAt time.Time
}

// Message is what a request becomes. The zero Priority is the usual one.
type Message struct {
	Filtered       bool // nothing
	IdempotencyKey string
	Key            string
	Kind           string
	Priority       uint8
	Payload        []byte
	Mapped         bool // Payload was made from the body
}

// EvalError says which expression of the definition failed on a request, and why.
type EvalError struct {
	Field string
	Err   error
}

func (e *EvalError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *EvalError) Unwrap() error { return e.Err }

// ErrBody is for a body that is not JSON.
var ErrBody = errors.New("the body is not JSON")

// Check reads a body for the expressions. An error is ErrBody (wrapped).
func (w *Webhook) Check(body []byte) (payload any, err error) {
	if payload, err = ParseJSON(body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return payload, nil
}

// Message evaluates the definition's expressions over a request, whose body Check
// has read; what it makes has at most limit bytes. An error is an *EvalError. A
// body that lacks what the filter asks for is not meant: a GitHub webhook begins
// with a ping, which has no action. Any other expression that fails is told.
func (w *Webhook) Message(r *Request, payload any, limit int) (m Message, err error) {
	vars := Vars{
		"payload": payload, "headers": r.Headers, "source_ip": r.Source.String(),
		"received_at": r.ReceivedAt.UTC(), "webhook": w.Name,
	}
	if w.filter != nil {
		pass, err := w.filter.Bool(vars)
		switch {
		case errors.Is(err, errMissing), err == nil && !pass:
			return Message{Filtered: true}, nil
		case err != nil:
			return m, &EvalError{"filter", err}
		}
	}
	for _, f := range [...]struct {
		name    string
		program *Program
		to      *string
	}{{"idempotency_key", w.idempotency, &m.IdempotencyKey}, {"key", w.key, &m.Key}, {"kind", w.kind, &m.Kind}} {
		if f.program == nil {
			continue
		}
		if *f.to, err = f.program.Text(vars); err != nil {
			return m, &EvalError{f.name, err}
		}
	}
	m.Priority = w.fixed
	if w.priority != nil {
		n, err := w.priority.Int(vars)
		if err == nil && (n < 1 || n > 10) {
			err = fmt.Errorf("it must give a number from 1 to 10, and gave %d", n)
		}
		if err != nil {
			return m, &EvalError{"priority", err}
		}
		m.Priority = uint8(n)
	}
	m.Payload = r.Body
	if w.mapTo == nil {
		return m, nil
	}
	m.Mapped = true
	if m.Payload, err = w.mapTo.Eval(vars, limit); err != nil {
		field := "map_to.input"
		var wrong *EvalError
		if errors.As(err, &wrong) {
			field, err = strings.TrimSuffix(field+"."+wrong.Field, "."), wrong.Err
		}
		return m, &EvalError{field, err}
	}
	return m, nil
}

// Headers returns those of a request's headers that go with its message, and that
// expressions see: in lower case, without what gives rights or proves them
// (credentials, cookies, tokens, signatures), without those that are of the
// connection, and within the limits of a message's headers; and the product's own
// webhook, source-ip and received-at, which a sender can't set.
func (w *Webhook) Headers(all map[string][]string, source netip.Addr, at time.Time) map[string]string {
	out := make(map[string]string, len(all)+3)
	out["webhook"] = w.Name
	out["source-ip"] = source.String()
	out["received-at"] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	var connection string
	names := make([]string, 0, len(all))
	for name, values := range all {
		if len(values) == 0 {
			continue
		}
		if strings.EqualFold(name, "connection") {
			connection = strings.ToLower(strings.Join(values, ","))
		}
		names = append(names, name)
	}
	slices.Sort(names) // the same ones stay where there are too many
	for _, name := range names {
		lower := strings.ToLower(name)
		if len(out) == maxHeaders {
			break
		}
		if _, own := out[lower]; own || !w.keeps(lower) || connection != "" && slices.Contains(fields(connection), lower) {
			continue
		}
		if v := strings.Join(all[name], ", "); plainValue(v) {
			out[lower] = v
		}
	}
	return out
}

// keeps reports whether a header goes with the message.
func (w *Webhook) keeps(lower string) bool {
	if !isToken(lower) || len(lower) > maxHeaderName || dropped[lower] || strings.HasPrefix(lower, "proxy-") {
		return false
	}
	if w.scheme != nil && lower == w.scheme.header {
		return false
	}
	for _, word := range secretWords {
		if strings.Contains(lower, word) {
			return false
		}
	}
	return true
}

// dropped are headers that are about the connection or the body's bytes, and
// signatures whose name does not say so.
var dropped = func() map[string]bool {
	out := map[string]bool{
		"connection": true, "keep-alive": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
		"content-length": true, "expect": true, "host": true, "http2-settings": true,
	}
	for _, name := range signatureHeaders {
		out[name] = true
	}
	return out
}()

// secretWords in a header's name mean that it has, or proves, a secret.
var secretWords = []string{"authorization", "cookie", "token", "signature", "hmac", "secret", "password", "api-key", "apikey", "credential",
	"x-auth", "access-key", "private-key", "passwd", "session", "jwt", "assertion"}

func fields(list string) []string {
	parts := strings.Split(list, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// plainValue reports whether a message's header can have this value.
func plainValue(v string) bool {
	if len(v) > maxHeaderValue || !utf8.ValidString(v) {
		return false
	}
	for i := range len(v) {
		if v[i] < ' ' && v[i] != '\t' || v[i] == 0x7f {
			return false
		}
	}
	return true
}

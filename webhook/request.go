package webhook

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Request is a verified request.
type Request struct {
	Header     http.Header
	Body       []byte
	Source     netip.Addr
	ReceivedAt time.Time
}

// Message is what a request becomes.
type Message struct {
	wire.NewMessage
	Filtered bool   // no message
	Original []byte // the body, if the payload was made from it
}

// ErrBody is returned for a body that is not JSON.
var ErrBody = errors.New("the body is not JSON")

// Message evaluates the definition's expressions over a request. The payload has at most limit
// bytes. An error wraps ErrBody or ErrStale, or is a *FieldError. A body that lacks a field that
// the filter reads is filtered out: a GitHub webhook begins with a ping, which has no action. Any
// other expression that fails is an error.
func (w *Webhook) Message(r *Request, limit int) (m Message, err error) {
	payload, err := ParseJSON(r.Body)
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrBody, err)
	}
	m.Headers = w.headers(r)
	vars := map[string]any{
		"payload": payload, "headers": m.Headers, "source_ip": r.Source.String(),
		"received_at": r.ReceivedAt.UTC(), "webhook": w.Name,
	}
	if err := w.checkSignedAt(vars, r.ReceivedAt); err != nil {
		return m, err
	}
	value := func(field string) (v any) { // nil without an expression, and after an error
		if p := w.programs[field]; p != nil && err == nil {
			if v, err = p.Value(vars); err != nil {
				err = &FieldError{field, err}
			}
		}
		return v
	}
	if pass, ok := value("filter").(bool); ok && !pass || errors.Is(err, errMissing) {
		return Message{Filtered: true}, nil
	}
	key := func(field string) string {
		if v := value(field); v != nil {
			return fmt.Sprint(v) // a whole number in decimal
		}
		return ""
	}
	m.IdempotencyKey, m.Key = key("idempotency_key"), key("key")
	m.Kind, _ = value("kind").(string)
	if n, ok := value("priority").(int64); ok {
		if m.Priority = &n; n < event.MinPriority || n > event.MaxPriority {
			err = fmt.Errorf("it must give a number from 1 to 10, and gave %d", n)
			err = &FieldError{"priority", err}
		}
	}
	m.Payload = r.Body
	if w.mapTo != nil && err == nil {
		m.Original = r.Body
		m.Payload, err = w.mapTo.Eval(vars, limit)
	}
	return m, err
}

// headers returns those of a request's headers that go with its message, and that expressions see:
// in lower case, without credentials, cookies, tokens and signatures, without those of the
// connection, and within the limits of a message's headers; and the product's own webhook,
// source-ip and received-at, which a sender can't set. The sender's trace is not the message's.
func (w *Webhook) headers(r *Request) map[string]string {
	all := r.Header
	out := make(map[string]string, len(all)+3)
	out["webhook"] = w.Name
	out["source-ip"] = r.Source.String()
	out["received-at"] = r.ReceivedAt.UTC().Format(wire.TimeFormat)
	if n := Hops(all); n > 0 {
		out[strings.ToLower(HopsHeader)] = strconv.Itoa(n + 1)
	}
	hop := map[string]bool{} // named by the Connection header
	for _, list := range all["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			hop[strings.ToLower(strings.TrimSpace(name))] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) { // the same ones stay if there are too many
		lower, v := strings.ToLower(name), strings.Join(all[name], ", ")
		_, own := out[lower]
		if len(out) < event.MaxHeaders && len(all[name]) > 0 && !own && !hop[lower] &&
			w.keeps(lower) && len(v) <= event.MaxHeaderValue && utf8.ValidString(v) &&
			ValidHeader(lower, v) {
			out[lower] = v
		}
	}
	return out
}

// keeps reports whether a header goes with the message.
func (w *Webhook) keeps(lower string) bool {
	secret := func(word string) bool { return strings.Contains(lower, word) }
	return len(lower) <= event.MaxHeaderName && !strings.HasPrefix(lower, "proxy-") &&
		lower != event.Traceparent && lower != event.Tracestate &&
		!slices.Contains(ofConnection, lower) && (w.scheme == nil || lower != w.scheme.header) &&
		!slices.ContainsFunc(secretWords, secret)
}

// secretWords in a header's name mean that it has, or proves, a secret.
var secretWords = []string{
	"authorization", "cookie", "token", "signature", "hmac", "secret", "password", "api-key",
	"apikey", "credential", "x-auth", "access-key", "private-key", "passwd", "session", "jwt",
	"assertion",
}

// ParseNetwork reads an address or a network in CIDR form.
func ParseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, errors.New(
			"must be an address such as 192.0.2.1 or a network such as 192.0.2.0/24")
	}
	if p != p.Masked() {
		return p, fmt.Errorf("has bits behind its network part; that network is %s", p.Masked())
	}
	return p, nil
}

// Source returns the address that a request came from: the other end of its connection or, if that
// is a trusted proxy, the last address in X-Forwarded-For that is none. Anyone could have written
// what is before that.
func Source(remote netip.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	remote = remote.Unmap().WithZone("")
	hops := strings.Split(strings.Join(forwarded, ","), ",")
	for i := len(hops) - 1; i >= 0 && within(remote, trusted); i-- {
		hop, err := parseHop(strings.TrimSpace(hops[i]))
		if err != nil {
			break // no address: the one before is the last that is known
		}
		remote = hop
	}
	return remote
}

// parseHop reads an address as proxies write it: with a port or without.
func parseHop(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		var p netip.AddrPort
		if p, err = netip.ParseAddrPort(text); err == nil {
			a = p.Addr()
		}
	}
	return a.Unmap().WithZone(""), err
}

func within(a netip.Addr, networks []netip.Prefix) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Allows reports whether a request may come from an address.
func (w *Webhook) Allows(a netip.Addr) bool {
	return len(w.networks) == 0 || within(a, w.networks)
}

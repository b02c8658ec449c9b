package webhook

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The schemes, by the service that signs so.
const (
	GitHub    = "github"
	PagerDuty = "pagerduty"
	Stripe    = "stripe"
	Standard  = "standard" // standardwebhooks.com
	Slack     = "slack"
	Shopify   = "shopify"
	Generic   = "generic"
)

const schemeNames = "github, pagerduty, stripe, standard, slack, shopify or generic"

// scheme is a way to sign a request with HMAC-SHA256. Schemes differ in where the signature and
// the time are, what is signed before the body, and how the signature is written.
type scheme struct {
	header    string // that has the signatures; "" has no default
	anyHeader bool   // the definition may name another
	prefix    string // before each signature
	separator string // between signatures; "" is a comma
	// base64 is how a signature is written; nil is hex. It is strict where the senders' library
	// compares texts, so that no other text counts as the same signature.
	base64 *base64.Encoding
	keys   func(secret string) [][]byte // nil: the secret is the key
	// before is what is signed before the body, with ID and TIME in place of these; "" signs the
	// body alone, without a time.
	before      string
	idHeader    string // that has the id; "" signs none
	stampHeader string // that has the time; "" has it in the header of signatures, behind "t="
}

var schemes = map[string]*scheme{
	// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
	GitHub: {header: "x-hub-signature-256", anyHeader: true, prefix: "sha256="},
	// https://developer.pagerduty.com/docs/verifying-webhook-signatures
	PagerDuty: {header: "x-pagerduty-signature", anyHeader: true, prefix: "v1="},
	// https://docs.stripe.com/webhooks#verify-manually
	Stripe: {
		header: "stripe-signature", anyHeader: true, prefix: "v1=", before: "TIME.",
	},
	// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
	Standard: {
		header: "webhook-signature", prefix: "v1,", separator: " ", // "v1,…" has a comma itself
		base64: base64.StdEncoding.Strict(), keys: StandardKeys,
		before: "ID.TIME.", idHeader: "webhook-id", stampHeader: "webhook-timestamp",
	},
	// https://docs.slack.dev/authentication/verifying-requests-from-slack
	Slack: {
		header: "x-slack-signature", prefix: "v0=",
		before: "v0:TIME:", stampHeader: "x-slack-request-timestamp",
	},
	// https://shopify.dev/docs/apps/build/webhooks/subscribe/https
	Shopify: {header: "x-shopify-hmac-sha256", anyHeader: true, base64: base64.StdEncoding},
	Generic: {anyHeader: true},
}

// one returns the value of a header; false if it is absent, empty or given twice.
func one(header http.Header, name string) (string, bool) {
	v := header.Values(name)
	if len(v) != 1 {
		return "", false
	}
	return v[0], v[0] != ""
}

// schemeOf returns the scheme whose default header this is, or Generic.
func schemeOf(header string) string {
	for name, s := range schemes {
		if header != "" && s.anyHeader && strings.EqualFold(s.header, header) {
			return name
		}
	}
	return Generic
}

// StandardPrefix marks a secret of Standard Webhooks as base64.
const StandardPrefix = "whsec_"

// StandardKeys returns the keys that a secret of Standard Webhooks may mean: base64 behind
// StandardPrefix. A secret without the prefix may also be the key itself, so both are tried. An
// invalid secret has no keys, and neither has an empty one: with an empty key anyone can sign.
func StandardKeys(secret string) (keys [][]byte) {
	text, marked := strings.CutPrefix(secret, StandardPrefix)
	key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
	if err == nil && len(key) > 0 {
		keys = append(keys, key)
	}
	if !marked && secret != "" {
		keys = append(keys, []byte(secret))
	}
	return keys
}

func (s *scheme) keysOf(secret string) [][]byte {
	if s.keys != nil {
		return s.keys(secret)
	}
	return [][]byte{[]byte(secret)}
}

// unixTime reads whole seconds in their canonical form.
func unixTime(text string) (time.Time, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxUnix || strconv.FormatInt(n, 10) != text {
		return time.Time{}, false
	}
	return time.Unix(n, 0), true
}

const maxUnix = 1 << 40 // seconds, in about the year 36800

// Why a request is refused.
var (
	ErrSignature = errors.New("the signature is missing or wrong")
	ErrStale     = errors.New("the signed time is refused")
)

// maxSignatures is how many signatures of one request are tried.
const maxSignatures = 16

// Signed reports whether requests must be signed.
func (w *Webhook) Signed() bool { return w.scheme != nil }

// Verify checks a request's signature over its raw body with each secret, and that the signed
// time, if there is one, is near now. Its errors wrap ErrSignature or ErrStale.
//
// It takes as long for any wrong signature: each is compared with what each secret gives, in
// constant time, also after one has matched.
func (w *Webhook) Verify(header http.Header, body []byte, secrets []string, now time.Time) error {
	s := w.scheme
	if s == nil {
		return nil
	}
	lines := header.Values(s.header)
	if len(lines) == 0 {
		return fmt.Errorf("%w: there is no header %s", ErrSignature, s.header)
	}
	stamp, given := s.parse(lines)
	if len(given) == 0 {
		form := "<hex>"
		if s.base64 != nil {
			form = "<base64>"
		}
		return fmt.Errorf("%w: header %s must have it as %s%s",
			ErrSignature, s.header, s.prefix, form)
	}
	before, at, ok := s.signed(header, stamp)
	if !ok {
		return fmt.Errorf("%w: the signed time (and, with scheme standard, webhook-id) "+
			"is missing or malformed", ErrSignature)
	}
	if !s.matches(given, before, body, secrets) {
		return fmt.Errorf("%w: it does not fit the body and the secret", ErrSignature)
	}
	if at.IsZero() {
		return nil
	}
	return w.checkTime(at, now)
}

// checkTime returns an error that wraps ErrStale unless a signed time is near now.
func (w *Webhook) checkTime(at, now time.Time) error {
	if w.maxAge == 0 || now.Sub(at).Abs() <= w.maxAge {
		return nil
	}
	return fmt.Errorf("%w: it is %s, and may be off by %d seconds",
		ErrStale, at.UTC().Format(time.RFC3339), int64(w.maxAge.Seconds()))
}

// checkSignedAt does the same with the time in a body.
func (w *Webhook) checkSignedAt(vars map[string]any, now time.Time) error {
	p := w.programs[signedAt]
	if p == nil {
		return nil
	}
	v, err := p.eval(vars)
	if err != nil {
		return fmt.Errorf("%w: %s failed: %w", ErrStale, signedAt, err)
	}
	at, ok := timeOf(v)
	if !ok {
		return fmt.Errorf("%w: %s must give an RFC 3339 or Unix time", ErrStale, signedAt)
	}
	return w.checkTime(at, now)
}

// signed returns what is signed before the body and the signed time, zero if there is none; false
// if the request lacks it. stamp is the time in the header of signatures.
func (s *scheme) signed(header http.Header, stamp string) (before string, at time.Time, ok bool) {
	if s.before == "" {
		return "", time.Time{}, true
	}
	id, found := "", true
	if s.idHeader != "" {
		id, found = one(header, s.idHeader)
	}
	if s.stampHeader != "" {
		stamp, _ = one(header, s.stampHeader)
	}
	at, ok = unixTime(stamp)
	return s.prologue(id, stamp), at, ok && found
}

func (s *scheme) prologue(id, stamp string) string {
	return strings.NewReplacer("ID", id, "TIME", stamp).Replace(s.before)
}

// matches reports whether one of the signatures is one of the secrets'.
func (s *scheme) matches(given [][]byte, before string, body []byte, secrets []string,
) (match bool) {
	for _, secret := range secrets {
		for _, key := range s.keysOf(secret) {
			sum := mac(key, before, body)
			for _, sig := range given {
				if hmac.Equal(sum, sig) {
					match = true
				}
			}
		}
	}
	return match
}

// parse returns this scheme's signatures in the lines of their header, which may also have those
// of other versions, and the time there.
func (s *scheme) parse(lines []string) (stamp string, given [][]byte) {
	for _, line := range lines {
		for part := range strings.SplitSeq(line, cmp.Or(s.separator, ",")) {
			part = strings.TrimSpace(part)
			if t, ok := strings.CutPrefix(part, "t="); ok && stamp == "" {
				stamp = t
			}
			part, ok := strings.CutPrefix(part, s.prefix)
			if !ok || len(given) == maxSignatures {
				continue
			}
			if sig, err := s.decode(part); err == nil && len(sig) == sha256.Size {
				given = append(given, sig)
			}
		}
	}
	return stamp, given
}

func (s *scheme) decode(text string) ([]byte, error) {
	if s.base64 != nil {
		return s.base64.DecodeString(text)
	}
	return hex.DecodeString(text)
}

func (s *scheme) encode(signature []byte) string {
	if s.base64 != nil {
		return s.base64.EncodeToString(signature)
	}
	return hex.EncodeToString(signature)
}

func mac(key []byte, before string, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(before))
	h.Write(body)
	return h.Sum(nil)
}

// Sign sets the headers of a request that Verify accepts; none if nothing must be signed. It is an
// error if the secret is invalid for the scheme.
func (w *Webhook) Sign(header http.Header, body []byte, secret string, now time.Time) error {
	if w.scheme == nil {
		return nil
	}
	keys := w.scheme.keysOf(secret)
	if len(keys) == 0 {
		return errors.New("the secret must be base64 behind " + StandardPrefix)
	}
	sum := sha256.Sum256(append(strconv.AppendInt(nil, now.UnixNano(), 10), body...))
	w.scheme.sign(header, keys[:1], "msg_"+hex.EncodeToString(sum[:12]), now, body)
	return nil
}

// SignStandard sets the headers of Standard Webhooks, with a signature by each key, so that a
// target knows the request by the old or the new secret while it is rotated.
func SignStandard(header http.Header, keys [][]byte, id string, at time.Time, body []byte) {
	schemes[Standard].sign(header, keys, id, at, body)
}

func (s *scheme) sign(header http.Header, keys [][]byte, id string, at time.Time, body []byte) {
	stamp, signatures := strconv.FormatInt(at.Unix(), 10), []string(nil)
	if s.idHeader != "" {
		header.Set(s.idHeader, id)
	}
	if s.stampHeader != "" {
		header.Set(s.stampHeader, stamp)
	} else if s.before != "" {
		signatures = append(signatures, "t="+stamp)
	}
	for _, key := range keys {
		sum := mac(key, s.prologue(id, stamp), body)
		signatures = append(signatures, s.prefix+s.encode(sum))
	}
	if len(keys) > 0 {
		header.Set(s.header, strings.Join(signatures, cmp.Or(s.separator, ",")))
	}
}

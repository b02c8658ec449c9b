package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The schemes, by who signs so.
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

// scheme is a way to sign a request with HMAC-SHA256. All of them differ only in
// where signature and time stand, what is signed, and how the signature is
// written.
type scheme struct {
	name      string
	header    string // that has the signatures; "" none is usual
	anyHeader bool   // the definition may name another
	prefix    string // before each signature
	// base64 is how a signature is written, nil: in hex. Strict where the senders'
	// library compares texts, so that no other text is taken for the same one.
	base64 *base64.Encoding
	key    func(secret string) [][]byte
	// signed returns what is signed before the body, where that is not just the
	// body, and the time that is signed with it, zero where there is none; false
	// where the request lacks it. stamp is the time in the signatures' own header.
	signed func(header Header, stamp string) (before string, at time.Time, ok bool)
	// sign makes the headers of a request, given what signs.
	sign func(s *scheme, now time.Time, body []byte, mac func(before string) string) map[string]string
}

// Header gives the values of a request's header. Names are in lower case.
type Header func(name string) []string

// one returns the value of a header that there must be one of; false where there
// is none, or a choice.
func (h Header) one(name string) (string, bool) {
	v := h(name)
	if len(v) != 1 {
		return "", false
	}
	return v[0], v[0] != ""
}

var schemes = map[string]*scheme{
	// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
	GitHub: {name: GitHub, header: "x-hub-signature-256", anyHeader: true, prefix: "sha256=", key: plain, signed: bodyAlone, sign: signBody},
	// https://developer.pagerduty.com/docs/verifying-webhook-signatures
	PagerDuty: {name: PagerDuty, header: "x-pagerduty-signature", anyHeader: true, prefix: "v1=", key: plain, signed: bodyAlone, sign: signBody},
	// https://docs.stripe.com/webhooks#verify-manually
	Stripe: {name: Stripe, header: "stripe-signature", anyHeader: true, prefix: "v1=", key: plain,
		signed: func(_ Header, stamp string) (string, time.Time, bool) {
			at, ok := unixTime(stamp)
			return stamp + ".", at, ok
		},
		sign: func(s *scheme, now time.Time, _ []byte, mac func(string) string) map[string]string {
			t := strconv.FormatInt(now.Unix(), 10)
			return map[string]string{s.header: "t=" + t + ",v1=" + mac(t+".")}
		}},
	// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
	Standard: {name: Standard, header: "webhook-signature", prefix: "v1,", base64: base64.StdEncoding.Strict(), key: StandardKeys,
		signed: func(header Header, _ string) (string, time.Time, bool) {
			id, ok := header.one("webhook-id")
			stamp, _ := header.one("webhook-timestamp")
			at, timed := unixTime(stamp)
			return id + "." + stamp + ".", at, ok && timed
		},
		sign: func(s *scheme, now time.Time, body []byte, mac func(string) string) map[string]string {
			sum := sha256.Sum256(append(strconv.AppendInt(nil, now.UnixNano(), 10), body...))
			id, t := "msg_"+hex.EncodeToString(sum[:12]), strconv.FormatInt(now.Unix(), 10)
			return map[string]string{"webhook-id": id, "webhook-timestamp": t, s.header: "v1," + mac(id+"."+t+".")}
		}},
	// https://docs.slack.dev/authentication/verifying-requests-from-slack
	Slack: {name: Slack, header: "x-slack-signature", prefix: "v0=", key: plain,
		signed: func(header Header, _ string) (string, time.Time, bool) {
			stamp, _ := header.one("x-slack-request-timestamp")
			at, ok := unixTime(stamp)
			return "v0:" + stamp + ":", at, ok
		},
		sign: func(s *scheme, now time.Time, _ []byte, mac func(string) string) map[string]string {
			t := strconv.FormatInt(now.Unix(), 10)
			return map[string]string{"x-slack-request-timestamp": t, s.header: "v0=" + mac("v0:"+t+":")}
		}},
	// https://shopify.dev/docs/apps/build/webhooks/subscribe/https
	Shopify: {name: Shopify, header: "x-shopify-hmac-sha256", anyHeader: true, base64: base64.StdEncoding, key: plain, signed: bodyAlone, sign: signBody},
	Generic: {name: Generic, anyHeader: true, key: plain, signed: bodyAlone, sign: signBody},
}

// with returns the scheme with a definition's header and prefix.
func (s *scheme) with(header, prefix string) *scheme {
	out := *s
	if header != "" {
		out.header = strings.ToLower(header)
	}
	if prefix != "" {
		out.prefix = prefix
	}
	return &out
}

// schemeOf guesses the scheme from the header: the one whose usual header it is,
// else generic.
func schemeOf(header string) string {
	for name, s := range schemes {
		if header != "" && s.anyHeader && strings.EqualFold(s.header, header) {
			return name
		}
	}
	return Generic
}

func plain(secret string) [][]byte { return [][]byte{[]byte(secret)} }

func bodyAlone(Header, string) (string, time.Time, bool) { return "", time.Time{}, true }

func signBody(s *scheme, _ time.Time, _ []byte, mac func(string) string) map[string]string {
	return map[string]string{s.header: s.prefix + mac("")}
}

// StandardPrefix marks a secret of Standard Webhooks as base64.
const StandardPrefix = "whsec_"

// StandardKeys returns the keys that a secret of Standard Webhooks can stand for,
// none where it can't be one: it is base64, with StandardPrefix before it or not. One
// without that may also be meant as it is, so both are tried. Nothing behind it is
// no key: with an empty one everybody can sign.
func StandardKeys(secret string) [][]byte {
	text, marked := strings.CutPrefix(secret, StandardPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		key, err = base64.RawStdEncoding.DecodeString(text)
	}
	switch {
	case marked && (err != nil || len(key) == 0):
		return nil
	case marked:
		return [][]byte{key}
	case err != nil:
		return plain(secret)
	}
	return [][]byte{key, []byte(secret)}
}

// unixTime reads a time in whole seconds, written as it would be written again.
func unixTime(text string) (time.Time, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > 1<<40 || strconv.FormatInt(n, 10) != text {
		return time.Time{}, false
	}
	return time.Unix(n, 0), true
}

// Why a request is refused.
var (
	ErrSignature = errors.New("the signature is missing or wrong")
	ErrStale     = errors.New("the signed time is too far from now")
)

// maxSignatures is how many signatures of one request are tried.
const maxSignatures = 16

// Signed reports whether requests have to be signed.
func (w *Webhook) Signed() bool { return w.scheme != nil }

// Verify checks a request's signature over its raw body with each secret, and
// that the signed time, if there is one, is near now. An error is ErrSignature
// (wrapped, with what was expected where) or ErrStale (wrapped).
//
// It takes as long for any wrong signature: each is compared with what each
// secret gives, in constant time, also after one has matched.
func (w *Webhook) Verify(header Header, body []byte, secrets []string, now time.Time) error {
	s := w.scheme
	if s == nil {
		return nil
	}
	lines := header(s.header)
	if len(lines) == 0 {
		return fmt.Errorf("%w: there is no header %s", ErrSignature, s.header)
	}
	stamp, given := s.parse(lines)
	if len(given) == 0 {
		return fmt.Errorf("%w: header %s must have it as %s", ErrSignature, s.header, s.form())
	}
	before, at, ok := s.signed(header, stamp)
	if !ok {
		return fmt.Errorf("%w: the signed time (and, with scheme standard, webhook-id) is missing or malformed", ErrSignature)
	}
	if !s.matches(given, before, body, secrets) {
		return fmt.Errorf("%w: it does not fit the body and the secret", ErrSignature)
	}
	if w.maxAge > 0 && !at.IsZero() {
		if off := now.Sub(at); off > w.maxAge || off < -w.maxAge {
			return fmt.Errorf("%w: it is %s, and may be off by %d seconds", ErrStale, at.UTC().Format(time.RFC3339), int64(w.maxAge.Seconds()))
		}
	}
	return nil
}

// matches reports whether one of the signatures is one of the secrets'.
func (s *scheme) matches(given [][]byte, before string, body []byte, secrets []string) (match bool) {
	for _, secret := range secrets {
		for _, key := range s.key(secret) {
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

func (s *scheme) form() string {
	if s.base64 != nil {
		return s.prefix + "<base64>"
	}
	return s.prefix + "<hex>"
}

// parse takes the signatures of this scheme out of their header: there may be
// several, and some of other versions.
func (s *scheme) parse(lines []string) (stamp string, given [][]byte) {
	separator := ","
	if s.name == Standard {
		separator = " " // "v1,…" has a comma itself
	}
	for _, line := range lines {
		for part := range strings.SplitSeq(line, separator) {
			part = strings.TrimSpace(part)
			if t, ok := strings.CutPrefix(part, "t="); ok && s.name == Stripe {
				if stamp == "" {
					stamp = t
				}
				continue
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

func (s *scheme) encode(sum []byte) string {
	if s.base64 != nil {
		return s.base64.EncodeToString(sum)
	}
	return hex.EncodeToString(sum)
}

func mac(key []byte, before string, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(before))
	h.Write(body)
	return h.Sum(nil)
}

// Sign returns the headers of a request that Verify takes, nil where nothing has
// to be signed. It is an error where the secret can't be one of the scheme.
func (w *Webhook) Sign(body []byte, secret string, now time.Time) (map[string]string, error) {
	s := w.scheme
	if s == nil {
		return nil, nil
	}
	keys := s.key(secret)
	if len(keys) == 0 {
		return nil, errors.New("the secret must be base64 behind " + StandardPrefix)
	}
	return s.sign(s, now, body, func(before string) string {
		return s.encode(mac(keys[0], before, body))
	}), nil
}

// signatureHeaders are the headers of all schemes that have a signature in them.
var signatureHeaders = func() []string {
	var out []string
	for _, s := range schemes {
		if s.header != "" {
			out = append(out, s.header)
		}
	}
	slices.Sort(out)
	return out
}()

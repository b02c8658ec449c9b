// Package oracle holds webhook against the libraries of those who sign, and against the SDK of
// CloudEvents: what the one says of a request, or writes, the other has to say, or to read.
package oracle

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/PagerDuty/go-pagerduty/webhookv3"
	goshopify "github.com/bold-commerce/go-shopify/v4"
	"github.com/google/go-github/v74/github"
	"github.com/slack-go/slack"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripe "github.com/stripe/stripe-go/v84/webhook"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/webhook"
)

// oracles verify a request as a scheme's own library does. They know the time
// only as it is now.
var oracles = map[string]func(h http.Header, body []byte, secret string) error{
	webhook.GitHub: func(h http.Header, body []byte, secret string) error {
		return github.ValidateSignature(h.Get("X-Hub-Signature-256"), body, []byte(secret))
	},
	webhook.PagerDuty: func(h http.Header, body []byte, secret string) error {
		return webhookv3.VerifySignature(request(h, body), secret)
	},
	webhook.Stripe: func(h http.Header, body []byte, secret string) error {
		return stripe.ValidatePayloadWithTolerance(body, h.Get("Stripe-Signature"), secret,
			tolerance)
	},
	webhook.Standard: func(h http.Header, body []byte, secret string) error {
		w, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			return err
		}
		return w.Verify(body, h)
	},
	webhook.Slack: func(h http.Header, body []byte, secret string) error {
		v, err := slack.NewSecretsVerifier(h, secret)
		if err != nil {
			return err
		}
		_, _ = v.Write(body)
		return v.Ensure()
	},
	webhook.Shopify: func(h http.Header, body []byte, secret string) error {
		if ok, err := (goshopify.App{ApiSecret: secret}).VerifyWebhookRequestVerbose(request(h,
			body)); !ok {
			return fmt.Errorf("not verified: %w", err)
		}
		return nil
	},
}

const tolerance = 5 * time.Minute

func request(h http.Header, body []byte) *http.Request {
	return &http.Request{
		Method: http.MethodPost, Header: h, Body: io.NopCloser(bytes.NewReader(body)),
	}
}

func compile(t *testing.T, scheme string) *webhook.Webhook {
	t.Helper()
	w, err := webhook.Compile("w", &wire.WebhookDefinition{Queue: "q",
		VerifyHMAC: &wire.VerifyHMAC{Scheme: scheme, SecretEnv: wire.Strings{"S"}}})
	must(t, err)
	return w
}

func ours(w *webhook.Webhook, h http.Header, body []byte, secret string) error {
	return w.Verify(h, body, []string{secret}, time.Now())
}

func secretOf(scheme string, r *rand.Rand) string {
	b := make([]byte, 24)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	s := base64.StdEncoding.EncodeToString(b)
	if scheme == webhook.Standard || scheme == webhook.Stripe {
		return "whsec_" + s
	}
	return s
}

// TestOracles: what we sign the library takes, and of whatever is changed in it,
// by chance or with intent, both say the same.
func TestOracles(t *testing.T) {
	for scheme, oracle := range oracles {
		t.Run(scheme, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			r := rand.New(rand.NewPCG(seed, 1))
			t.Log("seed", seed)
			w := compile(t, scheme)
			good, bad := 0, 0
			agree := func(what string, h http.Header, body []byte, secret string) {
				t.Helper()
				theirs, mine := oracle(h.Clone(), body, secret), ours(w, h, body, secret)
				if (theirs == nil) != (mine == nil) {
					t.Errorf("%s: theirs %v, ours %v; headers %q, body %q", what, theirs, mine, h,
						body)
				}
				if mine == nil {
					good++
				} else {
					bad++
				}
			}
			for i := range 200 {
				secret := secretOf(scheme, r)
				body := []byte(fmt.Sprintf(`{"n":%d,"text":%q}`, i,
					strings.Repeat("ä", r.IntN(50))))
				at := time.Now()
				if i%4 == 3 { // well within and well outside of the window, either way
					at = at.Add(time.Duration([]int{-3600, -200, 200}[r.IntN(3)]) * time.Second)
				}
				h := http.Header{}
				must(t, w.Sign(h, body, secret, at))
				agree("as signed", h, body, secret)
				agree("another body", h, append(body, ' '), secret)
				agree("another secret", h, body, secretOf(scheme, r))
				for name := range h {
					without := h.Clone()
					without.Del(name)
					agree("without "+name, without, body, secret)
					v := h.Get(name)
					changed := h.Clone()
					at := r.IntN(len(v))
					c := "0123456789abcdef"[r.IntN(16)]
					changed.Set(name, v[:at]+string(c)+v[at+1:])
					if strings.EqualFold(changed.Get(name), v) {
						continue
					}
					if strings.Contains(name, "Stamp") || scheme == webhook.Stripe &&
						at < strings.Index(v, ",") {
						continue // what a library makes of a time that is none is its own
					}
					agree(fmt.Sprintf("%s changed at %d", name, at), changed, body, secret)
				}
			}
			if good < 100 || bad < 100 {
				t.Errorf("%d good and %d bad were looked at", good, bad)
			}
		})
	}
}

package webhook

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// made returns a webhook with a scheme.
func made(t testing.TB, v wire.VerifyHMAC, change ...func(*wire.WebhookDefinition)) *Webhook {
	t.Helper()
	v.SecretEnv = wire.Strings{"S"}
	d := &wire.WebhookDefinition{Queue: "q", VerifyHMAC: &v}
	for _, f := range change {
		f(d)
	}
	w, err := Compile("w", d)
	must(t, err)
	return w
}

// from are headers "Name: value".
func from(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		name, v, _ := strings.Cut(l, ": ")
		h.Add(name, v)
	}
	return h
}

// testdata/vectors.json has vectors from the schemes' own documentation or libraries, where these
// have any, each with its time in Unix seconds, 0 if none is signed. The others are openssl's, and
// the schemes' libraries agree in webhook/oracle:
//
//	printf %s "$signed" | openssl dgst -sha256 -hmac "$secret" [-binary | base64]
func TestVectors(t *testing.T) {
	var vectors []struct {
		Name, Secret, Body string
		Verify             wire.VerifyHMAC
		At                 int64
		Headers            []string
	}
	b, err := os.ReadFile("testdata/vectors.json")
	must(t, err)
	must(t, json.Unmarshal(b, &vectors))
	for _, v := range vectors {
		w := made(t, v.Verify)
		now := time.Unix(v.At, 0)
		verify := func(body, secret string, now time.Time, headers ...string) error {
			return w.Verify(from(headers...), []byte(body), []string{secret}, now)
		}
		if err := verify(v.Body, v.Secret, now, v.Headers...); err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		if err := w.Verify(from(v.Headers...), []byte(v.Body),
			[]string{"new one", v.Secret, "other"}, now); err != nil {
			t.Errorf("%s, rotated: %v", v.Name, err)
		}
		last := len(v.Headers) - 1
		name, value, _ := strings.Cut(v.Headers[last], ": ")
		with := func(value string) []string {
			return append(append([]string{}, v.Headers[:last]...), name+": "+value)
		}
		wrong := map[string]error{
			"another body":   verify(v.Body+" ", v.Secret, now, v.Headers...),
			"no body":        verify("", v.Secret, now, v.Headers...),
			"another secret": verify(v.Body, v.Secret+"x", now, v.Headers...),
			"no secret":      w.Verify(from(v.Headers...), []byte(v.Body), nil, now),
			"no header":      verify(v.Body, v.Secret, now, v.Headers[:last]...),
			"empty":          verify(v.Body, v.Secret, now, with("")...),
			"nonsense":       verify(v.Body, v.Secret, now, with("nonsense")...),
		}
		// Each character of the signature counts.
		at := strings.Index(value, w.scheme.prefix) + len(w.scheme.prefix)
		sig, _, _ := strings.Cut(value[at:], ",")
		wrong["cut"] = verify(v.Body, v.Secret, now, with(value[:at+len(sig)-2])...)
		for i := range sig {
			c := byte('A')
			if strings.EqualFold(sig[i:i+1], "a") {
				c = 'B'
			}
			changed := sig[:i] + string(c) + sig[i+1:]
			if a, err := w.scheme.decode(changed); err == nil {
				if b, _ := w.scheme.decode(sig); string(a) == string(b) {
					continue // bits that base64 does not use
				}
			}
			if err := verify(v.Body, v.Secret, now,
				with(value[:at]+changed+value[at+len(sig):])...); !errors.Is(err, ErrSignature) {
				t.Errorf("%s: %s: %v", v.Name, changed, err)
			}
		}
		for what, err := range wrong {
			assert.ErrorIs(t, err, ErrSignature, "%s: %s:", v.Name, what)
		}
		if v.At == 0 {
			assert.NoError(t, verify(v.Body, v.Secret, time.Unix(1e9, 0), v.Headers...),
				"%s has no time", v.Name)
			continue
		}
		for off, want := range map[int]error{-301: ErrStale, -300: nil, 300: nil, 301: ErrStale,
			86400 * 365: ErrStale, -86400 * 365: ErrStale} {
			if err := verify(v.Body, v.Secret, now.Add(time.Duration(off)*time.Second),
				v.Headers...); !errors.Is(err, want) {
				t.Errorf("%s, off by %d: %v", v.Name, off, err)
			}
		}
	}
}

// verify fails unless Verify's error for a request is want.
func (w *Webhook) verify(
	t *testing.T, want error, secret, body string, now time.Time, h http.Header,
) {
	t.Helper()
	assert.ErrorIs(t, w.Verify(h, []byte(body), []string{secret}, now), want, "%s: %v:", secret, h)
}

// TestSign: what Sign makes Verify takes, and another time or id is another
// signature.
func TestSign(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name := range schemes {
		v := wire.VerifyHMAC{Scheme: name}
		if name == Generic {
			v.Header, v.Prefix = "X-Sig", "sig:"
		}
		w := made(t, v)
		const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		headers := http.Header{}
		must(t, w.Sign(headers, []byte("body"), secret, now))
		w.verify(t, nil, secret, "body", now, headers)
		for k, v := range headers {
			if strings.Contains(k, "stamp") {
				headers[k] = []string{"1800000001"}
				w.verify(t, ErrSignature, secret, "body", now, headers)
				headers[k] = v
			}
		}
	}
}

// TestSeveral: of several signatures one is enough, wherever it stands.
func TestSeveral(t *testing.T) {
	const good = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	bad := strings.Repeat("00", 32)
	pd, now := made(t, wire.VerifyHMAC{Scheme: PagerDuty}), time.Now()
	for line, want := range map[string]error{
		"v1=" + bad + ",v1=" + good: nil, "v1=" + good + ", v1=" + bad: nil,
		"v2=" + good + ",v1=" + good: nil, "v1=" + bad + "\nv1=" + good: nil,
		"v2=" + good: ErrSignature, good: ErrSignature, "v1=" + bad + ",v0=" + good: ErrSignature,
		strings.Repeat("v1="+bad+",", 16) + "v1=" + good: ErrSignature,
	} {
		h := http.Header{"X-Pagerduty-Signature": strings.Split(line, "\n")}
		pd.verify(t, want, "It's a Secret to Everybody", "Hello, World!", now, h)
	}
	std, now := made(t, wire.VerifyHMAC{Scheme: Standard}), time.Unix(1614265330, 0)
	const body, secret = `{"test": 2432232314}`, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	const sig = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	const id, at = "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp: 1614265330"
	for _, line := range []string{
		"v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v2,x " + sig, sig + " v1a,xyz",
	} {
		h := from(id, at, "webhook-signature: "+line)
		std.verify(t, nil, secret, body, now, h)
		std.verify(t, nil, strings.TrimPrefix(secret, "whsec_"), body, now, h)
	}
	for _, lines := range [][]string{
		{id, at, id}, {at}, {id}, {id, "webhook-timestamp: 01614265330"}, {id, "webhook-timestamp: -1"},
	} {
		h := from(append(lines, "webhook-signature: "+sig)...)
		std.verify(t, ErrSignature, secret, body, now, h)
	}
}

// TestNoKey: a secret that has none in it verifies nothing, and signs nothing.
func TestNoKey(t *testing.T) {
	w, now := made(t, wire.VerifyHMAC{Scheme: Standard}), time.Unix(1614265330, 0)
	forged := base64.StdEncoding.EncodeToString(mac(nil, "m.1614265330.", []byte("{}")))
	h := from("webhook-id: m", "webhook-timestamp: 1614265330", "webhook-signature: v1,"+forged)
	for _, secret := range []string{"whsec_", "whsec_?", "whsec_!"} {
		w.verify(t, ErrSignature, secret, "{}", now, h)
		assert.True(t, w.Sign(http.Header{}, []byte("{}"), secret, now) != nil, "%s", secret)
	}
}

// TestHeaders: the definition's header takes the place of the usual one, and the
// scheme is known by its usual header.
func TestHeaders(t *testing.T) {
	for header, want := range map[string]string{
		"x-hub-signature-256": GitHub, "X-PagerDuty-Signature": PagerDuty,
		"Stripe-Signature": Stripe, "X-Shopify-Hmac-SHA256": Shopify, "X-Mine": Generic,
		"webhook-signature": Generic,
	} {
		assert.Equal(t, made(t, wire.VerifyHMAC{Header: header}).Definition.VerifyHMAC.Scheme, want,
			"%s", header)
	}
	w := made(t, wire.VerifyHMAC{Scheme: GitHub, Header: "X-Mirror-Signature"})
	const sig = ": sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	for header, want := range map[string]error{"X-Mirror-Signature": nil,
		"X-Hub-Signature-256": ErrSignature} {
		w.verify(t, want, "It's a Secret to Everybody", "Hello, World!", time.Now(), from(header+sig))
	}
}

func TestNoLimitOfAge(t *testing.T) {
	none := int64(0)
	w := made(t, wire.VerifyHMAC{Scheme: Slack},
		func(d *wire.WebhookDefinition) { d.MaxAgeSeconds = &none })
	headers := http.Header{}
	must(t, w.Sign(headers, []byte("x"), "s", time.Unix(1000, 0)))
	require.NoError(t, w.Verify(headers, []byte("x"), []string{"s"}, time.Now()))
}

// TestAlike: no secret and no signature is left out once another one has matched,
// or failed early: as much is computed for a good signature as for a wrong one.
func TestAlike(t *testing.T) {
	w := made(t, wire.VerifyHMAC{Scheme: PagerDuty})
	good := http.Header{}
	must(t, w.Sign(good, []byte("x"), "a", time.Now()))
	value := good.Get("X-PagerDuty-Signature")
	cost := func(value string, secrets ...string) float64 {
		header := from("X-PagerDuty-Signature: " + value)
		s, lines := w.scheme, header.Values(w.scheme.header)
		_, given := s.parse(lines)
		return testing.AllocsPerRun(100, func() { s.matches(given, "", []byte("x"), secrets) })
	}
	one, three := cost(value, "a"), cost(value, "a", "b", "c")
	assert.True(t, three >= 2*one, "%v for one secret, %v for three", one, three)
	for _, v := range []string{"v1=0" + value[4:], value[:len(value)-1] + "0",
		value[:len(value)-1] + "1"} {
		assert.Equal(t, cost(v, "a", "b", "c"), three, "%s", v)
	}
}

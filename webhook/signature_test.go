package webhook

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
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
func from(lines ...string) Header {
	h := http.Header{}
	for _, l := range lines {
		name, v, _ := strings.Cut(l, ": ")
		h.Add(name, v)
	}
	return func(name string) []string { return h[http.CanonicalHeaderKey(name)] }
}

// vectors are from the schemes' own documentation or libraries, where these have
// any, each with its time.
var vectors = []struct {
	name, from string
	verify     wire.VerifyHMAC
	secret     string
	at         int64 // Unix seconds; 0: no time is signed
	body       string
	headers    []string
}{
	{
		"github", "https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries#testing-the-webhook-payload-validation",
		wire.VerifyHMAC{Scheme: GitHub}, "It's a Secret to Everybody", 0, "Hello, World!",
		[]string{"X-Hub-Signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
	},
	{
		"github, as generic", "the same",
		wire.VerifyHMAC{Scheme: Generic, Header: "X-Hub-Signature-256",
			Prefix: "sha256="}, "It's a Secret to Everybody", 0, "Hello, World!",
		[]string{"X-Hub-Signature-256: sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
	},
	{
		"generic", "the same",
		wire.VerifyHMAC{Scheme: Generic,
			Header: "X-Sig"}, "It's a Secret to Everybody", 0, "Hello, World!",
		[]string{"X-Sig: 757107EA0EB2509FC211221CCE984B8A37570B6D7586C22C46F4379C8B043E17"},
	},
	{
		"standard", "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md#verifying-signatures",
		wire.VerifyHMAC{Scheme: Standard}, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", 1614265330,
		`{"test": 2432232314}`,
		[]string{"webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp: 1614265330",
			"webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
	},
	{
		"slack", "https://docs.slack.dev/authentication/verifying-requests-from-slack",
		wire.VerifyHMAC{Scheme: Slack}, "8f742231b10e8888abcd99yyyzzz85a5", 1531420618,
		"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
		[]string{"X-Slack-Request-Timestamp: 1531420618",
			"X-Slack-Signature: v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"},
	},
	// These schemes' documentation has no values; their libraries agree in
	// webhook/oracle. The values are openssl's:
	//	printf %s "$signed" | openssl dgst -sha256 -hmac "$secret" [-binary | base64]
	{
		"pagerduty", "openssl",
		wire.VerifyHMAC{Scheme: PagerDuty}, "topsecret", 0, `{"event":{"event_type":"pagey.ping"}}`,
		[]string{"X-PagerDuty-Signature: v1=0b3b77eefb0da5903c1ed0ae958759f8e8bbdade1659c0aff2fd594ccedc1519"},
	},
	{
		"stripe", "openssl",
		wire.VerifyHMAC{Scheme: Stripe}, "whsec_test_secret", 1700000000, `{"id":"evt_1"}`,
		[]string{"Stripe-Signature: t=1700000000,v1=248a374f50f943a28b0f6ab50faf9a7e7e29b710fa26df9fb1618b9bf8ea9c9a,v0=00"},
	},
	{
		"shopify", "openssl",
		wire.VerifyHMAC{Scheme: Shopify}, "hush", 0, `{"id":820982911946154508}`,
		[]string{"X-Shopify-Hmac-Sha256: qBvrsZF7RfB1iS6BX6IHqJTp5L911P7intnPeTPsH0I="},
	},
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		w := made(t, v.verify)
		now := time.Unix(v.at, 0)
		verify := func(body, secret string, now time.Time, headers ...string) error {
			return w.Verify(from(headers...), []byte(body), []string{secret}, now)
		}
		if err := verify(v.body, v.secret, now, v.headers...); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if err := w.Verify(from(v.headers...), []byte(v.body),
			[]string{"new one", v.secret, "other"}, now); err != nil {
			t.Errorf("%s, rotated: %v", v.name, err)
		}
		last := len(v.headers) - 1
		name, value, _ := strings.Cut(v.headers[last], ": ")
		with := func(value string) []string {
			return append(append([]string{},
				v.headers[:last]...), name+": "+value)
		}
		wrong := map[string]error{
			"another body":   verify(v.body+" ", v.secret, now, v.headers...),
			"no body":        verify("", v.secret, now, v.headers...),
			"another secret": verify(v.body, v.secret+"x", now, v.headers...),
			"no secret":      w.Verify(from(v.headers...), []byte(v.body), nil, now),
			"no header":      verify(v.body, v.secret, now, v.headers[:last]...),
			"empty":          verify(v.body, v.secret, now, with("")...),
			"nonsense":       verify(v.body, v.secret, now, with("nonsense")...),
		}
		// Each character of the signature counts.
		at := strings.Index(value, w.scheme.prefix) + len(w.scheme.prefix)
		sig, _, _ := strings.Cut(value[at:], ",")
		wrong["cut"] = verify(v.body, v.secret, now, with(value[:at+len(sig)-2])...)
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
			if err := verify(v.body, v.secret, now,
				with(value[:at]+changed+value[at+len(sig):])...); !errors.Is(err, ErrSignature) {
				t.Errorf("%s: %s: %v", v.name, changed, err)
			}
		}
		for what, err := range wrong {
			if !errors.Is(err, ErrSignature) {
				t.Errorf("%s: %s: %v", v.name, what, err)
			}
		}
		if v.at == 0 {
			if err := verify(v.body, v.secret, time.Unix(1e9, 0), v.headers...); err != nil {
				t.Errorf("%s has no time: %v", v.name, err)
			}
			continue
		}
		for off, want := range map[int]error{-301: ErrStale, -300: nil, 300: nil, 301: ErrStale,
			86400 * 365: ErrStale, -86400 * 365: ErrStale} {
			if err := verify(v.body, v.secret, now.Add(time.Duration(off)*time.Second),
				v.headers...); !errors.Is(err, want) {
				t.Errorf("%s, off by %d: %v", v.name, off, err)
			}
		}
	}
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
		secret := "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		headers, err := w.Sign([]byte("body"), secret, now)
		must(t, err)
		lines := func(h map[string]string) (out []string) {
			for k, v := range h {
				out = append(out, k+": "+v)
			}
			return out
		}
		if err := w.Verify(from(lines(headers)...), []byte("body"), []string{secret},
			now); err != nil {
			t.Errorf("%s: %v %v", name, headers, err)
		}
		for k, v := range headers {
			if strings.Contains(k, "signature") || !strings.Contains(k, "stamp") {
				continue
			}
			headers[k] = "1800000001"
			if err := w.Verify(from(lines(headers)...), []byte("body"), []string{secret},
				now); !errors.Is(err, ErrSignature) {
				t.Errorf("%s with another %s: %v", name, k, err)
			}
			headers[k] = v
		}
	}
	if _, err := made(t, wire.VerifyHMAC{Scheme: Standard}).Sign(nil, "whsec_!", now); err == nil {
		t.Error("whsec_! went as base64")
	}
}

// TestSeveral: of several signatures one is enough, wherever it stands.
func TestSeveral(t *testing.T) {
	const good = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	bad := strings.Repeat("00", 32)
	secrets := []string{"It's a Secret to Everybody"}
	pd := made(t, wire.VerifyHMAC{Scheme: PagerDuty})
	for _, lines := range [][]string{
		{"X-PagerDuty-Signature: v1=" + bad + ",v1=" + good},
		{"X-PagerDuty-Signature: v1=" + good + ", v1=" + bad},
		{"X-PagerDuty-Signature: v2=" + good + ",v1=" + good}, {"X-PagerDuty-Signature: v1=" + bad,
			"X-PagerDuty-Signature: v1=" + good},
	} {
		if err := pd.Verify(from(lines...), []byte("Hello, World!"), secrets,
			time.Now()); err != nil {
			t.Errorf("%v: %v", lines, err)
		}
	}
	for _, line := range []string{"v2=" + good, good, "v1=" + bad + ",v0=" + good,
		strings.Repeat("v1="+bad+",", 16) + "v1=" + good} {
		if err := pd.Verify(from("X-PagerDuty-Signature: "+line), []byte("Hello, World!"), secrets,
			time.Now()); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", line, err)
		}
	}
	std := made(t, wire.VerifyHMAC{Scheme: Standard})
	const sig = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	meta := []string{"webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp: 1614265330"}
	body, now := []byte(`{"test": 2432232314}`), time.Unix(1614265330, 0)
	for _, secret := range []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		for _, line := range []string{"v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= v2,x " + sig, sig + " v1a,xyz"} {
			if err := std.Verify(from(append(meta, "webhook-signature: "+line)...), body,
				[]string{secret}, now); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	for _, lines := range [][]string{
		{meta[0], meta[1], meta[0], "webhook-signature: " + sig}, {meta[1],
			"webhook-signature: " + sig}, {meta[0], "webhook-signature: " + sig},
		{meta[0], "webhook-timestamp: 01614265330", "webhook-signature: " + sig}, {meta[0],
			"webhook-timestamp: -1", "webhook-signature: " + sig},
	} {
		if err := std.Verify(from(lines...), body,
			[]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, now); !errors.Is(err, ErrSignature) {
			t.Errorf("%v: %v", lines, err)
		}
	}
}

// TestNoKey: a secret that has none in it verifies nothing, and signs nothing.
func TestNoKey(t *testing.T) {
	w, now := made(t, wire.VerifyHMAC{Scheme: Standard}), time.Unix(1614265330, 0)
	forged := base64.StdEncoding.EncodeToString(mac(nil, "m.1614265330.", []byte("{}")))
	for _, secret := range []string{"whsec_", "whsec_?"} {
		if err := w.Verify(from("webhook-id: m", "webhook-timestamp: 1614265330",
			"webhook-signature: v1,"+forged), []byte("{}"), []string{secret}, now); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", secret, err)
		}
		if headers, err := w.Sign([]byte("{}"), secret, now); err == nil {
			t.Errorf("%s: %v", secret, headers)
		}
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
		if got := made(t, wire.VerifyHMAC{Header: header}).Definition.VerifyHMAC.Scheme; got != want {
			t.Errorf("%s: %s", header, got)
		}
	}
	w := made(t, wire.VerifyHMAC{Scheme: GitHub, Header: "X-Mirror-Signature"})
	const sig = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	for header, want := range map[string]error{"X-Mirror-Signature": nil,
		"X-Hub-Signature-256": ErrSignature} {
		if err := w.Verify(from(header+": "+sig), []byte("Hello, World!"),
			[]string{"It's a Secret to Everybody"}, time.Now()); !errors.Is(err, want) {
			t.Errorf("%s: %v", header, err)
		}
	}
}

func TestNoLimitOfAge(t *testing.T) {
	none := int64(0)
	w := made(t, wire.VerifyHMAC{Scheme: Slack},
		func(d *wire.WebhookDefinition) { d.MaxAgeSeconds = &none })
	headers, err := w.Sign([]byte("x"), "s", time.Unix(1000, 0))
	must(t, err)
	get := func(name string) []string { return []string{headers[name]} }
	if err := w.Verify(get, []byte("x"), []string{"s"}, time.Now()); err != nil {
		t.Error(err)
	}
}

// TestAlike: no secret and no signature is left out once another one has matched,
// or failed early: as much is computed for a good signature as for a wrong one.
func TestAlike(t *testing.T) {
	w := made(t, wire.VerifyHMAC{Scheme: PagerDuty})
	good, err := w.Sign([]byte("x"), "a", time.Now())
	must(t, err)
	value := good["x-pagerduty-signature"]
	cost := func(value string, secrets ...string) float64 {
		header := from("X-PagerDuty-Signature: " + value)
		s, lines := w.scheme, header(w.scheme.header)
		_, given := s.parse(lines)
		return testing.AllocsPerRun(100, func() { s.matches(given, "", []byte("x"), secrets) })
	}
	one, three := cost(value, "a"), cost(value, "a", "b", "c")
	if three < 2*one {
		t.Errorf("%v for one secret, %v for three", one, three)
	}
	for _, v := range []string{"v1=0" + value[4:], value[:len(value)-1] + "0",
		value[:len(value)-1] + "1"} {
		if got := cost(v, "a", "b", "c"); got != three {
			t.Errorf("%s: %v, not %v", v, got, three)
		}
	}
}

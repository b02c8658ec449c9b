package webhook

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func compiled(t testing.TB, d wire.WebhookDefinition) *Webhook {
	t.Helper()
	if d.Queue == "" && d.Target == "" {
		d.Queue = "q"
	}
	w, err := Compile("pd", &d)
	must(t, err)
	return w
}

func request(body string) *Request {
	return &Request{
		Body: []byte(body), Header: http.Header{"X-Event": {"issues"}},
		Source: netip.MustParseAddr("192.0.2.7"), ReceivedAt: time.Date(2026, 1, 31, 12, 0, 0, 0,
			time.UTC),
	}
}

func TestMessage(t *testing.T) {
	w := compiled(t, wire.WebhookDefinition{
		Filter:         `payload.event != 'ping' && source_ip.startsWith('192.')`,
		IdempotencyKey: `'PD-' + string(payload.id)`,
		Key:            `webhook + '/' + headers['x-event']`, Kind: `payload.?kind.orValue('')`,
		Priority: []byte(`"payload.urgency == 'high' ? 1 : 5"`),
		MapTo: &wire.MapTo{Input: map[string]string{"at": `received_at`, "id": `payload.id`,
			"note": `payload.?note`}},
	})
	for body, want := range map[string]Message{
		`{"event":"ping"}`: {Filtered: true},
		`{"event":"x","id":123,"urgency":"high","kind":"k"}`: {NewMessage: wire.NewMessage{
			IdempotencyKey: "PD-123", Key: "pd/issues", Kind: "k", Priority: new(int64(1)),
			Payload: []byte(`{"at":"2026-01-31T12:00:00Z","id":123}`)}},
		`{"event":"x","id":"a","urgency":null,"note":[1]}`: {NewMessage: wire.NewMessage{
			IdempotencyKey: "PD-a", Key: "pd/issues", Priority: new(int64(5)),
			Payload: []byte(`{"at":"2026-01-31T12:00:00Z","id":"a","note":[1]}`)}},
	} {
		if !want.Filtered {
			want.Original = []byte(body)
			want.Headers = map[string]string{"x-event": "issues", "webhook": "pd",
				"source-ip": "192.0.2.7", "received-at": "2026-01-31T12:00:00.000Z"}
		}
		got, err := w.Message(request(body), 1000)
		assert.True(t, err == nil && reflect.DeepEqual(got, want), "%s: %+v, %v", body, got, err)
	}
	var failed *FieldError
	r := request(`{"event":"x","id":1,"urgency":"high","note":"` + strings.Repeat("x", 1000) + `"}`)
	if _, err := w.Message(r, 1000); !errors.As(err, &failed) ||
		failed.Field != "map_to.input" || !strings.Contains(err.Error(), "too large") {
		t.Error(err)
	}
	w = compiled(t, wire.WebhookDefinition{Priority: []byte(`"payload"`)})
	for body, fine := range map[string]bool{"1": true, "10": true, "0": false, "11": false,
		"1.5": false, `"1"`: false, "257": false} {
		if _, err := w.Message(request(body), 1000); (err == nil) != fine {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestPlainMessage: without any expression the body is the message.
func TestPlainMessage(t *testing.T) {
	w := compiled(t, wire.WebhookDefinition{Priority: []byte("3")})
	for body, fine := range map[string]bool{
		` {"a": 1} `: true, `1`: true, `{"a":1,"a":2}`: false, ``: false, ` `: false,
		`{} {}`: false, "\"\xff\"": false,
		strings.Repeat("[", 64) + strings.Repeat("]", 64): true, strings.Repeat("[",
			65) + strings.Repeat("]", 65): false,
	} {
		m, err := w.Message(request(body), 10)
		if !fine {
			assert.ErrorIs(t, err, ErrBody, "%.20s:", body)
			continue
		}
		if err != nil || string(m.Payload) != body || m.Original != nil || *m.Priority != 3 {
			t.Errorf("%s: %+v, %v", body, m, err)
		}
	}
}

func TestHeadersOfMessages(t *testing.T) {
	w := compiled(t, wire.WebhookDefinition{VerifyHMAC: &wire.VerifyHMAC{Scheme: Generic,
		Header: "X-Proof", SecretEnv: wire.Strings{"S"}}})
	all := map[string][]string{
		"X-Event": {"a", "b"}, "X-Proof": {"1"}, "Authorization": {"x"}, "Proxy-Foo": {"x"},
		"X-Gitlab-Token": {"x"}, "X-Amz-Security-Token": {"x"},
		"Cookie": {"x"}, "Set-Cookie": {"x"}, "X-Hub-Signature": {"x"}, "Webhook-Id": {"m1"},
		"Webhook": {"forged"}, "Source-Ip": {"forged"},
		"Received-At": {"forged"}, "X-Bad": {"a\x00b"}, "X-Latin": {"\xe4"},
		"X-Long": {strings.Repeat("x", 4097)}, "X-Fits": {strings.Repeat("x", 4096)},
		strings.Repeat("n", 65): {"x"}, strings.Repeat("N",
			64): {"x"}, "Connection": {"keep-alive, X-Hop"}, "X-Hop": {"x"}, "Keep-Alive": {"x"},
		"Content-Length": {"5"}, "X-None": {},
		"X-Shopify-Hmac-Sha256": {"x"}, "Client-Secret": {"x"}, "X-Api-Key": {"x"},
		"X-Auth-Key": {"x"}, "X-Goog-Iap-Jwt-Assertion": {"x"}, "X-Session-Id": {"x"},
		"User-Agent": {"u"},
	}
	got := w.headers(&Request{Header: all, Source: netip.MustParseAddr("192.0.2.7"),
		ReceivedAt: time.Date(2026, 1, 31, 12, 0, 0, 1e6, time.UTC)})
	want := map[string]string{
		"webhook": "pd", "source-ip": "192.0.2.7", "received-at": "2026-01-31T12:00:00.001Z",
		"x-event": "a, b", "webhook-id": "m1",
		"x-fits": strings.Repeat("x", 4096), strings.Repeat("n", 64): "x", "user-agent": "u",
	}
	for name, v := range want {
		assert.Equal(t, got[name], v, "%s", name)
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s", name, got[name])
		}
	}
	many := map[string][]string{}
	for i := range 100 {
		many["X-"+string(rune('A'+i/26))+string(rune('A'+i%26))] = []string{"1"}
	}
	first := w.headers(&Request{Header: many})
	assert.True(t, len(first) == 64 && first["x-aa"] == "1" && first["webhook"] == "pd",
		"%v", len(first))
	for range 10 {
		if again := w.headers(&Request{Header: many}); len(again) != 64 ||
			again["x-ci"] != first["x-ci"] || again["x-cj"] != first["x-cj"] {
			t.Fatal("others were kept")
		}
	}
}

func TestNetworks(t *testing.T) {
	w := compiled(t, wire.WebhookDefinition{AllowIPs: []string{"52.0.0.0/8", "192.0.2.7",
		"2001:db8::/32", "::ffff:198.51.100.1"}})
	for addr, want := range map[string]bool{
		"52.255.0.1": true, "53.0.0.1": false, "192.0.2.7": true, "192.0.2.8": false,
		"2001:db8::1": true, "2001:db9::1": false, "198.51.100.1": true,
	} {
		assert.Equal(t, w.Allows(netip.MustParseAddr(addr)), want, "%v", addr)
	}
	for _, text := range []string{"", "52.0.0.0/33", "52.0.0.1/8", "x", "fe80::1%eth0",
		"::ffff:52.0.0.0/104"} {
		if p, err := ParseNetwork(text); err == nil {
			t.Errorf("%s: %s", text, p)
		}
	}
	// An IPv4 address in IPv6 clothes is the same.
	if got := Source(netip.MustParseAddr("::ffff:52.1.1.1"), nil, nil); !w.Allows(got) {
		t.Error(got)
	}
}

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	a, b, c16 := strings.Repeat("a", 16), strings.Repeat("b", 20), strings.Repeat("c", 16)
	env := map[string]string{"ONE": " one\n", "TWO": a + "," + b,
		"THREE": a + " " + b + ",\n\t" + c16 + "\n", "SENTENCE": "It's a Secret to Everybody", "SHORT": a + "," + b[:15], "EMPTY": " "}
	s, err := NewSecrets(func(k string) string { return env[k] }, dir)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	write("f", "from file\n")
	write("large", strings.Repeat("x", 64<<10+1))
	write("blank", "\n")
	must(t, os.Symlink("/etc/hostname", filepath.Join(dir, "out")))
	for _, c := range []struct {
		v       wire.VerifyHMAC
		want    []string
		missing string
	}{
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"ONE"}}, []string{"one"}, ""},
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"TWO"}}, []string{a, b, a + "," + b}, ""},
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"THREE"}},
			[]string{a, b, c16, a + " " + b + ",\n\t" + c16}, ""},
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"SENTENCE"}},
			[]string{"It's a Secret to Everybody"}, ""},
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"SHORT"}}, []string{a + "," + b[:15]}, ""},
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"ONE", "NONE"}}, []string{"one"},
			"environment variable NONE is not set"},
		{wire.VerifyHMAC{SecretEnv: wire.Strings{"EMPTY"}}, nil,
			"environment variable EMPTY is not set"},
		{wire.VerifyHMAC{SecretFile: wire.Strings{"f"}, SecretEnv: wire.Strings{"ONE"}},
			[]string{"one", "from file"}, ""},
		{wire.VerifyHMAC{SecretFile: wire.Strings{"none"}}, nil, "secret file none: is not there"},
		{wire.VerifyHMAC{SecretFile: wire.Strings{"large"}}, nil,
			"secret file large: must be a file of at most 65536 bytes"},
		{wire.VerifyHMAC{SecretFile: wire.Strings{"blank"}}, nil, "secret file blank: is empty"},
		{wire.VerifyHMAC{SecretFile: wire.Strings{"out"}}, nil,
			"secret file out: path escapes from parent"},
	} {
		got, missing := s.Find(c.v.SecretEnv, c.v.SecretFile)
		if !slices.Equal(got, c.want) || strings.Join(missing, "; ") != c.missing {
			t.Errorf("%+v: %q, %q", c.v, got, missing)
		}
	}
	// A changed file is read again at once.
	write("f", "another")
	if got, _ := s.Find(nil, []string{"f"}); !slices.Equal(got, []string{"another"}) {
		t.Error(got)
	}
	none, err := NewSecrets(os.Getenv, "")
	must(t, err)
	_, missing := none.Find(nil, []string{"f"})
	assert.True(t, len(missing) == 1 && strings.Contains(missing[0], "--secrets-dir"),
		"%v", missing)
	if _, err := NewSecrets(os.Getenv, filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a folder that is not there was taken")
	}
}

// must fails the test on an error.
var must = require.NoError

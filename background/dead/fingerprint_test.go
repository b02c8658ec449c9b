package dead

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
)

func TestPattern(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"Connection  refused\n", "connection refused"},
		{"dial tcp 10.0.0.7:5432: connect: connection refused",
			"dial tcp <addr>: connect: connection refused"},
		{"dial tcp [::1]:5432: i/o timeout", "dial tcp <addr>: i/o timeout"},
		{"dial tcp [fe80::1%eth0]:80: no route", "dial tcp <addr>: no route"},
		{"no route to fe80::1c2:3ff:fe04:5", "no route to <addr>"},
		{"no route to ::1", "no route to ::<n>"},
		{"lookup db-7.internal:5432 failed", "lookup <addr> failed"},
		{"localhost:8080 said no", "<addr> said no"},
		{"mail to ann.o+x@mail.example.org bounced", "mail to <addr> bounced"},
		{"timeout after 30s", "timeout after <n>s"},
		{"timeout after 1.5s", "timeout after <n>s"},
		{"HTTP 503 from upstream", "http <n> from upstream"},
		{"worker-12 lost", "worker-<n> lost"},
		{"item42 of order 7", "item<n> of order <n>"},
		{"balance is -5", "balance is <n>"},
		{"balance is 1,000,000.25 EUR", "balance is <n> eur"},
		{"x=+3e-9", "x=<n>"},
		{"at 2026-01-31T12:00:00.123Z: boom", "at <time>: boom"},
		{"at 2026-01-31 12:00:00,5 +0100 boom", "at <time> boom"},
		{"at 2026-01-31 12:00 UTC boom", "at <time> boom"},
		{"on 2026/01/31 boom", "on <time> boom"},
		{"12:30:59 boom", "<time> boom"},
		{"user 6f9619ff-8b86-d011-b42d-00c04fc964ff is gone", "user <id> is gone"},
		{"user 6F9619FF-8B86-D011-B42D-00C04FC964FF is gone", "user <id> is gone"},
		{"message 01JD9Z4T0B0000000000000001 is gone", "message <id> is gone"},
		{"panic at 0xc000123ABC", "panic at <hex>"},
		{"commit deadbeef01 is bad", "commit <hex> is bad"},
		{"commit 1234567890abcdef1234567890abcdef12345678 is bad", "commit <hex> is bad"},
		{"order 12345678", "order <n>"},
		{"a decade of facades", "a decade of facades"}, // hex digits, but a word
		{`no such column "name"`, "no such column <str>"},
		{`unexpected token '}' in JSON`, "unexpected token <str> in json"},
		{"unknown flag `--x`", "unknown flag <str>"},
		{`said "a \"b\" c" twice`, "said <str> twice"},
		{"can't connect to 'db', won't try", "can't connect to <str>, won't try"},
		{"it's 5 o'clock", "it's <n> o'clock"},
		{`an unfinished "string`, `an unfinished "string`},
		{"two \"lines\nof\" text", "two \"lines of\" text"},
		{"Größe 5 überschritten", "größe <n> überschritten"},
		{"bad \xff byte", "bad ? byte"},
	} {
		if got := Pattern(c.text); got != c.want {
			t.Errorf("Pattern(%q)\n = %q\nwant %q", c.text, got, c.want)
		}
	}
}

// The pattern of a pattern is itself, so that nobody has to know which of the
// two he has, and a long text costs no more than a short one.
func TestPatternStays(t *testing.T) {
	for _, s := range []string{"dial tcp 10.0.0.7:5432 at 2026-01-31T12:00:00Z",
		strings.Repeat("ä7", 5000), `x "y" 0xff`} {
		p := Pattern(s)
		if Pattern(p) != p {
			t.Errorf("Pattern(%.40q) is %.40q, and of that %.40q", s, p, Pattern(p))
		}
	}
	if n := len(Pattern(strings.Repeat("ä", maxPattern))); n > maxPattern {
		t.Errorf("%d bytes", n)
	}
}

func TestFingerprint(t *testing.T) {
	of := func(r event.Reason, s string) string { return Fingerprint(r, Pattern(s)) }
	a := of(event.ReasonMaxAttempts, "timeout after 30s")
	if b := of(event.ReasonMaxAttempts, "Timeout after 7s"); a != b {
		t.Errorf("%s, %s", a, b)
	}
	if b := of(event.ReasonRejected, "timeout after 30s"); a == b {
		t.Error("another reason, the same fingerprint")
	}
	if b := of(event.ReasonMaxAttempts, "timeout before 30s"); a == b {
		t.Error("another error, the same fingerprint")
	}
	if len(a) != 12 {
		t.Errorf("%q", a)
	}
}

func BenchmarkPattern(b *testing.B) {
	for b.Loop() {
		Pattern("dial tcp 10.0.0.7:5432 at 2026-01-31T12:00:00Z: " +
			"user 6f9619ff-8b86-d011-b42d-00c04fc964ff is gone after 3 tries")
	}
}

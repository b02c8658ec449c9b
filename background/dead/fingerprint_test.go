package dead

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestPattern(t *testing.T) {
	b, err := os.ReadFile("testdata/patterns.jsonl") // [error text, pattern] each
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		var c [2]string
		require.NoError(t, json.Unmarshal([]byte(line), &c))
		assert.Equal(t, Pattern(c[0]), c[1], "Pattern(%q)", c[0])
	}
	assert.Equal(t, Pattern("bad \xff byte"), "bad ? byte")
}

// The pattern of a pattern is itself, so that nobody has to know which of the
// two he has, and a long text costs no more than a short one.
func TestPatternStays(t *testing.T) {
	for _, s := range []string{"dial tcp 10.0.0.7:5432 at 2026-01-31T12:00:00Z",
		strings.Repeat("ä7", 5000), `x "y" 0xff`} {
		p := Pattern(s)
		assert.Equal(t, Pattern(p), p)
	}
	assert.True(t, len(Pattern(strings.Repeat("ä", maxPattern))) <= maxPattern, "too long")
}

func TestFingerprint(t *testing.T) {
	of := func(r event.Reason, s string) string { return Fingerprint(r, Pattern(s)) }
	a := of(event.ReasonMaxAttempts, "timeout after 30s")
	assert.Equal(t, len(a), 12, "%q", a)
	assert.Equal(t, of(event.ReasonMaxAttempts, "Timeout after 7s"), a)
	assert.NotEqual(t, of(event.ReasonRejected, "timeout after 30s"), a, "another reason")
	assert.NotEqual(t, of(event.ReasonMaxAttempts, "timeout before 30s"), a, "another error")
}

package durations

import (
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestParse(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "15m": 15 * time.Minute, "7d": 7 * day, "2w": 14 * day, "1w2d3h": 9*day + 3*time.Hour,
		"1.5d": 36 * time.Hour, "-1d": -day, "1d12h30m": 36*time.Hour + 30*time.Minute,
	} {
		got, err := Parse(text)
		assert.NoError(t, err, text)
		assert.Equal(t, got, want, text)
	}
	for _, text := range []string{"", "d", "7", "1.5.5d", "7days", "1y", "99999999w", "..d"} {
		_, err := Parse(text)
		assert.ErrorContains(t, err, "is not a duration such as", "%q", text)
	}
}

package durations

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "15m": 15 * time.Minute, "7d": 7 * day, "2w": 14 * day, "1w2d3h": 9*day + 3*time.Hour,
		"1.5d": 36 * time.Hour, "-1d": -day, "1d12h30m": 36*time.Hour + 30*time.Minute,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "7", "1.5.5d", "7days", "1y", "99999999w", "..d"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

package main

import (
	"math"
	"testing"
	"time"
)

// TestHistogram compares quantiles of a uniform distribution with the exact ones.
func TestHistogram(t *testing.T) {
	var h histogram
	for us := range 100_000 {
		h.add(time.Duration(us) * time.Microsecond)
	}
	h.add(time.Hour)
	q := h.quantiles()
	for want, got := range map[float64]float64{50: q.P50, 90: q.P90, 99: q.P99, 99.9: q.P999} {
		if math.Abs(got-want) > want/100 {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if q.Count != 100_001 || q.Max != 300_000 {
		t.Errorf("%+v", q)
	}
}

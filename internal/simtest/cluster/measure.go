package cluster

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Number reads a whole number from the environment.
func Number(t testing.TB, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Spread prints a distribution in a line.
func Spread(took []time.Duration) string {
	if len(took) == 0 {
		return "none"
	}
	slices.Sort(took)
	at := func(q float64) time.Duration {
		return took[min(len(took)-1, int(q*float64(len(took))))].Round(time.Millisecond)
	}
	under := 0
	for under < len(took) && took[under] < 3*time.Second {
		under++
	}
	return fmt.Sprintf("%d, of them %d under 3 s; p50 %s, p95 %s, p99 %s, max %s",
		len(took), under, at(.5), at(.95), at(.99), at(1))
}

//go:build qlogdtest

package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// In a test's build QLOGD_TEST_CLOCK names a file: the milliseconds in it go
// onto the wall clock, whenever that is looked at. The machine's own clock is
// everybody's.
func init() {
	file := os.Getenv("QLOGD_TEST_CLOCK")
	if file == "" {
		return
	}
	wall = func() time.Time {
		b, _ := os.ReadFile(file) // no file: no offset
		ms, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
}

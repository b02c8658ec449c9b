package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/internal/pages"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log"
)

// TestAdvice: the error of a disk, or of what is on it, says what an operator does about it.
func TestAdvice(t *testing.T) {
	for is, want := range map[error]string{
		&log.CorruptionError{Reason: "wrong checksum of the segment header"}: "a member of a " +
			"cluster starts with an empty data directory",
		pages.ErrDamaged:    "qlogd replay --data-dir OLD --into NEW (docs/",
		syscall.ENOSPC:      "make room on the disk",
		syscall.EIO:         "check the disk; ",
		watchdog.ErrStalled: "check the disk; ",
	} {
		err := failure(fmt.Errorf("store entries in /raft: %w", is))
		if !errors.Is(err, is) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, without %q", is, err, want)
		}
	}
}

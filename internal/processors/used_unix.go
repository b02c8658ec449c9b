//go:build unix

package processors

import (
	"syscall"
	"time"
)

// used returns the processor time that this process has used, of all its threads.
func used() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

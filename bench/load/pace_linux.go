package load

import (
	"syscall"
	"time"
)

// sleep is time.Sleep to within some 60 µs: an idle Go program's timers are a
// millisecond late, which would be the generator's latency and not the target's.
func sleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // interrupted: what is due is sent early, and counts as due
}

package main

import (
	"os"
	"runtime"
	"syscall"

	"github.com/qlogd/qlogd/internal/vfs"
)

// slack is how much later than asked for the kernel may end a sleep.
//
// The monitor of Go's runtime sleeps 20 µs at a time while this process works,
// which the kernel makes 70: on a node that works in short bursts, as one of a
// cluster does, two fifths of all changes of threads were to it. With this slack
// they are far fewer, and what it is there for can wait: the writes of entries give
// their P up by themselves (internal/vfs), and sockets take none (internal/sock); a
// sync keeps its P for a millisecond at most. The timers of Go count milliseconds.
const slack = 500_000 // ns

const (
	prSetTimerSlack = 29
	prGetTimerSlack = 30
)

// relaxed marks, in the environment, a program that was started anew.
const relaxed = "QLOGD_RELAXED"

// relax starts the program anew in this very process, once, with slack. Threads
// have theirs from who made them, and the monitor's is made before any of this
// runs: so it must be there already. Where that can't be, all goes on as it was, and
// where threads do wait for disks: the monitor is wanted there.
func relax() {
	if os.Getenv(relaxed) != "" {
		_ = os.Unsetenv(relaxed)
		return
	}
	if !vfs.Async() {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetTimerSlack, 0, 0, 0, 0, 0)
	if e != 0 || now >= slack {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetTimerSlack, slack, 0, 0, 0, 0); e != 0 {
		return
	}
	// A thread of a real-time class has none, and is told that it was set.
	if got, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetTimerSlack, 0, 0, 0, 0, 0); e != 0 || got < slack {
		return
	}
	_ = syscall.Exec(self, os.Args, append(os.Environ(), relaxed+"=1"))
	syscall.RawSyscall6(syscall.SYS_PRCTL, prSetTimerSlack, now, 0, 0, 0, 0)
}

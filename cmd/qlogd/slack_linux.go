package main

import (
	"os"
	"runtime"
	"syscall"
)

// slack is how much later than asked for the kernel may end a sleep.
//
// The monitor of Go's runtime sleeps 20 µs at a time while this process works,
// which the kernel makes 70: on a node that works in short bursts, as one of a
// cluster does, two fifths of all changes of threads were to it. With this slack
// they are far fewer, and what it is there for can wait: what takes long here gives
// its P up by itself (internal/vfs, internal/sock). The timers of Go count
// milliseconds.
const slack = 500_000 // ns

const (
	prSetTimerSlack = 29
	prGetTimerSlack = 30
)

// relax starts the program anew in this very process, once, with slack. Threads
// have theirs from who made them, and the monitor's is made before any of this
// runs: so it must be there already. Where that can't be, all goes on as it was.
func relax() {
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
	_ = syscall.Exec(self, os.Args, os.Environ())
	syscall.RawSyscall6(syscall.SYS_PRCTL, prSetTimerSlack, now, 0, 0, 0, 0)
}

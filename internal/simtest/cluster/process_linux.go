package cluster

import (
	"os/exec"
	"runtime"
	"syscall"
)

// start runs cmd so that it dies with this process, even if that is killed.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal comes when the thread that started it ends, so that thread is kept until the
		// program is gone. It does not end then either: it may have started others before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

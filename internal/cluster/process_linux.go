package cluster

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// start runs cmd so that it dies with this process, even if that is killed.
func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The signal comes when the thread that started it ends, so that
		// thread is kept until the program is gone.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

// ownersKnown: the system tells whose connection one is.
const ownersKnown = true

// owns reports whether a process holds the connection that this is the local
// address of.
func owns(pid int, local net.Addr) bool {
	addr, ok := local.(*net.TCPAddr)
	if !ok || addr.IP.To4() == nil {
		return false
	}
	ip := addr.IP.To4()
	want := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], addr.Port)
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(table)) {
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
		f := strings.Fields(line)
		if len(f) < 10 || f[1] != want || f[9] == "0" {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			return false
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == "socket:["+f[9]+"]" {
				return true
			}
		}
	}
	return false
}

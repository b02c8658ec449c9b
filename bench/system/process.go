package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Ports returns n free TCP ports of 127.0.0.1. They are held open together, so
// that they differ; between this and their use somebody else could take one.
func Ports(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// Addrs is Ports as addresses, host:port.
func Addrs(n int) ([]string, error) {
	ports, err := Ports(n)
	addrs := make([]string, len(ports))
	for i, port := range ports {
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return addrs, err
}

// Process is a server process that was started by Run, in a process group of
// its own.
type Process struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{} // closed when it has ended
	err       error         // how
}

// Run starts cmd with its output in the file name.log in dir. Its environment,
// user and directory are the caller's to set before. It is killed when this
// process dies.
func Run(dir, name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), cmd: cmd,
		done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Ready calls probe until it returns nil: the protocol itself says when a
// server is ready. It gives up when the process or ctx ends, or after a minute,
// with the end of the log.
func (p *Process) Ready(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		once, stop := context.WithTimeout(ctx, 5*time.Second)
		err := probe(once)
		stop()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended (%v) before it was ready:\n%s", p.name, p.err, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its log ends:\n%s", p.name, err, p.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// PIDs are the process and all that descend from it.
func (p *Process) PIDs() []int {
	select {
	case <-p.done:
		return nil
	default:
		return withChildren(p.cmd.Process.Pid)
	}
}

// PID is the process alone: to ask for those that descend from it takes time.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop sends sig to the process, and after ten seconds SIGKILL to its group,
// and returns when it has ended. How it ended after a signal is no error.
func (p *Process) Stop(sig syscall.Signal) error {
	all := p.PIDs()
	p.cmd.Process.Signal(sig)
	var err error
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		err = fmt.Errorf("%s did not end by %v and was killed", p.name, sig)
	}
	// What it left, in its group or with one of their own (erl_child_setup).
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	for _, pid := range all[min(1, len(all)):] {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.done
	return err
}

// Kill ends it without giving it time to tidy up.
func (p *Process) Kill() { p.Stop(syscall.SIGKILL) }

func (p *Process) tail() string {
	b, _ := os.ReadFile(p.log)
	if len(b) > 2000 {
		b = b[len(b)-2000:]
	}
	return string(b)
}

// withChildren returns pid and its descendants.
func withChildren(pid int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent …; the name may hold anything.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parent, err := strconv.Atoi(fields[1])
		if err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// Processes are those of one system.
type Processes []*Process

// PIDs are those of all.
func (ps Processes) PIDs() []int {
	var all []int
	for _, p := range ps {
		all = append(all, p.PIDs()...)
	}
	return all
}

// Stop stops all at once.
func (ps Processes) Stop(sig syscall.Signal) error {
	errs := make(chan error, len(ps))
	for _, p := range ps {
		go func() { errs <- p.Stop(sig) }()
	}
	var all []error
	for range ps {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// Lacks says which of the programs (names or paths) are not there, and which
// package of Debian's has them; "" if all are.
func Lacks(pkg string, programs ...string) string {
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Sprintf("%s is not installed (bench/install-peers, or apt-get install %s)",
				filepath.Base(name), pkg)
		}
	}
	return ""
}

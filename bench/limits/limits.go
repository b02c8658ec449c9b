// Package limits has what bounds any queue on this machine, each as bare as it
// can be: appending with fdatasync, Raft with an empty state machine, HTTP that
// decodes and does nothing. They run as child processes of the program itself,
// so that their processor time is read as any server's.
package limits

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/system"
)

// All returns each limit.
func All() []system.System {
	return []system.System{Fsync(), Raft(), HTTP("json"), HTTP("msgpack")}
}

// hidden is the first argument of a child.
const hidden = "-limit-child"

// Main is called first of all in main (or TestMain) of a program that starts
// limits: in a child it runs the limit and does not return.
func Main() {
	if len(os.Args) < 2 || os.Args[1] != hidden {
		return
	}
	children := map[string]func(args []string) error{
		"fsync": fsyncChild, "raft": raftChild, "http": httpChild,
	}
	if err := children[os.Args[2]](os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// start runs a child of this program.
func start(dir, name string, args ...string) (*system.Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return system.Run(dir, name, exec.Command(exe, append([]string{hidden}, args...)...))
}

// children is a System whose children put the load on themselves.
type children struct {
	name, durable string
	// args of each child, given the control addresses of all.
	args func(dir string, control []string) ([][]string, error)
	n    int

	procs   system.Processes
	control []string
}

func (s *children) Name() string    { return s.name }
func (s *children) Durable() string { return s.durable }
func (s *children) Missing() string { return "" }
func (s *children) PIDs() []int     { return s.procs.PIDs() }

func (s *children) Start(ctx context.Context, dir string) error {
	var err error
	if s.control, err = system.Addrs(s.n); err != nil {
		return err
	}
	args, err := s.args(dir, s.control)
	if err != nil {
		return err
	}
	for i, a := range args {
		p, err := start(dir, fmt.Sprint(s.name, "-", i+1), a...)
		if err != nil {
			return err
		}
		s.procs = append(s.procs, p)
	}
	return s.procs[0].Ready(ctx, func(ctx context.Context) error {
		conn, _, err := s.leader(ctx)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// leader connects to the child that takes load. It says "ready" at once, any
// other says why not.
func (s *children) leader(ctx context.Context) (net.Conn, *bufio.Reader, error) {
	var errs []error
	for _, addr := range s.control {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r := bufio.NewReader(conn)
		line, err := r.ReadString('\n')
		if line == "ready\n" {
			return conn, r, nil
		}
		conn.Close()
		errs = append(errs, fmt.Errorf("%s: %q, %w", addr, line, err))
	}
	return nil, nil, errors.Join(errs...)
}

func (s *children) Fresh(context.Context) (load.Target, error) { return runner{s}, nil }

func (s *children) Stop() error {
	err := s.procs.Stop(syscall.SIGTERM)
	s.procs, s.control = nil, nil
	return err
}

type runner struct{ s *children }

var errOwn = errors.New("this limit puts the load on itself: system.Load")

func (runner) Producer(context.Context) (load.Producer, error) { return nil, errOwn }
func (runner) Worker(context.Context) (load.Worker, error)     { return nil, errOwn }

// outcome is the last line of a child's answer.
type outcome struct {
	Result *load.Result
	Error  string
}

// Run has the child run c, and calls c.Window when the child says that it is time.
func (r runner) Run(ctx context.Context, c load.Config) (*load.Result, error) {
	if c.Workers > 0 {
		return nil, errors.New("this limit only produces")
	}
	conn, in, err := r.s.leader(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(c); err != nil {
		return nil, err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("the child is gone: %w", err)
		}
		switch line = strings.TrimSpace(line); line {
		case "begin", "end":
			if c.Window != nil {
				c.Window(line == "begin")
			}
			// The child goes on when it is noted.
			if _, err := fmt.Fprintln(conn, "noted"); err != nil {
				return nil, err
			}
		default:
			var o outcome
			if err := json.Unmarshal([]byte(line), &o); err != nil {
				return nil, err
			}
			if o.Error != "" {
				return nil, errors.New(o.Error)
			}
			return o.Result, nil
		}
	}
}

// serve is the child's side: for each connection it says whether it is ready,
// and runs the load that it receives on target.
func serve(control string, ready func() error, target load.Target) error {
	l, err := net.Listen("tcp", control)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := ready(); err != nil {
				fmt.Fprintln(conn, err)
				return
			}
			fmt.Fprintln(conn, "ready")
			in := bufio.NewReader(conn)
			line, err := in.ReadBytes('\n')
			if err != nil {
				return // only asked
			}
			var c load.Config
			var o outcome
			if err := json.Unmarshal(line, &c); err == nil {
				c.Window = func(begins bool) {
					fmt.Fprintln(conn, map[bool]string{true: "begin", false: "end"}[begins])
					_, _ = in.ReadString('\n')
				}
				o.Result, err = load.Run(context.Background(), target, c)
				if err != nil {
					o.Error = err.Error()
				}
			} else {
				o.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(o)
		}()
	}
}

// none is a target's half that it does not have.
type none struct{}

func (none) Worker(context.Context) (load.Worker, error) {
	return nil, errors.New("this limit only produces")
}

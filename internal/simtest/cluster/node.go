package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/ports"
)

// Options of a cluster and each of its nodes. The zero value is three nodes with
// their defaults in new directories.
type Options struct {
	Nodes int      // 3 if 0
	Flags []string // of serve, besides the data directory and addresses
	Env   []string // KEY=value
	Dir   string   // the data directory; a temporary one if empty
	Files int      // limit on open files; 0: that of the test
	Token string   // of an admin, where the nodes have an auth file

	// Cuts puts a proxy before each node's Raft address, so that the test can cut
	// the lines between them.
	Cuts bool
	// PerNode, if set, changes the options of node i.
	PerNode func(i int, o *Options)
	// NoVerify leaves out the check of the data directory at the test's end: for
	// tests that damage it themselves.
	NoVerify bool
}

// Node is a running program or a stopped one that can be started again, on the
// same addresses.
type Node struct {
	t        testing.TB
	name     string // its node id
	opts     Options
	args     []string // of serve
	httpAddr string
	log      *logFile
	// transport sends requests to the node, whatever their host.
	transport *http.Transport

	mu     sync.Mutex
	proc   *process
	starts int
	paused bool
}

// Start starts a node that is a cluster of its own and returns once it is ready.
func Start(t testing.TB, opts Options) *Node {
	t.Helper()
	opts.Nodes = 1
	return StartCluster(t, opts).Node(0)
}

func newNode(t testing.TB, name, raftAddr string, opts Options) *Node {
	t.Helper()
	n := &Node{t: t, name: name, opts: opts, httpAddr: ports.Free(t)}
	n.args = append([]string{
		"serve", "--data-dir", opts.Dir, "--http-addr", n.httpAddr, "--raft-addr", raftAddr,
		"--node-id", name, "--log-format", "json",
	}, opts.Flags...)
	var err error
	if n.log, err = newLogFile(filepath.Join(t.TempDir(), name+".log")); err != nil {
		t.Fatal(err)
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	n.transport = &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, n.httpAddr)
		},
	}
	return n
}

// Dir returns the data directory.
func (n *Node) Dir() string { return n.opts.Dir }

// Log returns all that the node has written to its standard error.
func (n *Node) Log() string {
	b, _ := os.ReadFile(n.log.path)
	return string(b)
}

// Addr returns where the node listens for HTTP while it runs.
func (n *Node) Addr() string { return n.httpAddr }

// URL returns the node's base URL.
func (n *Node) URL() string { return "http://" + n.httpAddr }

// HTTP returns an HTTP client whose requests to any host go to the node.
func (n *Node) HTTP() *http.Client { return &http.Client{Transport: recorder{n}} }

// Client returns a client of the node that goes on over restarts.
func (n *Node) Client(opts ...client.Option) *client.Client {
	n.t.Helper()
	c, err := client.New("http://node", append([]client.Option{client.WithHTTPClient(n.HTTP())},
		opts...)...)
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.proc
}

// Launch starts the program and does not wait for anything.
func (n *Node) Launch() {
	n.t.Helper()
	if n.Running() {
		n.t.Fatalf("%s is running", n.name)
	}
	cmd := exec.Command(Binary(n.t), n.args...)
	if n.opts.Files > 0 {
		sh := []string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, n.opts.Files), cmd.Path}
		cmd = exec.Command("sh", append(sh, n.args...)...)
	}
	cmd.Env = append(os.Environ(), n.opts.Env...)
	fmt.Fprintf(n.log, "-- start %s\n", strings.Join(n.args, " "))
	cmd.Stdout, cmd.Stderr = n.log, n.log
	p, err := start(cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proc, n.paused = p, false
	n.starts++
}

// Pid returns the process's id.
func (n *Node) Pid() int { return n.process().cmd.Process.Pid }

// Name returns the node's id.
func (n *Node) Name() string { return n.name }

// Starts returns how often the program was started: what a process has answered is
// comparable only with earlier answers of the same one.
func (n *Node) Starts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts
}

// Restart starts the program on the same data directory and returns once it is
// ready.
func (n *Node) Restart() {
	n.t.Helper()
	n.Launch()
	if err := n.WaitReady(); err != nil {
		n.t.Fatal(err)
	}
}

// WaitReady returns once /readyz says so, or with an error when the program
// ended or took too long.
func (n *Node) WaitReady() error {
	p := n.process()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-p.done:
		case <-ctx.Done():
		}
	}()
	err := Poll(ctx, func() error { return n.ready(ctx) })
	switch {
	case err == nil:
		return nil
	case p.ended():
		return fmt.Errorf("%s ended before it was ready: %v; its log ends with\n%s", n.name, p.err,
			n.log.tail(20))
	}
	return fmt.Errorf("%s was not ready after %s: %w; its log ends with\n%s", n.name, patience, err,
		n.log.tail(20))
}

func (n *Node) ready(ctx context.Context) error {
	status, b, err := n.Get(ctx, "/readyz")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %s", status, b)
	}
	return err
}

// Kill9 kills the program and returns once it is gone.
func (n *Node) Kill9() {
	n.t.Helper()
	n.signal(syscall.SIGKILL)
	_ = n.Wait(context.Background())
}

// Term asks the program to stop and expects exit code 0.
func (n *Node) Term() {
	n.t.Helper()
	if err := n.Quit(); err != nil {
		n.t.Errorf("%s ended after SIGTERM with %v; its log ends with\n%s", n.name, err,
			n.log.tail(20))
		n.Kill9()
	}
}

// Quit asks the program to stop and returns how it ended.
func (n *Node) Quit() error {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return n.Wait(ctx)
}

// Wait returns how the program ended.
func (n *Node) Wait(ctx context.Context) error {
	p := n.process()
	select {
	case <-p.done:
		n.transport.CloseIdleConnections()
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pause stops the program (SIGSTOP): its connections stay open and
// nobody answers.
func (n *Node) Pause() {
	n.t.Helper()
	n.signal(syscall.SIGSTOP)
	n.setPaused(true)
}

// Resume lets a paused program go on, as if no time had passed.
func (n *Node) Resume() {
	n.t.Helper()
	n.signal(syscall.SIGCONT)
	n.setPaused(false)
}

// Paused reports whether it is.
func (n *Node) Paused() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.paused
}

func (n *Node) setPaused(p bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.paused = p
}

// Wipe removes the data directory of a node that does not run.
func (n *Node) Wipe() {
	n.t.Helper()
	if n.Running() {
		n.t.Fatalf("%s is running", n.name)
	}
	if err := os.RemoveAll(n.opts.Dir); err != nil {
		n.t.Fatal(err)
	}
}

// Running reports whether the program runs.
func (n *Node) Running() bool {
	p := n.process()
	return p != nil && !p.ended()
}

func (n *Node) signal(s syscall.Signal) {
	n.t.Helper()
	p := n.process()
	if p == nil {
		n.t.Fatal("the node was never started")
	}
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Fatal(err)
	}
}

// Verify does what qlogd replay --verify does with a data directory, if set (to verify.Dir); else
// the program does it, in a process of its own. So other modules need not have what that imports.
var Verify func(dir string) error

// Verify verifies the data directory, which a stopped node must leave whole
// whichever way it ended.
func (n *Node) Verify() error {
	if _, err := os.Stat(n.opts.Dir); errors.Is(err, os.ErrNotExist) {
		return nil // it never came that far
	}
	if Verify != nil {
		return Verify(n.opts.Dir)
	}
	out, err := n.Run("replay", "--verify", "--data-dir", n.opts.Dir)
	if err != nil {
		return fmt.Errorf("replay --verify: %w\n%s", err, out)
	}
	return nil
}

// Run runs another command of the program and returns what it printed.
func (n *Node) Run(args ...string) ([]byte, error) {
	n.t.Helper()
	cmd := exec.Command(Binary(n.t), args...)
	cmd.Env = append(os.Environ(), n.opts.Env...)
	if n.Running() {
		cmd.Env = append(cmd.Env, "QLOGD_ADDR="+n.URL())
	}
	return cmd.CombinedOutput()
}

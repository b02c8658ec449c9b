package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
)

// startDeadline is how long a node may take until it is ready, and stopDeadline
// until it is gone after SIGTERM. Only a node that hangs comes near them.
const (
	startDeadline = 60 * time.Second
	stopDeadline  = 30 * time.Second
)

// Options of a node, or of a cluster and each of its nodes. The zero value is a
// node with its defaults in a new directory.
type Options struct {
	Dir   string   // its data directory; a temporary one if empty (alone: a cluster's are its own)
	Flags []string // of serve, besides data directory and addresses
	Env   []string // KEY=value
	Bin   string   // the program; Binary's if empty

	// HTTPAddr and RaftAddr are where it listens; "" is a free port, another
	// one at each start.
	HTTPAddr, RaftAddr string

	// Nodes is how many StartCluster starts, 3 if 0. Cuts puts a proxy before
	// each one's Raft address, so that the test can cut the lines between them.
	// PerNode, if set, adds to the options of node i.
	Nodes   int
	Cuts    bool
	PerNode func(i int, o *Options)

	// NoVerify leaves out the look at the data directory at the test's end: for
	// tests that damage it themselves.
	NoVerify bool
}

// Node is a running program or a stopped one that can be started again.
type Node struct {
	t    testing.TB
	opts Options
	dir  string
	log  *logFile

	// transport dials wherever the node listens now, so that a client outlives
	// restarts on new ports.
	transport *http.Transport

	// cluster is the one that it is a node of, and name its id in there; i is
	// its place. A node alone has none.
	cluster *Cluster
	name    string
	i       int

	mu     sync.Mutex
	addr   string // "" while it does not listen
	proc   *process
	starts int
	paused bool
	wait   time.Duration // for it to become ready; 0: startDeadline
}

// Start starts a node and returns once it is ready.
func Start(t testing.TB, opts Options) *Node {
	t.Helper()
	n := New(t, opts)
	n.Restart()
	return n
}

// New prepares a node without starting it.
func New(t testing.TB, opts Options) *Node {
	t.Helper()
	tmp := t.TempDir()
	if opts.Dir == "" {
		opts.Dir = filepath.Join(tmp, "data")
	}
	if opts.HTTPAddr == "" {
		opts.HTTPAddr = "127.0.0.1:0"
	}
	if opts.RaftAddr == "" {
		opts.RaftAddr = "127.0.0.1:0"
	}
	n := &Node{t: t, opts: opts, dir: opts.Dir}
	var err error
	if n.log, err = newLogFile(filepath.Join(tmp, "server.log")); err != nil {
		t.Fatal(err)
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	n.transport = &http.Transport{
		MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			addr := n.Addr()
			if addr == "" {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("the node is down")}
			}
			return dialer.DialContext(ctx, network, addr)
		},
	}
	t.Cleanup(n.finish)
	return n
}

// finish is the end of every test of a node alone.
func (n *Node) finish() {
	if n.cluster != nil {
		return // which does it for all of its nodes
	}
	if p := n.process(); p != nil {
		if !p.ended() {
			n.Term()
		}
	}
	n.transport.CloseIdleConnections()
	if !n.opts.NoVerify {
		if err := n.Verify(); err != nil {
			n.t.Error(err)
		}
	}
	if n.t.Failed() {
		n.keep()
	}
	n.log.Close()
}

// keep copies what tells about a failure out of the test's folder.
func (n *Node) keep() {
	dir, err := os.MkdirTemp("", "qlogd-failed-"+strings.NewReplacer("/", "-", " ", "-").Replace(n.t.Name())+"-")
	if err != nil {
		n.t.Log(err)
		return
	}
	keepDir(n.dir, filepath.Join(dir, "data"))
	_ = copyFile(n.log.path, filepath.Join(dir, "server.log"))
	n.t.Logf("data directory and log are kept in %s; the log ends with\n%s", dir, n.log.tail(40))
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

// Dir returns the data directory.
func (n *Node) Dir() string { return n.dir }

// Log returns all that the node has written to its standard error.
func (n *Node) Log() string {
	b, _ := os.ReadFile(n.log.path)
	return string(b)
}

// Addr returns where the node listens for HTTP, "" while it does not.
func (n *Node) Addr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr
}

// URL returns the node's base URL.
func (n *Node) URL() string { return "http://" + n.Addr() }

// HTTP returns an HTTP client whose requests to any host go to the node.
func (n *Node) HTTP() *http.Client { return &http.Client{Transport: told{n}} }

// Client returns a client of the node that goes on over restarts.
func (n *Node) Client(opts ...client.Option) *client.Client {
	n.t.Helper()
	c, err := client.New("http://node", append([]client.Option{client.WithHTTPClient(n.HTTP())}, opts...)...)
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
	if p := n.process(); p != nil && !p.ended() {
		n.t.Fatal("the node is running")
	}
	n.listens("")
	if !strings.HasSuffix(n.opts.HTTPAddr, ":0") {
		// Known before it listens, and before it says that it serves, which in a
		// cluster is when it has caught up: till then it is refused.
		n.listens(n.opts.HTTPAddr)
	}
	args := append([]string{
		"serve", "--data-dir", n.dir, "--http-addr", n.opts.HTTPAddr, "--raft-addr", n.opts.RaftAddr, "--log-format", "json",
	}, n.opts.Flags...)
	cmd := exec.Command(n.bin(), args...)
	cmd.Env = append(os.Environ(), n.opts.Env...)
	fmt.Fprintf(n.log, "-- start %s\n", strings.Join(args, " "))
	cmd.Stdout, cmd.Stderr = n.log, &watch{to: n.log, found: n.listens}
	p, err := start(cmd)
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.proc, n.paused = p, false
	n.starts++
	n.mu.Unlock()
}

func (n *Node) bin() string {
	if n.opts.Bin != "" {
		return n.opts.Bin
	}
	return Binary(n.t)
}

// Replace has the node run another program from its next start on.
func (n *Node) Replace(bin string) { n.opts.Bin = bin }

// HTTPAddr returns where it is told to listen for HTTP.
func (n *Node) HTTPAddr() string { return n.opts.HTTPAddr }

// Pid returns the process's id.
func (n *Node) Pid() int { return n.process().cmd.Process.Pid }

// Name returns the node's id.
func (n *Node) Name() string { return n.name }

// Starts returns how often the program was started: what a process has told is
// comparable only with what the same one told before.
func (n *Node) Starts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts
}

func (n *Node) listens(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addr = addr
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

// Patient lets WaitReady wait so long, for a node that has much to do before.
func (n *Node) Patient(wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wait = wait
}

func (n *Node) patience() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cmp.Or(n.wait, startDeadline)
}

// WaitReady returns once /readyz says so, or with an error when the program
// ended or took too long.
func (n *Node) WaitReady() error {
	p := n.process()
	ctx, cancel := context.WithTimeout(context.Background(), n.patience())
	defer cancel()
	last := "it did not listen"
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if n.Addr() != "" {
			ok, what := n.ready(ctx)
			if ok {
				return nil
			}
			last = what
		}
		select {
		case <-p.done:
			return fmt.Errorf("the node ended before it was ready: %v; its log ends with\n%s", p.err, n.log.tail(20))
		case <-ctx.Done():
			return fmt.Errorf("the node was not ready after %s: %s; its log ends with\n%s", n.patience(), last, n.log.tail(20))
		case <-time.After(wait):
		}
	}
}

func (n *Node) ready(ctx context.Context) (bool, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/readyz", nil)
	if err != nil {
		return false, err.Error()
	}
	resp, err := n.HTTP().Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return resp.StatusCode == http.StatusOK, fmt.Sprintf("%s %s", resp.Status, b)
}

// Kill9 kills the program and returns once it is gone.
func (n *Node) Kill9() {
	n.t.Helper()
	n.signal(syscall.SIGKILL)
	<-n.process().done
	n.down()
}

// Term asks the program to stop and expects exit code 0.
func (n *Node) Term() {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	p := n.process()
	select {
	case <-p.done:
		if p.err != nil {
			n.t.Errorf("the node ended after SIGTERM with %v; its log ends with\n%s", p.err, n.log.tail(20))
		}
	case <-time.After(stopDeadline):
		n.t.Errorf("the node was not gone %s after SIGTERM; its log ends with\n%s", stopDeadline, n.log.tail(20))
		n.Kill9()
	}
	n.down()
}

// Quit asks the program to stop and returns how it ended, for tests that have
// their own opinion on that.
func (n *Node) Quit() error {
	n.t.Helper()
	n.signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), stopDeadline)
	defer cancel()
	return n.Wait(ctx)
}

// Wait returns how the program ended by itself.
func (n *Node) Wait(ctx context.Context) error {
	p := n.process()
	select {
	case <-p.done:
		n.down()
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pause stops the program as it stands (SIGSTOP): its connections stay open and
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
	if err := os.RemoveAll(n.dir); err != nil {
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

func (n *Node) down() {
	n.listens("")
	n.transport.CloseIdleConnections()
}

// Verify runs qlogd replay --verify on the data directory, which a stopped
// node must leave whole whichever way it ended.
func (n *Node) Verify() error {
	if _, err := os.Stat(n.dir); errors.Is(err, os.ErrNotExist) {
		return nil // it never came that far
	}
	out, err := n.Run("replay", "--verify", "--data-dir", n.dir)
	if err != nil {
		return fmt.Errorf("replay --verify: %w\n%s", err, out)
	}
	return nil
}

// Run runs another command of the program and returns what it printed.
func (n *Node) Run(args ...string) ([]byte, error) {
	n.t.Helper()
	cmd := exec.Command(n.bin(), args...)
	cmd.Env = append(os.Environ(), n.opts.Env...)
	if addr := n.Addr(); addr != "" {
		cmd.Env = append(cmd.Env, "QLOGD_ADDR=http://"+addr)
	}
	return cmd.CombinedOutput()
}

// watch passes on what the program logs and finds where it listens.
type watch struct {
	to    io.Writer
	found func(addr string)
	rest  []byte
}

// The log line has the address that it got for http_addr, as JSON.
var listenRE = regexp.MustCompile(`"(?:http_addr|http)":\s*"(?:http://)?([^"]+:[1-9][0-9]*)"`)

func (w *watch) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		line, rest, ok := bytes.Cut(w.rest, []byte("\n"))
		if !ok {
			break
		}
		if m := listenRE.FindSubmatch(line); m != nil && json.Valid(line) {
			w.found(string(m[1]))
		}
		w.rest = rest
	}
	return w.to.Write(b)
}

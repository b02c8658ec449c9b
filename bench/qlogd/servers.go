// Package qlogd runs one node of qlogd, or a cluster on this machine: the built
// program, on free ports and fresh directories.
package qlogd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/bench/system"
	"github.com/qlogd/qlogd/client"
)

// Servers are the nodes of one cluster.
type Servers struct {
	Nodes []*Node
}

// Node is a running program.
type Node struct {
	Dir   string
	URL   string // of the API
	Admin string // of profiles
	args  []string
	bin   string
	env   []string
	cmd   *exec.Cmd
	done  chan struct{} // closed when it has ended
	err   error         // how
}

// Options say how to run nodes.
type Options struct {
	Bin   string
	Nodes int      // 1 or more
	Flags []string // of each, besides those for addresses and the directory
	Env   []string // NAME=value, besides ours
}

// Start starts nodes with data below dir and waits until they are ready.
func Start(ctx context.Context, dir string, o Options) (*Servers, error) {
	s := &Servers{}
	// All at once, so that they differ.
	addrs, err := system.Addrs(3 * o.Nodes)
	if err != nil {
		return nil, err
	}
	raft := addrs[:o.Nodes]
	for i := range o.Nodes {
		name := fmt.Sprint("n", i+1)
		httpAddr, admin := addrs[o.Nodes+2*i], addrs[o.Nodes+2*i+1]
		n := &Node{Dir: filepath.Join(dir, name), URL: "http://" + httpAddr, Admin: "http://" + admin, bin: o.Bin, env: o.Env}
		n.args = []string{"serve", "--node-id", name, "--data-dir", n.Dir, "--http-addr", httpAddr, "--raft-addr", raft[i], "--admin-addr", admin}
		if o.Nodes > 1 {
			n.args = append(n.args, "--bootstrap-expect", fmt.Sprint(o.Nodes), "--join", strings.Join(raft, ","))
		}
		n.args = append(n.args, o.Flags...)
		s.Nodes = append(s.Nodes, n)
	}
	for _, n := range s.Nodes {
		if err := n.Start(); err != nil {
			_ = s.Stop()
			return nil, err
		}
	}
	for _, n := range s.Nodes {
		if err := n.Ready(ctx); err != nil {
			// It may have waited for another one, which has ended.
			var ended error
			for _, other := range s.Nodes {
				ended = errors.Join(ended, other.ended())
			}
			_ = s.Stop()
			return nil, cmp.Or(ended, err)
		}
	}
	return s, nil
}

// Stop kills all nodes. Their data stays.
func (s *Servers) Stop() error {
	for _, n := range s.Nodes {
		n.Kill()
	}
	return nil
}

// PIDs returns the nodes' processes.
func (s *Servers) PIDs() (out []int) {
	for _, n := range s.Nodes {
		out = append(out, n.PID())
	}
	return out
}

// URLs returns where the nodes' APIs are.
func (s *Servers) URLs() (out []string) {
	for _, n := range s.Nodes {
		out = append(out, n.URL)
	}
	return out
}

// Client returns a client that goes to all nodes in turn.
func (s *Servers) Client() (*client.Client, error) {
	return client.New(strings.Join(s.URLs(), ","), client.WithSpread())
}

// Start starts a node that does not run, on the data that it has.
func (n *Node) Start() error {
	if err := os.MkdirAll(filepath.Dir(n.Dir), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(n.Dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(n.bin, n.args...)
	n.cmd.Env = append(os.Environ(), n.env...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	// Servers end with us, and not with our terminal's ctrl-C.
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.done = make(chan struct{})
	go func() {
		n.err = n.cmd.Wait()
		close(n.done)
	}()
	return nil
}

// Ready waits until a node serves.
func (n *Node) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if _, err := Fetch(ctx, http.MethodGet, n.URL+"/readyz"); err == nil {
			return nil
		}
		select {
		case <-n.done:
			return n.ended()
		case <-ctx.Done():
			return fmt.Errorf("qlogd was not ready: %w; its log ends with\n%s", ctx.Err(), n.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ended says how a node has ended; nil: it has not.
func (n *Node) ended() error {
	select {
	case <-n.done:
		return fmt.Errorf("qlogd ended: %w; its log ends with\n%s", n.err, n.tail())
	default:
		return nil
	}
}

func (n *Node) tail() []byte {
	b, _ := os.ReadFile(n.Dir + ".log")
	lines := bytes.Split(b, []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-15):], []byte("\n"))
}

// PID returns the node's process.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Kill ends a node at once, as kill -9 does.
func (n *Node) Kill() {
	if n.cmd == nil || n.done == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	<-n.done
}

// Term ends a node in good order.
func (n *Node) Term() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-n.done:
		return n.err
	case <-time.After(time.Minute):
		return errors.New("qlogd has not ended a minute after SIGTERM")
	}
}

// Free lets a node collect its garbage and give free memory back.
func (n *Node) Free(ctx context.Context) error {
	_, err := Fetch(ctx, http.MethodPost, n.Admin+"/debug/free")
	return err
}

// Profile saves a node's CPU profile of the next seconds.
func (n *Node) Profile(ctx context.Context, file string, seconds int) error {
	b, err := Fetch(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", n.Admin, seconds))
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

// Heap saves what a node has in memory, and has allocated.
func (n *Node) Heap(ctx context.Context, file string) error {
	b, err := Fetch(ctx, http.MethodGet, n.Admin+"/debug/pprof/heap?gc=1")
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

// Metric returns the sum of a metric's series in /metrics.
func (n *Node) Metric(ctx context.Context, name string) (sum float64, err error) {
	b, err := Fetch(ctx, http.MethodGet, n.URL+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		f := strings.Fields(rest)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	return sum, nil
}

// Fetch sends a request without a body; an answer that is not 2xx is an error.
func Fetch(ctx context.Context, method, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, url, resp.Status, b)
	}
	return b, err
}

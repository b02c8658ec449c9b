package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/qlogd/qlogd/client"
)

// node is a running qlogd.
type node struct {
	dir, http, admin string
	cmd              *exec.Cmd
	done             chan struct{} // closed when it has ended
	err              error         // how
	c                *client.Client
}

// start starts qlogd on a data directory and waits until it is ready.
func (s *suite) start(ctx context.Context, name string, flags ...string) (*node, error) {
	n := &node{dir: filepath.Join(s.dir, name), done: make(chan struct{})}
	args := append([]string{
		"serve", "--data-dir", n.dir, "--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0",
		"--admin-addr", "127.0.0.1:0", "--log-format", "json",
	}, flags...)
	n.cmd = exec.CommandContext(ctx, s.bin, args...)
	n.cmd.Env = append(os.Environ(), s.env...)
	out, err := n.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	var last [][]byte // of the log, newest last
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var line struct{ Msg, HTTP, Admin string }
			if last = append(last, bytes.Clone(lines.Bytes())); len(last) > 30 {
				last = last[1:]
			}
			if json.Unmarshal(lines.Bytes(), &line) != nil {
				continue
			}
			switch line.Msg {
			case "profiles are served":
				n.admin = "http://" + line.Admin
			case "serving":
				n.http = "http://" + line.HTTP
				close(ready)
			}
		}
		n.err = n.cmd.Wait()
		close(n.done)
	}()
	select {
	case <-ready:
	case <-n.done:
		return nil, fmt.Errorf("qlogd ended: %v; its log ends with\n%s", n.err, bytes.Join(last, []byte("\n")))
	case <-time.After(2 * time.Minute):
		n.kill()
		return nil, fmt.Errorf("qlogd was not ready in time; its log ends with\n%s", bytes.Join(last, []byte("\n")))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1024
	n.c, err = client.New(n.http, client.WithHTTPClient(&http.Client{Transport: transport}))
	return n, err
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.done
}

func (n *node) term() error {
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

// stop ends a node that is not needed any more, and its directory.
func (n *node) stop() {
	n.kill()
	os.RemoveAll(n.dir)
}

// cpu is the processor time that the server has used.
func (n *node) cpu() time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}

// rss lets the server collect its garbage and give free memory back, and
// returns its resident memory in bytes: all of it, and without mapped files.
func (n *node) rss() (all, anon int64, err error) {
	if _, err := fetch(http.MethodPost, n.admin+"/debug/free"); err != nil {
		return 0, 0, err
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "VmRSS:":
			all, _ = strconv.ParseInt(f[1], 10, 64)
		case f[0] == "RssAnon:":
			anon, _ = strconv.ParseInt(f[1], 10, 64)
		}
	}
	return all << 10, anon << 10, nil
}

// metric returns the sum of a metric's series in /metrics.
func (n *node) metric(name string) (sum float64) {
	b, err := fetch(http.MethodGet, n.http+"/metrics")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		f := strings.Fields(rest)
		v, _ := strconv.ParseFloat(f[len(f)-1], 64)
		sum += v
	}
	return sum
}

func fetch(method, url string) ([]byte, error) {
	req, err := http.NewRequest(method, url, nil)
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
		err = errors.New(method + " " + url + ": " + resp.Status)
	}
	return b, err
}

// size is the bytes of a folder's files.
func size(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if i, err := d.Info(); err == nil {
				n += i.Size()
			}
		}
		return nil
	})
	return n
}

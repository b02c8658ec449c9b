// Package qlogd runs one node of qlogd, or a cluster on this machine: the built
// program, on free ports and fresh directories.
package qlogd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/qlogd/qlogd/bench/system"
	"github.com/qlogd/qlogd/client"
)

// Servers are the nodes of one cluster.
type Servers struct {
	system.Processes
	Nodes []Node
}

// Node is where a node is reached.
type Node struct {
	URL   string // of the API
	Admin string // of profiles
}

// Options say how to run nodes.
type Options struct {
	Bin   string
	Nodes int      // 1 or more
	Flags []string // of each, besides those for addresses and the directory
}

// Start starts nodes with data below dir and waits until they are ready. They are stopped with
// Stop, after an error too.
func Start(ctx context.Context, dir string, o Options) (*Servers, error) {
	s := &Servers{}
	addrs, err := system.Addrs(3 * o.Nodes) // all at once, so that they differ
	if err != nil {
		return s, err
	}
	raft := addrs[:o.Nodes]
	for i := range o.Nodes {
		name, api, admin := fmt.Sprint("n", i+1), addrs[o.Nodes+2*i], addrs[o.Nodes+2*i+1]
		args := []string{"serve", "--node-id", name, "--data-dir", filepath.Join(dir, name),
			"--http-addr", api, "--raft-addr", raft[i], "--admin-addr", admin}
		if o.Nodes > 1 {
			args = append(args, "--bootstrap-expect", fmt.Sprint(o.Nodes),
				"--join", strings.Join(raft, ","))
		}
		p, err := system.Run(dir, name, exec.Command(o.Bin, append(args, o.Flags...)...))
		if err != nil {
			return s, err
		}
		s.Processes = append(s.Processes, p)
		s.Nodes = append(s.Nodes, Node{"http://" + api, "http://" + admin})
	}
	for i, p := range s.Processes {
		if err := p.Ready(ctx, func(ctx context.Context) error {
			_, err := fetch(ctx, http.MethodGet, s.Nodes[i].URL+"/readyz")
			return err
		}); err != nil {
			return s, err
		}
	}
	return s, nil
}

// PIDs returns the nodes' processes, which have no children.
func (s *Servers) PIDs() (out []int) {
	for _, p := range s.Processes {
		out = append(out, p.PID())
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

// Free lets a node collect its garbage and give free memory back.
func (n Node) Free(ctx context.Context) error {
	_, err := fetch(ctx, http.MethodPost, n.Admin+"/debug/free")
	return err
}

// Profile saves a node's CPU profile of the next seconds.
func (n Node) Profile(ctx context.Context, file string, seconds int) error {
	return n.save(ctx, file, fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds))
}

// Heap saves what a node has in memory, and has allocated.
func (n Node) Heap(ctx context.Context, file string) error {
	return n.save(ctx, file, "/debug/pprof/heap?gc=1")
}

func (n Node) save(ctx context.Context, file, path string) error {
	b, err := fetch(ctx, http.MethodGet, n.Admin+path)
	if err != nil {
		return err
	}
	return os.WriteFile(file, b, 0o600)
}

// fetch sends a request without a body; an answer that is not 2xx is an error.
func fetch(ctx context.Context, method, url string) ([]byte, error) {
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

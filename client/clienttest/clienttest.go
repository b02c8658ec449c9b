// Package clienttest runs a qlogd node inside a test: the real server, in this process, on a
// temporary directory and a free port. Nothing needs to be installed.
//
//	func TestWelcome(t *testing.T) {
//		c := clienttest.New(t)
//		err := c.EnsureQueue(t.Context(), "mail", client.Queue{})
//		…
//	}
//
// A node starts in a fraction of a second. Tests that use queues of their own can share one.
package clienttest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/server"
)

// New starts a node for a test and returns a client of it, whose Addr is the node's address. Both
// end with the test. The node's warnings are in the test's log.
func New(t testing.TB, opts ...client.Option) *client.Client {
	t.Helper()
	n, err := start(filepath.Join(t.TempDir(), "data"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(n.Addr(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Node is a node in this process.
type Node struct{ node *server.Node }

// Start starts a node on a data directory, which is created if it is missing, for a TestMain, an
// example, or to stop a node and start it again. It returns once the node is ready.
func Start(dataDir string) (*Node, error) { return start(dataDir, os.Stderr) }

func start(dataDir string, logs io.Writer) (*Node, error) {
	c := server.DefaultConfig()
	c.DataDir, c.HTTPAddr, c.RaftAddr = dataDir, "127.0.0.1:0", "127.0.0.1:0"
	c.NodeID, c.NoConsole, c.Version = "test", true, "test"
	c.Getenv = func(name string) string {
		if strings.HasPrefix(name, "OTEL_") {
			return "" // spans are the program's own business
		}
		return os.Getenv(name)
	}
	level := &slog.HandlerOptions{Level: slog.LevelWarn}
	s, err := server.Start(&c, slog.New(slog.NewTextHandler(logs, level)))
	if err != nil {
		return nil, fmt.Errorf("start a node in %s: %w", dataDir, err)
	}
	select {
	case <-s.Ready():
		return &Node{s}, nil
	case err := <-s.Broken():
		return nil, fmt.Errorf("start a node in %s: %w", dataDir, err)
	}
}

// Addr returns the node's address, for client.New.
func (n *Node) Addr() string { return "http://" + n.node.HTTPAddr() }

// Close stops the node.
func (n *Node) Close() error {
	select {
	case err := <-n.node.Broken():
		return fmt.Errorf("the node has failed: %w", err)
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), server.DrainTime)
	defer cancel()
	return n.node.Stop(ctx)
}

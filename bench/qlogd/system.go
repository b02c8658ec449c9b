package qlogd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/bench/load"
)

// System is qlogd as it is compared with others.
type System struct {
	Options
	Plain  bool   // loaded by plain HTTP clients, which only produce
	PerKey bool   // queues are per_key
	Label  string // in place of its name

	servers *Servers
	queues  int
}

// Name returns qlogd-3, or qlogd-3-plain.
func (s *System) Name() string {
	name := fmt.Sprintf("qlogd-%d", s.Nodes)
	if s.Label != "" {
		return s.Label
	}
	if s.Plain {
		name += "-plain"
	}
	return name
}

// Durable says what is durable when it acknowledges.
func (s *System) Durable() string {
	if s.Nodes == 1 {
		return "written and fsynced on the node"
	}
	return fmt.Sprintf("written and fsynced on a majority of %d nodes", s.Nodes)
}

// Missing says that the program has to be built.
func (s *System) Missing() string {
	if _, err := exec.LookPath(s.Bin); err != nil {
		return s.Bin + " is not there: make build"
	}
	return ""
}

// Version is what the program says.
func (s *System) Version() string {
	b, _ := exec.Command(s.Bin, "version").Output()
	return strings.Join(strings.Fields(string(b)), " ")
}

// Start starts the nodes with data below dir.
func (s *System) Start(ctx context.Context, dir string) (err error) {
	s.servers, err = Start(ctx, dir, s.Options)
	return err
}

// Servers returns the running nodes.
func (s *System) Servers() *Servers { return s.servers }

// PIDs returns the nodes' processes.
func (s *System) PIDs() []int { return s.servers.PIDs() }

// Fresh makes a queue.
func (s *System) Fresh(ctx context.Context) (load.Target, error) {
	s.queues++
	name := fmt.Sprintf("q%d", s.queues)
	c, err := s.servers.Client()
	if err != nil {
		return nil, err
	}
	policy := wire.PolicyUpdate{}
	if s.PerKey {
		policy.Ordering = wire.Some("per_key")
	}
	t, err := Make(ctx, c, name, policy)
	if err == nil && s.Plain {
		return Plain(s.servers.URLs(), name), nil
	}
	return t, err
}

// Collect lets each node collect its garbage.
func (s *System) Collect(ctx context.Context) error {
	var err error
	for _, n := range s.servers.Nodes {
		err = errors.Join(err, n.Free(ctx))
	}
	return err
}

// Stop kills the nodes. Their data stays.
func (s *System) Stop() error {
	if s.servers == nil {
		return nil
	}
	err := s.servers.Stop(syscall.SIGKILL)
	s.servers = nil
	return err
}

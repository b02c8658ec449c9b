package raft

import (
	"fmt"
	"net"
	"time"

	hraft "github.com/hashicorp/raft"
)

func newTransport(o Options, expectsPeers func() bool) (hraft.Transport, error) {
	if o.BindAddr == "" {
		_, t := hraft.NewInmemTransport(hraft.ServerAddress(o.NodeID))
		return t, nil
	}
	l, err := net.Listen("tcp", o.BindAddr)
	if err != nil {
		return nil, fmt.Errorf("raft: %w", err)
	}
	if a := l.Addr().(*net.TCPAddr); a.IP.IsUnspecified() {
		l.Close()
		return nil, fmt.Errorf("raft: others cannot reach a node at %s; give an address of this host", o.BindAddr)
	}
	return hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		Stream: &streams{Listener: l, expectsPeers: expectsPeers},
		Logger: hlog(o.Logger, "raft-net"), MaxPool: 3, Timeout: 10 * time.Second,
		// 2, the default, pipelines; replication to one follower can then
		// deadlock (hashicorp/raft #612). 1 never enters that code.
		MaxRPCsInFlight: 1,
	}), nil
}

func closeTransport(t hraft.Transport) {
	if c, ok := t.(hraft.WithClose); ok {
		c.Close()
	}
}

// streams are the TCP connections between replicas.
//
// The Raft port has no authentication, and hashicorp/raft decodes what comes
// without caps. A node that is alone in its cluster has no peers, so whoever
// comes is a stranger: the connection is closed before a byte of it is read.
type streams struct {
	net.Listener
	expectsPeers func() bool
}

var _ hraft.StreamLayer = (*streams)(nil)

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if s.expectsPeers() {
			return c, nil
		}
		c.Close()
	}
}

// Dial implements hraft.StreamLayer.
func (s *streams) Dial(addr hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(addr), timeout)
}

// expectsPeers tells whether the configuration has another node.
func (r *Replica) expectsPeers() bool {
	if !r.started.Load() {
		return false
	}
	return len(r.servers()) > 1
}

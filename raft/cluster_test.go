package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// nodes are a cluster on loopback, each with a disk in memory and a port of its
// own that stays its own over restarts.
type nodes struct {
	t   testing.TB
	set func(*Options)

	mu  sync.Mutex
	all map[string]*member
	cut map[string]bool // "n1>n2": n1 does not reach n2
	// slow is how long bytes take to a node, "n1".
	slow map[string]time.Duration
}

// member is a node that can be down.
type member struct {
	*node
	name, inc string
	addr      string
	net       *peer.Net
	disk      *vfs.Mem
	initial   []datadir.Member
	contacts  []string
	outs      chan error
	joined    chan struct{}
	joinedAs  atomic.Value // the incarnation that was last told that it is a member
}

// cluster starts n nodes that form one.
func cluster(t testing.TB, n int, set func(*Options)) *nodes {
	t.Helper()
	c := &nodes{t: t, set: set, all: map[string]*member{}, cut: map[string]bool{}}
	var initial []datadir.Member
	for i := range n {
		m := c.fresh(fmt.Sprintf("n%d", i+1))
		initial = append(initial, datadir.Member{ID: m.name, Incarnation: m.inc, RaftAddr: m.addr})
	}
	for _, m := range c.members() {
		m.initial = initial
		c.start(m)
	}
	return c
}

func (c *nodes) members() (out []*member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.all {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	return out
}

// fresh is a node with an empty disk and a port.
func (c *nodes) fresh(name string) *member {
	m := &member{
		name: name, inc: name + "-1", addr: ports.Free(c.t), disk: vfs.NewMem(),
		outs: make(chan error, 4), joined: make(chan struct{}, 100),
	}
	c.mu.Lock()
	c.all[name] = m
	c.mu.Unlock()
	return m
}

// start starts a node on its disk, and its port.
func (c *nodes) start(m *member) {
	c.t.Helper()
	if err := c.tryStart(m); err != nil {
		c.t.Fatal(err)
	}
}

func (c *nodes) tryStart(m *member) error {
	o := on(m.disk)
	l, err := net.Listen("tcp", m.addr)
	if err != nil {
		return err
	}
	m.net, err = peer.New(peer.Options{
		Listener: l,
		Self:     peer.Identity{Cluster: "c1", Node: m.name, Incarnation: m.inc, Raft: m.addr},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return c.dial(ctx, m, addr)
		},
	})
	if err != nil {
		return err
	}
	o.NodeID, o.Incarnation, o.Net = m.name, m.inc, m.net
	o.Initial, o.Contacts = m.initial, m.contacts
	o.OnOut = func(why error) { m.outs <- why }
	inc := m.inc
	o.Joined = m.joinedAs.Load() == inc
	o.OnJoined = func() {
		m.joinedAs.Store(inc)
		m.joined <- struct{}{}
	}
	if os.Getenv("RAFT_LOG") != "" {
		all := &slog.HandlerOptions{Level: slog.LevelDebug}
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, all)).With("node", m.name)
	}
	if c.set != nil {
		c.set(&o)
	}
	m.node, err = tryBoot(c.t, o)
	n := m.net
	c.t.Cleanup(func() { n.Close() })
	if err != nil {
		n.Close()
		m.node = nil
	}
	return err
}

// stop ends a node in order.
func (m *member) stop() {
	m.down()
	m.net.Close()
	m.node = nil
}

// severed is a connection that a cut ends.
type severed struct {
	net.Conn
	c        *nodes
	from, to string
}

func (c *nodes) dial(ctx context.Context, from *member, addr string) (net.Conn, error) {
	to := ""
	for _, m := range c.members() {
		if m.addr == addr {
			to = m.name
		}
	}
	if c.isCut(from.name, to) {
		return nil, errors.New("cut off")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &severed{conn, c, from.name, to}, nil
}

func (c *nodes) isCut(a, b string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut[a+">"+b] || c.cut[b+">"+a]
}

func (s *severed) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	time.Sleep(s.c.lag(s.from)) // a slow line: what comes back to who has dialled
	if s.c.isCut(s.from, s.to) {
		s.Close()
		return 0, errors.New("cut off")
	}
	return n, err
}

func (s *severed) Write(b []byte) (int, error) {
	if s.c.isCut(s.from, s.to) {
		s.Close()
		return 0, errors.New("cut off")
	}
	time.Sleep(s.c.lag(s.to))
	return s.Conn.Write(b)
}

func (c *nodes) lag(to string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slow[to]
}

// isolate cuts a node off from all others, or heals that.
func (c *nodes) isolate(name string, off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other := range c.all {
		if other != name {
			c.cut[name+">"+other] = off
		}
	}
}

// until waits for something that other goroutines bring about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-late:
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// leader waits until one of the nodes that are up, but for some, leads.
func (c *nodes) leader(but ...string) *member {
	c.t.Helper()
	var found *member
	until(c.t, "no leader", func() bool {
		for _, m := range c.members() {
			if m.node != nil && !slices.Contains(but, m.name) && m.leadsReady() {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

// put writes through whoever leads, until it is done.
func (c *nodes) put(name string, but ...string) {
	c.t.Helper()
	until(c.t, "put "+name, func() bool {
		_, err := c.leader(but...).Propose(context.Background(), put(name))
		return err == nil
	})
}

// level waits until all nodes that are up have applied the same, but for some.
func (c *nodes) level(but ...string) {
	c.t.Helper()
	until(c.t, "the nodes differ", func() bool {
		var chain [][32]byte
		for _, m := range c.members() {
			if m.node != nil && !slices.Contains(but, m.name) {
				_, ch := m.m.Head()
				chain = append(chain, ch)
			}
		}
		for _, ch := range chain {
			if ch != chain[0] {
				return false
			}
		}
		return true
	})
}

func (c *nodes) get(name string) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[name]
}

// voters counts those of a node's configuration that vote.
func (m *member) votersKnown() (n int) {
	for _, s := range m.Members() {
		if s.Votes {
			n++
		}
	}
	return n
}

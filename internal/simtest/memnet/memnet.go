// Package memnet is a network in memory, for tests: hosts with listeners and
// connections between them that are slow, cut, healed, and reset by crashes.
//
// It is made for testing/synctest: a goroutine that waits for a connection
// waits on a channel or a timer, so that time in a bubble can go on. A Network
// must be made in the bubble in which it is used.
//
// A host is the part of an address before the port. What is cut behaves as in
// TCP: bytes on their way are kept and arrive after Heal, who connects waits for
// as long as its context allows, and that the other side closed or crashed is
// not learnt before Heal.
package memnet

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Options of a network.
type Options struct {
	// Latency is how long bytes take from a host to a host; nil: no time. It is
	// asked at each write, from any goroutine. Bytes never overtake others of
	// their connection.
	Latency func(from, to string) time.Duration
}

// Network is a set of hosts. Its methods may be called from any goroutine.
type Network struct {
	o Options

	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*conn]struct{}
	cuts      map[way]struct{}
	ports     int
	changed   chan struct{} // closed and replaced at each change of listeners or cuts
}

// way is a direction between two hosts.
type way struct{ from, to string }

// New makes a network without hosts.
func New(o Options) *Network {
	if o.Latency == nil {
		o.Latency = func(string, string) time.Duration { return 0 }
	}
	return &Network{
		o: o, listeners: map[string]*listener{},
		conns: map[*conn]struct{}{}, cuts: map[way]struct{}{},
		ports: 49152, changed: make(chan struct{}),
	}
}

// Listen makes addr (host:port) reachable; port 0 means any free one.
func (n *Network) Listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("memnet: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == "0" {
		addr = n.freeLocked(host)
	}
	if n.listeners[addr] != nil {
		return nil, fmt.Errorf("memnet: listen at %s: %w", addr, syscall.EADDRINUSE)
	}
	l := &listener{net: n, addr: Addr(addr), changed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dialer is how processes of a host connect to others.
func (n *Network) Dialer(host string) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := n.dial(ctx, host, addr)
		if err != nil {
			return nil, fmt.Errorf("memnet: dial %s from %s: %w", addr, host, err)
		}
		return c, nil
	}
}

func (n *Network) dial(ctx context.Context, from, addr string) (net.Conn, error) {
	to := hostOf(addr)
	if err := sleep(ctx, n.o.Latency(from, to)+n.o.Latency(to, from)); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n.mu.Lock()
		changed := n.changed
		if !n.cutLocked(from, to) && !n.cutLocked(to, from) {
			l := n.listeners[addr]
			if l == nil {
				n.mu.Unlock()
				return nil, syscall.ECONNREFUSED
			}
			near, far := n.pairLocked(n.freeLocked(from), addr)
			n.conns[near], n.conns[far] = struct{}{}, struct{}{}
			l.backlog = append(l.backlog, far)
			l.wakeLocked()
			n.mu.Unlock()
			return near, nil
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Cut lets nothing more through from a host to another; the other way stays.
func (n *Network) Cut(from, to string) { n.set(true, way{from, to}) }

// CutBoth cuts both ways between two hosts.
func (n *Network) CutBoth(a, b string) { n.set(true, way{a, b}, way{b, a}) }

// Heal mends both ways between two hosts.
func (n *Network) Heal(a, b string) { n.set(false, way{a, b}, way{b, a}) }

// HealAll mends everything.
func (n *Network) HealAll() {
	n.mu.Lock()
	var ways []way
	for w := range n.cuts {
		ways = append(ways, w)
	}
	n.mu.Unlock()
	n.set(false, ways...)
}

// Crash ends the processes of a host: its listeners and its ends of all
// connections are closed at once, and the other ends are reset as soon as the
// news can reach them.
func (n *Network) Crash(host string) {
	n.mu.Lock()
	var ls []*listener
	for addr, l := range n.listeners {
		if hostOf(addr) == host {
			ls = append(ls, l)
		}
	}
	var cs []*conn
	for c := range n.conns {
		if c.out.way.from == host {
			cs = append(cs, c)
		}
	}
	n.mu.Unlock()
	for _, l := range ls {
		l.Close()
	}
	for _, c := range cs {
		c.end(syscall.ECONNRESET)
	}
}

// set cuts or mends, and wakes all who wait.
func (n *Network) set(cut bool, ways ...way) {
	n.mu.Lock()
	for _, w := range ways {
		if cut {
			n.cuts[w] = struct{}{}
		} else {
			delete(n.cuts, w)
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
	for c := range n.conns {
		cut := n.cutLocked(c.in.way.from, c.in.way.to)
		c.in.update(func() { c.in.cut = cut })
	}
	n.mu.Unlock()
}

func (n *Network) cutLocked(from, to string) bool {
	_, cut := n.cuts[way{from, to}]
	return cut
}

func (n *Network) freeLocked(host string) string {
	n.ports++
	return net.JoinHostPort(host, strconv.Itoa(n.ports))
}

// pairLocked makes the two ends of a connection.
func (n *Network) pairLocked(from, to string) (near, far *conn) {
	there := newPipe(n, way{hostOf(from), hostOf(to)})
	back := newPipe(n, way{hostOf(to), hostOf(from)})
	there.cut, back.cut = n.cutLocked(there.way.from, there.way.to), n.cutLocked(back.way.from,
		back.way.to)
	near = &conn{net: n, local: Addr(from), remote: Addr(to), in: back, out: there}
	far = &conn{net: n, local: Addr(to), remote: Addr(from), in: there, out: back}
	return near, far
}

// Addr is the address of a listener or of an end of a connection.
type Addr string

// Network implements net.Addr.
func (Addr) Network() string { return "mem" }

func (a Addr) String() string { return string(a) }

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

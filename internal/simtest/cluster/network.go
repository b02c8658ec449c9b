package cluster

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/ports"
)

// Network is the lines between the nodes. Before each node's Raft address
// stands a proxy, whose address is the one that it advertises; whose connection
// it is that comes in there tells the operating system, so a line can be cut in
// one direction alone and whatever is spoken on it.
//
// A line from a to b that is cut holds what a sends to b, on connections that
// either of them opened, and passes it on once it is mended: what TCP does with
// packets that are lost for a while. New connections that would need it wait.
type Network struct {
	pid     func(node int) int
	proxies []*proxy

	mu      sync.Mutex
	cut     map[line]bool
	changed chan struct{} // closed at each change, and made anew
	closed  bool
}

type line struct{ from, to int }

// proxy stands before one node.
type proxy struct {
	net  *Network
	node int
	to   string
	lis  net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newNetwork(t testing.TB, raft []string, pid func(int) int) *Network {
	t.Helper()
	if !ownersKnown {
		t.Skip("whose connection it is can't be told on this system")
	}
	w := &Network{pid: pid, cut: map[line]bool{}, changed: make(chan struct{})}
	for i, addr := range raft {
		// Not a port that a stranger may have been looking for a moment ago.
		lis, err := net.Listen("tcp", ports.Free(t))
		if err != nil {
			t.Fatal(err)
		}
		w.proxies = append(w.proxies, &proxy{net: w, node: i, to: addr, lis: lis, conns: map[net.Conn]bool{}})
	}
	return w
}

// serve begins to carry, once it is known which process each node is.
func (w *Network) serve() {
	for _, p := range w.proxies {
		p.wg.Go(p.serve)
	}
}

func (w *Network) addrs() []string {
	out := make([]string, len(w.proxies))
	for i, p := range w.proxies {
		out[i] = p.lis.Addr().String()
	}
	return out
}

// Cut cuts the line from one node to another, in this direction alone.
func (w *Network) Cut(from, to *Node) { w.set(func() { w.cut[line{from.i, to.i}] = true }) }

// Isolate cuts all lines from and to a node.
func (w *Network) Isolate(n *Node) {
	w.set(func() {
		for i := range w.proxies {
			if i != n.i {
				w.cut[line{i, n.i}], w.cut[line{n.i, i}] = true, true
			}
		}
	})
}

// Deafen cuts all lines to a node: it can speak and hears nobody.
func (w *Network) Deafen(n *Node) {
	w.set(func() {
		for i := range w.proxies {
			if i != n.i {
				w.cut[line{i, n.i}] = true
			}
		}
	})
}

// Mute cuts all lines from a node: it hears the others and they don't hear it.
func (w *Network) Mute(n *Node) {
	w.set(func() {
		for i := range w.proxies {
			if i != n.i {
				w.cut[line{n.i, i}] = true
			}
		}
	})
}

// Mend mends all lines.
func (w *Network) Mend() { w.set(func() { clear(w.cut) }) }

func (w *Network) set(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(w.changed)
	w.changed = make(chan struct{})
}

// pass waits until none of the lines is cut; false means that gone was closed
// before.
func (w *Network) pass(gone <-chan struct{}, lines ...line) bool {
	for {
		w.mu.Lock()
		held, changed := false, w.changed
		for _, l := range lines {
			held = held || w.cut[l]
		}
		held = held && !w.closed
		w.mu.Unlock()
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-gone:
			return false
		}
	}
}

func (w *Network) close() {
	w.set(func() { w.closed = true })
	for _, p := range w.proxies {
		_ = p.lis.Close()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
	}
	for _, p := range w.proxies {
		p.wg.Wait()
	}
}

// owner returns which node opened a connection; -1 is none of them.
func (w *Network) owner(c net.Conn) int {
	inode, ok := inodeOf(c)
	if !ok {
		return -1
	}
	for i := range w.proxies {
		if pid := w.pid(i); pid != 0 && holds(pid, inode) {
			return i
		}
	}
	return -1
}

func (p *proxy) serve() {
	for {
		c, err := p.lis.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.carry(c) })
	}
}

func (p *proxy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
}

func (p *proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// carry is one connection's life.
func (p *proxy) carry(in net.Conn) {
	p.keep(in)
	defer p.drop(in)
	from := p.net.owner(in)
	there, back := line{from, p.node}, line{p.node, from}
	gone := make(chan struct{})
	if !p.net.pass(gone, there, back) {
		return
	}
	out, err := net.DialTimeout("tcp", p.to, 5*time.Second)
	if err != nil {
		return
	}
	p.keep(out)
	defer p.drop(out)
	var once sync.Once
	end := func() { once.Do(func() { close(gone); _ = in.Close(); _ = out.Close() }) }
	var wg sync.WaitGroup
	wg.Go(func() { p.net.copy(out, in, there, gone); end() })
	wg.Go(func() { p.net.copy(in, out, back, gone); end() })
	wg.Wait()
}

// copy passes on what comes, as long as its line lets it.
func (w *Network) copy(to io.Writer, from io.Reader, l line, gone <-chan struct{}) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if !w.pass(gone, l) {
				return
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

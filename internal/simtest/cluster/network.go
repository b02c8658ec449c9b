package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/ports"
)

// Network is the lines between the nodes. Before each node's Raft address is a
// proxy, whose address the node advertises. A connection begins with the name of
// the node that opened it, so a line can be cut in one direction alone.
//
// A line from a to b that is cut holds what a sends to b, on connections that
// either of them opened, and passes it on once it is mended: what TCP does with
// packets that are lost for a while. New connections that would need it wait.
type Network struct {
	proxies []*proxy

	mu      sync.Mutex
	cut     map[line]bool
	changed chan struct{} // closed and replaced at each change
	closed  bool
	conns   map[net.Conn]bool
	wg      sync.WaitGroup
}

type line struct{ from, to string } // names of nodes

// proxy is before one node.
type proxy struct {
	node string
	to   string
	lis  net.Listener
}

// newNetwork starts proxies before some nodes.
func newNetwork(t testing.TB, nodes, raft []string) *Network {
	t.Helper()
	w := &Network{cut: map[line]bool{}, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	for i, addr := range raft {
		// Not a port that a stranger may have been looking for a moment ago.
		lis, err := net.Listen("tcp", ports.Free(t))
		if err != nil {
			t.Fatal(err)
		}
		p := &proxy{node: nodes[i], to: addr, lis: lis}
		w.proxies = append(w.proxies, p)
		w.wg.Go(func() { w.serve(p) })
	}
	return w
}

func (w *Network) addrs() []string {
	var out []string
	for _, p := range w.proxies {
		out = append(out, p.lis.Addr().String())
	}
	return out
}

// Cut cuts the line from one node to another, in this direction alone.
func (w *Network) Cut(from, to *Node) { w.set(func() { w.cut[line{from.name, to.name}] = true }) }

// Isolate cuts all lines from and to a node.
func (w *Network) Isolate(n *Node) { w.cutAll(n, true, true) }

// Deafen cuts all lines to a node: it can speak and hears nobody.
func (w *Network) Deafen(n *Node) { w.cutAll(n, true, false) }

// Mute cuts all lines from a node: it hears the others and they don't hear it.
func (w *Network) Mute(n *Node) { w.cutAll(n, false, true) }

func (w *Network) cutAll(n *Node, to, from bool) {
	w.set(func() {
		for _, p := range w.proxies {
			if p.node != n.name {
				w.cut[line{p.node, n.name}] = to || w.cut[line{p.node, n.name}]
				w.cut[line{n.name, p.node}] = from || w.cut[line{n.name, p.node}]
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
		held := !w.closed && slices.ContainsFunc(lines, func(l line) bool { return w.cut[l] })
		changed := w.changed
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
	w.set(func() {
		w.closed = true
		for c := range w.conns {
			_ = c.Close()
		}
	})
	for _, p := range w.proxies {
		_ = p.lis.Close()
	}
	w.wg.Wait()
}

func (w *Network) serve(p *proxy) {
	for {
		c, err := p.lis.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.carry(p, c) })
	}
}

// keep notes an open connection; it reports false when the network is closed.
func (w *Network) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
	return !w.closed
}

func (w *Network) drop(c net.Conn) {
	_ = c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

// carry is one connection's life.
func (w *Network) carry(p *proxy, in net.Conn) {
	defer w.drop(in)
	if !w.keep(in) {
		return
	}
	hello, from, err := readHello(in)
	if err != nil {
		return
	}
	there, back := line{from, p.node}, line{p.node, from}
	gone := make(chan struct{})
	if !w.pass(gone, there, back) {
		return
	}
	out, err := net.DialTimeout("tcp", p.to, 5*time.Second)
	if err != nil {
		return
	}
	defer w.drop(out)
	if _, err := out.Write(hello); err != nil || !w.keep(out) {
		return
	}
	end := sync.OnceFunc(func() { close(gone); _ = in.Close(); _ = out.Close() })
	var wg sync.WaitGroup
	wg.Go(func() { w.copy(out, in, there, gone); end() })
	wg.Go(func() { w.copy(in, out, back, gone); end() })
	wg.Wait()
}

// readHello reads the request that a connection begins with (raft/peer) and returns its bytes and
// the node that it names. The other side sends nothing more before the response.
func readHello(r io.Reader) (all []byte, from string, err error) {
	var read bytes.Buffer
	req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(r, &read)))
	if err != nil {
		return nil, "", err
	}
	var hello struct{ From struct{ Node string } }
	err = json.Unmarshal([]byte(req.Header.Get("Qlogd-Hello")), &hello)
	return read.Bytes(), hello.From.Node, err
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

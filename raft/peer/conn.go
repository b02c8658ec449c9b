package peer

import (
	"net"
	"sync"
	"sync/atomic"
)

// conn is a connection that Net knows of. It is not a *tls.Conn even where
// there is TLS below: net/http must see plain HTTP/2, as its handshake is not
// the first thing said.
type conn struct {
	net.Conn // TLS, or raw itself
	raw      net.Conn
	net      *Net
	host     string      // of one that came: where from
	crowded  atomic.Bool // it gave way to others; see meet
	accepted bool        // by letIn; guarded by net.mu
	bulk     bool
	layer    *RaftLayer // guarded by net.mu
	peer     Identity
	once     sync.Once
}

// Peer is who is at the other end, as it said in the handshake.
func (c *conn) Peer() Identity { return c.peer }

// Close closes at once, also where TLS would first say goodbye to a peer that
// does not listen. What ends where is told by what is spoken above.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		n := c.net
		n.mu.Lock()
		if _, in := n.conns[c]; in {
			delete(n.conns, c)
			n.greeted(c)
			if c.accepted {
				n.accepted--
			}
		}
		n.mu.Unlock()
		err = c.raw.Close()
	})
	return err
}

// feed is a listener that is given its connections.
type feed struct {
	addr net.Addr
	c    chan net.Conn
	done chan struct{}
	once sync.Once
}

func newFeed(addr net.Addr) *feed {
	return &feed{addr: addr, c: make(chan net.Conn), done: make(chan struct{})}
}

func (f *feed) deliver(c net.Conn) {
	select {
	case f.c <- c:
	case <-f.done:
		c.Close()
	}
}

// Accept implements net.Listener.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.c:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

// Addr implements net.Listener.
func (f *feed) Addr() net.Addr { return f.addr }

package memnet

import (
	"net"
	"syscall"
)

type listener struct {
	net  *Network
	addr Addr

	// Guarded by net.mu.
	backlog []*conn
	closed  bool
	changed chan struct{} // closed and replaced at each change
}

func (l *listener) wakeLocked() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		l.net.mu.Lock()
		changed, closed := l.changed, l.closed
		if !closed && len(l.backlog) > 0 {
			c := l.backlog[0]
			l.backlog = l.backlog[1:]
			l.net.mu.Unlock()
			return c, nil
		}
		l.net.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		<-changed
	}
}

// Close implements net.Listener. Connections that were not accepted yet are reset.
func (l *listener) Close() error {
	l.net.mu.Lock()
	if l.closed {
		l.net.mu.Unlock()
		return net.ErrClosed
	}
	l.closed = true
	delete(l.net.listeners, string(l.addr))
	waiting := l.backlog
	l.wakeLocked()
	l.net.mu.Unlock()
	for _, c := range waiting {
		c.end(syscall.ECONNRESET)
	}
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

package memnet

import (
	"net"
	"sync"
	"syscall"
)

type listener struct {
	net     *Network
	addr    Addr
	backlog chan *conn
	done    chan struct{}
	once    sync.Once

	mu   sync.Mutex
	room chan struct{} // closed when one was taken; nil: nobody waits for it
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.backlog:
		l.signal()
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// took is closed when the backlog may have room again.
func (l *listener) took() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}

func (l *listener) signal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

// Close implements net.Listener. Who was not accepted yet is reset.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
		close(l.done)
		l.signal()
		for {
			select {
			case c := <-l.backlog:
				c.end(syscall.ECONNRESET)
				continue
			default:
			}
			return
		}
	})
	return err
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

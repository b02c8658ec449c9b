package api

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// Conns bounds the open connections of all HTTPServers that share it, and those of one address to
// half of that.
//
// Over a bound, the connection that has been idle longest is closed. A connection is idle
// between requests and until the headers of a request are complete. A busy one is never closed for
// another: if all are busy, the newcomer is closed. So clients that connect and stay silent cannot
// keep others out, nor use up the file descriptors that the log needs.
type Conns struct {
	max int

	mu     sync.Mutex
	gone   *sync.Cond         // a connection that was closed for room has ended
	conns  map[net.Conn]*conn // until they have ended
	from   map[string]int     // open connections by address
	open   int                // Invariant: at most max; without those that are closed for room
	idle   *list.List         // of *conn, the longest idle first
	closed int                // for room, so far
}

type conn struct {
	net.Conn
	host   string
	idle   *list.Element // nil: it is busy, or closed
	closed bool          // for room
}

// MaxConns is how many connections a node needs at most.
const MaxConns = 20_000

// ClosingConns is how many connections may be open beyond the bound of a Conns: those that it has
// closed, until their goroutines have noticed.
const ClosingConns = 32

// NewConns returns a Conns for a number of connections.
func NewConns(most int) *Conns {
	l := &Conns{
		max: most, conns: map[net.Conn]*conn{}, from: map[string]int{}, idle: list.New(),
	}
	l.gone = sync.NewCond(&l.mu)
	return l
}

// changed is an http.Server's ConnState hook. For a new connection it is called by the loop that
// accepts, which waits here while too many connections are being closed.
func (l *Conns) changed(raw net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state == http.StateNew {
		l.enter(raw)
		for len(l.conns)-l.open > ClosingConns {
			l.gone.Wait()
		}
		return
	}
	switch c := l.conns[raw]; {
	case state == http.StateClosed || state == http.StateHijacked:
		l.leave(c)
		delete(l.conns, raw)
		l.gone.Broadcast()
	case c.closed: // just when a request came
	default:
		l.setIdle(c, state == http.StateIdle)
	}
}

func (l *Conns) enter(raw net.Conn) {
	host, _, _ := net.SplitHostPort(raw.RemoteAddr().String())
	c := &conn{Conn: raw, host: host}
	l.conns[raw] = c
	l.setIdle(c, true)
	l.open++
	l.from[host]++
	// The new connection itself is idle, so there is one to close.
	if l.from[host] > l.max/2 {
		e := l.idle.Front()
		for e.Value.(*conn).host != host {
			e = e.Next()
		}
		l.close(e.Value.(*conn))
	}
	if l.open > l.max {
		l.close(l.idle.Front().Value.(*conn))
	}
}

// setIdle records that a connection is idle from now on, or busy.
func (l *Conns) setIdle(c *conn, idle bool) {
	if c.idle != nil {
		l.idle.Remove(c.idle)
		c.idle = nil
	}
	if idle {
		c.idle = l.idle.PushBack(c)
	}
}

// close closes a connection to make room.
func (l *Conns) close(c *conn) {
	l.leave(c)
	c.closed = true
	l.closed++
	raw := c.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn() // Close of TLS would first write to a client that may not read
	}
	_ = raw.Close()
}

// leave counts a connection as no longer open, once.
func (l *Conns) leave(c *conn) {
	if c.closed {
		return
	}
	l.setIdle(c, false)
	l.open--
	if l.from[c.host]--; l.from[c.host] == 0 {
		delete(l.from, c.host)
	}
}

// counts returns how many connections are open, and how many were closed for room so far.
func (l *Conns) counts() (open, closed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open, l.closed
}

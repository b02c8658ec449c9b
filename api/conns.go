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

	mu    sync.Mutex
	gone  *sync.Cond // a closed connection has ended
	conns map[net.Conn]*list.Element
	from  map[string]int // open connections by address
	open  int            // Invariant: at most max; without those that are closed for room
	// order holds the *conn of each connection: busy ones, nil, idle ones, the longest idle first.
	// Those that are closed for room are among the busy ones until they have ended.
	order  *list.List
	mark   *list.Element // the nil
	closed int           // for room, so far
}

type conn struct {
	net.Conn
	host   string
	closed bool // for room
}

// MaxConns is how many connections a node needs at most.
const MaxConns = 20_000

// ClosingConns is how many connections may be open beyond the bound of a Conns: those that it has
// closed, until their goroutines have noticed.
const ClosingConns = 32

// NewConns returns a Conns for a number of connections.
func NewConns(most int) *Conns {
	l := &Conns{
		max: most, conns: map[net.Conn]*list.Element{}, from: map[string]int{}, order: list.New(),
	}
	l.gone = sync.NewCond(&l.mu)
	l.mark = l.order.PushBack((*conn)(nil))
	return l
}

// changed is an http.Server's ConnState hook. For a new connection it is called by the loop that
// accepts, which waits here while too many connections are being closed.
func (l *Conns) changed(c net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if state == http.StateNew {
		l.enter(c)
		for len(l.conns)-l.open > ClosingConns {
			l.gone.Wait()
		}
		return
	}
	e := l.conns[c]
	switch closed := e.Value.(*conn).closed; {
	case state == http.StateClosed || state == http.StateHijacked:
		l.leave(e)
		delete(l.conns, c)
		l.order.Remove(e)
		l.gone.Broadcast()
	case closed: // just when a request came
	case state == http.StateActive:
		l.order.MoveToFront(e)
	case state == http.StateIdle:
		l.order.MoveToBack(e)
	}
}

func (l *Conns) enter(c net.Conn) {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	l.conns[c] = l.order.PushBack(&conn{Conn: c, host: host})
	l.open++
	l.from[host]++
	if l.from[host] > l.max/2 {
		e := l.mark.Next()
		for e.Value.(*conn).host != host {
			e = e.Next()
		}
		l.close(e)
	}
	if l.open > l.max {
		l.close(l.mark.Next())
	}
}

// close closes a connection to make room.
func (l *Conns) close(e *list.Element) {
	c := e.Value.(*conn)
	l.leave(e)
	c.closed = true
	l.closed++
	l.order.MoveToFront(e)
	raw := c.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn() // Close of TLS would first write to a client that may not read
	}
	_ = raw.Close()
}

// leave counts a connection as no longer open.
func (l *Conns) leave(e *list.Element) {
	c := e.Value.(*conn)
	if c.closed {
		return
	}
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

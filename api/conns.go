package api

import (
	"container/list"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"sync"
)

// Conns bounds the open connections of all HTTPServers that share it, and those of one address to
// half of that.
//
// Over a bound, the connection that has been idle longest is closed. A connection is busy while a
// request is handled that has arrived, with its body. A busy one is never closed for another: if
// all are busy, the newcomer is closed. So clients that connect and stay silent, or send half a
// request, cannot keep others out, nor use up the file descriptors that the log needs.
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
	host    string
	working int           // requests that have arrived and are being handled
	idle    *list.Element // nil: it is busy, or closed
	closed  bool          // for room
}

type connKey struct{} // of the net.Conn in a request's context

// connContext is an http.Server's ConnContext hook.
func connContext(ctx context.Context, raw net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, raw)
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
	if state == http.StateClosed || state == http.StateHijacked {
		l.leave(l.conns[raw])
		delete(l.conns, raw)
		l.gone.Broadcast()
	}
}

// wrap returns a handler that passes on to h, and makes connections busy meanwhile.
func (l *Conns) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		if r.ContentLength == 0 {
			l.work(conn, 1)
			defer l.work(conn, -1)
			h.ServeHTTP(w, r)
			return
		}
		l.work(conn, 0)
		body := &arriving{ReadCloser: r.Body, conns: l, conn: conn}
		r = r.WithContext(r.Context()) // net/http looks at the Body of its own
		r.Body = body
		defer body.handled()
		h.ServeHTTP(w, r)
	})
}

// arriving is a request's body. Its connection becomes busy when all of it has been read.
type arriving struct {
	io.ReadCloser
	conns   *Conns
	conn    net.Conn
	arrived bool
}

// Read implements io.Reader.
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF && !a.arrived {
		a.arrived = true
		a.conns.work(a.conn, 1)
	}
	return n, err
}

func (a *arriving) handled() {
	if a.arrived {
		a.conns.work(a.conn, -1)
	}
}

// work counts n more requests of a connection that have arrived. One that has none was used just
// now.
func (l *Conns) work(raw net.Conn, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conns[raw]; c != nil && !c.closed { // HTTP/2 may still handle requests of one that is
		c.working += n
		l.setIdle(c, c.working == 0)
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

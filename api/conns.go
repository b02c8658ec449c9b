package api

import (
	"context"
	"crypto/tls"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Conns bounds the open connections of all HTTPServers that share it, and those of one address to
// half of that.
//
// Over a bound, the connection that has been idle longest is closed. A connection is busy while a
// request is handled that has arrived, with its body. A busy one is never closed for another: if
// all are busy, the newcomer is closed. So clients that connect and stay silent, or send half a
// request, cannot keep others out, nor use up the file descriptors that the log needs.
//
// A request takes no lock: it counts in its connection. The one that is idle longest is searched for
// when one must be closed.
type Conns struct {
	max  int
	uses atomic.Uint64 // a clock of conn.used

	mu     sync.Mutex
	gone   *sync.Cond         // a connection that was closed for room has ended
	conns  map[net.Conn]*conn // until they have ended
	from   map[string]int     // open connections by address
	open   int                // Invariant: at most max; without those that are closed for room
	closed int                // for room, so far
}

type conn struct {
	net.Conn
	host    string
	working atomic.Int64  // requests that have arrived and are being handled, or left
	used    atomic.Uint64 // when it was last
}

// left in conn.working: it has ended, or is closed for room.
const left = math.MinInt64 / 2

type connKey struct{} // of the *conn in a request's context

// MaxConns is how many connections a node needs at most.
const MaxConns = 20_000

// ClosingConns is how many connections may be open beyond the bound of a Conns: those that it has
// closed, until their goroutines have noticed.
const ClosingConns = 32

// NewConns returns a Conns for a number of connections.
func NewConns(most int) *Conns {
	l := &Conns{max: most, conns: map[net.Conn]*conn{}, from: map[string]int{}}
	l.gone = sync.NewCond(&l.mu)
	return l
}

// enter is an http.Server's ConnContext hook. It is called by the loop that accepts, which waits
// here while too many connections are being closed.
func (l *Conns) enter(ctx context.Context, raw net.Conn) context.Context {
	host, _, _ := net.SplitHostPort(raw.RemoteAddr().String())
	c := &conn{Conn: raw, host: host}
	c.used.Store(l.uses.Add(1))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[raw] = c
	l.open++
	l.from[host]++
	// The new connection itself is idle, so there is one to close.
	if l.from[host] > l.max/2 {
		l.closeIdlest(func(o *conn) bool { return o.host == host })
	}
	if l.open > l.max {
		l.closeIdlest(func(*conn) bool { return true })
	}
	for len(l.conns)-l.open > ClosingConns {
		l.gone.Wait()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// changed is an http.Server's ConnState hook.
func (l *Conns) changed(raw net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conns[raw]; c.working.Swap(left) > left/2 {
		l.leave(c)
	}
	delete(l.conns, raw)
	l.gone.Broadcast()
}

// closeIdlest closes the connection of some that has been idle longest, to make room.
func (l *Conns) closeIdlest(of func(*conn) bool) {
	for {
		var idlest *conn
		since := uint64(math.MaxUint64)
		for _, c := range l.conns { // order does not matter: no two were used at once
			if used := c.used.Load(); used < since && c.working.Load() == 0 && of(c) {
				idlest, since = c, used
			}
		}
		if idlest == nil {
			return
		}
		if !idlest.working.CompareAndSwap(0, left) {
			continue // a request has just arrived
		}
		l.leave(idlest)
		l.closed++
		raw := idlest.Conn
		if t, ok := raw.(*tls.Conn); ok {
			raw = t.NetConn() // Close of TLS would first write to a client that may not read
		}
		_ = raw.Close()
		return
	}
}

// leave counts a connection as no longer open.
func (l *Conns) leave(c *conn) {
	l.open--
	if l.from[c.host]--; l.from[c.host] == 0 {
		delete(l.from, c.host)
	}
}

// wrap returns a handler that passes on to h, and makes connections busy meanwhile.
func (l *Conns) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*conn)
		if r.ContentLength == 0 {
			c.working.Add(1)
			defer l.handled(c, 1)
			h.ServeHTTP(w, r)
			return
		}
		c.used.Store(l.uses.Add(1))
		a := &arriving{ReadCloser: r.Body, conn: c, request: *r}
		a.request.Body = a // of a copy: net/http looks at the Body of its own request
		defer func() { l.handled(c, a.arrived) }()
		h.ServeHTTP(w, &a.request)
	})
}

// handled ends a request, for which n is 1 if it had arrived. Its connection is idle from now on,
// unless others of it are handled.
func (l *Conns) handled(c *conn, n int64) {
	c.used.Store(l.uses.Add(1))
	c.working.Add(-n)
}

// arriving is a request whose body is read. Its connection becomes busy when all of it has been.
type arriving struct {
	io.ReadCloser
	conn    *conn
	request http.Request
	arrived int64 // 1: it has
}

// Read implements io.Reader.
func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF && a.arrived == 0 {
		a.arrived = 1
		a.conn.working.Add(1)
	}
	return n, err
}

// counts returns how many connections are open, and how many were closed for room so far.
func (l *Conns) counts() (open, closed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open, l.closed
}

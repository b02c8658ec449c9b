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
// Over a bound, the connection that has been idle longest is closed. A connection is busy while it
// handles a request that has arrived completely, body included. A busy connection is never closed
// for another: if all are busy, the new one is closed. So clients that connect and stay silent, or
// send half a request, cannot keep others out, nor use up the file descriptors that the log needs.
//
// A request takes no lock, only an atomic counter in its connection. The one that has been idle
// longest is searched for when a connection must be closed.
type Conns struct {
	max  int
	uses atomic.Uint64 // a clock of conn.used

	mu     sync.Mutex
	gone   *sync.Cond         // signalled when a connection has ended
	conns  map[net.Conn]*conn // including evicted ones, until they have ended
	from   map[string]int     // open connections by address
	open   int                // without evicted ones. Invariant: at most max
	closed int                // number of evicted connections so far
}

type conn struct {
	net.Conn
	host    string
	working atomic.Int64  // requests that have arrived and are being handled, or left
	used    atomic.Uint64 // Conns.uses at its last use
}

// left is the value of conn.working once the connection has ended or was evicted.
const left = math.MinInt64 / 2

type connKey struct{} // of the *conn in a request's context

// MaxConns is the default bound of a Conns.
const MaxConns = 20_000

// ClosingConns is the number of connections that may exist beyond the bound of a Conns: evicted
// ones whose goroutines have not noticed yet.
const ClosingConns = 32

// NewConns returns a Conns for at most this many connections.
func NewConns(most int) *Conns {
	l := &Conns{max: most, conns: map[net.Conn]*conn{}, from: map[string]int{}}
	l.gone = sync.NewCond(&l.mu)
	return l
}

// enter is an http.Server's ConnContext hook. The accept loop calls it, and waits here while too
// many connections are being closed.
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

// closeIdlest closes the connection that has been idle longest among those that of accepts.
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

// wrap returns a handler that calls h and marks the connection busy meanwhile.
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

// handled ends a request; n is 1 if all of it had arrived. The connection is idle from now on
// unless it handles other requests.
func (l *Conns) handled(c *conn, n int64) {
	c.used.Store(l.uses.Add(1))
	c.working.Add(-n)
}

// arriving is a request whose body is being read. Its connection becomes busy when all of the body
// has arrived.
type arriving struct {
	io.ReadCloser
	conn    *conn
	request http.Request
	arrived int64 // 1 once all of the body has arrived
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

// counts returns the number of open connections, and of those closed so far to make room.
func (l *Conns) counts() (open, closed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open, l.closed
}

package api

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// conn is a client's connection. net/http sets its read deadline six times a
// request and reads a byte ahead while a request is in hand, to hear the client
// hang up: a system call and a turn of the poller for nothing, most of the time.
// So a deadline is set when something is read, unless the one that is set
// does as well; and who need not hear of a hang-up says so.
type conn struct {
	net.Conn
	leave func() // when it is closed

	mu      sync.Mutex
	want    time.Time // read deadline that was asked for
	set     time.Time // read deadline that is set
	written time.Time // write deadline that is set
	reading bool      // Invariant: while it is, set is want, more or less
	deaf    bool      // to hang-ups: see Read
	waiting bool      // one does
	closed  bool
	wake    chan struct{} // has room for one
}

// Deadlines that are far away may come later, by an eighth.
const farAway = time.Minute

// does reports whether a deadline that is set does for one that is wanted.
func does(set, want time.Time) bool {
	if set.Equal(want) {
		return true
	}
	if set.IsZero() || want.IsZero() {
		return false
	}
	late := set.Sub(want)
	return late >= 0 && late <= farAway/8 && time.Until(want) > farAway
}

// later is a deadline that does for this one, and some after it.
func later(t time.Time) time.Time {
	if !t.IsZero() && time.Until(t) > farAway {
		return t.Add(farAway / 8)
	}
	return t
}

// past reports whether a deadline is one that net/http ends a read by.
func past(t time.Time) bool { return !t.IsZero() && t.Unix() <= 1 }

// SetReadDeadline implements net.Conn. A read that is under way is held to it.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = t
	if c.waiting && past(t) {
		c.rouse()
	}
	if !c.reading {
		return nil
	}
	return c.apply()
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if does(c.written, t) {
		return nil
	}
	c.written = later(t)
	return c.Conn.SetWriteDeadline(c.written)
}

// apply sets the read deadline that is wanted.
func (c *conn) apply() error {
	if does(c.set, c.want) {
		return nil
	}
	c.set = later(c.want)
	return c.Conn.SetReadDeadline(c.set)
}

func (c *conn) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Read implements net.Conn. One of a deaf connection that would hear of a hang-up
// waits for a deadline in the past, or Close. It is of one byte and has no
// deadline. One byte is also read where that is all the room that is left in
// net/http's buffer or limit, but with a deadline: of a header, a body, or idleness.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	if len(p) == 1 && c.deaf && c.want.IsZero() {
		for c.waiting = true; c.deaf && !past(c.want) && !c.closed; {
			c.mu.Unlock()
			<-c.wake
			c.mu.Lock()
		}
		c.waiting = false
		if c.deaf {
			c.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		}
	}
	if err := c.apply(); err != nil {
		c.mu.Unlock()
		return 0, err
	}
	c.reading = true
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.reading = false
	c.mu.Unlock()
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.rouse()
	c.mu.Unlock()
	if c.leave != nil {
		defer c.leave()
	}
	return c.Conn.Close()
}

// CloseWrite lets the client read the end of an answer before it hears that the
// rest of its request was not wanted: net/http asks for it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// hear says whether the request in hand is to be told that its client hangs up.
// For one without a body the byte is waited for already.
func (c *conn) hear(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = !yes
	if yes && c.waiting {
		c.rouse()
	}
}

type connKey struct{}

// withConn is an http.Server's ConnContext.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := nc.(*conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx // TLS
}

// connOf returns the connection that is a request's alone, nil where it is not
// known.
func connOf(r *http.Request) *conn {
	if r.ProtoMajor != 1 {
		return nil
	}
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

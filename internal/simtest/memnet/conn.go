package memnet

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// conn is one end of a connection.
type conn struct {
	net           *Network
	local, remote Addr
	in, out       *pipe
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	k, err := c.in.read(b)
	if err != nil && err != io.EOF {
		err = c.fail("read", err)
	}
	return k, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	k, err := c.out.write(b, c.in.over)
	if err != nil {
		err = c.fail("write", err)
	}
	return k, err
}

func (c *conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: "mem", Source: c.local, Addr: c.remote, Err: err}
}

// Close implements net.Conn. What was written before still arrives.
func (c *conn) Close() error { return c.end(io.EOF) }

// end closes this end; the other reads err in the end.
func (c *conn) end(err error) error {
	c.net.mu.Lock()
	_, open := c.net.conns[c]
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.out.finish(err)
	c.in.abandon()
	if !open {
		return net.ErrClosed
	}
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.update(func() { c.in.readBy = t })
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.update(func() { c.out.writeBy = t })
	return nil
}

// pipe is one direction of a connection.
type pipe struct {
	net *Network
	way way

	mu      sync.Mutex
	chunks  []chunk
	last    time.Time
	cut     bool
	shut    bool // the writer is closed
	gone    bool // the reader is closed
	readBy  time.Time
	writeBy time.Time
	changed chan struct{} // closed and replaced at each change
}

// chunk is bytes, or the end if err is set. It can be read from at on.
type chunk struct {
	b   []byte
	err error
	at  time.Time
}

func newPipe(n *Network, w way) *pipe {
	return &pipe{net: n, way: w, changed: make(chan struct{})}
}

// update changes the pipe, and wakes all who wait for something of it.
func (p *pipe) update(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.wakeLocked()
}

func (p *pipe) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		now := time.Now()
		switch {
		case p.gone:
			return 0, net.ErrClosed
		case past(p.readBy, now):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		}
		var next time.Time
		if !p.cut && len(p.chunks) > 0 {
			c := &p.chunks[0]
			if !c.at.After(now) {
				if c.err != nil {
					return 0, c.err // and again
				}
				k := copy(b, c.b)
				if c.b = c.b[k:]; len(c.b) == 0 {
					p.chunks[0] = chunk{}
					p.chunks = p.chunks[1:]
				}
				return k, nil
			}
			next = c.at
		}
		p.waitLocked(now, p.readBy, next)
	}
}

// write does not wait. over reports whether this end knows that the other is
// closed.
func (p *pipe) write(b []byte, over func() bool) (int, error) {
	delay := p.net.o.Latency(p.way.from, p.way.to)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case p.shut:
		return 0, net.ErrClosed
	case past(p.writeBy, now):
		return 0, os.ErrDeadlineExceeded
	case p.gone:
		// Closed over there. Until the news is here, bytes go nowhere.
		p.mu.Unlock()
		known := over()
		p.mu.Lock()
		if known {
			return 0, syscall.EPIPE
		}
	case len(b) > 0:
		p.putLocked(chunk{b: bytes.Clone(b)}, now.Add(delay))
	}
	return len(b), nil
}

func (p *pipe) putLocked(c chunk, at time.Time) {
	if at.Before(p.last) {
		at = p.last
	}
	p.last, c.at = at, at
	p.chunks = append(p.chunks, c)
	p.wakeLocked()
}

// finish is the writer's end.
func (p *pipe) finish(err error) {
	delay := p.net.o.Latency(p.way.from, p.way.to)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.shut {
		p.shut = true
		p.putLocked(chunk{err: err}, time.Now().Add(delay))
	}
}

// abandon is the reader's end.
func (p *pipe) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		p.gone = true
		p.chunks = nil
		p.wakeLocked()
	}
}

// over reports whether the writer's end has arrived, read or not.
func (p *pipe) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut || len(p.chunks) == 0 {
		return false
	}
	c := p.chunks[len(p.chunks)-1]
	return c.err != nil && !c.at.After(time.Now())
}

// waitLocked waits for a change, or for the earlier of two times, if not zero.
func (p *pipe) waitLocked(now, a, b time.Time) {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		a = b
	}
	if a.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(a.Sub(now))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func past(deadline, now time.Time) bool { return !deadline.IsZero() && !now.Before(deadline) }

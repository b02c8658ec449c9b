package sock

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// Wrap returns a connection over c, which is not to be used beside it. What is no
// TCP stays as it is.
func Wrap(c net.Conn) net.Conn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return c
	}
	w := &conn{TCPConn: t, raw: raw}
	w.in.do, w.out.do = w.in.read, w.out.write
	return w
}

type conn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out transfer
}

// most is how much is copied in one call, some tens of microseconds: meanwhile
// nothing else runs on this P, and no collection begins.
const most = 256 << 10

// transfer is a direction of a connection.
type transfer struct {
	mu sync.Mutex // one Read or Write at a time
	p  []byte     // to be read into, or left to be written
	n  int        // bytes that were
	e  syscall.Errno
	do func(fd uintptr) bool // read or write
}

// read reads once, and reports false where there is nothing yet.
func (t *transfer) read(fd uintptr) bool {
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.p))), uintptr(len(t.p)))
		switch e {
		case 0:
			t.n = int(n)
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.e = e
			return true
		}
	}
}

// write writes all, or reports false where there is no room for more yet.
func (t *transfer) write(fd uintptr) bool {
	for len(t.p) > 0 {
		n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.p))), uintptr(min(len(t.p), most)))
		switch e {
		case 0:
			t.n += int(n)
			t.p = t.p[n:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.e = e
			return true
		}
	}
	return true
}

// run moves p by raw's method, which waits in Go's poller and knows of deadlines
// and of Close.
func (t *transfer) run(p []byte, by func(func(uintptr) bool) error) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n, t.e = p, 0, 0
	err := by(t.do)
	t.p = nil
	if err == nil && t.e != 0 {
		err = t.e
	}
	return t.n, err
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.TCPConn.Read(p)
	}
	n, err := c.in.run(p[:min(len(p), most)], c.raw.Read)
	if err != nil {
		return 0, c.told("read", err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return c.TCPConn.Write(p)
	}
	n, err := c.out.run(p, c.raw.Write)
	if err != nil {
		return n, c.told("write", err)
	}
	return n, nil
}

// told is an error as package net tells it.
func (c *conn) told(op string, err error) error {
	switch e := err.(type) {
	case *net.OpError: // of raw
		err = e.Err
	case syscall.Errno:
		err = os.NewSyscallError(op, e)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// What of *net.TCPConn would go past Read and Write does not.

// ReadFrom implements io.ReaderFrom.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }

// WriteTo implements io.WriterTo.
func (c *conn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

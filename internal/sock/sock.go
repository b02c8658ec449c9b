// Package sock makes the connections that a process of few threads talks over
// cheaper: those of clients and of other nodes.
//
// A read or a write of a socket that does not block takes a few microseconds,
// but for Go it is a system call that may take long. So it is told to the
// scheduler, and that wakes the runtime's monitor, which sleeps whenever
// everything else does and, once awake, looks every 20 µs for some milliseconds
// whether the call has ended. On nodes that have little to do between two entries
// this is how it always is: the monitor alone took a seventh of the CPU of three
// servers with GOMAXPROCS=1. Calls that never block need not be told.
package sock

import "net"

// Listener accepts what Wrap returns.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}

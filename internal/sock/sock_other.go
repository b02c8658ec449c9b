//go:build !linux

package sock

import "net"

// Wrap returns c: elsewhere system calls go through the system's library.
func Wrap(c net.Conn) net.Conn { return c }

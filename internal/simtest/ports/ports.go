// Package ports gives tests addresses to listen on.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// The ports lie below those that the system gives outgoing connections.
const (
	from, to = 10_000, 32_000
	block    = 100
)

// own are the blocks of this process, which are its own for as long as it listens
// on the first port of each.
var own struct {
	sync.Mutex
	next, end int            // what is left of the newest block
	held      []net.Listener // never closed, and not to be collected as garbage
}

// Free returns an address that nobody listens on, and that stays free while the
// one who will is down: no other test is given it, in this process or in others.
func Free(t testing.TB) string {
	t.Helper()
	own.Lock()
	defer own.Unlock()
	for range 10_000 {
		if own.next == own.end {
			first := from + block*rand.IntN((to-from)/block)
			if l, err := net.Listen("tcp", addr(first)); err == nil {
				own.held = append(own.held, l)
				own.next, own.end = first+1, first+block
			}
			continue
		}
		a := addr(own.next)
		own.next++
		if l, err := net.Listen("tcp", a); err == nil {
			_ = l.Close()
			return a
		}
	}
	t.Fatal("no port is free")
	return ""
}

func addr(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// Package system is what the comparison measures: a queue server, or three of
// them, started from nothing with data and ports of their own, and stopped.
package system

import (
	"context"

	"github.com/qlogd/qlogd/bench/load"
)

// System is one queue server, or a cluster of them, in one setting. Its methods
// are for one goroutine; the targets that Fresh returns are used beside them.
type System interface {
	Name() string // "nats-r3-always": unique, fit for a file's name
	// Durable says in one sentence what is durable when it acknowledges.
	Durable() string
	// Missing says what the machine lacks to run it, and how to get it; "" nothing.
	Missing() string
	// Start starts it on fresh data below dir, which exists and is its own, on
	// free ports. When it returns nil all of it is ready: a cluster has its
	// leader and all of its members. It ends with Stop, after an error too.
	Start(ctx context.Context, dir string) error
	// PIDs are the processes of the server, children included, at this moment:
	// for CPU and memory from /proc.
	PIDs() []int
	// Fresh makes a new, empty queue on the running servers. What an earlier one
	// held may be deleted.
	Fresh(ctx context.Context) (load.Target, error)
	// Stop ends all processes and returns when they have ended. The data stays.
	Stop() error
}

package raft

import (
	"sync/atomic"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// One full disk of three stops nobody: a leader whose disk takes no produce
// hands over to a node that has room.
func leaderWithoutRoomHandsOver(t *testing.T) {
	var full atomic.Pointer[string]
	c := cluster(t, 3, func(o *Options) {
		name := o.NodeID
		o.FreeBytes = func() (uint64, error) {
			if f := full.Load(); f != nil && *f == name {
				return 0, nil
			}
			return 1 << 40, nil
		}
	})
	c.put("a")
	l := c.leader()
	full.Store(&l.name)
	c.put("through another one", l.name)
	assert.NotEqual(t, c.leader(), l, "the node without room leads again")
	c.level()
}

package raft

import (
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/log/vfs"
)

// One full disk of three stops nobody: a leader whose disk takes no produce
// hands over to a node that has room, and still forwards what its own clients write.
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
	until(t, "the node without room forwards", func() bool {
		_, err := l.Propose(t.Context(), put("through the full one"))
		return err == nil
	})
	c.level()
}

// noRoom is a disk on which no checkpoint has room.
type noRoom struct{ vfs.FS }

func (d noRoom) Create(name string) (vfs.File, error) {
	if strings.HasPrefix(name, "/checkpoints/") {
		return nil, &fs.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	return d.FS.Create(name)
}

func TestCheckpointOnAFullDisk(t *testing.T) {
	n := boot(t, on(noRoom{memdisk.New()}))
	n.put("a")
	_, err := n.SnapshotAll(t.Context())
	p := asProblem(t, err)
	assert.Equal(t, p.Code, event.CodeInsufficientStorage)
	assert.True(t, strings.HasPrefix(p.Detail, "the disk is full: node n1 "), "%s", p.Detail)
	n.put("it goes on")
}

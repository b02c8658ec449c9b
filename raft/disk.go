package raft

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/event"
)

// disk refuses writes before the disk is full: a Raft log that cannot be written ends the process.
type disk struct {
	o      *Options
	warned throttle

	mu   sync.Mutex
	left uint64 // as of at
	at   time.Time
}

// free returns the free space, as of 200 ms ago at most: it is needed for each write.
func (d *disk) free() uint64 {
	if d.o.FreeBytes == nil {
		return math.MaxUint64
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); now.Sub(d.at) >= 200*time.Millisecond {
		left, err := d.o.FreeBytes()
		if err != nil {
			left = math.MaxUint64 // not known: the writes themselves will show
		}
		d.left, d.at = left, now
	}
	return d.left
}

// reserveShare is by what the reserve is divided for a class: what makes room is refused last.
var reserveShare = [event.Classes]uint64{
	event.ClassProduce: 1, event.ClassLease: 2, event.ClassSettle: 4, event.ClassBackground: 4,
}

// refuses returns insufficient_storage for a class that must not write now.
func (d *disk) refuses(c event.Class, free uint64) *event.Problem {
	if free >= d.o.ReserveBytes/reserveShare[c] {
		return nil
	}
	if d.warned.due(time.Now()) {
		d.o.Logger.Warn("disk is nearly full: refusing produce, then leases, then all writes",
			"free_bytes", free, "reserve_bytes", d.o.ReserveBytes)
	}
	detail := fmt.Sprintf("the disk of node %s is nearly full; the write was not proposed",
		d.o.NodeID)
	return refused(CodeInsufficientStorage, detail, 5000)
}

// outOfSpace reports whether a checkpoint failed because the disk was full. hashicorp/raft keeps
// only the text of the cause.
func outOfSpace(err error) bool {
	text := err.Error()
	return strings.Contains(text, syscall.ENOSPC.Error()) ||
		strings.Contains(text, syscall.EDQUOT.Error())
}

// full reports whether this node's disk takes no produce.
func (r *Replica) full() bool {
	return r.b.disk.refuses(event.ClassProduce, r.b.disk.free()) != nil
}

// makeRoom transfers leadership to a voter whose disk has room, if this one's has none:
// only the leader's disk decides what is refused.
func (r *Replica) makeRoom() {
	if !r.full() {
		return
	}
	for _, v := range r.remotes() {
		if v.Votes && !v.Status.Full && v.level() {
			r.o.Logger.Warn("disk is nearly full: transferring leadership", "to", v.ID)
			ctx, cancel := context.WithTimeout(r.run.ctx, transferSticks)
			defer cancel()
			if err := r.TransferLeadership(ctx, v.ID); err != nil {
				r.o.Logger.Warn("leadership transfer failed", "error", err)
			}
			return
		}
	}
}

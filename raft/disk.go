package raft

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
)

// disk refuses writes before the disk is full: a Raft log that cannot be written
// ends the process, and reads and leases in hand shall go on.
type disk struct {
	free    func() (uint64, error)
	reserve uint64
	level   levels
	node    string
	logger  *slog.Logger
	told    throttle
}

// refuses returns insufficient_storage for a class that must not write now.
func (d *disk) refuses(c event.Class) *event.Problem {
	if d.free == nil {
		return nil
	}
	left := d.level.get(d.free, time.Now())
	limit := d.reserve
	switch c {
	case event.ClassLease:
		limit /= 2
	case event.ClassSettle, event.ClassBackground: // what makes room
		limit /= 4
	}
	if left >= limit {
		return nil
	}
	if d.told.due(time.Now()) {
		d.logger.Warn("the disk is nearly full: produce is refused, later leases, then everything", "free_bytes", left, "reserve_bytes", d.reserve)
	}
	return problem(CodeInsufficientStorage, fmt.Sprintf("the disk of node %s is nearly full; the write was not proposed", d.node), false, 5000)
}

func newDisk(o Options) *disk {
	return &disk{free: o.FreeBytes, reserve: o.ReserveBytes, node: o.NodeID, logger: o.Logger}
}

// levels remembers the free space for a moment: it is asked for at each write.
type levels struct {
	mu   sync.Mutex
	at   time.Time
	left uint64
}

const levelAge = 200 * time.Millisecond

func (l *levels) get(free func() (uint64, error), now time.Time) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() || now.Sub(l.at) >= levelAge {
		left, err := free()
		if err != nil {
			// A disk that does not tell is not refused: its writes will tell.
			left = math.MaxUint64
		}
		l.left, l.at = left, now
	}
	return l.left
}

// full tells whether this node's disk takes no produce.
func (r *Replica) full() bool { return r.b.disk.refuses(event.ClassProduce) != nil }

// makeRoom hands leadership to a voter whose disk has room, where this one's has
// none: only the leader's disk decides what is refused.
func (r *Replica) makeRoom() {
	if !r.full() {
		return
	}
	for _, v := range r.remotes() {
		if v.Votes && !v.Status.Full && v.level() {
			r.o.Logger.Warn("the disk is nearly full; handing leadership over to a node with room", "to", v.ID)
			ctx, cancel := context.WithTimeout(r.run.ctx, transferSticks)
			err := r.TransferLeadership(ctx, v.ID)
			cancel()
			if err != nil {
				r.o.Logger.Warn("leadership was not handed over", "error", err)
			}
			return
		}
	}
}

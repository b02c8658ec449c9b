package raft

import (
	"sync"
	"time"
)

// clock is the leader's: it stamps the log's time plus the progress of its own
// monotonic clock. The wall clock is looked at once, when the node becomes
// leader; whatever it does after that moves nothing.
type clock struct {
	offset int64 // ms, Options.ClockOffset

	mu    sync.Mutex
	base  int64     // log time, Unix ms, at start
	start time.Time // carries a monotonic reading
	last  int64     // the newest stamp
}

// rebase begins anew at the wall clock, but never behind the log.
//
// With several nodes the wall clock counts only as far as the median of the
// nodes' clocks agrees; one voter is its own median.
func (c *clock) rebase(log int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.start = time.Now()
	c.base = max(log, c.start.UnixMilli()+c.offset, 0)
}

// now returns the log's time at this instant. It never goes back (Invariant: not
// behind any stamp).
func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *clock) nowLocked() int64 {
	return max(c.last, c.base+time.Since(c.start).Milliseconds())
}

// stamp returns the time for an entry. log is the log's clock.
func (c *clock) stamp(log int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.nowLocked()
	if log > t {
		// An earlier leader was ahead: time goes on from there, it does not
		// stand still until this node's clock has caught up.
		c.base, c.start, t = log, time.Now(), log
	}
	c.last = t
	return t
}

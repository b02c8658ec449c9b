// Package clock keeps the log's time on a node (I10): it never goes back, and a single wrong wall
// clock does not affect it.
package clock

import (
	"slices"
	"sync"
	"time"
)

// Clock is the log's time on one node.
//
// The leader stamps entries with the log's time plus the progress of its own monotonic clock. Wall
// clocks count only when a node becomes leader: time then goes forward to the median of the
// voters' clocks, so one that is years off, the leader's or another's, moves nothing. On a node
// that does not lead it is the leader's clock as of its last status, plus what has passed since.
type Clock struct {
	wall   func() time.Time
	offset int64 // ms

	mu    sync.Mutex
	base  int64     // log time, Unix ms, at start; 0: nothing is known of it
	start time.Time // carries a monotonic reading
	last  int64     // the newest stamp
	heard time.Time // of the leader's status that base comes from

	elected time.Time // since when this node leads
	asks    bool      // it has yet to look at other voters' clocks
}

const (
	// blank is how long an empty log waits for its first stamp at most.
	blank = 2 * time.Second
	// asking is for how long after an election clocks that become known still count.
	asking = 10 * time.Second
)

// New returns the time of a log of which nothing is known yet. offset, in ms, goes onto this node's
// wall clock.
func New(wall func() time.Time, offset int64) *Clock { return &Clock{wall: wall, offset: offset} }

// wallNow returns this node's own wall clock.
func (c *Clock) wallNow() int64 { return c.wall().UnixMilli() + c.offset }

func (c *Clock) setLocked(t int64) { c.base, c.start = t, time.Now() }

// advanceLocked moves time forward to what the log says.
func (c *Clock) advanceLocked(log int64) {
	if log > 0 && (c.base == 0 || log > c.nowLocked()) {
		c.setLocked(log)
	}
}

// Lead begins a leadership at the log's time as this node knows it. A sole voter, which may also
// call this before it leads, counts its own wall clock; with others, Agree follows.
func (c *Clock) Lead(log int64, alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(log)
	c.elected, c.asks = time.Now(), !alone
	if alone {
		c.setLocked(max(log, c.last, c.wallNow(), 1))
	}
}

// Agree moves time forward to the lower median of the voters' wall clocks, as far as they are known
// (others). With a quorum of three known, the lower of two clocks counts: a single one that is
// ahead moves nothing, one that is behind only puts off the jump until the third is known.
func (c *Clock) Agree(others []int64, voters int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asks {
		return
	}
	since := time.Since(c.elected)
	known := append([]int64{c.wallNow()}, others...)
	slices.Sort(known)
	median := known[(len(known)-1)/2]
	switch quorum := len(known) >= voters/2+1; {
	case c.base != 0:
		if quorum && median > c.nowLocked() {
			c.setLocked(median)
		}
	// Nothing was ever stamped: time begins here, also before this node's own clock. Of two
	// clocks nobody knows which is right; the third may come yet.
	case len(known) == voters || since >= blank:
		c.setLocked(max(median, 1))
	}
	c.asks = len(known) < voters && since < asking
}

// Asks reports whether this node, elected at that instant, still waits for the clocks of other
// voters.
func (c *Clock) Asks() (elected time.Time, asks bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elected, c.asks
}

// Unset reports whether a stamp has to wait: nothing is known of the log's time.
func (c *Clock) Unset() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base == 0
}

// Follow records, on a node that does not lead, the log's clock and what the leader's
// clock said at an instant; 0: not known.
func (c *Clock) Follow(log, leader int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks = false
	if leader > 0 && at.After(c.heard) {
		c.base, c.start, c.heard = leader, at, at
	}
	c.advanceLocked(log)
}

// Now returns the log's time at this instant. It is never behind any stamp.
func (c *Clock) Now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *Clock) nowLocked() int64 {
	if c.base == 0 {
		return max(c.last, c.wallNow(), 0)
	}
	return max(c.last, c.base+time.Since(c.start).Milliseconds())
}

// Stamp returns the time for an entry. log is the log's clock.
func (c *Clock) Stamp(log int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	// An earlier leader may have been ahead: time continues from there.
	c.advanceLocked(log)
	c.last = c.nowLocked()
	return c.last
}

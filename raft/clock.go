package raft

import (
	"slices"
	"sync"
	"time"
)

// clock is the log's time on this node (I10).
//
// The leader stamps entries with the log's time plus the progress of its own monotonic clock. Wall
// clocks count only when a node becomes leader: time then goes forward to the median of the
// voters' clocks, so one that is years off, the leader's or another's, moves nothing. On a node
// that does not lead it is the leader's clock as of its last status, plus what has passed since.
type clock struct {
	wall   func() time.Time
	offset int64 // ms, datadir.Node.ClockOffsetMS

	mu    sync.Mutex
	base  int64     // log time, Unix ms, at start; 0: nothing is known of it
	start time.Time // carries a monotonic reading
	last  int64     // the newest stamp
	heard time.Time // of the leader's status that base comes from

	elected time.Time // since when this node leads
	asking  bool      // it has yet to look at other voters' clocks
}

const (
	// clockBlank is how long an empty log waits for its first stamp at most.
	clockBlank = 2 * time.Second
	// clockAsking is for how long after an election clocks that become known still count.
	clockAsking = 10 * time.Second
	clockLook   = 50 * time.Millisecond
)

// wallNow returns this node's own wall clock.
func (c *clock) wallNow() int64 { return c.wall().UnixMilli() + c.offset }

func (c *clock) setLocked(t int64) { c.base, c.start = t, time.Now() }

// advanceLocked moves time forward to what the log says.
func (c *clock) advanceLocked(log int64) {
	if log > 0 && (c.base == 0 || log > c.nowLocked()) {
		c.setLocked(log)
	}
}

// lead begins a leadership at the log's time as this node knows it. A sole voter, which may also
// call this before it leads, counts its own wall clock; with others, agree follows.
func (c *clock) lead(log int64, alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(log)
	c.elected, c.asking = time.Now(), !alone
	if alone {
		c.setLocked(max(log, c.last, c.wallNow(), 1))
	}
}

// agree moves time forward to the lower median of the voters' wall clocks, as far as they are known
// (others). With a quorum of three known, the lower of two clocks counts: a single one that is
// ahead moves nothing, one that is behind only puts off the jump until the third is known.
func (c *clock) agree(others []int64, voters int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asking {
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
	case len(known) == voters || since >= clockBlank:
		c.setLocked(max(median, 1))
	}
	c.asking = len(known) < voters && since < clockAsking
}

// unset reports whether a stamp has to wait: nothing is known of the log's time.
func (c *clock) unset() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base == 0
}

// follow records, on a node that does not lead, the log's clock and what the leader's
// clock said at an instant; 0: not known.
func (c *clock) follow(log, leader int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = false
	if leader > 0 && at.After(c.heard) {
		c.base, c.start, c.heard = leader, at, at
	}
	c.advanceLocked(log)
}

// now returns the log's time at this instant. It is never behind any stamp.
func (c *clock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *clock) nowLocked() int64 {
	if c.base == 0 {
		return max(c.last, c.wallNow(), 0)
	}
	return max(c.last, c.base+time.Since(c.start).Milliseconds())
}

// stamp returns the time for an entry. log is the log's clock.
func (c *clock) stamp(log int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	// An earlier leader may have been ahead: time continues from there.
	c.advanceLocked(log)
	c.last = c.nowLocked()
	return c.last
}

// Clock returns the log's time at this instant, Unix ms: what the leader would stamp.
func (r *Replica) Clock() int64 {
	if !r.Leader() {
		r.followClock()
	}
	return r.clock.now()
}

// followClock adopts the leader's time as of its last status.
func (r *Replica) followClock() {
	var from MemberStatus
	for _, v := range r.remotes() {
		if v.Status.Leads && v.Status.Term > from.Status.Term {
			from = v
		}
	}
	r.clock.follow(r.fsm.progress().clock, from.Status.Clock, from.Seen)
}

// agreeOnTime looks at the voters' clocks, on a new leader, as their answers arrive.
func (r *Replica) agreeOnTime() {
	r.clock.mu.Lock()
	elected, asking := r.clock.elected, r.clock.asking
	r.clock.mu.Unlock()
	if asking {
		r.clock.agree(wallsSince(r.remotes(), elected), len(r.voters()))
		r.b.signal() // time may have gone forward: something is due
	}
}

// wallsSince returns the wall clocks of the voters that have answered since an instant. Older
// answers may have been corrected since: that of a leader that has just died, together with another
// that is off, could outvote a right one.
func wallsSince(views []MemberStatus, since time.Time) (walls []int64) {
	for i := range views {
		if v := &views[i]; v.Votes && v.Reachable && v.Seen.After(since) {
			// What has passed since is by the monotonic clock: the wall clock may have jumped.
			walls = append(walls, v.Status.Wall+time.Since(v.Seen).Milliseconds())
		}
	}
	return walls
}

package raft

import (
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// clock is the log's time on this node.
//
// The leader stamps entries with the log's time plus the progress of its own
// monotonic clock. Wall clocks are looked at when a node becomes leader, and
// only as far as most of them agree: time then goes forward to the median of
// the voters' clocks, so one that is years off, the leader's or another's, moves
// nothing. A single voter is its own median. Whatever a wall clock does later
// moves nothing either.
//
// On a node that does not lead it tells what the leader would stamp: the
// leader's clock as that told it last, plus what has passed since.
type clock struct {
	wall   func() time.Time
	offset int64 // ms, Options.ClockOffset

	mu    sync.Mutex
	base  int64     // log time, Unix ms, at start
	start time.Time // carries a monotonic reading
	last  int64     // the newest stamp
	heard time.Time // when the leader told what base comes from

	// Of a leader: since when it is one, and whether it has yet to look at the
	// others' wall clocks.
	elected time.Time
	asking  bool
	// guess: base is this node's wall clock, for want of a log. As soon as there
	// is one, that tells the time.
	guess bool
	// blank: nothing was ever stamped in this log. There is no time to go on
	// from, so the first stamp waits a moment for the others' clocks.
	blank bool
}

const (
	// clockBlank is how long an empty log waits for its first stamp at most.
	clockBlank = 2 * time.Second
	// clockAsking is for how long after an election clocks that become known
	// still count.
	clockAsking = 10 * time.Second
	clockLook   = 50 * time.Millisecond
)

// wallNow is this node's own wall clock, as the others are told of it.
func (c *clock) wallNow() int64 { return c.wall().UnixMilli() + c.offset }

// open begins at the log's time. Where that is nothing, or this node is the only
// voter, the wall clock is as good as any.
func (c *clock) open(log int64, alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.start = log, time.Now()
	if alone || log == 0 {
		c.base = max(log, c.wallNow(), 0)
	}
	c.guess = log == 0 && !alone
}

// knownLocked puts the log's time in the place of a guess.
func (c *clock) knownLocked(log int64) {
	if c.guess && log > 0 {
		c.base, c.start, c.guess = log, time.Now(), false
	}
}

// lead begins a leadership: the log's time goes on as this node knew it. With
// others, agree follows.
func (c *clock) lead(log int64, alone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.knownLocked(log)
	now := c.nowLocked()
	c.start = time.Now()
	c.elected, c.asking = c.start, !alone
	c.blank = log == 0 && c.last == 0 && !alone
	c.base = max(log, now, 0)
	if alone {
		c.base = max(log, c.last, c.wallNow(), 0)
	}
}

// agree moves time forward to the lower median of the voters' wall clocks, as
// far as they are known (others), and tells whether it has to be called again.
// With a quorum of three known, the lower of two clocks counts: a single one
// that is ahead moves nothing, one that is behind only puts off the jump until
// the third is known.
func (c *clock) agree(others []int64, voters int) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asking {
		return false
	}
	since := time.Since(c.elected)
	known := append([]int64{c.wallNow()}, others...)
	slices.Sort(known)
	median := known[(len(known)-1)/2]
	switch quorum := len(known) >= voters/2+1; {
	case c.blank && len(known) < voters && since < clockBlank:
		// Of two clocks nobody knows which is right; the third may come yet.
	case c.blank:
		// Nothing was stamped: this is where time begins, also if that is before
		// this node's own clock.
		c.base, c.start, c.blank, c.guess = max(median, 0), time.Now(), false, false
	case quorum && median > c.nowLocked():
		c.base, c.start = median, time.Now()
	}
	c.asking = len(known) < voters && since < clockAsking
	return c.asking
}

// unset returns how long a stamp has to wait; 0: not at all.
func (c *clock) unset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.blank {
		return 0
	}
	return clockLook
}

// hear is told what the leader's clock said at an instant.
func (c *clock) hear(leader int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leader > 0 && at.After(c.heard) {
		c.base, c.start, c.heard, c.guess = leader, at, at, false
	}
}

// follow is told the log's clock on a node that does not lead.
func (c *clock) follow(log int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking, c.blank = false, false
	c.knownLocked(log)
	if log > c.nowLocked() {
		c.base, c.start = log, time.Now()
	}
}

// now returns the log's time at this instant. It is never behind any stamp.
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

// Clock returns the log's time at this instant, Unix ms: what the next entry
// would be stamped with, by whichever node leads.
func (r *Replica) Clock() int64 {
	if !r.Leader() {
		r.listen()
	}
	return r.clock.now()
}

// listen takes over the leader's time from what it told last.
func (r *Replica) listen() {
	var from *peerView
	views := r.remotes()
	for i := range views {
		v := &views[i]
		if v.Status.Leads && !v.Seen.IsZero() && (from == nil || v.Status.Term > from.Status.Term) {
			from = v
		}
	}
	if from != nil {
		r.clock.hear(from.Status.Clock, from.Seen)
	}
	r.clock.follow(r.fsm.progress().clock)
}

// leadTime is for the beginning of a leadership, before anything is stamped.
func (r *Replica) leadTime() {
	r.listen()
	r.clock.lead(r.fsm.progress().clock, r.alone())
	r.askPeers()
	if r.askClocks() {
		r.run.wg.Go(r.keepAsking)
	}
}

// keepAsking looks at the others' clocks until enough of them are known.
func (r *Replica) keepAsking() {
	t := time.NewTicker(clockLook)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-r.run.stop:
			return
		}
		again := r.askClocks()
		r.b.signal() // time may have gone forward: something is due
		if !again || !r.Leader() {
			return
		}
	}
}

// askClocks tells the clock what the voters' wall clocks say now.
func (r *Replica) askClocks() (again bool) {
	voters := 0
	for _, s := range r.servers() {
		if s.Suffrage == hraft.Voter {
			voters++
		}
	}
	return r.clock.agree(wallsSince(r.remotes(), r.clock.leadsSince()), voters)
}

// leadsSince returns when this node became leader.
func (c *clock) leadsSince() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elected
}

// wallsSince returns the voters' wall clocks, of those that have told theirs
// since an instant. What was told before may have been put right meanwhile, and
// of a leader that has just died nothing else is known: counted, it could outvote
// a right one together with another that is off.
func wallsSince(views []peerView, since time.Time) (walls []int64) {
	for i := range views {
		if v := &views[i]; v.Votes && v.Reachable && v.Seen.After(since) {
			// What it said, and what has passed since by this node's monotonic
			// clock: its wall clock then and now need not be of one piece.
			walls = append(walls, v.Status.Wall+time.Since(v.Seen).Milliseconds())
		}
	}
	return walls
}

// ticker decides when an empty entry is proposed, so that due work happens although
// no client asks for anything.
type ticker struct {
	due  int64
	same int   // entries in a row with this due time
	last int64 // log time of the last tick, ms
}

// Much can be due at one millisecond and is done in bounded parts, one entry each.
// But a due time that stays the same for sameDue entries is a defect of the Machine,
// and must not fill the log as fast as the disk allows.
const (
	sameDue  = 20_000
	slowTick = 100 // ms
)

const never = time.Hour

// wait returns 0 if an empty entry must be proposed now, else for how long not.
func (t *ticker) wait(p progress, now int64) time.Duration {
	if !p.hasDue || p.due-now >= never.Milliseconds() {
		return never
	}
	if p.due > now {
		return time.Duration(p.due-now) * time.Millisecond
	}
	if p.due != t.due {
		t.due, t.same = p.due, 0
	}
	if t.same >= sameDue && now-t.last < slowTick {
		return time.Duration(slowTick-(now-t.last)) * time.Millisecond
	}
	t.same++
	t.last = now
	return 0
}

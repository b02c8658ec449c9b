package raft

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
)

// fired waits until so many due things have happened, and returns the time of
// the newest block.
func (n *node) fired(want int) int64 {
	n.t.Helper()
	n.untilApplied(func() bool {
		n.m.mu.Lock()
		defer n.m.mu.Unlock()
		return n.m.fired >= want
	})
	ts := n.m.times()
	return ts[len(ts)-1]
}

// In a bubble, time passes only when everything waits: an hour is an instant.
func TestDueHappensByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := boot(t, on(memdisk.New()))
		n.put("due+60000")
		at := n.m.times()
		start := at[len(at)-1]
		if got := n.fired(1); got < start+60_000 || got > start+60_010 {
			t.Errorf("due after 60 s, happened after %d ms", got-start)
		}
		// An entry that makes something due earlier wakes who waits.
		n.put("due+600000")
		n.put("due+1000")
		at = n.m.times()
		start = at[len(at)-1]
		if got := n.fired(2); got < start+1000 || got > start+1010 {
			t.Errorf("due after 1 s, happened after %d ms", got-start)
		}
		if got := n.fired(3); got < start+590_000 {
			t.Errorf("the later one happened after %d ms", got-start)
		}
		blocks := len(n.m.times())
		time.Sleep(10 * time.Minute) // nothing is due: nothing is proposed
		assert.Equal(t, len(n.m.times()), blocks, "entries when nothing is due")
		// What comes due at once is done in parts, one entry each.
		n.m.mu.Lock()
		n.m.bound = 2
		n.m.mu.Unlock()
		for range 9 {
			n.put("due+1000")
		}
		start, blocks = n.m.Clock(), len(n.m.times())
		if got := n.fired(3 + 9); got > start+1010 {
			t.Errorf("the backlog took until %d ms after it came due", got-start-1000)
		}
		assert.Equal(t, len(n.m.times())-blocks, 5, "entries for 9 things, 2 in each")
	})
}

func TestTimeGoesOnAcrossRestarts(t *testing.T) {
	o := on(memdisk.New())
	o.ClockOffsetMS = 3_600_000
	n := boot(t, o)
	n.put("a")
	n.down()
	n.o.ClockOffsetMS = 0 // as if the wall clock had been set back by an hour
	n = n.again()
	n.put("b")
	ts := n.m.times()
	for i := 1; i < len(ts); i++ {
		assert.True(t, ts[i] >= ts[i-1], "time went back from %d to %d", ts[i-1], ts[i])
	}
	if now := n.Clock(); now < ts[len(ts)-1] {
		t.Errorf("the clock says %d, the log %d", now, ts[len(ts)-1])
	}
}

// TestClocksSinceTheElection: what a node told of its clock before the election
// does not count. A leader whose clock was put right may have died before it told
// so; together with another one that is off it would be most of them.
func TestClocksSinceTheElection(t *testing.T) {
	elected := time.Now()
	tell := func(seen time.Time, wall int64) MemberStatus {
		return MemberStatus{Votes: true, Reachable: true, Seen: seen,
			Status: peerStatus{Wall: wall}}
	}
	fresh := elected.Add(time.Nanosecond)
	stranger, away := tell(fresh, 4), tell(fresh, 5)
	stranger.Votes, away.Reachable = false, false
	got := wallsSince([]MemberStatus{tell(elected.Add(-time.Millisecond), 1), tell(time.Time{},
		2), tell(fresh, 1<<40), stranger, away}, elected)
	assert.True(t, len(got) == 1 && got[0] >= 1<<40, "counted %v", got)
}

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
		if got := len(n.m.times()); got != blocks {
			t.Errorf("%d entries for nothing", got-blocks)
		}
	})
}

func TestDueBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := boot(t, on(memdisk.New()))
		n.m.mu.Lock()
		n.m.bound = 2
		n.m.mu.Unlock()
		for range 9 {
			n.put("due+1000")
		}
		start := n.m.Clock()
		if got := n.fired(9); got > start+1010 {
			t.Errorf("the backlog took until %d ms after it came due", got-start-1000)
		}
		n.m.mu.Lock()
		defer n.m.mu.Unlock()
		empty := 0
		for _, b := range n.m.blocks[1:] {
			if len(b.Names) == 0 {
				empty++
			}
		}
		assert.Equal(t, empty, 5, "entries for 9 things, 2 in each")
	})
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := time.Now().UnixMilli()
		c := &clock{wall: time.Now}
		c.lead(0, true)
		assert.Equal(t, c.now(), wall, "the wall clock says")
		// Behind a log that is ahead, time goes on from the log's.
		c.lead(wall+5000, true)
		time.Sleep(time.Second)
		if got := c.stamp(wall + 5000); got != wall+6000 {
			t.Errorf("%d after the log's clock", got-wall-5000)
		}
		// An entry of an earlier leader that comes to light later.
		if got := c.stamp(wall + 9000); got != wall+9000 {
			t.Errorf("stamped %d", got-wall)
		}
		time.Sleep(time.Second)
		if got := c.now(); got != wall+10_000 {
			t.Errorf("time stood still: %d", got-wall)
		}
		// A new leadership on a wall clock that is behind does not go back.
		c.lead(0, true)
		if got := c.stamp(0); got < wall+9000 {
			t.Errorf("went back to %d", got-wall)
		}
		off := &clock{wall: time.Now, offset: -3_600_000}
		off.lead(0, true)
		assert.Equal(t, off.now(), time.Now().UnixMilli()-3_600_000, "offset")
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

package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// A clock that is years off, on whichever node and whenever it jumps, moves the
// log's time by nothing; and time never stands still.
func TestClockAmongOthers(t *testing.T) {
	const (
		year = int64(365 * 24 * 3600 * 1000)
		hour = int64(3600 * 1000)
	)
	type node = int64 // how far its wall clock is off
	none := []node{}
	for name, c := range map[string]struct {
		slept  int64 // how long nothing was stamped before the election
		own    node
		others []node // known at once
		late   []node // known a second later
		jump   node   // by how much this node's clock jumps after the election
		voters int
		want   int64 // at the election, after the newest stamp
		later  int64 // more by which time went forward when the late ones were known
	}{
		"all right":      {slept: hour, others: []node{0, 0}, voters: 3, want: hour},
		"own ahead":      {slept: hour, own: 5 * year, others: []node{0, 0}, voters: 3, want: hour},
		"own behind":     {slept: hour, own: -5 * year, others: []node{0, 0}, voters: 3, want: hour},
		"another ahead":  {slept: hour, others: []node{5 * year, 0}, voters: 3, want: hour},
		"another behind": {slept: hour, others: []node{-5 * year, 0}, voters: 3, want: hour},
		"two known, own ahead": {slept: hour, own: 5 * year, others: []node{0},
			voters: 3, want: hour},
		"two known, another ahead": {slept: hour, others: []node{5 * year}, voters: 3, want: hour},
		"two known, own behind": {slept: hour, own: -5 * year, others: []node{0},
			voters: 3, want: 0},
		"two known, own behind, then three": {slept: hour, own: -5 * year, others: []node{0},
			late: []node{0}, voters: 3, want: 0, later: hour},
		"two known, then one ahead": {slept: hour, others: []node{0},
			late: []node{5 * year}, voters: 3, want: hour},
		"nobody known": {slept: hour, own: 5 * year, others: none, voters: 3, want: 0},
		"nobody known, then two": {slept: hour, own: 5 * year, others: none,
			late: []node{0, 0}, voters: 3, want: 0, later: hour},
		"jumps after the election": {slept: hour, others: []node{0, 0},
			jump: 5 * year, voters: 3, want: hour},
		"jumps back after the election": {slept: hour, others: []node{0, 0},
			jump: -5 * year, voters: 3, want: hour},
		"jumps while the others are asked": {slept: hour, others: none, late: []node{0, 0},
			jump: 5 * year, voters: 3, want: 0, later: hour},
		"jumps with one other known, then two": {slept: hour, others: []node{0}, late: []node{0},
			jump: 5 * year, voters: 3, want: hour},
		"two voters, own ahead": {slept: hour, own: 5 * year, others: []node{0},
			voters: 2, want: hour},
		"two voters, own behind": {slept: hour, own: -5 * year, others: []node{0},
			voters: 2, want: 0},
		"five voters, three known": {slept: hour, own: 5 * year, others: []node{0, 0},
			voters: 5, want: hour},
		"five voters, two known": {slept: hour, others: []node{0}, voters: 5, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				off := c.own
				c1 := New(func() time.Time {
					return time.Now().Add(time.Duration(off) * time.Millisecond)
				}, 0)
				walls := func(of []node) (out []int64) {
					for _, o := range of {
						out = append(out, time.Now().UnixMilli()+o)
					}
					return out
				}
				stamped := time.Now().UnixMilli() - c.slept // the log's clock
				c1.Follow(stamped, 0, time.Time{})
				c1.Lead(stamped, false)
				c1.Agree(walls(c.others), c.voters)
				require.Equal(t, c1.Stamp(stamped)-stamped, c.want, "at the election")
				off += c.jump
				time.Sleep(time.Second)
				known := append(c.others[:len(c.others):len(c.others)], c.late...)
				c1.Agree(walls(known), c.voters)
				assert.Equal(t, c1.Stamp(stamped)-stamped, c.want+1000+c.later, "a second later")
				time.Sleep(asking)
				c1.Agree(walls(known), c.voters)
				before := c1.Stamp(stamped)
				time.Sleep(time.Hour)
				c1.Agree(walls([]node{9 * year, 9 * year}), c.voters)
				assert.Equal(t, c1.Stamp(stamped)-before, hour, "an hour later")
			})
		})
	}
}

// An empty log has no time to go on from: its first stamp waits for the others'
// clocks, a moment at most.
func TestClockOfAnEmptyLog(t *testing.T) {
	const year = int64(365 * 24 * 3600 * 1000)
	for name, c := range map[string]struct {
		own    int64
		others []int64
		want   int64
		waits  bool
	}{
		"own ahead":    {own: year, others: []int64{0, 0}},
		"own behind":   {own: -year, others: []int64{0, 0}},
		"two known":    {own: year, others: []int64{0}, waits: true},
		"nobody known": {own: year, want: year, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := New(func() time.Time {
					return time.Now().Add(time.Duration(c.own) * time.Millisecond)
				}, 0)
				k.Lead(0, false)
				assert.NotEqual(t, k.Unset(), false, "stamps before anything is known")
				var walls []int64
				for _, o := range c.others {
					walls = append(walls, time.Now().UnixMilli()+o)
				}
				k.Agree(walls, 3)
				assert.Equal(t, k.Unset(), c.waits, "waits")
				if c.waits {
					time.Sleep(blank)
					for i := range walls {
						walls[i] += blank.Milliseconds()
					}
					k.Agree(walls, 3)
				}
				assert.Equal(t, k.Unset(), false, "waits for ever")
				assert.Equal(t, k.Stamp(0)-time.Now().UnixMilli(), c.want, "begins off")
			})
		})
	}
}

// A new node's own clock is shown while nothing is known of the log's time; no stamp is
// based on it.
func TestClockOfANewNode(t *testing.T) {
	const years = 5 * 365 * 24 * time.Hour
	for name, learn := range map[string]func(c *Clock, log int64){
		"applied": func(c *Clock, log int64) { c.Follow(log, 0, time.Time{}) },
		"elected": func(*Clock, int64) {},
		"told":    func(c *Clock, log int64) { c.Follow(0, log, time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			c := New(func() time.Time { return time.Now().Add(years) }, 0)
			log := time.Now().UnixMilli() // what another leader has stamped
			learn(c, log)
			c.Lead(log, false)
			c.Agree([]int64{log, log}, 3)
			ahead := c.Stamp(log) - log
			assert.True(t, ahead < years.Milliseconds()/2, "stamps %d ms ahead of the log", ahead)
		})
	}
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := time.Now().UnixMilli()
		c := New(time.Now, 0)
		c.Lead(0, true)
		assert.Equal(t, c.Now(), wall, "the wall clock says")
		// Behind a log that is ahead, time goes on from the log's.
		c.Lead(wall+5000, true)
		time.Sleep(time.Second)
		assert.Equal(t, c.Stamp(wall+5000), wall+6000)
		// An entry of an earlier leader that comes to light later.
		assert.Equal(t, c.Stamp(wall+9000), wall+9000)
		time.Sleep(time.Second)
		assert.Equal(t, c.Now(), wall+10_000)
		// A new leadership on a wall clock that is behind does not go back.
		c.Lead(0, true)
		assert.True(t, c.Stamp(0) >= wall+9000, "time went back")
		off := New(time.Now, -3_600_000)
		off.Lead(0, true)
		assert.Equal(t, off.Now(), time.Now().UnixMilli()-3_600_000, "offset")
	})
}

package raft

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
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
				c1 := &clock{wall: func() time.Time {
					return time.Now().Add(time.Duration(off) * time.Millisecond)
				}}
				walls := func(of []node) (out []int64) {
					for _, o := range of {
						out = append(out, time.Now().UnixMilli()+o)
					}
					return out
				}
				stamped := time.Now().UnixMilli() - c.slept // the log's clock
				c1.follow(stamped, 0, time.Time{})
				c1.lead(stamped, false)
				c1.agree(walls(c.others), c.voters)
				if got := c1.stamp(stamped) - stamped; got != c.want {
					t.Fatalf("at the election time went forward by %d ms, not %d", got, c.want)
				}
				off += c.jump
				time.Sleep(time.Second)
				known := append(c.others[:len(c.others):len(c.others)], c.late...)
				c1.agree(walls(known), c.voters)
				if got := c1.stamp(stamped) - stamped; got != c.want+1000+c.later {
					t.Errorf("a second later it is at %d ms, not %d", got, c.want+1000+c.later)
				}
				time.Sleep(clockAsking)
				c1.agree(walls(known), c.voters)
				before := c1.stamp(stamped)
				time.Sleep(time.Hour)
				c1.agree(walls([]node{9 * year, 9 * year}), c.voters)
				if got := c1.stamp(stamped) - before; got != hour {
					t.Errorf("in an hour time went forward by %d ms", got)
				}
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
				k := &clock{wall: func() time.Time {
					return time.Now().Add(time.Duration(c.own) * time.Millisecond)
				}}
				k.lead(0, false)
				assert.NotEqual(t, k.unset(), false, "stamps before anything is known")
				var walls []int64
				for _, o := range c.others {
					walls = append(walls, time.Now().UnixMilli()+o)
				}
				k.agree(walls, 3)
				if waits := k.unset(); waits != c.waits {
					t.Errorf("waits: %v", waits)
				}
				if c.waits {
					time.Sleep(clockBlank)
					for i := range walls {
						walls[i] += clockBlank.Milliseconds()
					}
					k.agree(walls, 3)
				}
				assert.Equal(t, k.unset(), false, "waits for ever")
				if got := k.stamp(0) - time.Now().UnixMilli(); got != c.want {
					t.Errorf("begins %d ms off, not %d", got, c.want)
				}
			})
		})
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

// A new node's own clock is shown while nothing is known of the log's time; no stamp is
// based on it.
func TestClockOfANewNode(t *testing.T) {
	const years = 5 * 365 * 24 * time.Hour
	for name, learn := range map[string]func(c *clock, log int64){
		"applied": func(c *clock, log int64) { c.follow(log, 0, time.Time{}) },
		"elected": func(*clock, int64) {},
		"told":    func(c *clock, log int64) { c.follow(0, log, time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{wall: func() time.Time { return time.Now().Add(years) }}
			log := time.Now().UnixMilli() // what another leader has stamped
			learn(c, log)
			c.lead(log, false)
			c.agree([]int64{log, log}, 3)
			if ahead := c.stamp(log) - log; ahead > years.Milliseconds()/2 {
				t.Errorf("stamps %d ms ahead of the log", ahead)
			}
		})
	}
}

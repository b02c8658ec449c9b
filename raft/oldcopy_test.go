package raft

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// goesBack puts a node's disk back to what it was before so many writes, of
// which all nodes have the last, while the others stay as they are.
func (c *nodes) goesBack(back *member, writes int, before func()) {
	c.t.Helper()
	old := back.disk.Clone()
	for i := range writes {
		c.put(fmt.Sprint("after", i))
	}
	c.level()
	before()
	c.isolate(back.name, true) // as if killed: nothing is handed over
	back.stop()
	c.isolate(back.name, false)
	back.disk = old
}

// A leader has promised what it sent, and its own vote: the others remember.
func TestLeadersOldCopyIsFoundOut(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	back := c.leader()
	c.goesBack(back, 20, func() {})
	c.start(back)
	if why := <-back.outs; !errors.Is(why, ErrRolledBack) {
		t.Fatal(why)
	}
	c.put("the others go on")
}

// A follower that knows another one only from what that tells each second
// objects too, where the leader that has its acknowledgements is gone.
func TestFollowersRememberEachOther(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	l := c.leader()
	var back, other *member
	for _, m := range c.members() {
		if m != l {
			back, other = other, m
		}
	}
	c.goesBack(back, 20, func() {
		until(t, "the other one has heard", func() bool {
			return other.rollback.evidence.get(back.id).Commit >= other.fsm.progress().index
		})
		c.isolate(l.name, true)
	})
	c.start(back)
	if why := <-back.outs; !errors.Is(why, ErrRolledBack) {
		t.Fatal(why)
	}
}

// A directory of the time when its node was alone, back in a cluster that has
// grown: it asks those that it is told of before it acknowledges anything.
func TestLoneCopyAsksWhomItIsToldOf(t *testing.T) {
	c := cluster(t, 1, nil)
	c.put("before")
	one := c.members()[0]
	old := one.disk.Clone()
	for _, name := range []string{"n2", "n3"} {
		m := c.fresh(name)
		m.contacts = []string{one.addr}
		c.start(m)
	}
	until(t, "three vote", func() bool { return c.leader().votersKnown() == 3 })
	c.put("together")
	c.level()
	c.isolate(one.name, true)
	one.stop()
	c.isolate(one.name, false)
	c.put("without", one.name)
	one.disk, one.contacts = old, []string{c.get("n2").addr, c.get("n3").addr}
	if err := c.tryStart(one); !errors.Is(err, ErrRolledBack) {
		t.Fatalf("it starts: %v", err)
	}
}

// A copy of a running node's directory, started elsewhere, does not take its
// place.
func TestTwinEnds(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("a")
	c.level()
	var one *member
	for _, m := range c.members() {
		if m != c.leader() {
			one = m
		}
	}
	two := c.fresh("twin")
	two.name, two.inc, two.disk = one.name, one.inc, one.disk.Clone()
	c.start(two)
	if err := <-two.died; !strings.Contains(err.Error(), "runs already") {
		t.Fatal(err)
	}
	c.put("b")
	until(t, "the first one goes on", func() bool { return one.has("b") })
}

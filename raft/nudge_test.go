package raft

import (
	"context"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
)

// Followers learn at once what is committed, also while nothing follows it:
// here hashicorp/raft alone would tell them after an hour.
func TestFollowersLearnAtOnceWhatIsCommitted(t *testing.T) {
	c := cluster(t, 3, func(o *Options) { o.CommitTimeout = time.Hour })
	l := c.leader()
	for _, name := range []string{"a", "b", "c"} {
		if _, err := l.Propose(context.Background(), put(name)); err != nil {
			t.Fatal(err)
		}
		c.level()
	}
	for _, m := range c.members() {
		if m == l {
			continue
		}
		if _, err := m.Propose(context.Background(), put("through "+m.name)); err != nil {
			t.Fatal(err)
		}
	}
	c.level()
}

// Only a follower that waits is told at once; the others after a pause, unless an
// entry has told them.
func TestNudgesGoAtOnceOnlyToThoseWhoWait(t *testing.T) {
	n := newNudges()
	told := func() bool {
		select {
		case <-n.want:
			return true
		default:
			return false
		}
	}
	for _, id := range []hraft.ServerID{"b", "c"} {
		n.took(id, 7, 6, true)
	}
	n.idle()
	if told() || n.begin("b", 7, false) || n.begin("c", 7, false) {
		t.Error("told at once, and nobody waits")
	}
	if <-n.pause.C; !n.armed {
		t.Error("nobody is to be told later")
	}

	n.waits("b", 7)
	if !told() || n.begin("c", 7, false) || !n.begin("b", 7, false) {
		t.Error("b waits, and c does not")
	}
	if n.begin("b", 7, true) {
		t.Error("b is told twice at a time")
	}
	// Another entry was committed while that was on its way.
	n.took("b", 8, 7, true)
	n.waits("b", 8)
	told()
	n.end("b", true)
	if !told() || !n.begin("b", 8, false) {
		t.Error("what b waits for now is forgotten")
	}
	n.took("b", 7, 7, false) // overtaken
	told()
	n.took("b", 8, 8, false)
	n.end("b", true)
	n.idle()
	if told() || n.begin("b", 8, true) {
		t.Error("b knows all")
	}
	if !n.begin("c", 7, true) {
		t.Error("c does not know yet")
	}
}

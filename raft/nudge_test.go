package raft

import (
	"context"
	"testing"
	"time"
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

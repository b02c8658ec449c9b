package raft

import (
	"errors"
	"fmt"
	"testing"
)

// Two of three directories go back together, where nobody can vouch against
// them: they are the majority then. The third, which has applied what they have
// forgotten, must not go on as if nothing were.
func TestOneWhoAppliedWhatIsReplacedEnds(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	var back []*member
	for _, name := range []string{"n1", "n2"} {
		back = append(back, c.get(name))
	}
	third := c.get("n3")
	olds := map[string]func(){}
	for _, m := range back {
		old := m.disk.Clone()
		olds[m.name] = func() { m.disk = old }
	}
	for i := range 20 {
		c.put(fmt.Sprint("after", i))
	}
	c.level()
	// The third first: with an entry of a later leader it would be the one that
	// replaces what the two have applied.
	third.stop()
	for _, m := range back {
		m.stop()
	}
	for _, m := range back {
		olds[m.name]()
		c.start(m)
	}
	for i := range 3 {
		c.put(fmt.Sprint("instead", i), third.name)
	}
	c.start(third)
	if err := <-third.died; !errors.Is(err, ErrDiverged) {
		t.Fatal(err)
	}
}

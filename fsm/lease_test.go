package fsm

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
)

func perKey(set ...func(*event.Policy)) func(*event.Policy) {
	return with(append(set, ordering(event.PerKey))...)
}

func TestRoundRobinAmongEquals(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", perKey())
	b.fillKeys("q", "a1", "a2", "a3", "b1", "b2", "c1")
	var got []string
	for range 6 { // a busy key does not starve the others
		m := b.take("q", 1)
		b.want(event.OpAck, m, event.StatusAcked)
		got = append(got, m)
	}
	mustEqual(t, strings.Join(got, " "), "a1 b1 c1 a2 b2 a3")
}

package crashtest

import (
	"testing"
	"time"
)

func TestGoodHistoryIsLinear(t *testing.T) {
	if v, undecided := CheckLinear(good().ops, "q", testRules["q"], time.Minute); len(v) > 0 ||
		undecided > 0 {
		t.Error(v, undecided)
	}
}

// TestNotLinear: answers that no single lane can have given.
func TestNotLinear(t *testing.T) {
	for name, do := range map[string]func(s *story){
		"the second is delivered first": func(s *story) {
			s.produce("q", "l", "y")
			s.produce("q", "l", "z")
			s.settle(Ack, "z", s.lease("q", "l", "z", 1), "acked")
		},
		"a leased message is leased to another": func(s *story) {
			s.produce("q", "l", "z")
			s.lease("q", "l", "z", 1)
			s.lease("q", "l", "z", 2)
		},
		"an acked message is delivered": func(s *story) {
			s.produce("q", "l", "z")
			s.settle(Ack, "z", s.lease("q", "l", "z", 1), "acked")
			s.now += 1000
			s.lease("q", "l", "z", 2)
		},
		"a lease acks after another was given": func(s *story) {
			s.produce("q", "l", "z")
			l := s.lease("q", "l", "z", 1)
			s.now += 1000
			s.lease("q", "l", "z", 2)
			s.settle(Ack, "z", l, "acked")
		},
		"an acked message is shown": func(s *story) {
			s.produce("q", "l", "z")
			s.settle(Ack, "z", s.lease("q", "l", "z", 1), "acked")
			s.peek("q", s.shown("z", "l"))
		},
		"an enqueued message is not shown": func(s *story) {
			s.produce("q", "l", "z")
			s.peek("q")
		},
		"an unknown ack comes true after the restart": func(s *story) {
			s.produce("q", "l", "z")
			l := s.lease("q", "l", "z", 1)
			s.settle(Ack, "z", l, "").Outcome = Unknown
			s.crash()
			s.peek("q", s.shown("z", "l"))
			s.peek("q")
		},
		"a read through another node does not show what was enqueued": func(s *story) {
			s.produce("q", "l", "z")
			s.get(Get, "q", "l", "z", Absent)
		},
		"a read through another node shows what was acked": func(s *story) {
			s.produce("q", "l", "z")
			s.settle(Ack, "z", s.lease("q", "l", "z", 1), "acked")
			s.get(Get, "q", "l", "z", "leased")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			do(s)
			if v, _ := CheckLinear(s.ops, "q", testRules["q"], time.Minute); len(v) == 0 {
				t.Error("not noticed")
			}
		})
	}
}

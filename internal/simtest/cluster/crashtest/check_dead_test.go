package crashtest

import (
	"slices"
	"testing"
	"time"
)

var heldRules = map[string]Rules{"h": {PerKey: true, DeadLetters: "h.dlq", Held: true}}

// die lets a worker give a message up, and returns its id among the dead.
func (s *story) die(uid string, attempt int64) string {
	l := s.lease("h", "k", uid, attempt)
	s.settle(DeadLetter, uid, l, "dead_lettered").Queue = "h"
	return s.id()
}

func (s *story) ack(uid string, attempt int64) *Op {
	op := s.settle(Ack, uid, s.lease("h", "k", uid, attempt), "acked")
	op.Queue = "h"
	return op
}

// replay brings a dead letter back under a new id.
func (s *story) replay(uid, dead string) *Op {
	s.made[uid] = s.id()
	return s.add(Op{Kind: Replay, Queue: "h", Request: "replay " + dead, Message: dead,
		Status: "replayed", Found: []Found{{ID: s.made[uid], UID: uid, Key: "k"}}})
}

func (s *story) purge(uid, dead string) *Op {
	return s.add(Op{Kind: Purge, Queue: "h", Request: "purge " + dead, Message: dead,
		Status: "purged", Found: []Found{{UID: uid, Key: "k"}}})
}

// goodHeld is a history without a fault, of a queue whose keys stop at their dead
// messages. It returns the last that were purged and replayed, too.
func goodHeld() (s *story, purged, replayed string) {
	s = newStory()
	s.produce("h", "k", "a", "b")
	s.produce("h", "k", "c").Outcome = Unknown
	s.produce("h", "k", "c")
	d := s.die("a", 1)
	s.peek("h", s.shown("b", "k"), s.shown("c", "k"))
	s.peek("h.dlq", Found{ID: d, UID: "a", Key: "k", DeadID: s.made["a"]})
	s.replay("a", d).Outcome = Unknown
	again := *s.last(Replay)
	again.Outcome = OK // its repeat is answered as it was done
	s.add(again)
	s.add(again)
	d = s.die("a", 1) // its attempts begin anew
	s.purge("a", "other").Status = "rejected"
	s.replay("a", d)
	s.ack("a", 1)
	replayed = d
	purged = s.die("b", 1)
	s.purge("b", purged).Outcome = Unknown
	s.purge("b", purged)
	s.ack("c", 1)
	s.peek("h")
	s.peek("h.dlq")
	return s, purged, replayed
}

func TestGoodHeldHistory(t *testing.T) {
	s, _, _ := goodHeld()
	for _, v := range Check(s.ops, heldRules) {
		t.Error(v)
	}
	if v, undecided := CheckLinear(s.ops, "h", heldRules["h"], time.Minute); len(v) > 0 ||
		undecided > 0 {
		t.Error(v, undecided)
	}
}

// TestPlantedRevivals: mistakes that a queue could make with dead letters, and
// the rule that must notice each; "linear" is porcupine's.
func TestPlantedRevivals(t *testing.T) {
	const linear = "linear"
	for _, c := range []struct {
		name  string
		rules []string
		do    func(s *story, purged, replayed string)
	}{
		{"a repeated replay is done again", []string{Twice},
			func(s *story, _, d string) { s.replay("a", d) }},
		{"a purged one is replayed", []string{Twice},
			func(s *story, d, _ string) { s.replay("b", d) }},
		{"a purged one is leased", []string{CameBack, linear},
			func(s *story, _, _ string) { s.lease("h", "k", "b", 2) }},
		{"an acked one is purged", []string{Twice, linear},
			func(s *story, _, d string) { s.purge("a", d) }},
		{"an acked one is leased under its older id", []string{CameBack, linear},
			func(s *story, _, _ string) { s.lease("h", "k", "a", 2) }},
		{"an acked one is among the dead", []string{CameBack}, func(s *story, _, d string) {
			s.peek("h")
			s.peek("h.dlq", Found{ID: d, UID: "a", Key: "k", DeadID: s.made["a"]})
		}},
		{"a dead one is nowhere", []string{Lost}, func(s *story, _, _ string) {
			s.produce("h", "k", "z")
			s.die("z", 1)
			s.peek("h")
			s.peek("h.dlq")
		}},
		{"a replayed one is nowhere", []string{Lost}, func(s *story, _, _ string) {
			s.produce("h", "k", "z")
			s.replay("z", s.die("z", 1))
			s.peek("h")
			s.peek("h.dlq")
		}},
		{"a replayed one is in both queues", []string{Twice}, func(s *story, _, _ string) {
			s.produce("h", "k", "z")
			d := s.die("z", 1)
			was := s.made["z"]
			s.replay("z", d)
			s.peek("h", s.shown("z", "k"))
			s.peek("h.dlq", Found{ID: d, UID: "z", Key: "k", DeadID: was})
		}},
		{"a key goes on behind its dead message", []string{Order, linear},
			func(s *story, _, _ string) {
				s.produce("h", "k", "y")
				s.produce("h", "k", "z")
				d := s.die("y", 1)
				s.ack("z", 1)
				s.replay("y", d)
				s.ack("y", 1)
			}},
		{"a replayed one comes behind the next", []string{Order, linear},
			func(s *story, _, _ string) {
				s.produce("h", "k", "y")
				s.produce("h", "k", "z")
				s.replay("y", s.die("y", 1))
				s.ack("z", 1)
				s.ack("y", 1)
			}},
		{"two dead ones become one", []string{Twice}, func(s *story, _, d string) {
			s.replay("a", "another").Found[0].ID = s.last(Lease).Found[0].ID
			was := *s.last(Replay)
			was.Message = d
			s.add(was)
		}},
		{"one that nobody sent is replayed", []string{Phantom},
			func(s *story, _, _ string) { s.replay("ghost", s.id()) }},
		{"a dead one is left at the end", []string{Stuck}, func(s *story, _, _ string) {
			s.produce("h", "k", "z")
			d := s.die("z", 1)
			s.peek("h")
			s.peek("h.dlq", Found{ID: d, UID: "z", Key: "k", DeadID: s.made["z"]})
		}},
		{"a replay has the entry of an earlier write", []string{Index},
			func(s *story, _, _ string) {
				s.produce("h", "k", "z").Index = 8
				s.replay("z", s.die("z", 1)).Index = 7
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, purged, replayed := goodHeld()
			c.do(s, purged, replayed)
			found := Check(s.ops, heldRules)
			lanes, _ := CheckLinear(s.ops, "h", heldRules["h"], time.Minute)
			for _, rule := range c.rules {
				if !slices.ContainsFunc(append(found, lanes...),
					func(v Violation) bool { return v.Rule == rule }) {
					t.Errorf("not noticed as %q; found %v", rule, found)
				}
			}
		})
	}
}

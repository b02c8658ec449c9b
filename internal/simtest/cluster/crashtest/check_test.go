package crashtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// story builds a history in words. Its clock counts in milliseconds, which are
// also the log's.
type story struct {
	ops  []Op
	now  int64
	made map[string]string // uid → id
	seq  byte
	// The dead messages that were last purged and replayed.
	purged, replayed string
}

func newStory() *story { return &story{now: 1000, made: map[string]string{}} }

const ms = 1_000_000

var testRules = map[string]Rules{
	"q": {PerKey: true}, "pool": {}, "f": {PerKey: true, DeadLetters: "f.dlq"},
	"h": {PerKey: true, DeadLetters: "h.dlq", Held: true},
}

// linear marks mistakes that porcupine must notice, too.
const linear = "+linear"

// id is a ULID of this moment, above all before.
func (s *story) id() string {
	var id ulid.ULID
	_ = id.SetTime(uint64(s.now))
	s.seq++
	id[15] = s.seq
	return id.String()
}

func (s *story) add(op Op) *Op {
	op.Invoke = s.now * ms
	op.Return = (s.now + 1) * ms
	s.now += 2
	if op.Outcome == "" {
		op.Outcome = OK
	}
	s.ops = append(s.ops, op)
	return &s.ops[len(s.ops)-1]
}

func (s *story) produce(queue, key string, uids ...string) *Op {
	op := Op{Kind: Produce, Queue: queue, Request: "r-" + uids[0]}
	for _, uid := range uids {
		if s.made[uid] == "" {
			s.made[uid] = s.id()
		}
		op.Messages = append(op.Messages, Message{UID: uid, Key: key, ID: s.made[uid]})
	}
	return s.add(op)
}

// lease gives a message out for 100 ms and returns the lease.
func (s *story) lease(queue, key, uid string, attempt int64) string {
	l := s.id()
	s.add(Op{Kind: Lease, Queue: queue, Found: []Found{{ID: s.made[uid], UID: uid, Key: key,
		Lease: l, Attempt: attempt, Expires: s.now + 100}}})
	return l
}

func (s *story) settle(kind Kind, uid, lease, status string) *Op {
	return s.add(Op{Kind: kind, Queue: "q", Lease: lease, Message: s.made[uid], Status: status})
}

func (s *story) peek(queue string, found ...Found) *Op {
	return s.add(Op{Kind: Peek, Queue: queue, Found: found})
}

// get asks for one message.
func (s *story) get(kind Kind, queue, key, uid, state string) *Op {
	return s.add(Op{Kind: kind, Queue: queue, Found: []Found{{ID: s.made[uid], UID: uid, Key: key,
		State: state}}})
}

// crash ends what is under way.
func (s *story) crash() {
	s.add(Op{Kind: Crash})
	s.add(Op{Kind: Barrier})
}

func (s *story) shown(uid, key string) Found { return Found{ID: s.made[uid], UID: uid, Key: key} }

// last returns the op of a kind that came last.
func (s *story) last(k Kind) *Op {
	for i := len(s.ops) - 1; i >= 0; i-- {
		if s.ops[i].Kind == k {
			return &s.ops[i]
		}
	}
	panic("no " + k)
}

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

// good is a history without a fault, which has a bit of everything.
func good() *story {
	s := newStory()
	s.produce("h", "k", "ha", "hb")
	s.produce("h", "k", "hc").Outcome = Unknown
	s.produce("h", "k", "hc")
	d := s.die("ha", 1)
	s.peek("h", s.shown("hb", "k"), s.shown("hc", "k"))
	s.peek("h.dlq", Found{ID: d, UID: "ha", Key: "k", DeadID: s.made["ha"]})
	s.replay("ha", d).Outcome = Unknown
	again := *s.last(Replay)
	again.Outcome = OK // its repeat is answered as it was done
	s.add(again)
	s.add(again)
	d = s.die("ha", 1) // its attempts start again
	s.purge("ha", "other").Status = "rejected"
	s.replay("ha", d)
	s.ack("ha", 1)
	s.replayed = d
	s.purged = s.die("hb", 1)
	s.purge("hb", s.purged).Outcome = Unknown
	s.purge("hb", s.purged)
	s.ack("hc", 1)
	s.peek("h")
	s.peek("h.dlq")

	s.produce("q", "k", "a", "b")
	s.produce("q", "k", "c").Outcome = Unknown
	s.produce("q", "k", "c") // repeated: it was done the first time
	s.produce("q", "k", "n").Outcome = Unknown
	s.ops[len(s.ops)-1].Messages[0].ID = ""
	delete(s.made, "n") // and this one never was
	s.produce("pool", "", "p")
	s.produce("q", "k", "x").Outcome = Fail
	s.ops[len(s.ops)-1].Messages[0].ID = ""

	l := s.lease("q", "k", "a", 1)
	s.settle(Retry, "a", l, "retried")
	l = s.lease("q", "k", "a", 2)
	s.now += 200 // it runs out
	l2 := s.lease("q", "k", "a", 3)
	s.settle(Ack, "a", l, "rejected")
	s.peek("q", s.shown("a", "k"), s.shown("b", "k"), s.shown("c", "k"))
	s.peek("pool", s.shown("p", ""))
	s.settle(Ack, "a", l2, "").Outcome = Unknown
	s.settle(Ack, "a", l2, "acked")
	s.settle(Ack, "a", l2, "acked")
	l = s.lease("q", "k", "b", 1)
	s.settle(Release, "b", l, "released")
	l = s.lease("q", "k", "b", 1)
	s.settle(Ack, "b", l, "acked")
	l = s.lease("q", "k", "c", 1)
	s.settle(Ack, "c", l, "acked")
	l = s.lease("pool", "", "p", 1)
	s.settle(Ack, "p", l, "acked")

	s.produce("f", "k", "d")
	s.produce("f", "k", "e")
	l = s.lease("f", "k", "d", 1)
	s.settle(DeadLetter, "d", l, "dead_lettered")
	l = s.lease("f", "k", "e", 1)
	s.settle(Ack, "e", l, "acked")
	s.produce("f", "k", "g", "h")
	// g's only attempt, which nobody heard of
	s.add(Op{Kind: Lease, Queue: "f", Outcome: Unknown})
	s.now += 200
	l = s.lease("f", "k", "h", 1)
	s.settle(Ack, "h", l, "acked")
	s.peek("q")
	s.peek("pool")
	s.peek("f")
	s.peek("f.dlq", Found{ID: s.id(), UID: "d", Key: "k", DeadID: s.made["d"]},
		Found{ID: s.id(), UID: "g", Key: "k", DeadID: s.made["g"]})
	return s
}

func TestGoodHistory(t *testing.T) {
	for _, v := range append(Check(good().ops, testRules), lanesBroken(t, good().ops)...) {
		t.Error(v)
	}
}

func lanesBroken(t *testing.T, ops []Op) (found []Violation) {
	for _, queue := range []string{"q", "h"} {
		v, undecided := CheckLinear(ops, queue, testRules[queue], time.Minute)
		assert.Equal(t, undecided, 0, "%d lanes of %s are undecided", undecided, queue)
		found = append(found, v...)
	}
	return found
}

// TestPlantedMistakes: each is a mistake that a queue could make, and the rule
// that must notice it.
func TestPlantedMistakes(t *testing.T) {
	for _, c := range []struct {
		name string
		rule string
		do   func(s *story)
	}{
		{"an enqueued message is gone after the crash", Lost + linear,
			func(s *story) { s.produce("q", "k", "z"); s.peek("q") }},
		{"a message is in neither queue after it died", Lost,
			func(s *story) { s.last(Peek).Found = nil }},
		{"a leased message is gone", Lost, func(s *story) {
			s.produce("q", "k", "z")
			s.lease("q", "k", "z", 1)
			s.peek("q")
		}},
		{"a message that nobody sent", Phantom, func(s *story) {
			s.made["ghost"] = s.id()
			s.lease("q", "k", "ghost", 1)
		}},
		{"a refused message is delivered", Phantom, func(s *story) {
			s.made["x"] = s.id()
			s.lease("q", "k", "x", 1)
		}},
		{"a message is in another queue", Phantom, func(s *story) {
			s.produce("q", "k", "z")
			s.lease("pool", "k", "z", 1)
		}},
		{"a payload is damaged", Damaged, func(s *story) {
			s.produce("q", "k", "z")
			s.lease("q", "k", "z", 1)
			s.last(Lease).Found[0].UID = ""
		}},
		{"a message has another's key", Damaged, func(s *story) {
			s.produce("q", "k", "z")
			s.lease("q", "other", "z", 1)
		}},
		{"an unknown enqueue was done and repeated", Twice, func(s *story) {
			s.produce("pool", "", "z").Outcome = Unknown
			s.produce("pool", "", "z")
			s.made["z"] = s.id()
			s.lease("pool", "", "z", 1)
		}},
		{"a message died twice", Twice, func(s *story) {
			p := s.last(Peek)
			p.Found = append(p.Found, Found{ID: s.id(), UID: "d", Key: "k", DeadID: s.made["d"]})
		}},
		{"a message was acked and died", Twice, func(s *story) {
			p := s.last(Peek)
			p.Found = append(p.Found, Found{ID: s.id(), UID: "e", Key: "k", DeadID: s.made["e"]})
		}},
		{"a message died and is still there", Twice, func(s *story) {
			s.peek("f", s.shown("d", "k"))
			s.peek("f.dlq", Found{ID: s.id(), UID: "d", Key: "k", DeadID: s.made["d"]})
		}},
		{"an acked message is leased again", CameBack + linear,
			func(s *story) { s.lease("q", "k", "c", 2) }},
		{"an acked message is there after the crash", CameBack + linear,
			func(s *story) { s.peek("q", s.shown("c", "k")) }},
		{"the next of a key is delivered too early", Order + linear, func(s *story) {
			s.produce("q", "k", "y")
			s.produce("q", "k", "z")
			s.settle(Ack, "z", s.lease("q", "k", "z", 1), "acked")
			s.settle(Ack, "y", s.lease("q", "k", "y", 1), "acked")
		}},
		{"the next is delivered while its head waits for a retry", Order + linear, func(s *story) {
			s.produce("q", "k", "y")
			s.produce("q", "k", "z")
			s.settle(Retry, "y", s.lease("q", "k", "y", 1), "retried")
			s.settle(Ack, "z", s.lease("q", "k", "z", 1), "acked")
			s.settle(Ack, "y", s.lease("q", "k", "y", 2), "acked")
		}},
		{"a leased message is leased to another", Exclusive + linear, func(s *story) {
			s.produce("q", "l", "z")
			s.lease("q", "l", "z", 1)
			s.settle(Ack, "z", s.lease("q", "l", "z", 2), "acked")
		}},
		{"a lease acks after another was given", linear, func(s *story) {
			s.produce("q", "l", "z")
			l := s.lease("q", "l", "z", 1)
			s.now += 1000
			s.lease("q", "l", "z", 2)
			s.settle(Ack, "z", l, "acked")
		}},
		{"an unknown ack comes true after the restart", linear, func(s *story) {
			s.produce("q", "l", "z")
			s.settle(Ack, "z", s.lease("q", "l", "z", 1), "").Outcome = Unknown
			s.crash()
			s.peek("q", s.shown("z", "l"))
			s.peek("q")
		}},
		{"an extended lease ends at its first time", Exclusive, func(s *story) {
			s.produce("pool", "", "z")
			l := s.lease("pool", "", "z", 1)
			s.settle(Extend, "z", l, "extended").Expires = s.now + 5000
			s.now += 200
			s.settle(Ack, "z", s.lease("pool", "", "z", 2), "acked")
		}},
		{"one lease is given to two", Exclusive, func(s *story) {
			s.produce("pool", "", "z")
			s.lease("pool", "", "z", 1)
			op := *s.last(Lease)
			s.add(op)
		}},
		{"half a batch is there", Torn, func(s *story) {
			p := s.produce("pool", "", "y", "z")
			p.Outcome = Unknown
			p.Messages[0].ID, p.Messages[1].ID = "", ""
			s.settle(Ack, "y", s.lease("pool", "", "y", 1), "acked")
		}},
		{"time runs backwards after the crash", RealTime, func(s *story) {
			s.now -= 500
			s.made["z"] = s.id()
			s.now += 500
			s.settle(Ack, "z", s.lease("pool", "", "z", 1), "acked")
			s.produce("pool", "", "z")
		}},
		{"a repeated request is executed again", Repeat, func(s *story) {
			s.produce("pool", "", "z")
			s.made["z"] = s.id()
			s.produce("pool", "", "z")
		}},
		{"a lost lease acks", LeaseState, func(s *story) {
			s.produce("pool", "", "z")
			l := s.lease("pool", "", "z", 1)
			s.settle(Ack, "z", l, "rejected")
			s.settle(Ack, "z", l, "acked")
		}},
		{"a repeated ack is refused", LeaseState, func(s *story) {
			s.produce("pool", "", "z")
			l := s.lease("pool", "", "z", 1)
			s.settle(Ack, "z", l, "acked")
			s.settle(Ack, "z", l, "rejected")
		}},
		{"the attempts start again after the crash", Attempts, func(s *story) {
			s.produce("pool", "", "z")
			s.settle(Retry, "z", s.lease("pool", "", "z", 1), "retried")
			s.settle(Ack, "z", s.lease("pool", "", "z", 1), "acked")
		}},
		{"another node does not know what was enqueued", Old + linear, func(s *story) {
			s.produce("q", "k", "z")
			s.get(Get, "q", "k", "z", Absent)
		}},
		{"another node does not know what was acked", Old + linear, func(s *story) {
			s.get(Get, "q", "k", "c", "leased")
		}},
		{"a read shows an ack that nobody sent", Phantom, func(s *story) {
			s.produce("q", "k", "z")
			s.get(Get, "q", "k", "z", "acked")
		}},
		{"a read shows what another did not yet", Backwards, func(s *story) {
			s.produce("q", "k", "z").Outcome = Unknown
			s.get(Get, "q", "k", "z", "ready")
			s.get(Get, "q", "k", "z", Absent)
		}},
		{"stale reads of one node go back", Backwards, func(s *story) {
			s.produce("q", "k", "z")
			s.get(Stale, "q", "k", "z", "ready")
			s.get(Stale, "q", "k", "z", Absent)
		}},
		{"a later write has the earlier entry", Index, func(s *story) {
			s.produce("pool", "", "y").Index = 8
			s.produce("pool", "", "z").Index = 7
		}},
		{"two writes that did not meet have one entry", Index, func(s *story) {
			s.produce("pool", "", "y").Index = 8
			s.settle(Ack, "y", s.lease("pool", "", "y", 1), "acked").Index = 8
		}},
		{"a message is never delivered", Stuck, func(s *story) {
			s.produce("pool", "", "z")
			s.peek("pool", s.shown("z", ""))
		}},
		{"a repeated replay is done again", Twice, func(s *story) { s.replay("ha", s.replayed) }},
		{"a purged one is replayed", Twice, func(s *story) { s.replay("hb", s.purged) }},
		{"a purged one is leased", CameBack + linear,
			func(s *story) { s.lease("h", "k", "hb", 2) }},
		{"an acked one is purged", Twice + linear, func(s *story) { s.purge("ha", s.replayed) }},
		{"an acked one is leased by its older id", CameBack + linear,
			func(s *story) { s.lease("h", "k", "ha", 2) }},
		{"an acked one is among the dead", CameBack, func(s *story) {
			s.peek("h")
			s.peek("h.dlq", Found{ID: s.replayed, UID: "ha", Key: "k", DeadID: s.made["ha"]})
		}},
		{"a dead one is nowhere", Lost, func(s *story) {
			s.produce("h", "k", "z")
			s.die("z", 1)
			s.peek("h")
			s.peek("h.dlq")
		}},
		{"a replayed one is nowhere", Lost, func(s *story) {
			s.produce("h", "k", "z")
			s.replay("z", s.die("z", 1))
			s.peek("h")
			s.peek("h.dlq")
		}},
		{"a replayed one is in both queues", Twice, func(s *story) {
			s.produce("h", "k", "z")
			d := s.die("z", 1)
			was := s.made["z"]
			s.replay("z", d)
			s.peek("h", s.shown("z", "k"))
			s.peek("h.dlq", Found{ID: d, UID: "z", Key: "k", DeadID: was})
		}},
		{"a key goes on behind its dead message", Order + linear, func(s *story) {
			s.produce("h", "k", "y")
			s.produce("h", "k", "z")
			d := s.die("y", 1)
			s.ack("z", 1)
			s.replay("y", d)
			s.ack("y", 1)
		}},
		{"a replayed one comes behind the next", Order + linear, func(s *story) {
			s.produce("h", "k", "y")
			s.produce("h", "k", "z")
			s.replay("y", s.die("y", 1))
			s.ack("z", 1)
			s.ack("y", 1)
		}},
		{"two dead ones become one", Twice, func(s *story) {
			s.replay("ha", "another").Found[0].ID = s.last(Lease).Found[0].ID
			was := *s.last(Replay)
			was.Message = s.replayed
			s.add(was)
		}},
		{"one that nobody sent is replayed", Phantom, func(s *story) { s.replay("ghost", s.id()) }},
		{"a dead one is left at the end", Stuck, func(s *story) {
			s.produce("h", "k", "z")
			d := s.die("z", 1)
			s.peek("h")
			s.peek("h.dlq", Found{ID: d, UID: "z", Key: "k", DeadID: s.made["z"]})
		}},
		{"a replay has the entry of an earlier write", Index, func(s *story) {
			s.produce("h", "k", "z").Index = 8
			s.replay("z", s.die("z", 1)).Index = 7
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := good()
			c.do(s)
			rule, lin := strings.CutSuffix(c.rule, linear)
			found := Check(s.ops, testRules)
			is := func(v Violation) bool { return v.Rule == rule }
			if rule != "" && !slices.ContainsFunc(found, is) {
				t.Errorf("not noticed as %q; found %v", rule, found)
			}
			if lin && len(lanesBroken(t, s.ops)) == 0 {
				t.Error("porcupine does not notice it")
			}
		})
	}
}

package crashtest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/script"
)

// story builds a history in words. Its clock counts in milliseconds, which are
// also the log's.
type story struct {
	ops    []Op
	now    int64
	made   map[string]string  // uid → id
	leases map[string][]Found // uid → all its leases; State is the queue
	dead   map[string]string  // uid → its id among the dead
	died   map[string]string  // uid → its id before that
	seq    byte
}

const ms = 1_000_000

var testRules = map[string]Rules{
	"q": {PerKey: true}, "pool": {}, "f": {PerKey: true, DeadLetters: "f.dlq"},
	"h": {PerKey: true, DeadLetters: "h.dlq", Held: true}, "b": {PerKey: true, Batch: 3},
	"r": {Rate: 1, PerMS: 20},
}

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

// play adds what a line of testdata/mistakes.txt says: what a client asked, and with NAME=VALUE
// what is otherwise than usual. A key "-" is none.
func (s *story) play(line string) error {
	args, set := script.Words(line)
	for i := range args {
		args[i] = strings.TrimPrefix(args[i], "-")
	}
	verb, args := args[0], args[1:]
	var op *Op
	switch kind := Kind(verb); kind {
	case "later", "earlier": // by so many milliseconds
		n, err := strconv.ParseInt(args[0], 10, 64)
		if s.now += n; verb == "earlier" {
			s.now -= 2 * n
		}
		return err
	case "new": // a message's next id
		s.made[args[0]] = s.id()
		return nil
	case "again": // the last one
		op = s.add(s.ops[len(s.ops)-1])
	case Crash:
		s.add(Op{Kind: Crash})
		op = s.add(Op{Kind: Barrier})
	case Produce:
		op = s.produce(args[0], args[1], args[2:])
	case Lease:
		op = s.lease(args)
	case Ack, Retry, Release, Extend, DeadLetter:
		all := s.leases[args[0]]
		n, err := strconv.Atoi(set["lease"])
		if err != nil {
			n = len(all)
		}
		l := all[n-1]
		op = s.add(Op{Kind: kind, Queue: l.State, Lease: l.Lease, Message: s.made[args[0]],
			Status: args[1]})
		if kind == DeadLetter && args[0] != "d" { // where its id is known
			s.died[args[0]], s.dead[args[0]] = s.made[args[0]], s.id()
		}
	case Pause, Resume:
		op = s.add(Op{Kind: kind, Queue: args[0], Key: args[1]})
	case Peek:
		op = s.add(Op{Kind: Peek, Queue: args[0]})
		for _, shown := range args[1:] {
			uid, key, _ := strings.Cut(shown, "/")
			op.Found = append(op.Found, Found{ID: s.made[uid], UID: uid, Key: key})
		}
	case "peek_dead":
		op = s.peekDead(args)
	case Get, Stale:
		op = s.add(Op{Kind: kind, Queue: args[0], Found: []Found{
			{ID: s.made[args[2]], UID: args[2], Key: args[1], State: args[3]}}})
	case Replay, Purge: // of a message that died in h
		op = s.bring(kind, args[0], set["dead"])
	default:
		return fmt.Errorf("%s: there is no %q", line, verb)
	}
	return s.set(op, set)
}

// set changes an op to what is otherwise.
func (s *story) set(op *Op, set map[string]string) (err error) {
	for name, value := range set {
		switch name {
		case "outcome":
			op.Outcome = Outcome(value)
		case "status":
			op.Status = value
		case "index":
			op.Index, err = strconv.ParseUint(value, 10, 64)
		case "extended": // by so many milliseconds
			op.Expires, err = strconv.ParseInt(value, 10, 64)
			op.Expires += s.now
		case "answer": // none had come: without ids
			for i := range op.Messages {
				op.Messages[i].ID = ""
			}
		case "payload": // it is damaged
			op.Found[0].UID = ""
		case "found": // another message's id
			op.Found[0].ID = s.made[value]
		case "of": // another dead message
			op.Message = s.dead[value]
		}
	}
	return err
}

func (s *story) produce(queue, key string, uids []string) *Op {
	op := Op{Kind: Produce, Queue: queue, Request: "r-" + uids[0]}
	for _, uid := range uids {
		if s.made[uid] == "" {
			s.made[uid] = s.id()
		}
		op.Messages = append(op.Messages, Message{UID: uid, Key: key, ID: s.made[uid]})
	}
	return s.add(op)
}

// lease gives messages out for 100 ms: queue, key, uids with attempts, or a queue alone.
func (s *story) lease(args []string) *Op {
	op := Op{Kind: Lease, Queue: args[0]}
	for i := 2; i < len(args); i += 2 {
		attempt, _ := strconv.ParseInt(args[i+1], 10, 64)
		f := Found{ID: s.made[args[i]], UID: args[i], Key: args[1], Lease: s.id(),
			Attempt: attempt, Expires: s.now + 100}
		op.Found = append(op.Found, f)
		f.State = args[0]
		s.leases[f.UID] = append(s.leases[f.UID], f)
	}
	return s.add(op)
}

// peekDead shows a dead-letter queue's messages as uid/key, and with "/new" under another id.
func (s *story) peekDead(args []string) *Op {
	op := Op{Kind: Peek, Queue: args[0]}
	for _, shown := range args[1:] {
		w := strings.Split(shown, "/")
		f := Found{ID: s.dead[w[0]], UID: w[0], Key: w[1], DeadID: s.died[w[0]]}
		if f.DeadID == "" {
			f.DeadID = s.made[f.UID]
		}
		if f.ID == "" || len(w) > 2 {
			f.ID = s.id()
		}
		s.dead[f.UID] = f.ID
		op.Found = append(op.Found, f)
	}
	return s.add(op)
}

// bring replays a dead letter under a new id, or purges it.
func (s *story) bring(kind Kind, uid, dead string) *Op {
	if dead == "" {
		dead = s.dead[uid]
	}
	if dead == "" { // nobody died
		dead = s.id()
	}
	f := Found{UID: uid, Key: "k"}
	status := "purged"
	if kind == Replay {
		s.made[uid] = s.id()
		f.ID, status = s.made[uid], "replayed"
	}
	return s.add(Op{Kind: kind, Queue: "h", Request: string(kind) + " " + dead, Message: dead,
		Status: status, Found: []Found{f}})
}

// tell plays the first of testdata/mistakes.txt, a history without a fault that has a bit of
// everything, and then lines that must not be.
func tell(t *testing.T, lines ...string) *story {
	t.Helper()
	s := &story{now: 1000, made: map[string]string{}, leases: map[string][]Found{},
		dead: map[string]string{}, died: map[string]string{}}
	for _, text := range lines {
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" && line[0] != '#' {
				require.NoError(t, s.play(line))
			}
		}
	}
	return s
}

func lanesBroken(t *testing.T, ops []Op) (found []Violation) {
	for _, queue := range []string{"q", "h", "b"} {
		v, undecided := CheckLinear(ops, queue, testRules[queue], 0) // no limit
		assert.Equal(t, undecided, 0, "%d lanes of %s are undecided", undecided, queue)
		found = append(found, v...)
	}
	return found
}

// TestPlantedMistakes: each is a mistake that a queue could make, and the rule that must notice it;
// porcupine, too, where it says "linear".
func TestPlantedMistakes(t *testing.T) {
	all := script.Cases(t, "testdata/mistakes.txt")
	good := all[0].Lines
	whole := tell(t, good).ops
	for _, v := range append(Check(whole, testRules), lanesBroken(t, whole)...) {
		t.Error(v)
	}
	for _, mistake := range all[1:] {
		name, rules, _ := strings.Cut(mistake.Title, ": ")
		t.Run(name, func(t *testing.T) {
			ops := tell(t, good, mistake.Lines).ops
			found := Check(ops, testRules)
			for rule := range strings.SplitSeq(rules, ", ") {
				is := func(v Violation) bool { return v.Rule == rule }
				if rule == "linear" {
					assert.True(t, len(lanesBroken(t, ops)) > 0, "porcupine does not notice it")
				} else if !slices.ContainsFunc(found, is) {
					t.Errorf("not noticed as %q; found %v", rule, found)
				}
			}
		})
	}
}

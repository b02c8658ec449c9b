package crashtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/oklog/ulid/v2"
)

// A lane of a per_key queue whose messages only leave by an ack, as a
// sequential program: what follows is all that clients may rely on. porcupine
// looks for an order of the requests, each at one moment between its begin and
// its answer, in which the lane gives the answers that were given.
//
// A request whose outcome is unknown took effect, or did not, before the
// server that it was sent to was dead and the next one ready. Repeats of a
// request are one with it: Check sees to it that they are answered alike.

// laneOp is one request to a lane.
type laneOp struct {
	kind    Kind
	certain bool     // else it may have had no effect
	uids    []string // produce, peek
	uid     string   // lease, settles
	lease   string
	expires int64 // lease, extend
	refused bool  // a settle that was rejected
}

// laneState is a lane's: the messages that have not left, in order, and the
// lease on the first.
type laneState struct {
	waiting string // uids, each with a blank behind it
	lease   string
	expires int64
}

func (s laneState) head() string {
	head, _, _ := strings.Cut(s.waiting, " ")
	return head
}

// step returns the states that a request may leave, none if its answer can't
// have come from this one.
func (s laneState) step(op laneOp) (next []laneState) {
	if !op.certain {
		next = append(next, s)
	}
	switch op.kind {
	case Produce:
		s.waiting += strings.Join(op.uids, " ") + " "
		return append(next, s)
	case Peek:
		if want := strings.Join(op.uids, " "); strings.TrimSuffix(s.waiting, " ") == want {
			next = append(next, s)
		}
		return next
	case Lease:
		id, err := ulid.ParseStrict(op.lease)
		if err != nil || s.head() != op.uid || s.lease != "" && int64(id.Time()) < s.expires {
			return next
		}
		s.lease, s.expires = op.lease, op.expires
		return append(next, s)
	}
	if op.refused {
		if s.lease == op.lease { // so it has run out
			s.lease = ""
		}
		return append(next, s)
	}
	if s.lease != op.lease {
		return next
	}
	switch op.kind {
	case Ack:
		_, s.waiting, _ = strings.Cut(s.waiting, " ")
		s.lease = ""
	case Retry, Release:
		s.lease = ""
	case Extend:
		s.expires = max(s.expires, op.expires)
	}
	return append(next, s)
}

var laneModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{laneState{}} },
	Step: func(state, input, _ any) []any {
		var out []any
		for _, s := range state.(laneState).step(input.(laneOp)) {
			out = append(out, s)
		}
		return out
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string {
		return fmt.Sprintf("%+v", input)
	},
}).ToModel()

// CheckLinear checks the lanes of one queue, each against the sequential lane.
// undecided counts those for which the time did not suffice.
func CheckLinear(history []Op, queue string, timeout time.Duration) (violations []Violation, undecided int) {
	lanes := lanesOf(history, queue)
	for _, key := range sortedKeys(lanes) {
		switch porcupine.CheckOperationsTimeout(laneModel, lanes[key], timeout) {
		case porcupine.Illegal:
			violations = append(violations, Violation{"linear", fmt.Sprintf("the answers about key %q of %s can't have come from one lane", key, queue)})
		case porcupine.Unknown:
			undecided++
		}
	}
	return violations, undecided
}

func lanesOf(history []Op, queue string) map[string][]porcupine.Operation {
	ops := slices.Clone(history)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Invoke, b.Invoke) })

	lanes := map[string][]porcupine.Operation{}
	keyOf, uidOf := map[string]string{}, map[string]string{} // by uid, by message id
	at := map[string]int{}                                   // a request, a key → its place in the lane
	note := func(key, name string, op *Op, o laneOp) {
		if i, ok := at[name+" "+key]; ok && name != "" { // a repeat
			first := &lanes[key][i]
			switch was := first.Input.(laneOp); {
			case !was.certain && o.certain:
				first.Input, first.Return = o, op.Return
			case was.certain && o.certain:
				first.Return = min(first.Return, op.Return)
			case !was.certain:
				first.Return = max(first.Return, nextStart(ops, op))
			}
			return
		}
		end := op.Return
		if !o.certain {
			end = nextStart(ops, op)
		}
		at[name+" "+key] = len(lanes[key])
		lanes[key] = append(lanes[key], porcupine.Operation{ClientId: max(op.Client, 0), Input: o, Call: op.Invoke, Return: end})
	}
	for i := range ops {
		op := &ops[i]
		if op.Queue != queue && !isSettle(op.Kind) || op.Outcome == Fail {
			continue
		}
		certain := op.Outcome == OK
		switch {
		case op.Kind == Produce:
			byKey := map[string][]string{}
			for _, m := range op.Messages {
				keyOf[m.UID] = m.Key
				uidOf[m.ID] = m.UID
				byKey[m.Key] = append(byKey[m.Key], m.UID)
			}
			for key, uids := range byKey {
				note(key, "produce "+op.Request, op, laneOp{kind: Produce, certain: certain, uids: uids})
			}
		case op.Kind == Lease && certain:
			for _, f := range op.Found {
				uidOf[f.ID] = f.UID
				note(f.Key, "", op, laneOp{kind: Lease, certain: true, uid: f.UID, lease: f.Lease, expires: f.Expires})
			}
		case op.Kind == Peek:
			byKey := map[string][]Found{}
			for _, f := range op.Found {
				byKey[f.Key] = append(byKey[f.Key], f)
			}
			for key := range lanes {
				fs := byKey[key]
				slices.SortFunc(fs, func(a, b Found) int { return cmp.Compare(a.ID, b.ID) })
				uids := make([]string, len(fs))
				for i, f := range fs {
					uids[i] = f.UID
				}
				note(key, "", op, laneOp{kind: Peek, certain: true, uids: uids})
			}
		case isSettle(op.Kind):
			key, ours := keyOf[uidOf[op.Message]]
			if !ours || op.Queue != queue {
				continue
			}
			refused := op.Status == "rejected"
			name := fmt.Sprint(op.Kind, " ", op.Lease)
			if refused {
				name += " refused"
			}
			if op.Kind == Extend {
				name = "" // each one counts from its own moment
			}
			note(key, name, op, laneOp{kind: op.Kind, certain: certain, uid: uidOf[op.Message], lease: op.Lease, expires: op.Expires, refused: refused})
		}
	}
	return lanes
}

func isSettle(k Kind) bool {
	return k == Ack || k == Retry || k == Release || k == Extend || k == DeadLetter
}

// nextStart returns when the server that op was sent to was surely gone and
// the next one ready: the first peek behind the first crash behind it.
func nextStart(ops []Op, op *Op) int64 {
	crashed := false
	from, _ := slices.BinarySearchFunc(ops, op.Invoke, func(o Op, t int64) int { return cmp.Compare(o.Invoke, t) })
	for i := from; i < len(ops); i++ {
		switch {
		case ops[i].Kind == Crash && ops[i].Invoke >= op.Invoke:
			crashed = true
		case ops[i].Kind == Peek && crashed && ops[i].Invoke >= op.Return:
			return ops[i].Invoke - 1 // before it: intervals are closed
		}
	}
	return math.MaxInt64
}

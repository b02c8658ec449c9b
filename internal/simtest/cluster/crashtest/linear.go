package crashtest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/oklog/ulid/v2"
)

// A lane of a per_key queue whose messages only leave by an ack, or, where a key
// stops at its dead message (Rules.Held), by a purge too, as a sequential program:
// what follows is all that clients may rely on. A death and a replay do not show
// in it: the message keeps its place, and nothing behind it moves. porcupine
// looks for an order of the requests, each at one moment between its begin and
// its answer, in which the lane gives the answers that were given.
//
// A request whose outcome is unknown may take effect at any later time: in a
// cluster it may lie in the Raft log of a node that leads only much later. It
// ends for sure with the first write that was begun after a moment at which no
// process was alive (Crash) and that succeeded (Barrier): what was in memory is
// gone by then, and what is in a Raft log and was not committed before that
// write can't be committed behind it. Repeats of a request are one with it:
// Check sees to it that they are answered alike.

// laneOp is one request to a lane.
type laneOp struct {
	kind    Kind
	certain bool     // else it may have had no effect
	uids    []string // produce, peek
	batch   []leased // lease
	most    int      // lease: so many at most
	uid     string   // settles
	lease   string
	expires int64  // extend
	refused bool   // a settle that was rejected
	state   string // get: the state that was answered
}

// laneState is a lane's: whether its key is paused, the messages that have not
// left, in order, and the leases on the first, as one call gave them. Those of a
// batch are consecutive, ahead of all that waits, and what follows is not leased
// before the first of them has run out or all have ended (I9).
type laneState struct {
	paused  bool   // nothing is leased
	waiting string // uids, each with a blank behind it
	batch   [maxBatch]leased
	n       int // of batch
}

// maxBatch is the largest batch of the campaign's queues.
const maxBatch = 4

type leased struct {
	uid, lease string
	expires    int64
}

// end ends the leases from the i-th on: one that fails or runs out sends back
// those behind it.
func (s *laneState) end(i int) {
	clear(s.batch[i:])
	s.n = i
}

// leave takes a message out.
func (s *laneState) leave(uid string) {
	s.waiting = strings.TrimPrefix(strings.Replace(" "+s.waiting, " "+uid+" ", " ", 1), " ")
}

func (s *laneState) find(is func(leased) bool) int {
	return slices.IndexFunc(s.batch[:s.n], is)
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
	case Get:
		if strings.Contains(" "+s.waiting, " "+op.uid+" ") == (rank(op.state) == waits) {
			next = append(next, s)
		}
		return next
	case Peek:
		if want := strings.Join(op.uids, " "); strings.TrimSuffix(s.waiting, " ") == want {
			next = append(next, s)
		}
		return next
	case Pause, Resume:
		s.paused = op.kind == Pause
		return append(next, s)
	case Purge:
		if !strings.Contains(" "+s.waiting, " "+op.uid+" ") {
			return next // it has left, and is not among the dead
		}
		if i := s.find(func(l leased) bool { return l.uid == op.uid }); i >= 0 {
			s.end(i)
		}
		s.leave(op.uid)
		return append(next, s)
	case Lease:
		id, err := ulid.ParseStrict(op.batch[0].lease)
		if err != nil || s.paused || s.n > 0 && int64(id.Time()) < s.batch[0].expires ||
			len(op.batch) > op.most {
			return next
		}
		rest := s.waiting
		for _, l := range op.batch {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, l.uid+" "); !ok {
				return next
			}
		}
		s.end(0)
		s.n = copy(s.batch[:], op.batch)
		return append(next, s)
	}
	i := s.find(func(l leased) bool { return l.lease == op.lease })
	if op.refused {
		if i < 0 {
			return append(next, s)
		}
		for ; i >= 0; i-- { // so it has run out, or one ahead of it
			s.end(i)
			next = append(next, s)
		}
		return next
	}
	if i < 0 {
		return next
	}
	switch op.kind {
	case Ack:
		s.leave(s.batch[i].uid)
		copy(s.batch[i:], s.batch[i+1:])
		s.end(s.n - 1)
	case Retry, Release, DeadLetter:
		s.end(i)
	case Extend:
		for ; i < s.n; i++ {
			s.batch[i].expires = max(s.batch[i].expires, op.expires)
		}
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
// undecided counts those for which the time for each did not suffice.
func CheckLinear(history []Op, queue string, rules Rules,
	timeout time.Duration) (violations []Violation, undecided int) {
	lanes := lanesOf(history, queue, rules)
	keys := slices.Sorted(maps.Keys(lanes))
	results := make([]porcupine.CheckResult, len(keys))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(keys)); i = next.Add(1) - 1 {
				results[i] = porcupine.CheckOperationsTimeout(laneModel, lanes[keys[i]], timeout)
			}
		})
	}
	wg.Wait()
	for i, key := range keys {
		switch results[i] {
		case porcupine.Illegal:
			violations = append(violations,
				Violation{"linear",
					fmt.Sprintf("the answers about key %q of %s can't have come from one lane", key,
						queue)})
		case porcupine.Unknown:
			undecided++
		}
	}
	return violations, undecided
}

func lanesOf(history []Op, queue string, rules Rules) map[string][]porcupine.Operation {
	ops := slices.Clone(history)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Invoke, b.Invoke) })

	ends := endsOf(ops)
	lanes := map[string][]porcupine.Operation{}
	keyOf, uidOf := map[string]string{}, map[string]string{} // by uid, by message id
	// a request, a key → its place in the lane
	at := map[string]int{}
	note := func(key, name string, op *Op, o laneOp) {
		if i, ok := at[name+" "+key]; ok && name != "" { // a repeat
			first := &lanes[key][i]
			switch was := first.Input.(laneOp); {
			case !was.certain && o.certain:
				first.Input, first.Return = o, op.Return
			case was.certain && o.certain:
				first.Return = min(first.Return, op.Return)
			case !was.certain:
				first.Return = max(first.Return, ends.of(op))
			}
			return
		}
		end := op.Return
		if !o.certain {
			end = ends.of(op)
		}
		at[name+" "+key] = len(lanes[key])
		lanes[key] = append(lanes[key], porcupine.Operation{ClientId: max(op.Client, 0), Input: o,
			Call: op.Invoke, Return: end})
	}
	seen := sightingsOf(ops, queue)
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
				note(key, "produce "+op.Request, op, laneOp{kind: Produce, certain: certain,
					uids: uids})
			}
		case op.Kind == Lease && certain:
			batches := map[string][]leased{}
			for _, f := range op.Found {
				uidOf[f.ID] = f.UID
				batches[f.Key] = append(batches[f.Key], leased{f.UID, f.Lease, f.Expires})
			}
			for key, batch := range batches {
				note(key, "", op, laneOp{kind: Lease, certain: true, batch: batch,
					most: max(rules.Batch, 1)})
			}
		case op.Kind == Pause || op.Kind == Resume:
			note(op.Key, "", op, laneOp{kind: op.Kind, certain: certain})
		case op.Kind == Get && certain:
			for _, f := range op.Found {
				note(f.Key, "", op, laneOp{kind: Get, certain: true, uid: f.UID, state: f.State})
			}
		case op.Kind == Purge && op.Status != "rejected":
			for _, f := range op.Found {
				note(f.Key, "purge "+op.Message, op, laneOp{kind: Purge, certain: certain,
					uid: f.UID})
			}
		case op.Kind == Peek && !rules.Held: // which does not show the dead
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
			note(key, name, op, laneOp{kind: op.Kind, certain: certain, uid: uidOf[op.Message],
				lease: op.Lease, expires: op.Expires, refused: refused})
		}
	}
	for key := range lanes {
		lanes[key] = seen.narrow(lanes[key])
	}
	return lanes
}

// sightings are what a history shows of messages beside the answers to those
// who wrote them.
type sightings struct {
	seen   map[string]int64   // uid → the earliest end of a request that showed it
	leases map[string][]lease // uid → in order
	acked  map[string]int64   // uid → the earliest end of an ack that was done
}

type lease struct {
	id  string
	ret int64
}

func sightingsOf(ops []Op, queue string) *sightings {
	s := &sightings{seen: map[string]int64{}, leases: map[string][]lease{},
		acked: map[string]int64{}}
	earliest := func(m map[string]int64, uid string, t int64) {
		if was, ok := m[uid]; !ok || t < was {
			m[uid] = t
		}
	}
	uidOf := map[string]string{}
	for i := range ops {
		op := &ops[i]
		if op.Queue != queue || op.Outcome != OK {
			continue
		}
		for _, f := range op.Found {
			if op.Kind == Get && rank(f.State) == unmade {
				continue
			}
			uidOf[f.ID] = f.UID
			earliest(s.seen, f.UID, op.Return)
			if op.Kind == Lease {
				s.leases[f.UID] = append(s.leases[f.UID], lease{f.Lease, op.Return})
			}
		}
	}
	for i := range ops {
		op := &ops[i]
		if op.Queue == queue && op.Kind == Ack && took(op, Ack) {
			earliest(s.acked, uidOf[op.Message], op.Return)
		}
	}
	for _, ls := range s.leases {
		slices.SortFunc(ls, func(a, b lease) int { return cmp.Compare(a.id, b.id) })
	}
	return s
}

// narrow gives requests the least room that says the same, so that there are
// fewer orders to be tried.
func (s *sightings) narrow(ops []porcupine.Operation) []porcupine.Operation {
	out := ops[:0]
	for _, p := range ops {
		op := p.Input.(laneOp)
		switch {
		case op.kind == Produce:
			at, ok := s.firstSeen(op.uids)
			if !ok && !op.certain {
				continue // done or not, nobody ever met it
			}
			if ok && at < p.Return {
				// It was done by then, whatever its client knows.
				op.certain, p.Return = true, at
			}
		case isSettle(op.kind) && !op.certain:
			next, ok := s.leaseAfter(op.uid, op.lease)
			if ok && op.kind == Ack {
				continue // what is leased again was not acked
			}
			// Behind another lease, or an ack, it changes nothing.
			if ok {
				p.Return = min(p.Return, next)
			}
			if at, ok := s.acked[op.uid]; ok && op.kind != Ack {
				p.Return = min(p.Return, at)
			}
		}
		// A request that came after what ended it has no room left: it then was
		// without effect, at any moment.
		p.Input, p.Return = op, max(p.Return, p.Call)
		out = append(out, p)
	}
	return out
}

func (s *sightings) firstSeen(uids []string) (int64, bool) {
	first, ok := int64(math.MaxInt64), false
	for _, uid := range uids {
		if at, seen := s.seen[uid]; seen {
			first, ok = min(first, at), true
		}
	}
	return first, ok
}

// leaseAfter returns by when the next lease on a message was given.
func (s *sightings) leaseAfter(uid, id string) (int64, bool) {
	for _, l := range s.leases[uid] {
		if l.id > id {
			return l.ret, true
		}
	}
	return 0, false
}

func isSettle(k Kind) bool {
	return k == Ack || k == Retry || k == Release || k == Extend || k == DeadLetter
}

// ends are the times by which it is decided what became of requests, in order.
type ends []struct{ crash, behind int64 }

func endsOf(ops []Op) ends {
	var out ends
	for _, op := range ops { // by Invoke
		switch {
		case op.Kind == Crash:
			out = append(out, struct{ crash, behind int64 }{op.Return, math.MaxInt64})
		case op.Kind == Barrier && op.Outcome == OK:
			for i := range out {
				if out[i].crash < op.Invoke {
					out[i].behind = min(out[i].behind, op.Return)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b struct{ crash, behind int64 }) int {
		return cmp.Compare(a.crash, b.crash)
	})
	return out
}

// of returns the time by which a request whose outcome is unknown took effect,
// if it ever did. Its client had given it up while processes were dead, so that
// no connection outlived them that it could still have come in on.
func (e ends) of(op *Op) int64 {
	end := int64(math.MaxInt64)
	for i := len(e) - 1; i >= 0 && e[i].crash >= op.Return; i-- {
		end = min(end, e[i].behind)
	}
	return end
}

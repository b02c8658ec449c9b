package crashtest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
)

// sim is a cluster that exists only as its answers: clients ask it through
// several nodes at once, each request takes effect at one moment between its
// begin and its end, some are never answered, and it crashes. With a bug in it,
// it is what porcupine must find.
type sim struct {
	r       *rand.Rand
	bug     string
	planted bool // the bug has shown
	now     int64
	ops     []Op
	free    map[int]int64 // client → when its last request ended
	lanes   map[string]*simLane
	ids     uint64
	uids    int
	holds   []hold // what clients hold, or think so
	late    []func()
	made    []Message       // that were asked for
	put     map[string]bool // the uids of those that are, or were, there
}

type simLane struct {
	key     string
	waiting []string
	lease   string
	expires int64    // ms
	known   bool     // a client knows of the lease
	old     []string // waiting as it was some time ago
}

type hold struct {
	client          int
	key, uid, lease string
}

const simClients = 5

func simulate(seed uint64, bug string) *sim {
	s := &sim{r: rand.New(rand.NewPCG(seed, 3)), bug: bug, now: 1000 * ms, free: map[int]int64{}, lanes: map[string]*simLane{}, put: map[string]bool{}}
	for i := range 3 {
		key := fmt.Sprint("k", i)
		s.lanes[key] = &simLane{key: key}
	}
	for i := range 150 {
		switch n := s.r.IntN(100); {
		case i == 75:
			s.crash()
		case n < 25:
			s.produce()
		case n < 50:
			s.lease()
		case n < 85:
			s.settle()
		default:
			s.get()
		}
	}
	s.crash()
	s.peek()
	// All is worked off, as at a campaign's end.
	s.now += 3000 * ms
	for range 200 {
		s.lease()
		s.settle()
		s.now += 30 * ms
	}
	s.peek()
	return s
}

// plant reports whether the bug is to show here.
func (s *sim) plant(bug string) bool {
	if s.bug != bug || s.r.IntN(3) > 0 {
		return false
	}
	s.planted = true
	return true
}

// do adds a request that takes effect now, of a client that is free.
func (s *sim) do(client int, op Op) *Op {
	s.now += int64(1+s.r.IntN(8)) * ms
	if client < 0 {
		for client = s.r.IntN(simClients); s.free[client] >= s.now-1; client = s.r.IntN(simClients) {
			s.now += ms
		}
	}
	begin := max(s.free[client]+1, s.now-int64(s.r.IntN(40))*ms)
	s.now = max(s.now, begin+1)
	op.Client, op.Queue, op.Node = client, "q", fmt.Sprint("n", 1+s.r.IntN(3))
	op.Invoke, op.Return = begin, s.now+1+int64(s.r.IntN(40))*ms
	if op.Outcome == "" {
		op.Outcome = OK
	}
	s.free[client] = op.Return
	s.ops = append(s.ops, op)
	return &s.ops[len(s.ops)-1]
}

func (s *sim) id() string {
	var id ulid.ULID
	_ = id.SetTime(uint64(s.now / ms))
	s.ids++
	binary.BigEndian.PutUint64(id[8:], s.ids)
	return id.String()
}

func (s *sim) append(l *simLane, uids []string) {
	l.waiting = append(slices.Clone(l.waiting), uids...)
	for _, uid := range uids {
		s.put[uid] = true
	}
}

func (s *sim) lane() *simLane { return s.lanes[fmt.Sprint("k", s.r.IntN(len(s.lanes)))] }

// age keeps what a node that is behind would show.
func (l *simLane) age() { l.old = slices.Clone(l.waiting) }

func (s *sim) produce() {
	l := s.lane()
	l.age()
	op := Op{Kind: Produce}
	var uids []string
	for range 1 + s.r.IntN(3) {
		s.uids++
		uid := fmt.Sprint("m", s.uids)
		uids = append(uids, uid)
		op.Messages = append(op.Messages, Message{UID: uid, Key: l.key, ID: "id-" + uid})
	}
	op.Request = "r-" + uids[0]
	done := true
	switch {
	case s.plant("a write that was refused is done"):
		op.Outcome = Fail
	case s.plant("an acknowledged write is lost with its leader"):
		done = false
	case s.plant("half a batch is done"):
		if len(uids) == 1 {
			s.planted = false
		}
		uids = uids[:(len(uids)+1)/2]
	case s.plant("two messages of a batch change places"):
		slices.Reverse(uids)
		if len(uids) == 1 {
			s.planted = false
		}
	case s.plant("a repeat is done twice"):
		s.append(l, uids)
		first := op
		first.Outcome = Unknown
		s.do(-1, first)
	case s.r.IntN(8) == 0:
		op.Outcome = Unknown
		if done = s.r.IntN(2) == 0; !done && s.r.IntN(2) == 0 {
			// It lies in the log of a node that will lead before the crash.
			s.late = append(s.late, func() { s.append(l, uids) })
		}
		if s.plant("an unknown write is done behind the crash and a write") {
			done = false
			s.late = append(s.late, nil, func() { s.append(l, uids) })
		}
	}
	s.do(-1, op)
	if done {
		s.append(l, uids)
	}
	s.made = append(s.made, op.Messages...)
}

func (s *sim) lease() {
	l := s.lane()
	if len(l.waiting) == 0 {
		return
	}
	uid := l.waiting[0]
	if l.lease != "" && s.now/ms < l.expires {
		if !s.plant("two nodes lease one message at once") {
			return
		}
	}
	if len(l.waiting) > 1 && s.plant("a message overtakes the one ahead of it") {
		uid = l.waiting[1]
	}
	op := s.do(-1, Op{Kind: Lease})
	id := s.id()
	expires := s.now/ms + 100
	op.Found = []Found{{ID: "id-" + uid, UID: uid, Key: l.key, Lease: id, Expires: expires}}
	l.lease, l.expires, l.known = id, expires, true
	if s.r.IntN(12) == 0 {
		op.Outcome, op.Found, l.known = Unknown, nil, false
		return
	}
	s.holds = append(s.holds, hold{op.Client, l.key, uid, id})
}

func (s *sim) settle() {
	if len(s.holds) == 0 {
		return
	}
	i := s.r.IntN(len(s.holds))
	h := s.holds[i]
	s.holds = slices.Delete(s.holds, i, i+1)
	l := s.lanes[h.key]
	l.age()
	kind := []Kind{Ack, Ack, Ack, Retry, Release, Extend}[s.r.IntN(6)]
	if s.bug == "an extended lease ends at its first time" {
		kind = []Kind{Ack, Extend}[s.r.IntN(2)]
	}
	op := s.do(h.client, Op{Kind: kind, Lease: h.lease, Message: "id-" + h.uid})
	if l.lease == h.lease && s.now/ms >= l.expires {
		l.lease = "" // it has run out
	}
	if l.lease != h.lease && (l.lease == "" || !l.known || !s.plant("a lease that was lost acks")) {
		op.Status = "rejected"
		if len(l.waiting) > 0 && l.waiting[0] == h.uid && kind == Ack && s.plant("a refused ack is done") {
			l.waiting, l.lease = l.waiting[1:], ""
		}
		return
	}
	op.Status = string(kind) + "ed"
	done := true
	if s.r.IntN(10) == 0 {
		op.Outcome, op.Status = Unknown, ""
		done = s.r.IntN(2) == 0
	}
	if kind == Ack && op.Outcome == OK && s.plant("an ack is forgotten") {
		done = false
	}
	if kind == Extend && op.Outcome == OK {
		op.Expires = s.now/ms + 1000
		if s.plant("an extended lease ends at its first time") {
			done = false
		}
	}
	if !done {
		return
	}
	switch kind {
	case Ack:
		if at := slices.Index(l.waiting, h.uid); at >= 0 {
			l.waiting = slices.Delete(slices.Clone(l.waiting), at, at+1)
		}
		if op.Outcome == OK && s.plant("an acked message comes back") {
			l.waiting = append([]string{h.uid}, l.waiting...)
		}
		l.lease = ""
	case Retry, Release:
		l.lease = ""
	case Extend:
		l.expires = max(l.expires, s.now/ms+1000)
		s.holds = append(s.holds, h)
	}
}

func (s *sim) get() {
	if len(s.made) == 0 {
		return
	}
	m := s.made[s.r.IntN(len(s.made))]
	l := s.lanes[m.Key]
	state := func(waiting []string) string {
		if slices.Contains(waiting, m.UID) {
			return "ready"
		}
		if !s.put[m.UID] {
			return absent
		}
		return "acked"
	}
	op := s.do(-1, Op{Kind: Get, Found: []Found{{ID: m.ID, UID: m.UID, Key: m.Key}}})
	op.Found[0].State = state(l.waiting)
	if s.bug == "a follower reads without asking the leader" && state(l.old) != state(l.waiting) {
		// Only what was behind for long enough is to be seen.
		op.Found[0].State = state(l.old)
		op.Invoke = op.Return - 1
		s.planted = true
	}
}

// crash ends all processes; what is in their logs comes true before the next
// write is answered, or never.
func (s *sim) crash() {
	s.now += 50 * ms
	for c := range simClients {
		s.now = max(s.now, s.free[c]+1)
	}
	s.ops = append(s.ops, Op{Client: -1, Kind: Crash, Invoke: s.now, Return: s.now + 1, Outcome: OK})
	var after []func()
	for i := 0; i < len(s.late); i++ {
		if s.late[i] == nil {
			after = append(after, s.late[i+1])
			i++
			continue
		}
		if s.r.IntN(2) == 0 {
			s.late[i]()
		}
	}
	s.late = nil
	s.now += 5 * ms
	s.ops = append(s.ops, Op{Client: -1, Kind: Barrier, Invoke: s.now, Return: s.now + ms, Outcome: OK})
	s.now += 5 * ms
	s.peek()
	for _, do := range after {
		do()
	}
}

func (s *sim) peek() {
	op := Op{Client: -1, Kind: Peek, Queue: "q", Invoke: s.now, Return: s.now + ms, Outcome: OK}
	for _, key := range sortedKeys(s.lanes) {
		l := s.lanes[key]
		waiting := l.waiting
		if len(waiting) > 1 && s.plant("a node shows its queue without what came last") {
			waiting = waiting[:len(waiting)-1]
		}
		for i, uid := range waiting {
			op.Found = append(op.Found, Found{ID: fmt.Sprintf("%03d", i), UID: uid, Key: key})
		}
	}
	s.ops = append(s.ops, op)
	s.now += 2 * ms
	for c := range simClients {
		s.free[c] = max(s.free[c], s.now)
	}
	s.now += 2 * ms
}

// TestSimulatedClusterIsLinear: the checker accuses nobody.
func TestSimulatedClusterIsLinear(t *testing.T) {
	for seed := range uint64(200) {
		s := simulate(seed, "")
		if v, undecided := CheckLinear(s.ops, "q", testRules["q"], time.Minute); len(v) > 0 || undecided > 0 {
			t.Errorf("seed %d: %v, %d undecided", seed, v, undecided)
		}
	}
}

// TestPlantedBugs: what a cluster could do wrong, in the middle of requests that
// overlap, unknown outcomes and crashes; porcupine alone must find each, in most
// histories in which it is: now and then what was not learnt explains it, or the
// orders to be tried are too many.
func TestPlantedBugs(t *testing.T) {
	for _, bug := range []string{
		"a write that was refused is done",
		"an acknowledged write is lost with its leader",
		"half a batch is done",
		"two messages of a batch change places",
		"a repeat is done twice",
		"an unknown write is done behind the crash and a write",
		"two nodes lease one message at once",
		"a message overtakes the one ahead of it",
		"a lease that was lost acks",
		"a refused ack is done",
		"an ack is forgotten",
		"an extended lease ends at its first time",
		"an acked message comes back",
		"a follower reads without asking the leader",
		"a node shows its queue without what came last",
	} {
		t.Run(bug, func(t *testing.T) {
			planted, found := 0, 0
			for seed := uint64(0); seed < 200 && planted < 20; seed++ {
				s := simulate(seed, bug)
				if !s.planted {
					continue
				}
				planted++
				if v, _ := CheckLinear(s.ops, "q", testRules["q"], 3*time.Second); len(v) > 0 {
					found++
				}
			}
			t.Logf("found in %d of %d histories", found, planted)
			if planted < 10 || found*10 < planted*8 {
				t.Errorf("found in %d of %d histories", found, planted)
			}
		})
	}
}

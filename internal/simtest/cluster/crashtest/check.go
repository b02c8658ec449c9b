package crashtest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
)

// Rules say what a queue promises.
type Rules struct {
	// PerKey: the messages of a key come in the order of their ids, the next
	// one after the one ahead has left. (An unordered queue: false.)
	PerKey bool
	// Batch is how many messages of a key one call may lease; 0 is one.
	Batch int
	// DeadLetters is where messages of this queue may go instead of being
	// acked; "" is nowhere, so that they stay until they are acked.
	DeadLetters string
	// Held: a key stops at its dead message until that is replayed to its place,
	// or purged. So its order holds across deaths, and a message that is acked or
	// purged has left for good.
	Held bool
	// Rate is how many messages may be leased per PerMS milliseconds, and in a
	// burst; 0 is no limit.
	Rate, PerMS int64
}

// The rules by which Check names what it finds.
const (
	Lost       = "lost"        // a message whose enqueue was answered with success is nowhere
	Phantom    = "phantom"     // the program shows what nobody sent, or what it said it refused
	Damaged    = "damaged"     // a payload is not as it was sent
	Twice      = "twice"       // one message has two ids, or died twice
	CameBack   = "came back"   // an acked message is there again
	Order      = "order"       // a message was delivered before the one ahead of it had left
	Exclusive  = "exclusive"   // a message was leased while another lease on it was valid
	Torn       = "torn"        // part of a batch is there, part is not
	RealTime   = "real time"   // what was asked later has the smaller id
	Repeat     = "repeat"      // the repeat of a request has another answer
	LeaseState = "lease state" // a lease that was lost is good again, or a settled one is refused
	Attempts   = "attempts"    // a message's attempts don't count its leases
	Stuck      = "stuck"       // a message was not delivered although nothing is in its way
	Old        = "old"         // a read shows less than was acknowledged before it
	Backwards  = "backwards"   // a later read shows an earlier state
	Index      = "index"       // a later write has the earlier entry
	TooFast    = "too fast"    // more was leased in a period than the rate limit allows
)

// Violation is what Check found.
type Violation struct {
	Rule   string
	Detail string
}

func (v Violation) String() string { return v.Rule + ": " + v.Detail }

// message is all that a history says of one message.
type message struct {
	queue, key, uid string
	requested       *request
	ids             map[string]bool // in its own queue
	deliveries      []delivery
	settles         []Op
	dead            map[string]bool // ids in the dead-letter queue
	revivals        []Op            // replays and purges of it
}

type delivery struct {
	Found
	invoke, ret int64
	ahead       []Found // of the same key, in the same call
}

// request is a produce and its repeats.
type request struct {
	name      string
	queue     string
	uids      []string
	invoke    int64 // of the first attempt
	ret       int64 // of the first success; max if there is none
	ids       []string
	succeeded bool
	open      bool // an attempt's outcome is unknown
}

// Judge returns all that is wrong with a campaign's history, and how many lanes
// porcupine could not decide, with limit for each. What is left in the queues is
// wrong only at the end.
func Judge(ops []Op, atEnd bool, limit time.Duration) (wrong []Violation, undecided int) {
	rules := map[string]Rules{}
	for _, q := range queues {
		rules[q.Name] = q.Rules
	}
	if !atEnd {
		// What has died since the last look at the dead letters is not known.
		for len(ops) > 0 && ops[len(ops)-1].Kind != Peek {
			ops = ops[:len(ops)-1]
		}
	}
	for _, v := range Check(ops, rules) {
		if v.Rule != Stuck || atEnd {
			wrong = append(wrong, v)
		}
	}
	if !atEnd {
		return wrong, 0
	}
	linear, undecided := judgeLinear(ops, limit)
	return append(wrong, linear...), undecided
}

// judgeLinear checks the lanes of the queues from which messages leave only by
// an ack or a purge.
func judgeLinear(ops []Op, limit time.Duration) (wrong []Violation, undecided int) {
	for _, q := range queues {
		if q.PerKey && (q.Held || q.DeadLetters == "") {
			v, n := CheckLinear(ops, q.Name, q.Rules, limit)
			wrong, undecided = append(wrong, v...), undecided+n
		}
	}
	return wrong, undecided
}

type check struct {
	rules      map[string]Rules
	requests   map[string]*request
	byUID      map[string]*message
	violations []Violation
}

// Check returns what in a history must not be. The queues that rules names are
// the campaign's; the history's last Peek of each is its end, when all that is
// left should be dead.
func Check(history []Op, rules map[string]Rules) []Violation {
	c := &check{rules: rules, requests: map[string]*request{}, byUID: map[string]*message{}}
	ops := slices.Clone(history)
	slices.SortStableFunc(ops, func(a, b Op) int { return cmp.Compare(a.Invoke, b.Invoke) })
	c.produces(ops)
	c.sightings(ops)
	c.settles(ops)
	c.revivals(ops)
	for _, uid := range slices.Sorted(maps.Keys(c.byUID)) {
		m := c.byUID[uid]
		slices.SortFunc(m.deliveries, func(a, b delivery) int {
			return cmp.Compare(a.Lease, b.Lease)
		})
		c.message(m)
	}
	c.batches()
	c.rates()
	c.realTime()
	c.lanes()
	c.peeks(ops)
	c.reads(ops)
	c.indexes(ops)
	return c.violations
}

func (c *check) say(rule, format string, args ...any) {
	c.violations = append(c.violations, Violation{rule, fmt.Sprintf(format, args...)})
}

func (c *check) produces(ops []Op) {
	for _, op := range ops {
		if op.Kind != Produce {
			continue
		}
		r := c.requests[op.Request]
		if r == nil {
			r = &request{name: op.Request, queue: op.Queue, invoke: op.Invoke, ret: math.MaxInt64}
			c.requests[op.Request] = r
			for _, m := range op.Messages {
				r.uids = append(r.uids, m.UID)
				c.byUID[m.UID] = &message{
					queue: op.Queue, key: m.Key, uid: m.UID, requested: r,
					ids: map[string]bool{}, dead: map[string]bool{},
				}
			}
		}
		switch op.Outcome {
		case Unknown:
			r.open = true
		case OK:
			var ids []string
			for _, m := range op.Messages {
				ids = append(ids, m.ID)
				c.byUID[m.UID].ids[m.ID] = true
			}
			if r.succeeded && !slices.Equal(ids, r.ids) {
				c.say(Repeat, "request %s was answered with %v, and then with %v", r.name, r.ids,
					ids)
			}
			r.succeeded, r.ids = true, ids
			r.ret = min(r.ret, op.Return)
		}
	}
}

// deadQueues returns which queue's dead a queue holds.
func (c *check) deadOf(queue string) (string, bool) {
	for q, r := range c.rules {
		if r.DeadLetters == queue && queue != "" {
			return q, true
		}
	}
	return "", false
}

// sightings notes every message that the program showed.
func (c *check) sightings(ops []Op) {
	for _, op := range ops {
		if op.Kind != Lease && op.Kind != Peek {
			continue
		}
		batches := map[string][]Found{} // by key
		for _, f := range op.Found {
			m := c.byUID[f.UID]
			switch {
			case f.UID == "":
				c.say(Damaged, "%s of %s shows %s with a payload that nobody sent", op.Kind,
					op.Queue, f.ID)
				continue
			case m == nil:
				c.say(Phantom, "%s of %s shows %s (%s), which nobody sent", op.Kind, op.Queue, f.ID,
					f.UID)
				continue
			case !m.requested.succeeded && !m.requested.open:
				c.say(Phantom, "%s of %s shows %s (%s), whose enqueue surely failed", op.Kind,
					op.Queue, f.ID, f.UID)
			case f.Key != m.key:
				c.say(Damaged, "%s has key %q, it was sent with %q", f.UID, f.Key, m.key)
			}
			if from, ok := c.deadOf(op.Queue); ok {
				if from != m.queue {
					c.say(Phantom, "%s of %s lies among the dead of %s", f.UID, m.queue, from)
				}
				m.dead[f.ID] = true
				if f.DeadID != "" {
					m.ids[f.DeadID] = true
				}
				continue
			}
			if op.Queue != m.queue {
				c.say(Phantom, "%s was sent to %s and is in %s", f.UID, m.queue, op.Queue)
				continue
			}
			if op.Invoke < m.requested.invoke && op.Return < m.requested.invoke {
				c.say(Phantom, "%s is there before it was sent", f.UID)
			}
			m.ids[f.ID] = true
			if op.Kind == Lease {
				d := delivery{f, op.Invoke, op.Return, batches[f.Key]}
				m.deliveries = append(m.deliveries, d)
				batches[f.Key] = append(d.ahead[:len(d.ahead):len(d.ahead)], f)
				if r := c.rules[op.Queue]; r.PerKey && len(d.ahead) >= max(r.Batch, 1) {
					c.say(Order, "%s was delivered as the %d. of key %q in one call", f.UID,
						len(d.ahead)+1, f.Key)
				}
			}
		}
	}
}

func (c *check) settles(ops []Op) {
	byID := map[string]*message{}
	for _, m := range c.byUID {
		for id := range m.ids {
			byID[id] = m
		}
	}
	for _, op := range ops {
		switch op.Kind {
		case Ack, Retry, Release, Extend, DeadLetter:
			if m := byID[op.Message]; m != nil {
				m.settles = append(m.settles, op)
			}
		}
	}
}

// took reports whether a settle changed something, for sure.
func took(op *Op, kinds ...Kind) bool {
	return op.Outcome == OK && op.Status != "rejected" && slices.Contains(kinds, op.Kind)
}

// mayHaveTaken reports whether it may have.
func mayHaveTaken(op *Op, kinds ...Kind) bool {
	return (op.Outcome == Unknown || took(op, kinds...)) && slices.Contains(kinds, op.Kind)
}

// message checks what concerns one message alone.
func (c *check) message(m *message) {
	held := c.rules[m.queue].Held
	if len(m.ids) > 1 && !held {
		c.say(Twice, "%s has the ids %v", m.uid, slices.Sorted(maps.Keys(m.ids)))
	}
	if len(m.dead) > 1 && !held {
		c.say(Twice, "%s died as %v", m.uid, slices.Sorted(maps.Keys(m.dead)))
	}
	forGood := []Kind{Ack, DeadLetter}
	if held {
		forGood = forGood[:1]
		c.revived(m)
	}
	// A lease id grows with time, so its order is the order of the grants.
	for i := range m.settles {
		s := &m.settles[i]
		if !took(s, forGood...) {
			continue
		}
		for _, d := range m.deliveries {
			if d.Lease > s.Lease {
				c.say(CameBack, "%s was settled for good (%s, lease %s) and leased again as %s",
					m.uid, s.Kind, s.Lease, d.Lease)
			}
		}
		if s.Kind == Ack && len(m.dead) > 0 && !held {
			c.say(Twice, "%s was acked and is dead as well", m.uid)
		}
	}
	c.leases(m)
	c.leaseStates(m)
}

// leases checks that no two leases of a message were valid at once, and that
// its attempts count.
func (c *check) leases(m *message) {
	for i := 1; i < len(m.deliveries); i++ {
		a, b := &m.deliveries[i-1], &m.deliveries[i]
		if a.Lease == b.Lease {
			c.say(Exclusive, "%s was given out twice under the lease %s", m.uid, a.Lease)
			continue
		}
		// What was behind others goes back when one of them fails, or its lease runs out.
		released := len(a.ahead) > 0
		ended := c.failed(a.ahead, b.ret)
		expires := a.Expires
		for j := range m.settles {
			s := &m.settles[j]
			if s.Lease != a.Lease || s.Invoke > b.ret {
				continue
			}
			if took(s, Extend) && len(a.ahead) == 0 {
				expires = max(expires, s.Expires)
			}
			ended = ended || mayHaveTaken(s, Retry, Release, DeadLetter)
			released = released || mayHaveTaken(s, Release)
		}
		if id, err := ulid.ParseStrict(b.Lease); err == nil && !ended &&
			int64(id.Time()) < expires {
			c.say(Exclusive, "%s was leased as %s %d ms before its lease %s ran out",
				m.uid, b.Lease, expires-int64(id.Time()), a.Lease)
		}
		if a.ID == b.ID && (b.Attempt < a.Attempt || b.Attempt == a.Attempt && !released) {
			c.say(Attempts, "%s had attempt %d and then %d", m.uid, a.Attempt, b.Attempt)
		}
	}
}

// failed reports whether one of these leases may have ended otherwise than by an ack, until then.
func (c *check) failed(leased []Found, until int64) bool {
	for _, f := range leased {
		for i := range c.byUID[f.UID].settles {
			s := &c.byUID[f.UID].settles[i]
			if s.Lease == f.Lease && s.Invoke <= until &&
				mayHaveTaken(s, Retry, Release, DeadLetter) {
				return true
			}
		}
	}
	return false
}

// leaseStates checks the answers to settles of one lease: once it is lost it
// stays lost, and what succeeded is answered the same when it is repeated.
func (c *check) leaseStates(m *message) {
	ends := []Kind{Ack, Retry, Release, DeadLetter}
	for i := range m.settles {
		a := &m.settles[i]
		if a.Outcome != OK {
			continue
		}
		for j := range m.settles {
			b := &m.settles[j]
			if b.Lease != a.Lease || b.Outcome != OK || b.Invoke <= a.Return {
				continue
			}
			switch {
			case a.Status == "rejected" && b.Status != "rejected" && !earlier(m.settles, b, a):
				c.say(LeaseState, "lease %s of %s was lost, and later %s was answered %s", a.Lease,
					m.uid, b.Kind, b.Status)
			case took(a, ends...) && b.Kind == a.Kind && b.Status != a.Status:
				c.say(LeaseState, "%s of lease %s of %s was answered %s, and its repeat %s", a.Kind,
					a.Lease, m.uid, a.Status, b.Status)
			}
		}
	}
}

// earlier reports whether b may be the repeat of a settle that took before a
// was answered: then a was refused because of that one.
func earlier(settles []Op, b, a *Op) bool {
	for i := range settles {
		s := &settles[i]
		if s.Lease == b.Lease && s.Kind == b.Kind && s.Invoke < a.Return &&
			mayHaveTaken(s, s.Kind) {
			return true
		}
	}
	return false
}

// batches checks that a request is there in whole or not at all.
func (c *check) batches() {
	for _, name := range slices.Sorted(maps.Keys(c.requests)) {
		r := c.requests[name]
		seen, missing := "", ""
		for _, uid := range r.uids {
			if len(c.byUID[uid].ids) > 0 {
				seen = uid
			} else {
				missing = uid
			}
		}
		if seen != "" && missing != "" {
			c.say(Torn, "request %s: %s is there, %s never was", name, seen, missing)
		}
	}
}

// realTime checks that ids agree with time: what was asked after another
// request had been answered has the larger ids.
func (c *check) realTime() {
	var done []*request
	for _, r := range c.requests {
		if r.succeeded {
			done = append(done, r)
		}
	}
	byReturn := slices.SortedFunc(slices.Values(done),
		func(a, b *request) int { return cmp.Compare(a.ret, b.ret) })
	slices.SortFunc(done, func(a, b *request) int { return cmp.Compare(a.invoke, b.invoke) })
	highest, from := "", ""
	next := 0
	for _, r := range done {
		for ; next < len(byReturn) && byReturn[next].ret < r.invoke; next++ {
			if id := slices.Max(byReturn[next].ids); id > highest {
				highest, from = id, byReturn[next].name
			}
		}
		if id := slices.Min(r.ids); id < highest {
			c.say(RealTime, "request %s got %s after request %s had got %s", r.name, id, from,
				highest)
		}
	}
}

// lanes checks the order in each key.
// rates checks that at most twice a rate limit was leased in any of its periods,
// by the log's clock.
func (c *check) rates() {
	given := map[string][]int64{} // by queue
	for _, m := range c.byUID {
		for _, d := range m.deliveries {
			if id, err := ulid.ParseStrict(d.Lease); err == nil && c.rules[m.queue].Rate > 0 {
				given[m.queue] = append(given[m.queue], int64(id.Time()))
			}
		}
	}
	for queue, times := range given {
		slices.Sort(times)
		r, first := c.rules[queue], 0
		for i, at := range times {
			for times[first] <= at-r.PerMS {
				first++
			}
			if n := int64(i - first + 1); n > 2*r.Rate {
				c.say(TooFast, "%d messages of %s were leased in the %d ms to %d, the limit is %d",
					n, queue, r.PerMS, at, r.Rate)
				break
			}
		}
	}
}

func (c *check) lanes() {
	type lane struct{ queue, key string }
	lanes := map[lane][]*message{}
	for _, uid := range slices.Sorted(maps.Keys(c.byUID)) {
		m := c.byUID[uid]
		// Where the first of several ids is not known, neither is its place.
		if r := c.rules[m.queue]; r.PerKey && (len(m.ids) == 1 && !r.Held || r.Held &&
			m.requested.succeeded) {
			lanes[lane{m.queue, m.key}] = append(lanes[lane{m.queue, m.key}], m)
		}
	}
	for _, ms := range lanes {
		slices.SortFunc(ms, func(a, b *message) int { return cmp.Compare(idOf(a), idOf(b)) })
		left := make([]int64, len(ms)) // when, as far as can be known
		for i, m := range ms {
			left[i] = c.leftAt(m)
			for _, d := range m.deliveries {
				for j, ahead := range ms[:i] {
					// Before it has left, only the call that leased it may lease what follows.
					same := func(f Found) bool { return f.UID == ahead.uid }
					if d.ret < left[j] && !slices.ContainsFunc(d.ahead, same) {
						c.say(Order, "%s was delivered (lease %s) while %s was ahead of it in key %q",
							m.uid, d.Lease, ahead.uid, m.key)
						break
					}
				}
			}
		}
	}
}

// idOf returns a message's first id, by which it has its place.
func idOf(m *message) string {
	if len(m.ids) == 0 {
		return ""
	}
	return slices.Sorted(maps.Keys(m.ids))[0]
}

// leftAt returns the earliest time at which a message may have left its queue,
// max if it never did.
func (c *check) leftAt(m *message) int64 {
	at := int64(math.MaxInt64)
	held := c.rules[m.queue].Held
	for i := range m.settles {
		if s := &m.settles[i]; mayHaveTaken(s, Ack, DeadLetter) && !(held && s.Kind == DeadLetter) {
			at = min(at, s.Invoke)
		}
	}
	for i := range m.revivals {
		if r := &m.revivals[i]; mayHaveTaken(r, Purge) {
			at = min(at, r.Invoke)
		}
	}
	if held {
		return at
	}
	switch n := len(m.deliveries); {
	case len(m.dead) == 0:
	case n > 0:
		// It died of its last attempt, some time after that began.
		at = min(at, m.deliveries[n-1].invoke)
	default:
		// It died of attempts that nobody heard of: any time.
		at = min(at, m.requested.invoke)
	}
	return at
}

// peeks checks what each peek shows against what was known when it was taken.
func (c *check) peeks(ops []Op) {
	last := map[string]Op{}
	for _, op := range ops {
		if op.Kind == Peek && op.Outcome == OK {
			last[op.Queue] = op
		}
	}
	sent := map[string][]*message{} // by queue
	for _, uid := range slices.Sorted(maps.Keys(c.byUID)) {
		m := c.byUID[uid]
		sent[m.queue] = append(sent[m.queue], m)
	}
	for i, op := range ops {
		if op.Kind != Peek || op.Outcome != OK {
			continue
		}
		rules, ok := c.rules[op.Queue]
		if !ok {
			continue
		}
		shown := map[string]bool{}
		for _, f := range op.Found {
			if shown[f.UID] {
				c.say(Twice, "a peek of %s shows %s twice", op.Queue, f.UID)
			}
			shown[f.UID] = true
		}
		// The dead letters of the same moment.
		dead := map[string]bool{}
		for _, o := range ops[i:] {
			if o.Kind == Peek && o.Queue == rules.DeadLetters && rules.DeadLetters != "" {
				for _, f := range o.Found {
					dead[f.UID] = true
				}
				break
			}
		}
		for _, m := range sent[op.Queue] {
			uid := m.uid
			acked, mayBeGone := false, false
			for j := range m.settles {
				s := &m.settles[j]
				if s.Invoke < op.Invoke {
					acked = acked || took(s, Ack) && s.Return < op.Invoke
					mayBeGone = mayBeGone || mayHaveTaken(s, Ack)
				}
			}
			for j := range m.revivals {
				r := &m.revivals[j]
				mayBeGone = mayBeGone || r.Invoke < op.Invoke && mayHaveTaken(r, Purge)
			}
			end := op.Invoke == last[op.Queue].Invoke
			switch {
			case rules.Held && dead[uid] && acked:
				c.say(CameBack, "%s was acked and a peek shows it among the dead", uid)
			case rules.Held && dead[uid] && end && !shown[uid]:
				c.say(Stuck, "%s (%s) is left among the dead of %s at the end", uid, idOf(m),
					op.Queue)
			case shown[uid] && acked:
				c.say(CameBack, "%s was acked and a peek shows it", uid)
			case shown[uid] && dead[uid] && end: // else it may have died between the two peeks
				c.say(Twice, "%s is in %s and among its dead", uid, op.Queue)
			case !shown[uid] && !mayBeGone && !dead[uid] && m.requested.ret < op.Invoke:
				c.say(Lost, "%s (%s) was enqueued, was not acked, and is not in %s", uid, idOf(m),
					op.Queue)
			case shown[uid] && end:
				c.say(Stuck, "%s (%s) is left in %s at the end", uid, idOf(m), op.Queue)
			}
		}
	}
}

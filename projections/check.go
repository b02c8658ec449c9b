package projections

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Check walks the whole state and reports the first violation of its invariants (I7, I8,
// I9), or the first index that differs from the one that Load would build. Only tests call
// it.
func (s *State) Check() error {
	c := &checker{State: s, set: map[timer]bool{}, tried: map[[2]uint32]int64{}}
	c.timers(&s.waiting)
	c.timers(&s.deadlines)
	c.timers(&s.refills)
	for _, q := range s.numbers { // order does not matter: any contradiction will do
		c.tokens(q)
	}
	tallies := map[uint32]*tally{}
	for n := range s.backlogs { // order does not matter: filled in
		tallies[n] = &tally{}
	}
	for h := handle(1); h <= s.messages.used && c.err == nil; h++ {
		m := s.messages.get(h)
		if m.state == event.StateNone {
			continue
		}
		t := tallies[m.backlog]
		if c.want(t != nil, "message %s is of backlog %d, which is not there", m.id, m.backlog) {
			t.add(m, s.deleted(m))
			c.message(h, m)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.backlogs)) {
		if c.err == nil {
			c.backlog(s.backlogs[n], tallies[n])
		}
	}
	if c.err == nil {
		c.indexes()
	}
	return c.err
}

// checker finds the first contradiction in a state.
type checker struct {
	*State
	set map[timer]bool // whether a timer that is set is valid
	// waiting messages by backlog and attempts spent
	tried map[[2]uint32]int64
	err   error
}

// want returns ok, and records what is wrong if it is false.
func (c *checker) want(ok bool, wrong string, args ...any) bool {
	if !ok && c.err == nil {
		c.err = fmt.Errorf("check: %s", fmt.Sprintf(wrong, args...))
	}
	return ok
}

// indexes compares what is kept while folding with what Load builds from the written state.
// Load itself compares the digest.
func (c *checker) indexes() {
	f := c.Freeze()
	defer f.Release()
	var written bytes.Buffer
	if _, err := f.WriteTo(&written); !c.want(err == nil, "%v", err) {
		return
	}
	t, err := Load(&written)
	if !c.want(err == nil, "%v", err) {
		return
	}
	same := func(what string, same bool) {
		c.want(same, "%s: a loaded state has others", what)
	}
	samePages := func(a, b *ids) bool {
		return maps.EqualFunc(a.byID, b.byID, func(x, y handle) bool {
			return *a.pages.get(x) == *b.pages.get(y)
		})
	}
	same("pages by id", samePages(&c.ids, &t.ids))
	same("resurrections", maps.Equal(c.raised.byKey, t.raised.byKey))
	same("kinds by name", maps.Equal(c.kinds.byName, t.kinds.byName))
	same("contents by index", maps.Equal(c.contents, t.contents))
	same("deduplication hashes", maps.Equal(c.dedup.byKey, t.dedup.byKey))
	same("deduplication hashes by message", samePages(&c.dedup.byNow, &t.dedup.byNow))
	same("answers by request", maps.Equal(c.answers.byKey, t.answers.byKey))
	same("ended tasks", slices.EqualFunc(c.ended, t.ended,
		func(a, b *task) bool { return a.ID == b.ID && a.EndedAt == b.EndedAt }))
	for h := handle(1); h <= c.extras.used; h++ {
		same("dead messages", c.extras.get(h).deadOrder == t.extras.get(h).deadOrder)
	}
	for n, b := range c.backlogs { // order does not matter: any contradiction will do
		o := t.backlogs[n]
		same("partitions by key", maps.Equal(b.partitions, o.partitions))
		same("messages by source id", maps.EqualFunc(b.sources, o.sources, slices.Equal))
		same("dead messages by queue", maps.EqualFunc(b.dead, o.dead,
			func(a, b *list) bool { return *a == *b }))
		if b.deleted { // its lists are not kept
			continue
		}
		same("held keys in order", slices.Equal(o.queue.heldOrder, slices.DeleteFunc(
			slices.Clone(b.queue.heldOrder),
			func(k heldKey) bool { return b.queue.held[k.key].since != k.since })))
		same("ready lists", b.byPrio == o.byPrio)
		same("ready lists by kind", maps.EqualFunc(b.byKind, o.byKind,
			func(a, b *[event.MaxPriority + 1]list) bool { return *a == *b }))
		same("messages kept apart", maps.Equal(b.apart.contents(), o.apart.contents()))
	}
	same("backlogs by queue of death", maps.EqualFunc(c.died, t.died, func(a, b []*backlog) bool {
		return len(a) == len(b) && !slices.ContainsFunc(a, func(x *backlog) bool {
			return !slices.ContainsFunc(b, func(y *backlog) bool { return x.number == y.number })
		})
	}))
}

// tally counts the messages of a backlog.
type tally struct{ ready, scheduled, leased, bytes, all int64 }

func (t *tally) add(m *message, deleted bool) {
	t.all++
	if deleted {
		return
	}
	t.bytes += int64(m.size)
	switch m.state {
	case event.StateReady:
		t.ready++
	case event.StateScheduled:
		t.scheduled++
	case event.StateLeased:
		t.leased++
	}
}

// timers checks the order of the timers.
func (c *checker) timers(q *timers) {
	t, ok := q.first()
	c.want(!ok || c.valid(t), "the first timer, of message %s, is void", t.id)
	row := q.row[q.past:]
	for i, t := range row {
		c.set[t] = c.valid(t)
		c.want(i == 0 || !t.before(row[i-1]), "timer %d is before the one before it", i)
	}
	for i, t := range q.heap {
		c.set[t] = c.valid(t)
		c.want(i == 0 || !t.before(q.heap[(i-1)/2]), "timer %d is before its parent", i)
	}
}

// tokens checks that a queue with a rate_limit has a bucket, and an empty one a timer.
func (c *checker) tokens(q *queue) {
	b, n := q.tokens, q.policy.RateLimit
	if !c.want((b != nil) == (n > 0), "queue %q: rate_limit %d, bucket %v", q.Name, n, b) || b == nil {
		return
	}
	c.want(b.level >= 0 && b.level <= n*q.policy.RatePer() && b.at <= c.clock,
		"queue %q: bucket %+v of %d at %d", q.Name, *b, n, c.clock)
	t := timer{at: q.refillsAt(), h: handle(q.Number), kind: timerRefill}
	c.want(t.at <= c.clock || c.set[t], "queue %q has an empty bucket without a timer", q.Name)
}

func (c *checker) message(h handle, m *message) {
	c.want(m.id.Compare(c.lastID) <= 0, "message %s came after the newest one, %s", m.id, c.lastID)
	found, _ := c.find(m.id)
	c.want(found == h, "message %s is not found by its id", m.id)
	c.want(m.state.Live(), "message %s is %s", m.id, m.state)
	t := timer{id: m.id, h: h, at: m.due, kind: timerReady}
	if leased := m.state == event.StateLeased; c.want(leased == (m.lease != 0),
		"message %s is %s, its lease is %d", m.id, m.state, m.lease) && leased {
		l := c.leases.get(m.lease)
		found, _ := c.findLeased(l.id)
		c.want(found == h, "message %s is not found by its lease", m.id)
		t.at, t.kind = l.expires, timerLease
	}
	if m.state != event.StateLeased && m.attempt > 0 {
		c.tried[[2]uint32{m.backlog, m.attempt}]++
	}
	c.want(m.state == event.StateReady || c.deleted(m) || c.set[t],
		"message %s is %s without a timer", m.id, m.state)
	if m.extra != 0 {
		t.at, t.kind = c.extras.get(m.extra).timer, timerExpiry
		c.want(t.at == 0 || c.set[t], "message %s expires without a timer", m.id)
	}
}

func (c *checker) backlog(b *backlog, t *tally) {
	q := b.queue
	c.want(int64(b.all.n) == t.all, "backlog %d of %q lists %d messages, %d name it", b.number,
		q.Name, b.all.n, t.all)
	last := event.ID{}
	for h := b.all.head; h != 0 && c.err == nil; h = c.messages.get(h).all.next {
		id := c.messages.get(h).id
		c.want(id.Compare(last) > 0, "backlog %d of %q: message %s after %s", b.number, q.Name, id,
			last)
		last = id
	}
	if b.deleted || c.err != nil {
		return
	}
	if b.ageEnd != 0 {
		oldest := timer{b.ageEnd, c.messages.get(b.cursor).id, handle(b.number), timerAge}
		c.want(c.set[oldest], "backlog %d of %q has no timer", b.number, q.Name)
	}
	counts := tally{b.ready, b.scheduled, int64(b.inFlight.n), b.bytes, t.all}
	c.want(counts == *t, "backlog %d of %q counts %+v, its messages %+v", b.number, q.Name, counts,
		*t)
	for attempt, t := range b.tried { // order does not matter: any contradiction will do
		of := [2]uint32{b.number, attempt}
		c.want(t.n == c.tried[of] && t.since > 0, "queue %q counts %+v messages with %d attempts, "+
			"there are %d", q.Name, t, attempt, c.tried[of])
		delete(c.tried, of)
	}
	for of, n := range c.tried { // order does not matter: as above
		c.want(of[0] != b.number, "queue %q does not count %d messages with %d attempts", q.Name,
			n, of[1])
	}
	held := len(q.heldOrder) > 0 && q.held[q.heldOrder[0].key].since == q.heldOrder[0].since
	c.want(held == (len(q.held) > 0), "queue %q holds %d keys, in order %v", q.Name, len(q.held),
		q.heldOrder)
	if q.backlog == b {
		n := &q.Stats
		in := n.Enqueued + n.DeadIn + n.ReplayedIn + n.Imported + n.Resurrected
		out := n.Acked + n.DeadLettered + n.Discarded + n.Replayed
		c.want(in == out+b.held(), "queue %q took in %d, released %d and holds %d", q.Name, in, out,
			b.held())
	}
	if b.ordering != event.Unordered {
		c.batches(b)
		for _, lh := range b.partitions { // order does not matter: any contradiction will do
			c.partition(b, lh)
		}
		for i := range b.byPrio {
			c.since(b, &b.byPrio[i])
		}
		return
	}
	ready := c.apart(b)
	for i := range b.byPrio {
		ready += int64(b.byPrio[i].n)
		c.front(b, &b.byPrio[i], orderLink)
		c.separated(b, uint8(i)+1)
	}
	for _, lists := range b.byKind { // order does not matter: any contradiction will do
		for i := range lists {
			c.front(b, &lists[i], kindLink)
		}
	}
	c.want(ready == b.ready, "queue %q lists %d ready messages of %d", q.Name, ready, b.ready)
}

// separated checks that in front of where a separation has come to, all of where none goes on, no
// message of a paused key is in the ready lists.
func (c *checker) separated(b *backlog, prio uint8) {
	at := b.separate
	if at != 0 && c.messages.get(at).priority < prio {
		return
	}
	for h := b.ready1(prio).head; h != 0 && h != at && c.err == nil; h = c.messages.get(h).order.next {
		m := c.messages.get(h)
		c.want(!b.queue.keyPaused(c.keyOf(m)) && m.place != placeApart,
			"queue %q offers message %s, whose key is paused or which is kept apart", b.queue.Name, m.id)
	}
}

// contents returns what is in each list.
func (a *keyLists) contents() map[keyListID]list {
	out := map[keyListID]list{}
	if a != nil {
		for id, h := range a.byID { // order does not matter: filled in
			out[id] = a.lists.get(h).messages
		}
	}
	return out
}

// apart checks what is kept apart, and returns how many messages are.
func (c *checker) apart(b *backlog) (n int64) {
	leased := map[handle]uint32{}
	if b.queue.policy.MaxInFlightPerKey > 0 {
		for h := b.inFlight.head; h != 0; h = c.messages.get(h).order.next {
			leased[c.messages.get(h).partition]++
		}
	}
	for key, lh := range b.partitions { // order does not matter: any contradiction will do
		p := c.partitions.get(lh)
		c.want(p.inFlight == leased[lh], "queue %q counts %d leases of key %q, not %d", b.queue.Name,
			p.inFlight, key, leased[lh])
	}
	if b.apart == nil {
		return 0
	}
	a := b.apart
	count, may := map[handle]uint32{}, int64(0)
	for id, lh := range a.byID { // order does not matter: any contradiction will do
		k := a.lists.get(lh)
		p := c.partitions.get(id.partition)
		of, offers := orderLink, 0
		if id.kind != 0 {
			of = kindLink
		} else {
			count[id.partition] += k.messages.n
			n += int64(k.messages.n)
		}
		if byPrio := a.offers[id.kind]; byPrio != nil && k.at > 0 && byPrio[id.priority][k.at-1] == lh {
			offers = 1
		}
		c.want(k.keyListID == id && k.messages.n > 0 && (offers == 1) == (p.offered > 0),
			"queue %q: a list of key %q, priority %d has %d messages and is offered %d times, "+
				"%d can be leased", b.queue.Name, p.key, id.priority, k.messages.n, offers, p.offered)
		c.front(b, &k.messages, of)
	}
	for lh, ready := range count { // order does not matter: as above
		p := c.partitions.get(lh)
		may += int64(p.offered)
		c.want(p.ready == ready && p.offered == b.queue.mayLeaseOf(p),
			"queue %q keeps %d messages of key %q apart, counts %d and offers %d", b.queue.Name, ready,
			p.key, p.ready, p.offered)
	}
	c.want(may == a.offered, "queue %q offers %d messages that are kept apart, not %d", b.queue.Name,
		a.offered, may)
	for _, byPrio := range a.offers { // order does not matter: as above
		for i := range byPrio {
			h := offerHeap{c.State, a, &byPrio[i]}
			for j := 1; j < h.Len(); j++ {
				c.want(!h.Less(j, (j-1)/2), "queue %q: what is kept apart is offered in the wrong order",
					b.queue.Name)
			}
		}
	}
	return n
}

// batches checks the first half of I9: those leased of a partition are in a row, in their order,
// and were leased by one call, so at one index.
func (c *checker) batches(b *backlog) {
	first := map[handle]handle{} // by partition
	prev := handle(0)
	for h := b.inFlight.head; h != 0 && c.err == nil; h = c.messages.get(h).order.next {
		m := c.messages.get(h)
		if _, ok := first[m.partition]; !ok {
			first[m.partition] = h
		} else if o := c.messages.get(prev); c.want(o.partition == m.partition,
			"message %s is leased apart from others of its partition", m.id) {
			id, was := c.leases.get(m.lease).id, c.leases.get(o.lease).id
			c.want(event.RefOf(was).Index == event.RefOf(id).Index && was.Compare(id) < 0 &&
				!c.ahead(m, o), "message %s is leased behind %s, out of order", m.id, o.id)
		}
		prev = h
	}
	for _, lh := range b.partitions { // order does not matter: any contradiction will do
		l := c.partitions.get(lh)
		c.want(l.leased == first[lh], "partition %q of queue %q has handle %d as its first leased, not %d",
			l.key, b.queue.Name, first[lh], l.leased)
	}
}

// since checks that the partitions of a ready list are in the order in which they were offered,
// where that counts.
func (c *checker) since(b *backlog, l *list) {
	last := int64(0)
	for lh := l.head; lh != 0 && c.err == nil; lh = c.partitions.get(lh).order.next {
		p := c.partitions.get(lh)
		c.want(p.since >= last && (p.since > 0) == (b.queue.policy.PriorityAgingMS > 0),
			"partition %q of queue %q is offered since %d, the one before it since %d", p.key,
			b.queue.Name, p.since, last)
		last = p.since
	}
}

// partition checks the second half of I9.
func (c *checker) partition(b *backlog, lh handle) {
	l, queue := c.partitions.get(lh), b.queue.Name
	leasable := false
	if l.waiting.head != 0 && l.leased == 0 {
		_, held := b.queue.held[l.key]
		leasable = !held && !slices.Contains(b.queue.PausedKeys, l.key) &&
			c.messages.get(l.waiting.head).state == event.StateReady
	}
	c.want(leasable == (l.listed != 0), "partition %q of queue %q: leasable %v, listed %d", l.key,
		queue, leasable, l.listed)
	var ready uint32
	var bytes int64
	placed := l.placed == 0
	for h := l.waiting.head; h != 0 && c.err == nil; h = c.messages.get(h).order.next {
		m := c.messages.get(h)
		placed = placed || h == l.placed
		c.want(placed || m.returned || !c.ahead(c.messages.get(l.placed), m),
			"partition %q of queue %q: message %s is before handle %d, "+
				"which was put behind all that come before it", l.key, queue, m.id, l.placed)
		if m.state == event.StateReady {
			ready++
		}
		bytes += int64(m.size)
		c.want(m.partition == lh, "message %s waits in a partition that is not its own", m.id)
	}
	c.want(placed, "partition %q of queue %q names handle %d, which does not wait in it", l.key,
		queue, l.placed)
	c.want(ready == l.ready && bytes == l.bytes,
		"partition %q of queue %q counts ready %d, bytes %d, holds %d, %d", l.key, queue, l.ready,
		l.bytes, ready, bytes)
	c.front(b, &l.waiting, orderLink)
}

// front checks that those that came back to the front of a list are there, in their order, and
// that the list knows the last of them.
func (c *checker) front(b *backlog, l *list, of func(*message) link) {
	last := handle(0)
	for h := l.head; h != 0 && c.err == nil; h = of(c.messages.get(h)).next {
		m := c.messages.get(h)
		if !m.returned {
			continue
		}
		prev := of(m).prev
		c.want(prev == last && (prev == 0 || !c.ahead(m, c.messages.get(prev))),
			"queue %q: message %s came back and is in the wrong place", b.queue.Name, m.id)
		last = h
	}
	c.want(last == l.front, "queue %q does not know the last message that came back to the front "+
		"of a list", b.queue.Name)
}

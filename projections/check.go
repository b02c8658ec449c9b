package projections

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Check walks the whole state and reports the first thing that contradicts its
// invariants (I7, I8, I9), or its indexes that a reader of the written state would
// build otherwise. Tests call it.
func (s *State) Check() error {
	set, err := s.checkTimers()
	if err != nil {
		return err
	}
	counts := map[uint32]*tally{}
	for n := range s.backlogs { // order does not matter: filled in
		counts[n] = &tally{}
	}
	for h := handle(1); h <= s.messages.used; h++ {
		m := s.messages.get(h)
		if m.state == event.StateNone {
			continue
		}
		if m.id.Compare(s.lastID) > 0 {
			return fmt.Errorf("check: message %s came after the newest one, %s", m.id, s.lastID)
		}
		c, ok := counts[m.backlog]
		if !ok {
			return fmt.Errorf("check: message %s is of backlog %d, which is not there", m.id,
				m.backlog)
		}
		c.add(m, s.deleted(m))
		if err := s.checkMessage(h, m, set); err != nil {
			return err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.backlogs)) {
		if err := s.checkBacklog(s.backlogs[n], counts[n], set); err != nil {
			return err
		}
	}
	return s.checkIndexes()
}

// checkIndexes compares what is kept while folding with what Load builds from the
// written state. Load itself compares the digest.
func (s *State) checkIndexes() error {
	f := s.Freeze()
	defer f.Release()
	var b bytes.Buffer
	if _, err := f.WriteTo(&b); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	t, err := Load(&b)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	check := func(what string, same bool) {
		if !same && err == nil {
			err = fmt.Errorf("check: %s: a loaded state has others", what)
		}
	}
	sameList := func(a, b *list) bool { return *a == *b }
	check("pages by id", maps.EqualFunc(s.ids.byID, t.ids.byID, func(a, b handle) bool {
		return *s.ids.pages.get(a) == *t.ids.pages.get(b)
	}))
	check("messages by what they were resurrected from", maps.Equal(s.raised, t.raised))
	check("kinds by name", maps.Equal(s.kinds.byName, t.kinds.byName))
	check("contents by index", maps.Equal(s.contents, t.contents))
	check("users of dead-letter queues", maps.Equal(s.users, t.users))
	check("deduplication hashes", maps.Equal(s.dedup.byKey, t.dedup.byKey))
	check("answers by request", maps.Equal(s.answers.byKey, t.answers.byKey))
	check("ended tasks", slices.EqualFunc(s.ended, t.ended,
		func(a, b *task) bool { return a.ID == b.ID && a.EndedAt == b.EndedAt }))
	for h := handle(1); h <= s.extras.used; h++ {
		x, y := s.extras.get(h), t.extras.get(h)
		check("dead messages", x.deadOrder == y.deadOrder)
	}
	for n, b := range s.backlogs { // order does not matter: any contradiction will do
		o := t.backlogs[n]
		check("partitions by key", maps.Equal(b.partitions, o.partitions))
		check("messages by source id", maps.EqualFunc(b.sources, o.sources, slices.Equal))
		check("dead messages by queue", maps.EqualFunc(b.dead, o.dead, sameList))
		if b.deleted { // its lists are not kept
			continue
		}
		check("ready lists", b.byPrio == o.byPrio)
		check("ready lists by kind", maps.EqualFunc(b.byKind, o.byKind,
			func(a, b *[event.MaxPriority + 1]list) bool { return *a == *b }))
	}
	check("backlogs by queue of death", maps.EqualFunc(s.died, t.died, func(a, b []*backlog) bool {
		return len(a) == len(b) && !slices.ContainsFunc(a, func(x *backlog) bool {
			return !slices.ContainsFunc(b, func(y *backlog) bool { return x.number == y.number })
		})
	}))
	return err
}

type tally struct{ ready, scheduled, leased, bytes, all int64 }

func (c *tally) add(m *message, deleted bool) {
	c.all++
	if deleted {
		return
	}
	c.bytes += int64(m.size)
	switch m.state {
	case event.StateReady:
		c.ready++
	case event.StateScheduled:
		c.scheduled++
	case event.StateLeased:
		c.leased++
	}
}

// checkTimers checks the order of the timers, and returns those that are valid.
func (s *State) checkTimers() (set map[timer]bool, err error) {
	set = map[timer]bool{}
	for _, q := range []*timers{&s.waiting, &s.deadlines} {
		if t, ok := q.first(); ok && !s.valid(t) {
			return nil, fmt.Errorf("check: the first timer, of message %s, is void", t.id)
		}
		row := q.row[q.past:]
		for i, t := range row {
			if set[t] = s.valid(t); i > 0 && t.before(row[i-1]) {
				return nil, fmt.Errorf("check: timer %d is before the one before it", i)
			}
		}
		for i, t := range q.heap {
			if set[t] = s.valid(t); i > 0 && t.before(q.heap[(i-1)/2]) {
				return nil, fmt.Errorf("check: timer %d is before its parent", i)
			}
		}
	}
	return set, nil
}

func (s *State) checkMessage(h handle, m *message, set map[timer]bool) error {
	if found, ok := s.find(m.id); !ok || found != h {
		return fmt.Errorf("check: message %s is not found by its id", m.id)
	}
	t := timer{id: m.id, h: h}
	switch m.state {
	case event.StateScheduled:
		t.at, t.kind = m.due, timerReady
	case event.StateLeased:
		if m.lease == 0 {
			return fmt.Errorf("check: message %s is leased without a lease", m.id)
		}
		l := s.leases.get(m.lease)
		if found, ok := s.findLeased(l.id); !ok || found != h {
			return fmt.Errorf("check: message %s is not found by its lease", m.id)
		}
		t.at, t.kind = l.expires, timerLease
	case event.StateReady:
		if m.lease != 0 {
			return fmt.Errorf("check: message %s is ready and has a lease", m.id)
		}
	default:
		return fmt.Errorf("check: message %s is %s", m.id, m.state)
	}
	if m.state != event.StateReady && !set[t] && !s.deleted(m) {
		return fmt.Errorf("check: message %s is %s without a timer", m.id, m.state)
	}
	if m.extra != 0 && s.extras.get(m.extra).timer != 0 {
		if t.at, t.kind = s.extras.get(m.extra).timer, timerExpiry; !set[t] {
			return fmt.Errorf("check: message %s expires without a timer", m.id)
		}
	}
	return nil
}

func (s *State) checkBacklog(b *backlog, c *tally, set map[timer]bool) error {
	if n := int64(b.all.n); n != c.all {
		return fmt.Errorf("check: backlog %d of %q lists %d messages, %d name it", b.number,
			b.queue.Name, n, c.all)
	}
	last := event.ID{}
	for h := b.all.head; h != 0; h = s.messages.get(h).all.next {
		if id := s.messages.get(h).id; id.Compare(last) <= 0 {
			return fmt.Errorf("check: backlog %d of %q: message %s after %s", b.number,
				b.queue.Name, id, last)
		} else {
			last = id
		}
	}
	if b.deleted {
		return nil
	}
	if b.ageEnd != 0 && !set[timer{b.ageEnd, s.messages.get(b.cursor).id, handle(b.number),
		timerAge}] {
		return fmt.Errorf("check: backlog %d of %q has no timer", b.number, b.queue.Name)
	}
	if b.ready != c.ready || b.scheduled != c.scheduled || int64(b.inFlight.n) != c.leased ||
		b.bytes != c.bytes {
		return fmt.Errorf("check: backlog %d of %q counts ready %d, scheduled %d, leased %d, "+
			"bytes %d; its messages %+v",
			b.number, b.queue.Name, b.ready, b.scheduled, b.inFlight.n, b.bytes, *c)
	}
	q := b.queue
	if q.backlog == b {
		c := &q.Stats
		in := c.Enqueued + c.DeadIn + c.ReplayedIn + c.Imported + c.Resurrected
		out := c.Acked + c.DeadLettered + c.Discarded + c.Replayed
		if in != out+b.held() {
			return fmt.Errorf("check: queue %q took in %d, released %d and holds %d", q.Name, in, out,
				b.held())
		}
	}
	if b.ordering == event.Unordered {
		n := int64(0)
		for i := range b.byPrio {
			n += int64(b.byPrio[i].n)
			if err := s.checkFront(b, &b.byPrio[i], orderLink); err != nil {
				return err
			}
		}
		for _, lists := range b.byKind { // order does not matter: any contradiction will do
			for i := range lists {
				if err := s.checkFront(b, &lists[i], kindLink); err != nil {
					return err
				}
			}
		}
		if n != b.ready {
			return fmt.Errorf("check: queue %q lists %d ready messages of %d", q.Name, n, b.ready)
		}
		return nil
	}
	for _, lh := range b.partitions { // order does not matter: any contradiction will do
		if err := s.checkPartition(b, lh); err != nil {
			return err
		}
	}
	return nil
}

// checkPartition checks I9.
func (s *State) checkPartition(b *backlog, lh handle) error {
	l := s.partitions.get(lh)
	leasable := false
	if l.waiting.head != 0 && l.leased == 0 {
		_, held := b.queue.held[l.key]
		leasable = !held && s.messages.get(l.waiting.head).state == event.StateReady
	}
	if leasable != (l.listed != 0) {
		return fmt.Errorf("check: partition %q of queue %q: leasable %v, listed %d", l.key,
			b.queue.Name, leasable, l.listed)
	}
	var ready uint32
	var bytes int64
	placed := l.placed == 0
	for h := l.waiting.head; h != 0; h = s.messages.get(h).order.next {
		m := s.messages.get(h)
		placed = placed || h == l.placed
		if l.placed != 0 && !placed && !m.returned && s.ahead(s.messages.get(l.placed), m) {
			return fmt.Errorf("check: partition %q of queue %q: message %s is before %s, "+
				"which was put behind all that come before it",
				l.key, b.queue.Name, m.id, s.messages.get(l.placed).id)
		}
		if m.state == event.StateReady {
			ready++
		}
		bytes += int64(m.size)
		if m.partition != lh {
			return fmt.Errorf("check: message %s waits in a partition that is not its own", m.id)
		}
	}
	if !placed {
		return fmt.Errorf("check: partition %q of queue %q names message %s, "+
			"which does not wait in it", l.key, b.queue.Name, s.messages.get(l.placed).id)
	}
	if err := s.checkFront(b, &l.waiting, orderLink); err != nil {
		return err
	}
	if ready != l.ready || bytes != l.bytes {
		return fmt.Errorf("check: partition %q of queue %q counts ready %d, bytes %d, holds %d, %d",
			l.key, b.queue.Name, l.ready, l.bytes, ready, bytes)
	}
	return nil
}

// checkFront checks that those that came back to the front of a list are there,
// in their order, and that the list knows the last of them.
func (s *State) checkFront(b *backlog, l *list, of func(*message) link) error {
	front := handle(0)
	for h := l.head; h != 0; h = of(s.messages.get(h)).next {
		m := s.messages.get(h)
		if !m.returned {
			continue
		}
		prev := of(m).prev
		if prev != front || prev != 0 && !s.ahead(s.messages.get(prev), m) {
			return fmt.Errorf("check: queue %q: message %s came back and is in the wrong place",
				b.queue.Name, m.id)
		}
		front = h
	}
	if front != l.front {
		return fmt.Errorf("check: queue %q does not know the last message that came back to "+
			"the front of a list", b.queue.Name)
	}
	return nil
}

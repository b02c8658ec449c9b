package projections

import (
	"fmt"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Check walks the whole state and reports the first thing that contradicts its
// invariants (I7, I8, I9). `qlogd replay --verify` and the tests call it.
func (s *State) Check() error {
	if s.messages.live != len(s.byID) {
		return fmt.Errorf("check: %d messages, %d ids", s.messages.live, len(s.byID))
	}
	if s.leases.live != len(s.byLease) {
		return fmt.Errorf("check: %d leases, %d lease ids", s.leases.live, len(s.byLease))
	}
	var sum digest
	counts := map[uint32]*tally{}
	for n := range s.backlogs { // order does not matter: filled in
		counts[n] = &tally{}
	}
	for h := handle(1); h <= s.messages.used; h++ {
		m := s.messages.get(h)
		if m.state == event.StateNone {
			continue
		}
		if found, _ := s.byID[m.id]; found != h {
			return fmt.Errorf("check: message %s is not found by its id", m.id)
		}
		if m.id.Compare(s.lastID) > 0 {
			return fmt.Errorf("check: message %s came after the newest one, %s", m.id, s.lastID)
		}
		sum.add(s.hashMessage(m))
		c, ok := counts[m.backlog]
		if !ok {
			return fmt.Errorf("check: message %s is of backlog %d, which is not there", m.id, m.backlog)
		}
		c.add(m, s.buried(m))
		if err := s.checkMessage(h, m); err != nil {
			return err
		}
	}
	if sum != s.sum {
		return fmt.Errorf("check: digest %x, the messages give %x", s.sum, sum)
	}
	for _, n := range sortedNumbers(s.backlogs) {
		if err := s.checkBacklog(s.backlogs[n], counts[n]); err != nil {
			return err
		}
	}
	if err := s.checkDead(); err != nil {
		return err
	}
	if err := s.checkTasks(); err != nil {
		return err
	}
	if err := s.checkOrigins(); err != nil {
		return err
	}
	for _, h := range []*timers{&s.waiting, &s.deadlines} {
		for i, t := range h.items {
			if s.peekPosition(t) != uint32(i+1) {
				return fmt.Errorf("check: timer %d does not know its place", i)
			}
			if i > 0 && s.before(t, h.items[(i-1)/2]) {
				return fmt.Errorf("check: timer %d is before its parent", i)
			}
		}
	}
	return nil
}

type tally struct{ ready, scheduled, leased, bytes, all int64 }

func (c *tally) add(m *message, buried bool) {
	c.all++
	if buried {
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

// peekPosition is position for reading only.
func (s *State) peekPosition(t timer) uint32 {
	switch t.kind {
	case timerWait:
		return s.messages.get(t.h).timer
	case timerExpiry:
		return s.extras.get(s.messages.get(t.h).extra).timer
	default:
		return s.backlogs[uint32(t.h)].timer
	}
}

func (s *State) checkMessage(h handle, m *message) error {
	switch m.state {
	case event.StateScheduled:
		if m.timer == 0 && !s.buried(m) {
			return fmt.Errorf("check: message %s is scheduled without a timer", m.id)
		}
	case event.StateLeased:
		if m.lease == 0 || s.leases.get(m.lease).message != h {
			return fmt.Errorf("check: message %s is leased without a lease", m.id)
		}
		if found, _ := s.byLease[s.leases.get(m.lease).id]; found != m.lease {
			return fmt.Errorf("check: message %s is leased without a lease", m.id)
		}
		if m.timer == 0 && !s.buried(m) {
			return fmt.Errorf("check: message %s is leased without a timer", m.id)
		}
	case event.StateReady:
		if m.timer != 0 || m.lease != 0 {
			return fmt.Errorf("check: message %s is ready and has a timer or a lease", m.id)
		}
	default:
		return fmt.Errorf("check: message %s is %s", m.id, m.state)
	}
	return nil
}

func (s *State) checkBacklog(b *backlog, c *tally) error {
	if n := int64(b.all.n); n != c.all {
		return fmt.Errorf("check: backlog %d of %q lists %d messages, %d name it", b.number,
			b.queue.name, n, c.all)
	}
	last := event.ID{}
	for h := b.all.head; h != 0; h = s.messages.get(h).all.next {
		if id := s.messages.get(h).id; id.Compare(last) <= 0 {
			return fmt.Errorf("check: backlog %d of %q: message %s after %s", b.number, b.queue.name, id,
				last)
		} else {
			last = id
		}
	}
	if b.grave {
		return nil
	}
	if b.ready != c.ready || b.scheduled != c.scheduled || int64(b.inFlight.n) != c.leased ||
		b.bytes != c.bytes {
		return fmt.Errorf("check: backlog %d of %q counts ready %d, scheduled %d, leased %d, bytes %d; its messages %+v",
			b.number, b.queue.name, b.ready, b.scheduled, b.inFlight.n, b.bytes, *c)
	}
	q := b.queue
	if q.backlog == b {
		in := q.enqueued + q.deadIn + q.replayedIn + q.imported + q.resurrected
		out := q.acked + q.deadLettered + q.discarded + q.replayed
		if in != out+b.held() {
			return fmt.Errorf("check: queue %q took in %d, let go %d and holds %d", q.name, in, out,
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
			return fmt.Errorf("check: queue %q lists %d ready messages of %d", q.name, n, b.ready)
		}
		return nil
	}
	for _, lh := range b.lanes { // order does not matter: any contradiction will do
		if err := s.checkLane(b, lh); err != nil {
			return err
		}
	}
	return nil
}

// checkLane checks I9.
func (s *State) checkLane(b *backlog, lh handle) error {
	l := s.lanes.get(lh)
	leasable := false
	if l.waiting.head != 0 && l.leased == 0 {
		_, held := b.queue.held[l.key]
		leasable = !held && s.messages.get(l.waiting.head).state == event.StateReady
	}
	if leasable != (l.listed != 0) {
		return fmt.Errorf("check: lane %q of queue %q: leasable %v, listed %d", l.key, b.queue.name,
			leasable, l.listed)
	}
	var ready uint32
	var bytes int64
	placed := l.placed == 0
	for h := l.waiting.head; h != 0; h = s.messages.get(h).order.next {
		m := s.messages.get(h)
		placed = placed || h == l.placed
		if l.placed != 0 && !placed && !m.returned && s.ahead(s.messages.get(l.placed), m) {
			return fmt.Errorf("check: lane %q of queue %q: message %s is before %s, which was put behind all that come before it", l.key, b.queue.name, m.id, s.messages.get(l.placed).id)
		}
		if m.state == event.StateReady {
			ready++
		}
		bytes += int64(m.size)
		if m.lane != lh {
			return fmt.Errorf("check: message %s waits in a lane that is not its own", m.id)
		}
	}
	if !placed {
		return fmt.Errorf("check: lane %q of queue %q names message %s, which does not wait in it",
			l.key, b.queue.name, s.messages.get(l.placed).id)
	}
	if err := s.checkFront(b, &l.waiting, orderLink); err != nil {
		return err
	}
	if ready != l.ready || bytes != l.bytes {
		return fmt.Errorf("check: lane %q of queue %q counts ready %d, bytes %d, holds %d, %d", l.key,
			b.queue.name, l.ready, l.bytes, ready, bytes)
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
				b.queue.name, m.id)
		}
		front = h
	}
	if front != l.front {
		return fmt.Errorf("check: queue %q does not know the last message that came back to the front of a list", b.queue.name)
	}
	return nil
}

// deadIn names the messages of a backlog that died in a queue.
type deadIn struct {
	backlog uint32
	queue   string
}

// deadFound is what the messages themselves say of a deadList.
type deadFound struct {
	n, gone uint32
	lanes   map[handle]uint32
}

func (s *State) findDead() map[deadIn]*deadFound {
	want := map[deadIn]*deadFound{}
	for h := handle(1); h <= s.messages.used; h++ {
		m := s.messages.get(h)
		if m.state == event.StateNone || m.extra == 0 || s.extras.get(m.extra).dead == nil {
			continue
		}
		k := deadIn{m.backlog, s.extras.get(m.extra).dead.Queue}
		if want[k] == nil {
			want[k] = &deadFound{lanes: map[handle]uint32{}}
		}
		want[k].n++
		b := s.backlogs[m.backlog]
		waits := m.state == event.StateReady || m.state == event.StateScheduled &&
			m.place == event.PlaceBlock
		switch {
		case b.ordering == event.Unordered || !waits:
		case s.lanes.get(m.lane).grave:
			want[k].gone++
		default:
			want[k].lanes[m.lane]++
		}
	}
	return want
}

// checkDead checks the lists of what died against the messages.
func (s *State) checkDead() error {
	want := s.findDead()
	lists := 0
	for _, n := range sortedNumbers(s.backlogs) {
		b := s.backlogs[n]
		for name, l := range b.dead { // order does not matter: any contradiction will do
			lists++
			w := want[deadIn{n, name}]
			if w == nil || w.n != l.n || !b.grave && (w.gone != l.gone || !maps.Equal(w.lanes, l.lanes)) {
				return fmt.Errorf("check: backlog %d lists %d messages that died in %q, %d gone, partitions %v; its messages give %+v", n, l.n, name, l.gone, l.lanes, w)
			}
			last := event.ID{}
			for h := l.head; h != 0; h = s.nextDead(h) {
				m := s.messages.get(h)
				if m.backlog != n || !s.diedIn(h, name) || m.id.Compare(last) <= 0 {
					return fmt.Errorf("check: message %s is listed in the wrong place among those that died in %q", m.id, name)
				}
				last = m.id
			}
			if slices.Contains(s.died[name], b) == b.grave {
				return fmt.Errorf("check: backlog %d is found from queue %q, or is not, the wrong way", n,
					name)
			}
		}
	}
	if lists != len(want) {
		return fmt.Errorf("check: %d lists of dead messages where %d belong", lists, len(want))
	}
	for name, l := range s.died { // order does not matter: any contradiction will do
		for _, b := range l {
			if b.dead[name] == nil {
				return fmt.Errorf("check: queue %q names backlog %d, which has nothing of it", name,
					b.number)
			}
		}
	}
	return nil
}

// checkTasks checks the list of ended tasks.
func (s *State) checkTasks() error {
	ended, last := 0, event.Ref{}
	for _, t := range s.sortedTasks() {
		if t.ended() != (t.EndedAt != 0) {
			return fmt.Errorf("check: task %s is %s and ended at %d", t.ID, t.Status, t.EndedAt)
		}
		if t.ended() {
			ended++
		}
	}
	for _, t := range s.ended {
		if s.tasks[t.ID] != t || !t.ended() || t.last.Compare(last) <= 0 {
			return fmt.Errorf("check: task %s is listed in the wrong place among those that ended", t.ID)
		}
		last = t.last
	}
	if ended != len(s.ended) {
		return fmt.Errorf("check: %d tasks ended, %d are listed", ended, len(s.ended))
	}
	return nil
}

// checkOrigins checks by what messages that were imported or resurrected are found.
func (s *State) checkOrigins() error {
	sources, raised := 0, 0
	for h := handle(1); h <= s.messages.used; h++ {
		m := s.messages.get(h)
		if m.state == event.StateNone || m.extra == 0 {
			continue
		}
		x := s.extras.get(m.extra)
		if x.sourceID != "" {
			sources++
		}
		if o := x.origin; o != nil && o.raised {
			if raised++; s.raised[o.From] != h {
				return fmt.Errorf("check: message %s is not found by %s, which it was resurrected from",
					m.id, o.From)
			}
		}
	}
	if raised != len(s.raised) {
		return fmt.Errorf("check: %d messages were resurrected, %d are found", raised, len(s.raised))
	}
	for _, n := range sortedNumbers(s.backlogs) {
		for id, h := range s.backlogs[n].sources { // order does not matter: any contradiction will do
			for last := (event.ID{}); h != 0; h = s.extras.get(s.messages.get(h).extra).sourceNext {
				m := s.messages.get(h)
				if sources--; m.backlog != n || s.extras.get(m.extra).sourceID != id ||
					m.id.Compare(last) <= 0 {
					return fmt.Errorf("check: message %s is found by source id %q of backlog %d, the wrong way", m.id, id, n)
				}
				last = m.id
			}
		}
	}
	if sources != 0 {
		return fmt.Errorf("check: %d messages with a source id are not found by it", sources)
	}
	return nil
}

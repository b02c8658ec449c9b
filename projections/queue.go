package projections

import (
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// queue is one incarnation of a named queue.
type queue struct {
	// its number is never used again; without Policy and what the backlog counts
	event.QueueView

	policy  *event.Policy // never changed in place
	backlog *backlog
	tokens  *tokens         // nil without a rate_limit
	held    map[string]hold // keys held (on_dead: hold_key)
	// the keys held in the order in which they were, among some that are not any more. Invariant:
	// the first one is held
	heldOrder []heldKey
	touched   bool
}

// hold blocks a partition until all its dead messages are resolved. There can be several:
// messages behind the first one may have expired.
type hold struct {
	since event.ID // the first one
	dead  uint32   // how many are not resolved
}

// backlog holds the messages of a queue. A purge gives the queue a new backlog and leaves
// the old one to a tombstone: every reader sees it at once, however many messages there
// are.
type backlog struct {
	number     uint32
	queue      *queue
	ordering   event.Ordering
	deleted    bool // its messages are deleted, and their events are pending
	all        list
	inFlight   list // the leased ones, in the order of their leases
	partitions map[string]handle
	dead       map[string]*list        // by the queue in which they died
	sources    map[string][]handle     // by source id, the oldest first
	tried      map[uint32]tried        // waiting messages by attempts spent, at least one
	byPrio     [event.MaxPriority]list // ready messages (unordered) or partitions
	byKind     map[handle]*[event.MaxPriority + 1]list
	apart      *keyLists // nil unless messages are kept apart
	separate   handle    // the next message to examine, 0: no separation goes on
	// Invariant: all messages before it were checked for their age: they are leased, or
	// have a timer of their own
	cursor handle
	ageEnd int64 // when its timerAge comes due, 0 none

	ready, scheduled int64
	bytes            int64
}

// held returns the number of its messages.
func (b *backlog) held() int64 { return b.ready + b.scheduled + int64(b.inFlight.n) }

func (b *backlog) ready1(prio uint8) *list { return &b.byPrio[prio-1] }

func (b *backlog) kindLists(kind handle) *[event.MaxPriority + 1]list {
	k, ok := b.byKind[kind]
	if !ok {
		k = new([event.MaxPriority + 1]list)
		b.byKind[kind] = k
	}
	return k
}

// dropKind deletes the lists of a kind when they are empty: kinds are unlimited.
func (b *backlog) dropKind(kind handle) {
	for _, l := range b.byKind[kind] {
		if l.n > 0 {
			return
		}
	}
	delete(b.byKind, kind)
}

func (s *State) newBacklog(q *queue) *backlog {
	s.next++
	b := &backlog{number: s.next, queue: q, ordering: q.policy.Ordering}
	b.index()
	s.backlogs[b.number] = b
	return b
}

// index creates the indexes, which a written state leaves out.
func (b *backlog) index() {
	b.partitions, b.byKind = map[string]handle{}, map[handle]*[event.MaxPriority + 1]list{}
	b.dead, b.sources = map[string]*list{}, map[string][]handle{}
	b.tried = map[uint32]tried{}
}

func (s *State) queueCreated(e *event.Event) {
	if _, ok := s.queues[e.Queue]; ok {
		s.impossible(e, "queue %q is there already", e.Queue)
	}
	if e.Number <= s.next {
		s.impossible(e, "number %d was given before, the last is %d", e.Number, s.next)
	}
	s.next = e.Number
	q := &queue{policy: e.Policy, held: map[string]hold{}, QueueView: event.QueueView{
		Name: e.Queue, Number: e.Number, Revision: s.index, CreatedAt: s.clock, UpdatedAt: s.clock,
	}}
	q.backlog = s.newBacklog(q)
	s.fill(q)
	s.queues[q.Name], s.numbers[q.Number] = q, q
}

// mustQueue returns the queue of this name, which an event is about.
func (s *State) mustQueue(e *event.Event, name string) *queue {
	q, ok := s.queues[name]
	if !ok {
		s.impossible(e, "queue %q is not there", name)
	}
	return q
}

func (s *State) queueUpdated(e *event.Event) {
	q := s.mustQueue(e, e.Queue)
	b, was := q.backlog, q.policy
	if field := was.Fixed(e.Policy); field != "" && b.held() > 0 {
		s.impossible(e, "%s changes while the queue holds %d messages", field, b.held())
	}
	if was.Ordering != e.Policy.Ordering {
		s.deleteBacklog(q, &tombstone{reason: event.ReasonPurged, queue: q.Name})
		q.policy = e.Policy
		q.backlog = s.newBacklog(q)
		q.held, q.heldOrder = map[string]hold{}, nil // the partitions are others now
		if e.Policy.Ordering == event.FIFO {
			q.PausedKeys = nil
		}
	}
	q.policy, q.Revision, q.UpdatedAt = e.Policy, s.index, s.clock
	if was.RateLimit != e.Policy.RateLimit || was.RatePer() != e.Policy.RatePer() {
		s.fill(q)
	}
	if was.MaxInFlightPerKey != e.Policy.MaxInFlightPerKey {
		s.refreshKeys(q.backlog)
	}
	s.setCursor(q.backlog, q.backlog.all.head) // the age may be another now: look at all again
	if q.policy.OnDead != event.DeadHoldKey {
		s.releaseAll(q)
	}
	s.touch(q) // a limit may be another now
}

// releaseAll unblocks all blocked partitions, because the policy no longer blocks them.
func (s *State) releaseAll(q *queue) {
	for _, key := range slices.Sorted(maps.Keys(q.held)) {
		q.unhold(key)
		if lh, ok := q.backlog.partitions[key]; ok {
			s.refresh(q.backlog, lh)
		}
	}
}

// queuePaused folds queue_paused and queue_resumed, of the queue or of a key.
func (s *State) queuePaused(e *event.Event) {
	q := s.mustQueue(e, e.Queue)
	q.UpdatedAt = s.clock
	pause := e.Type == event.QueuePaused
	if e.Key != "" {
		s.pauseKey(q, e.Key, pause)
		return
	}
	if q.Paused = pause; !pause {
		s.touch(q)
	}
}

// queuePurged discards all but leased messages: the leased ones move to a new backlog,
// the others get their events in bounded entries.
func (s *State) queuePurged(e *event.Event) {
	q := s.mustQueue(e, e.Queue)
	old := q.backlog
	q.Stats.Discarded += old.ready + old.scheduled
	q.UpdatedAt = s.clock
	s.deleteBacklog(q, &tombstone{reason: event.ReasonPurged, queue: q.Name})
	q.backlog = s.newBacklog(q)
	s.moveLeased(old, q.backlog)
}

// moveLeased moves the leased messages of a purged backlog to the new one, in the order of their
// leases.
func (s *State) moveLeased(old, b *backlog) {
	var moved []handle
	for old.inFlight.head != 0 {
		h := old.inFlight.head
		m := s.messages.mut(h)
		key := s.keyOf(m)
		remove[messageOrder](s, &old.inFlight, h)
		if m.partition != 0 {
			s.partitions.mut(m.partition).leased = 0
			s.releasePartition(old, m.partition)
		}
		m.backlog = b.number
		m.partition = s.takePartition(b, key)
		if b.ordering != event.Unordered {
			if l := s.partitions.mut(m.partition); l.leased == 0 {
				l.leased = h
			}
		}
		s.countLease(b, m, 1)
		insert[messageOrder](s, &b.inFlight, h, 0)
		moved = append(moved, h)
	}
	for _, h := range s.byAge(moved) {
		m := s.messages.mut(h)
		if m.extra != 0 {
			x := s.extras.get(m.extra)
			if x.dead != nil {
				s.unlistDead(old, h)
				s.listDead(b, h)
			}
			if x.sourceID != "" {
				s.unlistSource(old, h)
				s.listSource(b, h)
			}
		}
		remove[messageAll](s, &old.all, h)
		insert[messageAll](s, &b.all, h, 0)
		old.bytes -= int64(m.size)
		b.bytes += int64(m.size)
	}
	s.setCursor(b, b.all.head)
}

func (s *State) queueDeleted(e *event.Event) {
	q := s.mustQueue(e, e.Queue)
	delete(s.queues, q.Name)
	s.deleteBacklog(q, &tombstone{reason: event.ReasonQueueDeleted, queue: q.Name, owner: q})
}

// setCursor moves a backlog's age cursor and resets its timer.
func (s *State) setCursor(b *backlog, h handle) {
	was, end := b.cursor, b.ageEnd
	b.cursor, b.ageEnd = h, 0
	if h == 0 || b.deleted || b.queue.policy.MaxAgeSeconds == 0 {
		return
	}
	m := s.messages.get(h)
	if b.ageEnd = s.ageEnd(m); h != was || b.ageEnd != end {
		s.deadlines.push(s, timer{at: b.ageEnd, id: m.id, h: handle(b.number), kind: timerAge})
	}
}

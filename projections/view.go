package projections

import (
	"maps"
	"math"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Queue returns a queue as readers see it.
func (s *State) Queue(name string) (event.QueueView, bool) {
	v, ok := s.Look(name)
	if !ok {
		return v, false
	}
	for h := s.queues[name].backlog.all.head; h != 0; h = s.messages.get(h).all.next {
		if m := s.messages.get(h); !s.deleted(m) {
			v.Stats.Oldest = m.created()
			break
		}
	}
	q := s.queues[name]
	if q.backlog.ordering == event.Unordered {
		return v, true
	}
	for _, key := range v.PausedKeys {
		lh, ok := q.backlog.partitions[key]
		if !ok {
			continue
		}
		// Only the pause withholds its head; the others are behind that one.
		if head := s.partitions.get(lh).waiting.head; head != 0 &&
			s.messages.get(head).state == event.StateReady && !s.heldInLane(q, head) {
			v.Stats.Held--
		}
	}
	return v, true
}

// heldInLane reports whether a ready message cannot be leased because of an earlier one of its
// partition, or of a dead one that holds its key.
func (s *State) heldInLane(q *queue, h handle) bool {
	l := s.partitions.get(s.messages.get(h).partition)
	_, held := q.held[l.key]
	return held || l.leased != 0 || l.waiting.head != h
}

// Look returns a queue for the state machine. It is cheaper than Queue: it lacks Stats.Oldest, and
// Stats.Held counts the heads of paused lanes.
func (s *State) Look(name string) (event.QueueView, bool) {
	q, ok := s.queues[name]
	if !ok {
		return event.QueueView{}, false
	}
	b := q.backlog
	v := q.QueueView
	v.Policy, v.MayLease = *q.policy, s.mayLease(q)
	if at := q.refillsAt(); at > s.clock {
		v.RefillsAt = at
	}
	v.Stats.Ready, v.Stats.Scheduled, v.Stats.InFlight = b.ready, b.scheduled, int64(b.inFlight.n)
	v.Stats.Bytes, v.Stats.Partitions = b.bytes, int64(len(b.partitions))
	if b.ordering != event.Unordered {
		v.Stats.Held = b.ready
		for i := range b.byPrio {
			v.Stats.Held -= int64(b.byPrio[i].n)
		}
	}
	return v, true
}

// Policy returns a queue's policy, which is never changed in place, or nil if there is no
// such queue. It is cheaper than Look.
func (s *State) Policy(name string) *event.Policy {
	if q, ok := s.queues[name]; ok {
		return q.policy
	}
	return nil
}

// Queues returns all queues, sorted by name.
func (s *State) Queues() []event.QueueView {
	out := make([]event.QueueView, 0, len(s.queues))
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		q, _ := s.Queue(name)
		out = append(out, q)
	}
	return out
}

// QueueCount returns how many queues there are.
func (s *State) QueueCount() int { return len(s.queues) }

// Message returns a live message. A deleted one whose event is pending (purged, its queue
// deleted, its key dead) reads as discarded or dead-lettered.
func (s *State) Message(id event.ID) (event.MessageView, bool) {
	h, ok := s.find(id)
	if !ok {
		return event.MessageView{}, false
	}
	return s.viewMessage(h), true
}

func (s *State) viewMessage(h handle) event.MessageView {
	m := s.messages.get(h)
	b := s.backlogs[m.backlog]
	v := event.MessageView{
		ID: m.id, Queue: b.queue.Name, Key: s.keyOf(m), Kind: s.kinds.name(m.kind), State: m.state,
		Priority: m.priority, Attempt: m.attempt, Size: m.size, EnqueuedAt: m.created(), Due: m.due,
		Expires: s.expiresAt(m), Content: s.contentOf(m), Last: m.last(),
	}
	if m.lease != 0 {
		l := s.leases.get(m.lease)
		v.Lease, v.LeaseExpiresAt = l.id, l.expires
	}
	if m.extra != 0 {
		x := s.extras.get(m.extra)
		v.Dead, v.SourceID = x.dead, x.sourceID
		if x.origin != nil {
			v.Origin = &x.origin.OriginView
		}
	}
	switch {
	case s.deleted(m):
		v.State, v.Lease, v.LeaseExpiresAt = event.StateDiscarded, event.ID{}, 0
		if !b.deleted && b.queue.policy.DeadLetterQueue != "" {
			v.State = event.StateDeadLettered
		}
	case m.state == event.StateReady && b.ordering != event.Unordered:
		v.Held = s.heldInLane(b.queue, h)
	}
	return v
}

// Messages returns a queue's messages by id, at most f.Limit of those that match the
// filter (0: all), and whether there are more.
func (s *State) Messages(name string, f event.MessageFilter) ([]event.MessageView, bool) {
	var w Walk
	w.Messages(s, name, f, math.MaxInt)
	return w.Found, w.More
}

// Walk searches messages in steps, between which the state may change: a message that
// enters or leaves its queue meanwhile may be missed. Its zero value is ready for one
// search.
type Walk struct {
	Found []event.MessageView
	More  bool // there are more than the filter's limit

	past event.ID // all up to it were examined
	at   event.ID // where the last step ended
}

// Messages continues the search, examines at most n messages, and reports whether it is
// done. If the message at which the last step ended has left, some are passed again.
func (w *Walk) Messages(s *State, name string, f event.MessageFilter, n int) bool {
	q, ok := s.queues[name]
	if !ok {
		return true
	}
	if w.past.Compare(f.After) < 0 {
		w.past, w.at = f.After, f.After
	}
	h := q.backlog.all.head
	if at, ok := s.find(w.at); ok && s.messages.get(at).backlog == q.backlog.number {
		h = s.messages.get(at).all.next
	}
	for ; h != 0; h = s.messages.get(h).all.next {
		if n == 0 {
			return false
		}
		n--
		m := s.messages.get(h)
		if w.at = m.id; m.id.Compare(w.past) <= 0 {
			continue
		}
		if !s.deleted(m) && (f.State == event.StateNone || m.state == f.State) && (f.Key == nil ||
			s.keyOf(m) == *f.Key) {
			if w.More = f.Limit > 0 && len(w.Found) == f.Limit; w.More {
				return true
			}
			w.Found = append(w.Found, s.viewMessage(h))
		}
		w.past = m.id
	}
	return true
}

// All yields every live message, in no order.
func (s *State) All(yield func(event.MessageView) bool) {
	for h := handle(1); h <= s.messages.used; h++ {
		m := s.messages.get(h)
		if m.state != event.StateNone && !s.deleted(m) && !yield(s.viewMessage(h)) {
			return
		}
	}
}

// Behind returns live messages whose content lies below an index of the log, examining at
// most n of the state's slots from one on (0: the first); more reports whether there are
// further slots, from at on. Messages that move meanwhile can be missed: see Needed.
func (s *State) Behind(index uint64, from uint32, n int) (found []event.MessageView, at uint32,
	more bool) {
	h := max(handle(from), 1)
	for end := h + handle(n); h <= s.messages.used && h < end; h++ {
		if m := s.messages.get(h); m.state != event.StateNone && !s.deleted(m) &&
			s.contentOf(m).Index < index {
			found = append(found, s.viewMessage(h))
		}
	}
	return found, uint32(h), h <= s.messages.used
}

// Leasable returns how many messages of a queue could be leased now, of the
// kinds given (none: of all).
func (s *State) Leasable(name string, kinds []string) int {
	q, ok := s.queues[name]
	if !ok {
		return 0
	}
	most := s.mayLease(q)
	if most == 0 {
		return 0
	}
	b, n := q.backlog, 0
	if len(kinds) == 0 {
		for i := range b.byPrio {
			n += int(b.byPrio[i].n)
		}
		if b.apart != nil {
			n += int(b.apart.offered)
		}
		return min(n, most)
	}
	for _, k := range kinds {
		kind := s.kinds.byName[k]
		if kind == 0 {
			continue
		}
		if lists := b.byKind[kind]; lists != nil {
			for i := range lists {
				n += int(lists[i].n)
			}
		}
		if b.apart != nil && b.apart.offers[kind] != nil { // each has one at least
			for _, o := range b.apart.offers[kind] {
				n += len(o)
			}
		}
	}
	return min(n, most)
}

// Next returns the message to lease next: of the kinds given (none: of all), the first by
// priority, which may age, and availability, or the head of the partition whose turn it is.
func (s *State) Next(name string, kinds []string) (event.MessageView, bool) {
	q, ok := s.queues[name]
	if !ok || s.mayLease(q) == 0 {
		return event.MessageView{}, false
	}
	b, aging := q.backlog, q.policy.PriorityAgingMS
	best, at := handle(0), int64(0)
	for prio := uint8(event.MinPriority); prio <= event.MaxPriority; prio++ {
		h := s.first(b, prio, kinds)
		if h == 0 {
			continue
		}
		if aged := s.waitsSince(b, h) + int64(prio)*aging; best == 0 || aged < at {
			best, at = h, aged
		}
		if aging == 0 {
			break
		}
	}
	if best == 0 {
		return event.MessageView{}, false
	}
	return s.viewMessage(best), true
}

// waitsSince returns from when the waiting counts by which a message's priority ages: in lanes,
// which take turns, from when its lane was offered.
func (s *State) waitsSince(b *backlog, h handle) int64 {
	m := s.messages.get(h)
	if b.ordering == event.Unordered {
		return m.due
	}
	return s.partitions.get(m.partition).since
}

// first returns the message of a priority that is leased first, of the kinds given (none: of all).
func (s *State) first(b *backlog, prio uint8, kinds []string) (best handle) {
	consider := func(h handle) {
		if h != 0 && (best == 0 || s.after(b, best, h)) {
			best = h
		}
	}
	if len(kinds) == 0 {
		consider(s.headMessage(b, b.ready1(prio), orderLink))
		consider(b.firstApart(prio, 0))
	}
	for _, k := range kinds {
		kind := s.kinds.byName[k]
		if kind == 0 {
			continue
		}
		if lists := b.byKind[kind]; lists != nil {
			consider(s.headMessage(b, &lists[prio], kindLink))
		}
		consider(b.firstApart(prio, kind))
	}
	return best
}

// after reports whether a message that can be leased comes after another one.
func (s *State) after(b *backlog, o, h handle) bool {
	if b.ordering == event.Unordered {
		return s.behindIt(s.messages.get(o), s.messages.get(h))
	}
	return later(s.messages.get(o), s.messages.get(h))
}

// headMessage returns the message that a ready list offers first.
func (s *State) headMessage(b *backlog, l *list, of func(*message) link) handle {
	if b.ordering == event.Unordered {
		return s.firstReady(b, l, of)
	}
	if l.head == 0 {
		return 0
	}
	return s.partitions.get(l.head).waiting.head
}

// ByLease returns the message whose current lease this is.
func (s *State) ByLease(id event.ID) (event.MessageView, bool) {
	h, ok := s.findLeased(id)
	if !ok || s.deleted(s.messages.get(h)) {
		return event.MessageView{}, false
	}
	return s.viewMessage(h), true
}

// WaitsBehind reports whether other messages wait in the partition of a
// message.
func (s *State) WaitsBehind(id event.ID) bool {
	h, _ := s.find(id)
	m := s.messages.get(h)
	lh := s.partitionOf(m)
	if lh == 0 || s.backlogs[m.backlog].ordering == event.Unordered {
		return false
	}
	n := s.partitions.get(lh).waiting.n
	if m.state == event.StateReady || (m.state == event.StateScheduled &&
		m.place == event.PlaceBlock) {
		n--
	}
	return n > 0
}

// Partition returns a partition; false if the queue does not exist, or if no message of the key
// waits, is leased or blocks it. In an unordered queue it has only the number of leases, where
// that is limited.
func (s *State) Partition(queue, key string) (v event.PartitionView, ok bool) {
	q, there := s.queues[queue]
	if !there {
		return v, false
	}
	b := q.backlog
	if b.ordering == event.Unordered {
		lh, ok := b.partitions[key]
		if ok {
			v.Batch = int64(s.partitions.get(lh).inFlight)
		}
		return v, ok
	}
	key = b.ordering.PartitionKey(key)
	if h, held := q.held[key]; held {
		v.HeldBy, v.Since, ok = int64(h.dead), h.since, true
	}
	lh, there := b.partitions[key]
	if !there {
		return v, ok
	}
	view := func(h handle) *event.MessageView {
		if h == 0 {
			return nil
		}
		ok = true
		m := s.viewMessage(h)
		return &m
	}
	l := s.partitions.get(lh)
	v.Waiting, v.Head, v.Leased = int64(l.waiting.n), view(l.waiting.head), view(l.leased)
	for h := l.leased; h != 0; h = s.nextLeased(h) {
		v.Batch++
	}
	return v, ok
}

// Users returns how many queues name each of these as their dead-letter queue. Unless of is empty,
// it visits every queue.
func (s *State) Users(of ...string) map[string]int {
	users := map[string]int{}
	for _, name := range of {
		users[name] = 0
	}
	if len(of) == 0 {
		return users
	}
	for _, q := range s.queues { // order does not matter: a sum
		if n, ok := users[q.policy.DeadLetterQueue]; ok {
			users[q.policy.DeadLetterQueue] = n + 1
		}
	}
	return users
}

// NextNumber is the number of the next queue to be created.
func (s *State) NextNumber() uint32 { return s.next + 1 }

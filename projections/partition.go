package projections

import "github.com/qlogd/qlogd/event"

// partition is a partition: the messages of one key in one backlog. A fifo queue's
// one partition has the key "". In an unordered queue a partition keeps the key, and the
// lists of its messages that are kept apart.
//
// Invariant (I9): the leased messages of a partition are consecutive, were leased by one
// call, and are ahead of everything that waits in it; a partition is in the ready lists
// exactly when none of it is leased, its head is ready, its key is not paused and no dead
// message holds its key.
type partition struct {
	key     string
	backlog uint32
	refs    uint32 // messages of this partition, in whatever state
	waiting list
	// the last one inserted by byOrder among those that did not return to the front, 0
	// none. Invariant: none of them before it comes after it in order
	placed handle
	// how many of waiting are ready (the others: a head that blocks until its time); of an
	// unordered queue: how many messages are kept apart
	ready     uint32
	bytes     int64  // of waiting
	leased    handle // the first of its batch
	order     link
	kindOrder link
	listed    uint8  // the priority under which it is in the ready lists, 0 if it does not
	kind      handle // the kind under which it is there
	since     int64  // since when it is there; 0 where no priority ages
	deleted   bool   // all that waits here follows a dead message (dead_letter_key)

	// of an unordered queue:
	lists    handle // the first of its keyLists
	offered  uint32 // how many of the messages kept apart can be leased
	inFlight uint32 // its leased messages, where MaxInFlightPerKey limits them
}

// takePartition returns a message's partition and takes a reference to it. It creates the partition
// on first use.
func (s *State) takePartition(b *backlog, key string) handle {
	if key == "" && b.ordering == event.Unordered {
		return 0
	}
	key = b.ordering.PartitionKey(key)
	h, ok := b.partitions[key]
	if !ok {
		var l *partition
		h, l = s.partitions.alloc()
		l.key, l.backlog = key, b.number
		b.partitions[key] = h
	}
	s.partitions.mut(h).refs++
	return h
}

// releasePartition drops a message's reference to its partition, and frees it with the
// last one.
func (s *State) releasePartition(b *backlog, h handle) {
	if h == 0 {
		return
	}
	l := s.partitions.mut(h)
	if l.refs--; l.refs > 0 {
		return
	}
	if !l.deleted && b.partitions[l.key] == h {
		delete(b.partitions, l.key)
	}
	s.partitions.release(h)
}

func (s *State) keyOf(m *message) string {
	if m.extra != 0 {
		if k := s.extras.get(m.extra).key; k != "" {
			return k
		}
	}
	if m.partition == 0 {
		return ""
	}
	return s.partitions.get(m.partition).key
}

// partitionOf returns the partition in which a message waits, or would: where its
// own follows a dead one, the key's new partition, 0 if there is none.
func (s *State) partitionOf(m *message) handle {
	if m.partition == 0 {
		return 0
	}
	l := s.partitions.get(m.partition)
	if l.deleted {
		return s.backlogs[m.backlog].partitions[l.key]
	}
	return m.partition
}

// repartition moves a message that did not wait in its deleted partition to the key's new
// one.
func (s *State) repartition(b *backlog, m *message) {
	old := m.partition
	m.partition = s.takePartition(b, s.partitions.get(old).key)
	s.releasePartition(b, old)
}

// intoPartition puts a message into its partition. Messages that returned to the front
// keep their order (orderOf).
func (s *State) intoPartition(b *backlog, h handle, to where) {
	m := s.messages.mut(h)
	if s.partitions.get(m.partition).deleted {
		s.repartition(b, m)
	}
	lh := m.partition
	l := s.partitions.mut(lh)
	switch {
	case to == inFront, to == byOrder && s.leads(&l.waiting, m, s.ahead):
		insertReturned[messageOrder](s, &l.waiting, h, orderLink)
	case to == byOrder:
		insert[messageOrder](s, &l.waiting, h, s.spotOriginal(l, m))
		l.placed = h
	default:
		insert[messageOrder](s, &l.waiting, h, 0)
	}
	l.bytes += int64(m.size)
	if m.state == event.StateReady {
		l.ready++
	}
	s.refresh(b, lh)
}

func (s *State) outOfPartition(b *backlog, h handle) {
	m := s.messages.mut(h)
	m.returned = false
	lh := m.partition
	l := s.partitions.mut(lh)
	if l.placed == h {
		l.placed = 0
	}
	remove[messageOrder](s, &l.waiting, h)
	l.bytes -= int64(m.size)
	if m.state == event.StateReady {
		l.ready--
	}
	s.refresh(b, lh)
}

// offered returns the first message that waits in a partition, if it is ready and the queue does
// not hold its key, else 0: it can be leased unless others of the partition are.
func (s *State) offered(q *queue, l *partition) handle {
	head := l.waiting.head
	if head == 0 || q.holds(l.key) || s.messages.get(head).state != event.StateReady {
		return 0
	}
	return head
}

// holds reports whether a key is paused, or held by a dead message.
func (q *queue) holds(key string) bool {
	_, held := q.held[key]
	return held || q.keyPaused(key)
}

// refresh restores the second half of I9 after any change of a partition.
func (s *State) refresh(b *backlog, lh handle) {
	l := s.partitions.mut(lh)
	if b.deleted || l.deleted {
		return
	}
	var prio uint8
	var kind handle
	if head := s.offered(b.queue, l); head != 0 && l.leased == 0 {
		m := s.messages.get(head)
		prio, kind = m.priority, m.kind
	}
	if prio == l.listed && kind == l.kind {
		return
	}
	s.unlist(b, lh)
	if prio == 0 {
		return
	}
	l.listed, l.kind, l.since = prio, kind, 0
	if b.queue.policy.PriorityAgingMS > 0 {
		l.since = s.clock
	}
	insert[partitionOrder](s, b.ready1(prio), lh, 0)
	if kind != 0 {
		insert[partitionKind](s, &b.kindLists(kind)[prio], lh, 0)
	}
	s.touch(b.queue)
}

// unlist takes a partition out of the ready lists.
func (s *State) unlist(b *backlog, lh handle) {
	l := s.partitions.mut(lh)
	if l.listed == 0 {
		return
	}
	remove[partitionOrder](s, b.ready1(l.listed), lh)
	if l.kind != 0 {
		remove[partitionKind](s, &b.kindLists(l.kind)[l.listed], lh)
		b.dropKind(l.kind)
	}
	l.listed, l.kind = 0, 0
}

// releaseKey unblocks a key once the last dead message that held it was resolved.
func (s *State) releaseKey(number uint32, key string, by event.ID) {
	q, ok := s.numbers[number]
	if !ok {
		return
	}
	h, ok := q.held[key]
	if !ok || by.Compare(h.since) < 0 { // the policy has released it since then
		return
	}
	if h.dead--; h.dead > 0 {
		q.held[key] = h
		return
	}
	q.unhold(key)
	if lh, ok := q.backlog.partitions[key]; ok {
		s.refresh(q.backlog, lh)
	}
}

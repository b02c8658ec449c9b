package projections

import "github.com/qlogd/qlogd/event"

// tombstone represents messages that one event deleted (a purge, a queue's deletion,
// dead_letter_key). Every reader sees them deleted at once; an event for each follows in
// bounded entries.
type tombstone struct {
	reason    event.Reason
	queue     string // the queue's name
	backlog   uint32 // all of this backlog, or
	partition handle // all that waits in this partition
	to        string // key_dead: the dead-letter queue, "" discards
	owner     *queue // of a deleted queue's backlog
}

// deleted reports whether a message is deleted and its own event is pending.
func (s *State) deleted(m *message) bool {
	if len(s.tombstones) == 0 {
		return false
	}
	if s.backlogs[m.backlog].deleted {
		return true
	}
	if m.partition == 0 || m.state == event.StateLeased || !s.partitions.get(m.partition).deleted {
		return false
	}
	return m.state == event.StateReady || m.place == event.PlaceBlock
}

// deleteBacklog deletes a queue's backlog; the caller gives the queue a new one.
func (s *State) deleteBacklog(q *queue, g *tombstone) {
	b := q.backlog
	s.setCursor(b, 0)
	g.backlog = b.number
	b.deleted = true
	b.apart, b.separate = nil, 0
	for name := range b.dead { // order does not matter: each for itself
		s.forgetDied(name, b)
	}
	s.tombstones = append(s.tombstones, g)
}

// deletePartition deletes all messages that wait in a partition, because they follow a dead
// one. Leased messages, and those scheduled without blocking, do not wait there.
func (s *State) deletePartition(b *backlog, h handle, g *tombstone) {
	l := s.partitions.mut(h)
	s.unlist(b, h)
	l.deleted = true
	l.refs++ // the tombstone's: the handle must not be reused before the partition is empty
	delete(b.partitions, l.key)
	for first, leased := l.leased, l.leased; leased != 0; {
		m, next := s.messages.mut(leased), s.nextLeased(leased)
		s.repartition(b, m)
		s.partitions.mut(m.partition).leased = first
		leased = next
	}
	l.leased = 0
	b.ready -= int64(l.ready)
	b.scheduled -= int64(l.waiting.n - l.ready)
	b.bytes -= l.bytes
	b.queue.Stats.DeadLettered += int64(l.waiting.n)
	if g.to == "" {
		b.queue.Stats.DeadLettered -= int64(l.waiting.n)
		b.queue.Stats.Discarded += int64(l.waiting.n)
	}
	g.partition = h
	s.tombstones = append(s.tombstones, g)
}

// nextDeleted returns the first message of the first tombstone that has one.
func (s *State) nextDeleted() Due {
	for _, g := range s.tombstones {
		h := handle(0)
		if g.partition != 0 {
			h = s.partitions.get(g.partition).waiting.head
		} else {
			h = s.backlogs[g.backlog].all.head
		}
		if h != 0 {
			return Due{Kind: DueDeleted, Message: s.viewMessage(h), Reason: g.reason,
				Queue: g.queue, To: g.to}
		}
	}
	return Due{}
}

// Deleting reports whether the events of messages that were deleted from a queue are pending.
func (s *State) Deleting(queue string) bool {
	for _, g := range s.tombstones {
		if g.queue != queue {
			continue
		}
		if g.partition != 0 && s.partitions.get(g.partition).waiting.head != 0 ||
			g.partition == 0 && s.backlogs[g.backlog].all.head != 0 {
			return true
		}
	}
	return false
}

// sweep removes empty tombstones, oldest first. It is part of every entry, so that it
// happens at the same index on every node.
func (s *State) sweep() {
	for len(s.tombstones) > 0 {
		g := s.tombstones[0]
		if g.partition != 0 {
			l := s.partitions.get(g.partition)
			if l.waiting.head != 0 {
				return
			}
			s.releasePartition(s.backlogs[l.backlog], g.partition)
		} else {
			if s.backlogs[g.backlog].all.head != 0 {
				return
			}
			if g.owner != nil {
				delete(s.numbers, g.owner.Number)
			}
			delete(s.backlogs, g.backlog)
		}
		s.tombstones = s.tombstones[1:]
	}
}

// deadLettered moves a message into its dead-letter queue: one event removes it from one
// queue and adds it to the other (I11).
func (s *State) deadLettered(e *event.Event) {
	h := s.subject(e)
	m := s.messages.get(h)
	b := s.backlogs[m.backlog]
	to := s.mustQueue(e, e.ToQueue)
	key, lh := s.keyOf(m), s.partitionOf(m)
	dead := &event.DeadView{
		Queue: b.queue.Name, MessageID: m.id, Reason: e.Reason, Attempts: m.attempt,
		FailedAt: s.clock, FirstEnqueuedAt: m.created(), First: m.id,
	}
	if m.extra != 0 {
		switch x := s.extras.get(m.extra); {
		case x.dead != nil:
			dead.FirstEnqueuedAt, dead.ReplayCount = x.dead.FirstEnqueuedAt, x.dead.ReplayCount
		case x.origin != nil:
			dead.First, dead.ReplayCount = x.origin.First, x.origin.Replays
			dead.FirstEnqueuedAt = event.ClockOf(dead.First)
		}
	}
	deleted := s.deleted(m)
	n, x := s.move(e, h, to)
	if !deleted {
		b.queue.Stats.DeadLettered++
	}
	x.dead = dead
	s.listDead(to.backlog, n)
	if e.HoldsKey {
		x.holds, x.holdsIn = b.ordering.PartitionKey(key), b.queue.Number
		b.queue.hold(x.holds, e)
		if l, ok := b.partitions[x.holds]; ok {
			s.refresh(b, l)
		}
	}
	to.Stats.DeadIn++
	s.arrive(n, 0)
	s.takeKey(e, b, lh)
}

// move removes a message from its queue and adds it to another, under the event's id. The caller
// sets the remaining fields.
func (s *State) move(e *event.Event, h handle, to *queue) (handle, *extra) {
	m := s.messages.get(h)
	key, kind, content := s.keyOf(m), s.kinds.name(m.kind), s.contentOf(m)
	size, priority, sourceID := m.size, m.priority, ""
	if m.extra != 0 {
		sourceID = s.extras.get(m.extra).sourceID
	}
	s.leave(e, h)
	s.dedup.moved(e.Subject, e.ID)
	h, m = s.add(e, to.backlog, key, kind)
	m.size, m.priority = size, priority
	x := s.extraOf(h)
	x.content, x.sourceID = content, sourceID
	return h, x
}

// takeKey deletes the partition of a dead message if the event says so (on_dead:
// dead_letter_key).
func (s *State) takeKey(e *event.Event, b *backlog, lh handle) {
	if !e.TakesKey || lh == 0 {
		return
	}
	if l := s.partitions.get(lh); !l.deleted && l.backlog == b.number && l.waiting.n > 0 {
		s.deletePartition(b, lh, &tombstone{reason: event.ReasonKeyDead, queue: b.queue.Name,
			to: e.ToQueue})
	}
}

// leave removes a message from its queue, and ends its lease if it has one.
func (s *State) leave(e *event.Event, h handle) {
	if m := s.messages.get(h); m.state == event.StateLeased {
		if m.lease == 0 || (!e.Lease.IsZero() && s.leases.get(m.lease).id != e.Lease) {
			s.impossible(e, "lease %s is not the current one of message %s", e.Lease, m.id)
		}
		s.open(h)
		s.endLease(h)
	} else {
		if e.Type == event.Acked {
			s.impossible(e, "message %s is %s", m.id, m.state)
		}
		s.open(h)
		s.unready(h)
	}
	s.drop(h)
	s.dedup.left(e.Subject)
}

// left folds acked and discarded.
func (s *State) left(e *event.Event) {
	h := s.subject(e)
	m := s.messages.get(h)
	b := s.backlogs[m.backlog]
	lh := s.partitionOf(m)
	deleted := s.deleted(m)
	s.leave(e, h)
	switch {
	case e.Type == event.Acked:
		b.queue.Stats.Acked++
	case !deleted:
		b.queue.Stats.Discarded++
	}
	if e.Reason.Releases() {
		s.dedup.release(e.Subject)
	}
	s.takeKey(e, b, lh)
}

package projections

import "github.com/qlogd/qlogd/event"

// leased leases a message.
func (s *State) leased(e *event.Event) {
	h := s.subject(e)
	m := s.messages.get(h)
	if m.state != event.StateReady {
		s.impossible(e, "message %s is %s", m.id, m.state)
	}
	b := s.backlogs[m.backlog]
	if b.ordering != event.Unordered {
		s.endOthers(m.partition, event.RefOf(e.ID).Index)
	}
	m = s.open(h)
	s.unready(h)
	m.state = event.StateLeased
	m.attempt = e.Attempt
	m.setLast(event.RefOf(e.ID))
	x, l := s.leases.alloc()
	*l = lease{id: e.ID, expires: e.LeaseExpires, page: s.ids.add(e.ID, h)}
	m.lease = x
	if b.ordering != event.Unordered {
		s.intoBatch(b, h)
	}
	s.countLease(b, m, 1)
	insert[messageOrder](s, &b.inFlight, h, 0)
	b.queue.LeasedAt = s.clock
	s.armLease(h, m)
	s.close(h)
	s.takeToken(b.queue)
}

// armLease sets the timer of a lease's end.
func (s *State) armLease(h handle, m *message) {
	s.deadlines.push(s, timer{at: s.leases.get(m.lease).expires, id: m.id, h: h, kind: timerLease})
}

// current returns the message of an event about its current lease.
func (s *State) current(e *event.Event) handle {
	h := s.subject(e)
	m := s.messages.get(h)
	if m.lease == 0 || s.leases.get(m.lease).id != e.Lease {
		s.impossible(e, "lease %s is not the current one of message %s", e.Lease, m.id)
	}
	return h
}

func (s *State) leaseExtended(e *event.Event) {
	h := s.current(e)
	m := s.open(h)
	m.setLast(event.RefOf(e.ID))
	if l := s.leases.mut(m.lease); l.expires != e.LeaseExpires {
		l.expires = e.LeaseExpires
		s.armLease(h, m)
	}
	s.close(h)
}

// endLease ends a message's lease; the message is in no list then.
func (s *State) endLease(h handle) {
	m := s.messages.mut(h)
	b := s.backlogs[m.backlog]
	l := s.leases.get(m.lease)
	s.ids.remove(l.id, l.page)
	s.leases.release(m.lease)
	m.lease = 0
	if b.ordering != event.Unordered {
		if l := s.partitions.mut(m.partition); l.leased == h {
			l.leased = s.nextLeased(h)
		}
		s.refresh(b, m.partition)
	}
	remove[messageOrder](s, &b.inFlight, h)
	s.countLease(b, m, -1)
	if b.queue.policy.MaxInFlight > 0 {
		s.touch(b.queue)
	}
}

// leaseReturned folds lease_expired, retried, released and returned: the message is ready or
// scheduled again.
func (s *State) leaseReturned(e *event.Event) {
	h := s.current(e)
	m := s.open(h)
	s.endLease(h)
	m.setLast(event.RefOf(e.ID))
	if e.Type == event.Released || e.Type == event.Returned {
		m.attempt = e.Attempt
	}
	if e.Place != event.PlaceBlock {
		s.follow(h, 0) // it has another place now
	}
	if e.Due > s.clock {
		s.schedule(h, e.Due, e.Place)
	} else {
		s.ready(h, e.Place)
	}
	s.armExpiry(h)
	s.close(h)
}

// armExpiry sets the timer of a message's expiry: its ttl, or its age if the cursor has
// passed it because it was leased.
func (s *State) armExpiry(h handle) {
	m := s.messages.get(h)
	at := int64(0)
	if m.extra != 0 {
		at = s.extras.get(m.extra).expires
	}
	if age := s.ageEnd(m); age != 0 && age <= s.clock && (at == 0 || age < at) {
		at = age
	}
	if at == 0 {
		return
	}
	if x := s.extraOf(h); x.timer != at {
		x.timer = at
		s.deadlines.push(s, timer{at: at, id: m.id, h: h, kind: timerExpiry})
	}
}

// ageEnd is when the queue's max_age_seconds ends a message; 0 never.
func (s *State) ageEnd(m *message) int64 {
	age := s.backlogs[m.backlog].queue.policy.MaxAgeSeconds
	if age == 0 {
		return 0
	}
	return m.created() + age*1000
}

// expiresAt is when a message's time is over, by its ttl or its queue's age; 0
// never.
func (s *State) expiresAt(m *message) int64 {
	at := s.ageEnd(m)
	if m.extra != 0 {
		if x := s.extras.get(m.extra); x.expires != 0 && (at == 0 || x.expires < at) {
			at = x.expires
		}
	}
	return at
}

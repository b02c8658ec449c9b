package projections

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// A batch is the leased messages of a partition: one lease call leased them, in their order, so
// they are consecutive in backlog.inFlight (I9), and partition.leased is the first of them.

// intoBatch records that a message of a partition is leased: as the first, or behind those leased
// by the same call. It is not in inFlight yet.
func (s *State) intoBatch(b *backlog, h handle) {
	m := s.messages.get(h)
	l := s.partitions.mut(m.partition)
	ahead := handle(0)
	if l.leased == 0 {
		l.leased = h
	} else {
		ahead = b.inFlight.tail
	}
	s.follow(h, ahead)
	s.refresh(b, m.partition)
}

// endOthers returns a partition's messages that were leased at another index than the given one to
// their places: a salvage has lost the events that ended their leases.
func (s *State) endOthers(partition handle, index uint64) {
	var batch []handle
	for h := s.partitions.get(partition).leased; h != 0; h = s.nextLeased(h) {
		if event.RefOf(s.leases.get(s.messages.get(h).lease).id).Index == index {
			return
		}
		batch = append(batch, h)
	}
	for _, h := range slices.Backward(batch) {
		s.open(h)
		s.endLease(h)
		s.ready(h, event.PlaceBlock)
		s.armExpiry(h)
		s.close(h)
	}
}

// nextLeased returns the message leased behind one in its batch, 0 if it is the last.
func (s *State) nextLeased(h handle) handle {
	m := s.messages.get(h)
	if next := m.order.next; next != 0 && s.messages.get(next).partition == m.partition {
		return next
	}
	return 0
}

// batched returns a leased message, ok if it is in a batch: unordered queues have none.
func (s *State) batched(id event.ID) (h handle, ok bool) {
	h, ok = s.find(id)
	if !ok {
		return 0, false
	}
	m := s.messages.get(h)
	return h, m.lease != 0 && s.backlogs[m.backlog].ordering != event.Unordered
}

// NextBehind returns the message that can be leased behind one that the same call has leased: the
// first that waits in its partition, if that is offered and of one of the kinds (none: of all), and
// the queue's limits allow another lease.
func (s *State) NextBehind(id event.ID, kinds []string) (v event.MessageView, ok bool) {
	h, ok := s.batched(id)
	if !ok {
		return v, false
	}
	m := s.messages.get(h)
	q := s.backlogs[m.backlog].queue
	next := s.offered(q, s.partitions.get(m.partition))
	if next == 0 || s.mayLease(q) == 0 || len(kinds) > 0 &&
		!slices.Contains(kinds, s.kinds.name(s.messages.get(next).kind)) {
		return v, false
	}
	return s.viewMessage(next), true
}

// LeasedBehind returns the messages leased behind one in its batch, in their order.
func (s *State) LeasedBehind(id event.ID) (out []event.MessageView) {
	if h, ok := s.batched(id); ok {
		for h = s.nextLeased(h); h != 0; h = s.nextLeased(h) {
			out = append(out, s.viewMessage(h))
		}
	}
	return out
}

// FirstToEnd returns the first message of the batch of a leased one whose lease ends at the same
// instant; it may be that one.
func (s *State) FirstToEnd(of *event.MessageView) event.MessageView {
	if h, ok := s.batched(of.ID); ok {
		for at := s.partitions.get(s.messages.get(h).partition).leased; at != h; at = s.nextLeased(at) {
			if s.leases.get(s.messages.get(at).lease).expires == of.LeaseExpiresAt {
				return s.viewMessage(at)
			}
		}
	}
	return *of
}

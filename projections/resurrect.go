package projections

import (
	"math"

	"github.com/qlogd/qlogd/event"
)

// raisedMost bounds how many resurrections are remembered: about 8 MB.
const raisedMost = 1 << 16

// resurrected enqueues a message that had left its queue again, under a new id, with its
// content rewritten.
func (s *State) resurrected(e *event.Event) {
	q := s.mustQueue(e, e.ToQueue)
	if _, ok := s.find(e.Subject); ok {
		s.impossible(e, "message %s has not left its queue", e.Subject)
	}
	h, m := s.add(e, q.backlog, e.Key, e.Kind)
	m.priority, m.size = e.Priority, e.Size
	x := s.extraOf(h)
	x.sourceID = e.SourceID
	x.origin = &origin{
		OriginView: event.OriginView{First: e.First, From: e.Subject, Replays: uint32(e.Count)},
		behind:     e.Order != event.OrderOriginal,
	}
	s.raised.add(remembered{key: event.Hash(e.Subject), id: e.ID, until: math.MaxInt64}, s.clock)
	s.remember(e)
	q.Stats.Resurrected++
	s.count(h)
	s.take(h, e.Order)
	s.close(h)
}

// Raised returns the message that was resurrected from one that had left its queue under this id,
// if that was at RaisedFloor or later.
func (s *State) Raised(from event.ID) (event.ID, bool) {
	r, ok := s.raised.find(event.Hash(from), s.clock)
	if !ok {
		return event.ID{}, false
	}
	return r.id, true
}

// RaisedFloor is the index up to which the log must be read to know whether a message that has left
// was resurrected or erased.
func (s *State) RaisedFloor() uint64 { return s.raised.floor }

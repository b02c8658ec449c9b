package projections

import "github.com/qlogd/qlogd/event"

// resurrected enqueues a message that had left its queue again, under a new id, with its
// content rewritten, behind those that wait.
func (s *State) resurrected(e *event.Event) {
	q := s.mustQueue(e, e.ToQueue)
	if _, ok := s.find(e.Subject); ok {
		s.impossible(e, "message %s has not left its queue", e.Subject)
	}
	h, m := s.add(e, q.backlog, e.Key, e.Kind)
	m.priority, m.size = e.Priority, e.Size
	s.extraOf(h).origin = &origin{
		OriginView: event.OriginView{First: e.First, From: e.Subject, Replays: uint32(e.Count)},
		behind:     true, raised: true,
	}
	s.raised[e.Subject] = h
	q.Stats.Resurrected++
	s.arrive(h, 0)
}

// lower removes a message that leaves its queue from the index of resurrected ones.
func (s *State) lower(h handle, o *origin) {
	if o != nil && o.raised && s.raised[o.From] == h {
		delete(s.raised, o.From)
	}
}

// Raised returns the live message that was resurrected from one that had left its
// queue under this id.
func (s *State) Raised(from event.ID) (event.ID, bool) {
	h, ok := s.raised[from]
	if !ok {
		return event.ID{}, false
	}
	return s.messages.get(h).id, true
}

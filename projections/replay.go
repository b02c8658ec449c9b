package projections

import "github.com/qlogd/qlogd/event"

// replayed moves a dead message out of its dead-letter queue and into a queue, under a
// new id, in one event (I11).
func (s *State) replayed(e *event.Event) {
	h := s.subject(e)
	m := s.messages.get(h)
	b := s.backlogs[m.backlog]
	to := s.mustQueue(e, e.ToQueue)
	if !s.diedIn(h, e.DiedIn) || s.deleted(m) || m.state == event.StateLeased {
		s.impossible(e, "message %s is %s, and not dead in %q", m.id, m.state, e.DiedIn)
	}
	was := *s.extras.get(m.extra)
	from := &origin{
		OriginView: event.OriginView{First: was.dead.First, From: m.id,
			Replays: was.dead.ReplayCount + 1},
		behind: e.Order == event.OrderAppend,
	}
	s.extras.mut(m.extra).holdsIn = 0 // its key is unblocked below, after it has its place
	b.queue.Stats.Replayed++
	n, x := s.move(e, h, to)
	if x.origin = from; e.Edited {
		s.messages.mut(n).size, x.content = e.Size, event.Ref{}
	}
	to.Stats.ReplayedIn++
	s.count(n)
	s.take(n, e.Order)
	s.close(n)
	if was.holdsIn != 0 {
		s.releaseKey(was.holdsIn, was.holds, from.From)
	}
}

// take puts a replayed message in its place. In an unordered queue the original order is
// by availability since the first enqueue.
func (s *State) take(h handle, o event.Order) {
	m := s.messages.mut(h)
	m.due, m.place = s.clock, event.PlaceTail
	to := behind
	switch o {
	case event.OrderOriginal:
		to = byOrder
		if s.backlogs[m.backlog].ordering == event.Unordered {
			m.due = event.ClockOf(s.orderOf(m))
		}
	case event.OrderHead:
		to = inFront
	}
	s.enter(h, to)
}

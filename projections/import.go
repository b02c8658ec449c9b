package projections

import "github.com/qlogd/qlogd/event"

// listSource indexes a message, newer than all others, by its source id. Several of a
// queue can have the same one, if one was replayed after another was imported: they form
// a chain, oldest first.
func (s *State) listSource(b *backlog, h handle) {
	x := s.extras.get(s.messages.get(h).extra)
	at, ok := b.sources[x.sourceID]
	if !ok {
		b.sources[x.sourceID] = h
		return
	}
	for {
		o := s.extras.mut(s.messages.get(at).extra)
		if o.sourceNext == 0 {
			o.sourceNext = h
			return
		}
		if s.messages.get(o.sourceNext).id.Compare(s.messages.get(at).id) <= 0 {
			// Load makes it an error
			panic("a list of messages with one source id goes in a circle")
		}
		at = o.sourceNext
	}
}

func (s *State) unlistSource(b *backlog, h handle) {
	x := s.extras.mut(s.messages.get(h).extra)
	next := x.sourceNext
	x.sourceNext = 0
	switch at := b.sources[x.sourceID]; {
	case at != h:
		for {
			o := s.extras.mut(s.messages.get(at).extra)
			if o.sourceNext == h {
				o.sourceNext = next
				return
			}
			at = o.sourceNext
		}
	case next != 0:
		b.sources[x.sourceID] = next
	default:
		delete(b.sources, x.sourceID)
	}
}

// Source returns the oldest live message of a queue with a source id.
func (s *State) Source(queue, sourceID string) (event.ID, bool) {
	q, ok := s.queues[queue]
	if !ok {
		return event.ID{}, false
	}
	for h := q.backlog.sources[sourceID]; h != 0; h = s.extras.get(
		s.messages.get(h).extra).sourceNext {
		if m := s.messages.get(h); !s.deleted(m) {
			return m.id, true
		}
	}
	return event.ID{}, false
}

package projections

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// listSource indexes a message, newer than all others, by its source id. Several of a
// queue can have the same one, if one was replayed after another was imported.
func (s *State) listSource(b *backlog, h handle) {
	id := s.extras.get(s.messages.get(h).extra).sourceID
	b.sources[id] = append(b.sources[id], h)
}

func (s *State) unlistSource(b *backlog, h handle) {
	id := s.extras.get(s.messages.get(h).extra).sourceID
	left := slices.DeleteFunc(b.sources[id], func(o handle) bool { return o == h })
	if b.sources[id] = left; len(left) == 0 {
		delete(b.sources, id)
	}
}

// Source returns the oldest live message of a queue with a source id.
func (s *State) Source(queue, sourceID string) (event.ID, bool) {
	q, ok := s.queues[queue]
	if !ok {
		return event.ID{}, false
	}
	for _, h := range q.backlog.sources[sourceID] {
		if m := s.messages.get(h); !s.deleted(m) {
			return m.id, true
		}
	}
	return event.ID{}, false
}

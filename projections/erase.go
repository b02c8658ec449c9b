package projections

import "github.com/qlogd/qlogd/event"

// erased folds the erasure of contents. The state holds none of them, but a live message
// would be delivered without its payload, so it must have been discarded before.
func (s *State) erased(e *event.Event) {
	if _, ok := s.find(e.Subject); ok {
		s.impossible(e, "message %s is still in a queue", e.Subject)
	}
	s.raised.floor = s.index // who read the log before may have read what is erased
}

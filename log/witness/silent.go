package witness

import (
	"maps"
	"slices"
	"sync"
)

// Silent is the set of voters that had not answered when a node was admitted, and have not since
// confirmed that its directory is no old copy. Its zero value is ready.
type Silent[ID ~string] struct {
	mu sync.Mutex
	of map[ID]string // what they have objected since; "": nothing yet
}

// Add adds a voter.
func (s *Silent[ID]) Add(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[ID]string{}
	}
	s.of[id] = ""
}

// Awaits reports whether a voter still has to answer.
func (s *Silent[ID]) Awaits(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	objection, in := s.of[id]
	return in && objection == ""
}

// Answer takes the answer of a voter, and reports whether it was awaited. One that objects stays.
func (s *Silent[ID]) Answer(id ID, objection string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, in := s.of[id]; !in || was != "" {
		return false
	}
	if s.of[id] = objection; objection == "" {
		delete(s.of, id)
	}
	return true
}

// Forget drops the voters that are no longer members.
func (s *Silent[ID]) Forget(member func(ID) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.of, func(id ID, _ string) bool { return !member(id) })
}

// IDs returns them, sorted.
func (s *Silent[ID]) IDs() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.of))
}

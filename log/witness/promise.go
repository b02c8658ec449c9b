package witness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Promise is what a server is known to have promised to this node.
type Promise struct {
	// AckTerm and AckIndex: the newest entry that it acknowledged to this node as the leader
	// of that term, or sent as such.
	AckTerm  uint64 `json:"ack_term,omitempty"`
	AckIndex uint64 `json:"ack_index,omitempty"`
	// VoteTerm is the newest in which it voted for this node, or stood for election.
	VoteTerm uint64 `json:"vote_term,omitempty"`
	// Commit is the newest index that it reported as committed or applied.
	Commit uint64 `json:"commit,omitempty"`
}

// Broken returns how a log that ends at last, in a store of that term, breaks the promise; ""
// if it does not. Within a term a log never becomes shorter.
func (p Promise) Broken(term, last uint64) string {
	switch {
	case term < p.VoteTerm:
		return fmt.Sprintf("it voted in term %d, and only knows term %d", p.VoteTerm, term)
	case term < p.AckTerm:
		return fmt.Sprintf("it acknowledged term %d, and only knows term %d", p.AckTerm, term)
	case last < p.Commit:
		return fmt.Sprintf("it reported entry %d as committed, its log ends at %d", p.Commit, last)
	case term == p.AckTerm && last < p.AckIndex:
		return fmt.Sprintf("it acknowledged entry %d of term %d, its log ends at %d",
			p.AckIndex, p.AckTerm, last)
	}
	return ""
}

// Promises are what other servers, by id, have promised to this node. Votes are on disk before they
// count, acknowledgements within a second.
type Promises[ID ~string] struct {
	store func([]byte) error

	writing sync.Mutex // held over a write, so that none overtakes another
	written []byte     // guarded by writing: what is on disk
	mu      sync.Mutex
	of      map[ID]Promise
}

// NewPromises returns the promises that were stored; nil: none yet. store makes them durable.
func NewPromises[ID ~string](stored []byte, store func([]byte) error) (*Promises[ID], error) {
	e := &Promises[ID]{store: store, written: stored, of: map[ID]Promise{}}
	if stored == nil {
		return e, nil
	}
	return e, json.Unmarshal(stored, &e.of)
}

// Note records what goes beyond the promises of a server so far.
func (e *Promises[ID]) Note(id ID, newer Promise) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.of[id]
	if newer.AckTerm > p.AckTerm || newer.AckTerm == p.AckTerm && newer.AckIndex > p.AckIndex {
		p.AckTerm, p.AckIndex = newer.AckTerm, newer.AckIndex
	}
	p.VoteTerm, p.Commit = max(p.VoteTerm, newer.VoteTerm), max(p.Commit, newer.Commit)
	e.of[id] = p
}

// Voted returns once a vote is durable, also if another call is still writing it.
func (e *Promises[ID]) Voted(id ID, term uint64) error {
	e.Note(id, Promise{VoteTerm: term})
	return e.Flush()
}

// Get returns what a server has promised.
func (e *Promises[ID]) Get(id ID) Promise {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[id]
}

// Forget drops the servers that are no longer members: a server id never returns.
func (e *Promises[ID]) Forget(member func(ID) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.of, func(id ID, _ Promise) bool { return !member(id) })
}

// Flush makes the promises durable.
func (e *Promises[ID]) Flush() error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	b, err := json.Marshal(e.of) // in the order of the keys
	e.mu.Unlock()
	if err != nil || bytes.Equal(b, e.written) {
		return err
	}
	if err = e.store(b); err == nil {
		e.written = b
	}
	return err
}

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

package projections

import "slices"

// handle names an element of a slab; 0 is none. Handles keep the bulk of the state free
// of pointers, so that the garbage collector does not scan millions of messages, and make
// it copyable chunk by chunk.
//
// Invariant: nothing is ordered by handle. A restored state may have other
// handles than the one that was never restarted, and decides the same (I5).
type handle uint32

const (
	chunkBits = 8
	chunkSize = 1 << chunkBits
)

// chunk has only its elements: 256 messages of 96 bytes fill a size class of the
// allocator exactly.
type chunk[T any] [chunkSize]T

// slab holds elements in chunks that are copied on the first write after a
// freeze: a checkpoint reads the old chunks while the state goes on.
type slab[T any] struct {
	chunks []*chunk[T]
	epochs []uint32 // of each chunk: since when it may be written in place
	free   []handle
	used   handle // handles 1..used have been allocated at some time
	live   int
	epoch  uint32
	frozen int
}

// get returns an element for reading. The pointer is good until the next mut.
func (s *slab[T]) get(h handle) *T {
	return &s.chunks[h>>chunkBits][h&(chunkSize-1)]
}

// mut returns an element for writing. The pointer is good until the next freeze.
func (s *slab[T]) mut(h handle) *T {
	n := h >> chunkBits
	if s.epochs[n] != s.epoch {
		if s.frozen > 0 {
			d := *s.chunks[n]
			s.chunks[n] = &d
		}
		s.epochs[n] = s.epoch
	}
	return &s.chunks[n][h&(chunkSize-1)]
}

// grow adds a chunk of free elements.
func (s *slab[T]) grow() {
	s.chunks = append(s.chunks, new(chunk[T]))
	s.epochs = append(s.epochs, s.epoch)
}

// alloc returns a zero element.
func (s *slab[T]) alloc() (handle, *T) {
	s.live++
	if n := len(s.free); n > 0 {
		h := s.free[n-1]
		s.free = s.free[:n-1]
		return h, s.mut(h)
	}
	s.used++
	if int(s.used>>chunkBits) >= len(s.chunks) {
		s.grow()
	}
	return s.used, s.mut(s.used)
}

func (s *slab[T]) release(h handle) {
	var zero T
	*s.mut(h) = zero
	s.live--
	s.free = append(s.free, h)
}

// freeze returns the elements as they are now, for reading beside the writer until thaw.
func (s *slab[T]) freeze() slab[T] {
	s.epoch++
	s.frozen++
	return slab[T]{chunks: slices.Clone(s.chunks), used: s.used}
}

func (s *slab[T]) thaw() { s.frozen-- }

// index finds the free elements of a loaded slab, and calls each, if not nil, with the
// others.
func (s *slab[T]) index(used func(*T) bool, each func(handle, *T)) {
	s.live, s.free = 0, nil
	for h := s.used; h > 0; h-- {
		x := s.get(h)
		if !used(x) {
			s.free = append(s.free, h)
			continue
		}
		s.live++
		if each != nil {
			each(h, x)
		}
	}
}

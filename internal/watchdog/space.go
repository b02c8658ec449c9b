package watchdog

import (
	"math"
	"sync"
	"time"
)

// Space is the free space on a disk.
type Space struct {
	// Read returns it; nil: there is always enough.
	Read func() (uint64, error)

	mu   sync.Mutex
	free uint64 // as of at
	at   time.Time
}

// spaceAge is how old the result of Free may be: it is asked for with each write.
const spaceAge = 200 * time.Millisecond

// Free returns the free space, as of spaceAge ago at most. Where it cannot be read it is unlimited:
// the writes themselves will show.
func (s *Space) Free() uint64 {
	if s.Read == nil {
		return math.MaxUint64
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.at) >= spaceAge {
		free, err := s.Read()
		if err != nil {
			free = math.MaxUint64
		}
		s.free, s.at = free, now
	}
	return s.free
}

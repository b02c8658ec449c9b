package load

import (
	"sync"
	"sync/atomic"
)

// seen is a set of numbers, for many goroutines.
type seen struct {
	mu    sync.RWMutex
	parts []*[1 << 10]atomic.Uint64
}

// add adds n and reports whether it was new.
func (s *seen) add(n uint64) bool {
	part, bit := int(n>>16), n&(1<<16-1)
	s.mu.RLock()
	if part >= len(s.parts) {
		s.mu.RUnlock()
		s.mu.Lock()
		for part >= len(s.parts) {
			s.parts = append(s.parts, new([1 << 10]atomic.Uint64))
		}
		s.mu.Unlock()
		s.mu.RLock()
	}
	p := s.parts[part]
	s.mu.RUnlock()
	mask := uint64(1) << (bit & 63)
	return p[bit>>6].Or(mask)&mask == 0
}

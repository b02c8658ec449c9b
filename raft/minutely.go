package raft

import (
	"sync"
	"time"
)

// minutely lets something be told once a minute.
type minutely struct {
	mu sync.Mutex
	at time.Time
}

func (m *minutely) due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.at.IsZero() && now.Sub(m.at) < time.Minute {
		return false
	}
	m.at = now
	return true
}

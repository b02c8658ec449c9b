package fsm

import "github.com/qlogd/qlogd/internal/event"

// Backoff returns the wait in ms that a policy sets after the n-th failure,
// before jitter.
func Backoff(p *event.Policy, n uint32) int64 { return baseBackoff(p, n) }

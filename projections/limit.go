package projections

import "math"

// mayLease returns how many more messages the queue's state and limits let workers lease now.
func (q *queue) mayLease() int {
	switch most := q.policy.MaxInFlight; {
	case q.Paused:
		return 0
	case most > 0:
		return int(max(most-int64(q.backlog.inFlight.n), 0))
	}
	return math.MaxInt
}

// mayLeaseOf returns how many of a key's messages that are kept apart can be leased now.
func (q *queue) mayLeaseOf(p *partition) uint32 {
	if q.keyPaused(p.key) {
		return 0
	}
	return p.ready
}

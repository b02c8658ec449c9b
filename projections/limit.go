package projections

import "math"

// mayLease returns how many more messages a queue's state and limits let workers lease now.
func (s *State) mayLease(q *queue) int {
	if q.Paused {
		return 0
	}
	most := int64(math.MaxInt)
	if limit := q.policy.MaxInFlight; limit > 0 {
		most = max(limit-int64(q.backlog.inFlight.n), 0)
	}
	if q.tokens != nil {
		most = min(most, q.level(s.clock)/q.policy.RatePer())
	}
	return int(most)
}

// tokens is the token bucket of a queue with a rate_limit of count leases per period. A token
// consists of as many parts as the period has milliseconds, so each millisecond adds count parts:
// whole numbers, of which none is lost.
type tokens struct {
	level int64 // parts at an instant. Invariant: 0 to count × period, at most 8.64e13
	at    int64 // the instant: that of the last lease, Unix ms
}

// fill gives a queue a full bucket if it has a rate_limit, else none.
func (s *State) fill(q *queue) {
	q.tokens = nil
	if n := q.policy.RateLimit; n > 0 {
		q.tokens = &tokens{level: n * q.policy.RatePer(), at: s.clock}
	}
}

// level returns the level of a queue's bucket at an instant.
func (q *queue) level(clock int64) int64 {
	b, n, period := q.tokens, q.policy.RateLimit, q.policy.RatePer()
	return min(b.level+min(clock-b.at, period)*n, n*period)
}

// takeToken takes a token for a lease from a queue's bucket, if it has one.
func (s *State) takeToken(q *queue) {
	if b := q.tokens; b != nil {
		// A salvage may have lost that the limit was another one.
		b.level, b.at = max(q.level(s.clock)-q.policy.RatePer(), 0), s.clock
		s.armRefill(q)
	}
}

// refillsAt returns when a queue's bucket has a token again after the last lease, 0 if it had one
// left, or if the queue has no rate_limit.
func (q *queue) refillsAt() int64 {
	if q.tokens == nil {
		return 0
	}
	n, missing := q.policy.RateLimit, q.policy.RatePer()-q.tokens.level
	if missing <= 0 {
		return 0
	}
	return q.tokens.at + (missing+n-1)/n
}

// armRefill sets the timer of an empty bucket.
func (s *State) armRefill(q *queue) {
	if at := q.refillsAt(); at > s.clock {
		s.refills.push(s, timer{at: at, h: handle(q.Number), kind: timerRefill})
	}
}

// refill touches the queues whose empty buckets have a token again. That is no event, and changes
// nothing that is written: a loaded state has the timers of the buckets that are still empty.
func (s *State) refill() {
	for t, ok := s.firstValid(&s.refills); ok && t.at <= s.clock; t, ok = s.firstValid(&s.refills) {
		s.refills.pop()
		s.touch(s.numbers[uint32(t.h)])
	}
}

// mayLeaseOf returns how many of a key's messages that are kept apart can be leased now.
func (q *queue) mayLeaseOf(p *partition) uint32 {
	most := q.policy.MaxInFlightPerKey
	switch {
	case q.keyPaused(p.key):
		return 0
	case most > 0:
		return min(p.ready, uint32(max(most-int64(p.inFlight), 0)))
	}
	return p.ready
}

// countLease counts a lease of a key that begins (1) or ends (-1), in queues that limit these.
func (s *State) countLease(b *backlog, m *message, n int) {
	if m.partition == 0 || b.queue.policy.MaxInFlightPerKey == 0 {
		return
	}
	p := s.partitions.mut(m.partition)
	p.inFlight = uint32(int(p.inFlight) + n)
	s.refreshKey(b, m.partition)
}

// refreshKeys refreshes all keys that have messages apart, after their limit has changed. That is
// rare, and costs a fraction of a microsecond per key.
func (s *State) refreshKeys(b *backlog) {
	if b.apart == nil {
		return
	}
	for id := range b.apart.byID { // order does not matter: each for itself
		s.refreshKey(b, id.partition)
	}
}

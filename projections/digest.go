package projections

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// digest is a sum of hashes of the parts of a state: it does not depend on their order,
// and one part can be taken out and put back changed, so it is kept while folding instead
// of computed. It detects states that diverged by a fault; it is no defence against
// forgery (the chain is).
type digest struct{ lo, hi uint64 }

func (d *digest) add(h digest) { d.lo += h.lo; d.hi += h.hi }
func (d *digest) sub(h digest) { d.lo -= h.lo; d.hi -= h.hi }

// mix folds a 128-bit product, as wyhash does
// (https://github.com/wangyi-fudan/wyhash, public domain).
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// The constants are wyhash's secret.
const (
	k0 = 0xa0761d6478bd642f
	k1 = 0xe7037ed1a0b428db
	k2 = 0x8ebc6af09c88c6e3
	k3 = 0x589965cc75374cc3
)

func hashWords(id [16]byte, a, b uint64) digest {
	x, y := binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])
	lo := mix(mix(x^k0, y^k1)^k2, mix(a^k1, b^k3)^k0)
	hi := mix(mix(y^k2, x^k3)^k1, mix(b^k0, a^k2)^k3)
	return digest{lo, hi}
}

// hashMessage covers the mutable fields of a message; the rest follows from its id. Its
// newest event identifies the fields that the event set.
func (s *State) hashMessage(m *message) digest {
	w := uint64(m.state) | uint64(m.attempt)<<8 | uint64(m.lastNum)<<40
	d := hashWords(m.id, m.lastIndex, w)
	d.add(hashWords(m.id, uint64(m.due), 1))
	if m.lease != 0 {
		l := s.leases.get(m.lease)
		d.add(hashWords(l.id, uint64(l.expires), 2))
	}
	return d
}

// Digest is equal for two states if and only if they were folded from the same events,
// with an error probability of 2^-64.
func (s *State) Digest() [16]byte {
	var b []byte
	u := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	u(s.index, uint64(s.clock), uint64(s.next), s.history, uint64(s.messages.live))
	u(s.dedup.floor, s.answers.floor, s.sum.lo, s.sum.hi, s.dedup.sum.lo, s.dedup.sum.hi,
		s.answers.sum.lo, s.answers.sum.hi, s.raised.floor, s.raised.sum.lo, s.raised.sum.hi)
	if s.rules > 1 { // rules 1 add nothing: checkpoints hold that digest
		u(uint64(s.rules))
	}
	for _, n := range slices.Sorted(maps.Keys(s.queues)) {
		q := s.queues[n]
		b = append(append(b, n...), 0)
		b = append(b, event.EncodePolicy(q.policy)...)
		paused := uint64(0)
		if q.Paused {
			paused = 1
		}
		u(uint64(q.Number), q.Revision, paused, uint64(q.CreatedAt), uint64(q.UpdatedAt),
			uint64(q.LeasedAt))
		k := q.backlog
		u(uint64(k.ready), uint64(k.scheduled), uint64(k.inFlight.n), uint64(k.bytes))
		for _, c := range q.counters() {
			u(uint64(*c))
		}
		if q.tokens != nil {
			u(uint64(q.tokens.level), uint64(q.tokens.at))
		}
		for _, key := range slices.Sorted(maps.Keys(q.held)) {
			h := q.held[key]
			b = append(append(b, key...), 0)
			b = append(b, h.since[:]...)
			u(uint64(h.dead))
		}
		if n := len(q.PausedKeys); n > 0 {
			u(uint64(n))
		}
		for _, key := range q.PausedKeys {
			b = append(append(b, key...), 0)
		}
	}
	for _, w := range s.Webhooks() {
		b = append(append(b, w.Name...), 0)
		b = append(append(b, w.Queue...), 0)
		b = append(b, w.Sum[:]...)
		u(w.Revision, uint64(w.CreatedAt), uint64(w.UpdatedAt))
	}
	for _, t := range s.sortedTasks() { // a task's newest event identifies the rest
		b = append(b, t.ID[:]...)
		b = append(b, byte(t.Kind), byte(t.Status), byte(len(t.Nodes)))
		u(t.last.Index, uint64(t.last.Number), uint64(t.UpdatedAt), uint64(t.EndedAt),
			uint64(t.Done))
	}
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// counters lists a queue's totals in a fixed order.
func (q *queue) counters() []*int64 {
	return []*int64{
		&q.Stats.Enqueued, &q.Stats.DeadIn, &q.Stats.Acked, &q.Stats.DeadLettered, &q.Stats.Discarded,
		&q.Stats.ReplayedIn, &q.Stats.Imported, &q.Stats.Resurrected, &q.Stats.Replayed,
	}
}

package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/event"
)

// Minute is what happened in a queue during one minute.
type Minute struct {
	Start int64 // Unix ms
	Counts
}

// Operation is a write with an Idempotency-Key that was carried out.
type Operation struct {
	Key   event.Hash // of principal, method, path and Idempotency-Key
	Index uint64     // of its entry
	until int64      // kept until then
}

// Replayed is a dead message that was replayed.
type Replayed struct {
	ID event.ID // what it became: the id of the replayed event, and of the new message
}

// Position returns the index of the last block that is counted, 0 at the
// start, and the log's clock there in Unix ms.
func (s *Store) Position() (index uint64, clock int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at.Position, s.at.Clock
}

// Wait returns nil once the log is counted up to index, or the context's error.
func (s *Store) Wait(ctx context.Context, index uint64) error {
	for {
		s.mu.RLock()
		at, changed := s.at.Position, s.changed
		s.mu.RUnlock()
		if at >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// MessagesPerMinute returns how many messages were enqueued into a queue during
// the last full 60 seconds: those before the second of now. now is
// the log's clock as the node reckons it (Unix ms), so that the rate of a queue
// falls to 0 although nothing happens any more; if it is before the log's
// clock at the position, that one counts.
func (s *Store) MessagesPerMinute(queue string, now int64) (n int64, err error) {
	_, clock := s.Position()
	end := max(now, clock) / secondMS
	err = s.view(func(tx *bolt.Tx) error {
		for sec := max(end-60, 0); sec < end; sec++ {
			one, _, err := get[uint64](tx.Bucket(bucketSeconds), timeKey(sec, queue))
			if err != nil {
				return err
			}
			n += int64(one)
		}
		return nil
	})
	return n, err
}

// Minutes returns what happened in a queue in the minutes that begin at from or
// later and before to (Unix ms), oldest first, without those in which nothing
// did. About a day is kept.
func (s *Store) Minutes(queue string, from, to int64) (out []Minute, err error) {
	_, clock := s.Position()
	first := max((from+minuteMS-1)/minuteMS, clock/minuteMS-keptMinutes, 0)
	last := min((to+minuteMS-1)/minuteMS, clock/minuteMS+1)
	err = s.view(func(tx *bolt.Tx) error {
		for m := first; m < last; m++ {
			counts, found, err := get[Counts](tx.Bucket(bucketMinutes), timeKey(m, queue))
			if err != nil {
				return err
			}
			if found {
				out = append(out, Minute{m * minuteMS, counts})
			}
		}
		return nil
	})
	return out, err
}

// QueueTotals returns the number of a queue's events of each type since it was
// created, by the type's name; types without events are left out.
func (s *Store) QueueTotals(queue string) (map[string]uint64, error) {
	return s.totals(bucketOfQueue, queue, func(t byte) string { return event.Type(t).String() })
}

// DeadLetters returns how many messages of a queue were dead-lettered since it was created, by the
// reason's name.
func (s *Store) DeadLetters(queue string) (map[string]uint64, error) {
	return s.totals(bucketDead, queue, func(r byte) string { return event.Reason(r).String() })
}

// LeasesExpired returns how many leases of each of these queues expired since it was created.
func (s *Store) LeasesExpired(queues []event.QueueView) ([]uint64, error) {
	out := make([]uint64, len(queues))
	return out, s.view(func(tx *bolt.Tx) (err error) {
		for i := 0; i < len(queues) && err == nil; i++ {
			key := ofQueue(queues[i].Name, byte(event.LeaseExpired))
			out[i], _, err = get[uint64](tx.Bucket(bucketOfQueue), key)
		}
		return err
	})
}

// totals returns the numbers that are kept of a queue in a bucket, by the name of what they count.
func (s *Store) totals(
	bucket []byte, queue string, name func(what byte) string,
) (map[string]uint64, error) {
	out := map[string]uint64{}
	return out, s.view(func(tx *bolt.Tx) error {
		return scan(tx.Bucket(bucket), ofQueue(queue), nil, func(k []byte, n uint64) bool {
			out[name(k[len(k)-1])] = n
			return true
		})
	})
}

// OperationsWith returns what was carried out under all request keys that begin
// with prefix, oldest first within each.
func (s *Store) OperationsWith(prefix []byte) (out []Operation, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		return scan(tx.Bucket(bucketOperations), prefix, nil, func(_ []byte, o Operation) bool {
			out = append(out, o)
			return true
		})
	})
	return out, err
}

// Replayed returns up to limit of the messages that died in a queue and were
// replayed, in the order of their replays: those after the one that became
// after, which is the zero id at the start. It goes by the queue's name, as the
// live dead letters do, and back as far as history is kept.
func (s *Store) Replayed(queue string, after event.ID, limit int) (out []Replayed, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		from := ofQueue(queue, after[:]...)
		return scan(tx.Bucket(bucketReplayed), ofQueue(queue), from,
			func(_ []byte, r Replayed) bool {
				if r.ID != after && len(out) < limit {
					out = append(out, r)
				}
				return len(out) < limit
			})
	})
	return out, err
}

// Worker is who has leased from a queue lately.
type Worker struct {
	Queue, Name string
	Counted
}

// Workers returns who has leased from which queues within WorkersMS before now, by queue and name.
// It counts by five minutes, so the first leases of each may be older.
func (s *Store) Workers(now int64) (out []Worker, err error) {
	byName, err := s.counted(bucketWorkers, workerMS, now-WorkersMS)
	for _, key := range slices.Sorted(maps.Keys(byName)) {
		queue, name, _ := strings.Cut(key, "\x00")
		out = append(out, Worker{queue, name, byName[key]})
	}
	return out, err
}

// Dying returns how many dead letters queues had within DyingMS before now, by queue; those without
// any are left out. It counts by minute, so the first ones may be older.
func (s *Store) Dying(now int64) (map[string]Counted, error) {
	return s.counted(bucketDying, minuteMS, now-DyingMS)
}

// counted sums by name what a bucket counts by steps of time, without what ended by an instant.
func (s *Store) counted(bucket []byte, step, after int64) (map[string]Counted, error) {
	out := map[string]Counted{}
	return out, s.view(func(tx *bolt.Tx) error {
		return scan(tx.Bucket(bucket), nil, timeKey(max(0, after/step), ""),
			func(k []byte, c Counted) bool {
				if c.Last > after {
					sum := out[string(k[8:])]
					sum.add(c)
					out[string(k[8:])] = sum
				}
				return true
			})
	})
}

// Expiring is which leases of a queue expired, as far as that is kept.
type Expiring struct {
	Lately   Counted              // while the last ExpiringLeases leases were given
	Messages map[event.ID]Counted // those of each message
}

// ExpiringLeases is how many of a queue's leases are its last ones.
const ExpiringLeases = 100

// Expiring returns which leases expired, by queue. What happened before a queue was created belongs
// to an earlier one of its name.
func (s *Store) Expiring(created func(queue string) int64) (out map[string]*Expiring, err error) {
	out = map[string]*Expiring{}
	return out, s.view(func(tx *bolt.Tx) error {
		leases := map[string]uint64{}
		var failed error
		err := scan(tx.Bucket(bucketExpiries), nil, nil, func(k []byte, x Expiry) bool {
			at := event.ClockOf(event.ID(k))
			if at < created(x.Queue) {
				return true
			}
			q, now := out[x.Queue], Counted{1, at, at}
			if q == nil {
				key := ofQueue(x.Queue, byte(event.Leased))
				leases[x.Queue], _, failed = get[uint64](tx.Bucket(bucketOfQueue), key)
				q = &Expiring{Messages: map[event.ID]Counted{}}
				out[x.Queue] = q
			}
			if x.Leases+ExpiringLeases > leases[x.Queue] {
				q.Lately.add(now)
			}
			m := q.Messages[x.Message]
			m.add(now)
			q.Messages[x.Message] = m
			return failed == nil
		})
		return cmp.Or(err, failed)
	})
}

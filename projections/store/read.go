package store

import (
	"bytes"
	"encoding/binary"
	"fmt"

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
	Type  string     // what it was; "" unknown
	Time  int64      // Unix ms
	until int64      // kept until then
}

func (o *Operation) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(o.Time))
	b = binary.BigEndian.AppendUint64(b, uint64(o.until))
	return append(b, o.Type...)
}

func decodeOperation(key, v []byte) (o Operation, err error) {
	if len(key) != 24 || len(v) < 16 {
		return o, fmt.Errorf("%w: an operation of %d and %d bytes", errCorrupt, len(key), len(v))
	}
	copy(o.Key[:], key)
	o.Index = binary.BigEndian.Uint64(key[16:])
	o.Time = int64(binary.BigEndian.Uint64(v))
	o.until = int64(binary.BigEndian.Uint64(v[8:]))
	o.Type = string(v[16:])
	return o, nil
}

// Position returns the index of the last block that is counted, 0 at the
// start, and the log's clock there in Unix ms.
func (s *Store) Position() (index uint64, clock int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at.position, s.at.clock
}

// MessagesPerMinute returns how many messages were enqueued into a queue during
// the last full 60 seconds: those before the second in which now lies. now is
// the log's clock as the node reckons it (Unix ms), so that the rate of a queue
// falls to 0 although nothing happens any more; where it lies behind the log's
// clock at the position, that one counts.
func (s *Store) MessagesPerMinute(queue string, now int64) (n int64, err error) {
	err = s.view(func(tx *bolt.Tx, at *state) error {
		b := tx.Bucket(bucketSeconds)
		end := max(now, at.clock) / secondMS
		for sec := max(end-60, 0); sec < end; sec++ {
			var one [1]uint64
			if _, err := numbers(b, timeKey(uint64(sec), queue), one[:]); err != nil {
				return err
			}
			n += int64(one[0])
		}
		return nil
	})
	return n, err
}

// Rates is MessagesPerMinute of all queues that have one, in one pass.
func (s *Store) Rates(now int64) (rates map[string]int64, err error) {
	rates = map[string]int64{}
	err = s.view(func(tx *bolt.Tx, at *state) error {
		b := tx.Bucket(bucketSeconds)
		end := uint64(max(now, at.clock) / secondMS)
		c := b.Cursor()
		for k, v := c.Seek(timeKey(end-min(end, 60), "")); len(k) > 8 && binary.BigEndian.Uint64(k) < end; k, v = c.Next() {
			one, err := open(k, v)
			if err != nil {
				return err
			}
			if len(one) != 8 {
				return errCorrupt
			}
			rates[string(k[8:])] += int64(binary.BigEndian.Uint64(one))
		}
		return nil
	})
	return rates, err
}

// Minutes returns what happened in a queue in the minutes that begin at from or
// later and before to (Unix ms), oldest first, without those in which nothing
// did. About a day is kept.
func (s *Store) Minutes(queue string, from, to int64) (out []Minute, err error) {
	err = s.view(func(tx *bolt.Tx, at *state) error {
		b := tx.Bucket(bucketMinutes)
		first := max((from+minuteMS-1)/minuteMS, at.clock/minuteMS-keptMinutes, 0)
		last := min((to+minuteMS-1)/minuteMS, at.clock/minuteMS+1)
		for m := first; m < last; m++ {
			var n [countsLen]uint64
			found, err := numbers(b, timeKey(uint64(m), queue), n[:])
			if err != nil {
				return err
			}
			if found {
				out = append(out, Minute{m * minuteMS, countsOf(n[:])})
			}
		}
		return nil
	})
	return out, err
}

// EventTotals returns how many events of each type there are, by the type's
// name; types without any are 0.
func (s *Store) EventTotals() (map[string]uint64, error) {
	totals := map[string]uint64{}
	for _, name := range event.Types() {
		totals[name] = 0
	}
	err := s.view(func(tx *bolt.Tx, _ *state) error {
		b := tx.Bucket(bucketTotals)
		return b.ForEach(func(k, _ []byte) error {
			var n [1]uint64
			if _, err := numbers(b, k, n[:]); err != nil {
				return err
			}
			if len(k) == 1 {
				totals[event.Type(k[0]).String()] += n[0]
			}
			return nil
		})
	})
	return totals, err
}

// QueueTotals returns how many events of each type there are of a queue since it
// was made, by the type's name; types without any are left out.
func (s *Store) QueueTotals(queue string) (map[string]uint64, error) {
	totals := map[string]uint64{}
	err := s.view(func(tx *bolt.Tx, _ *state) error {
		return ofQueue(tx.Bucket(bucketOfQueue), queue, func(t byte, n uint64) { totals[event.Type(t).String()] = n })
	})
	return totals, err
}

// ofQueue goes over the numbers that are kept under queue · 0x00 · something.
func ofQueue(b *bolt.Bucket, queue string, each func(what byte, n uint64)) error {
	prefix := append([]byte(queue), 0)
	c := b.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix) && len(k) == len(prefix)+1; k, _ = c.Next() {
		var n [1]uint64
		if _, err := numbers(b, k, n[:]); err != nil {
			return err
		}
		each(k[len(prefix)], n[0])
	}
	return nil
}

// DeadLetters returns how many messages of a queue were dead-lettered, by
// reason, since it was made.
func (s *Store) DeadLetters(queue string) (map[event.Reason]uint64, error) {
	out := map[event.Reason]uint64{}
	err := s.view(func(tx *bolt.Tx, _ *state) error {
		return ofQueue(tx.Bucket(bucketDead), queue, func(r byte, n uint64) { out[event.Reason(r)] = n })
	})
	return out, err
}

// Operations returns what was carried out under a request's key, oldest first.
func (s *Store) Operations(key event.Hash) (out []Operation, err error) {
	err = s.view(func(tx *bolt.Tx, _ *state) error {
		c := tx.Bucket(bucketOperations).Cursor()
		for k, v := c.Seek(key[:]); bytes.HasPrefix(k, key[:]); k, v = c.Next() {
			v, err := open(k, v)
			if err != nil {
				return err
			}
			o, err := decodeOperation(k, v)
			if err != nil {
				return err
			}
			out = append(out, o)
		}
		return nil
	})
	return out, err
}

package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/qlogd/qlogd/event"
)

// Counts are a queue's events during some time.
type Counts struct {
	Enqueued, Leased, Acked, Retried, LeaseExpired, DeadLettered, Discarded, Replayed uint64
}

func (c *Counts) numbers() []uint64 {
	return []uint64{c.Enqueued, c.Leased, c.Acked, c.Retried, c.LeaseExpired, c.DeadLettered, c.Discarded, c.Replayed}
}

func countsOf(n []uint64) Counts {
	return Counts{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]}
}

const countsLen = 8

// field is what an event of this type counts as, or nil.
func (c *Counts) field(t event.Type) *uint64 {
	switch t {
	case event.Enqueued:
		return &c.Enqueued
	case event.Leased:
		return &c.Leased
	case event.Acked:
		return &c.Acked
	case event.Retried:
		return &c.Retried
	case event.LeaseExpired:
		return &c.LeaseExpired
	case event.DeadLettered:
		return &c.DeadLettered
	case event.Discarded:
		return &c.Discarded
	case event.Replayed:
		return &c.Replayed
	}
	return nil
}

// What is kept, by the log's clock.
const (
	minuteMS = 60_000
	secondMS = 1000

	keptMinutes = 24 * 60
	keptSeconds = 120
)

// operationWeight is how many events an operation counts as in a batch.
const operationWeight = 10

type slot struct {
	at    uint64
	queue string
}

func (s slot) compare(t slot) int {
	return cmp.Or(cmp.Compare(s.at, t.at), strings.Compare(s.queue, t.queue))
}

type deadSlot struct {
	queue  string
	reason event.Reason
}

type typeSlot struct {
	queue string
	typ   event.Type
}

// batch is what some blocks add to the file.
type batch struct {
	state          // after them
	from    uint64 // position where it begins
	maxRows uint64
	events  int
	minutes map[slot]*Counts
	seconds map[slot]uint64
	totals  [256]uint64 // by type
	ofQueue map[typeSlot]uint64
	dead    map[deadSlot]uint64
	// gone are queues deleted in the batch: what was counted of them before goes;
	// b.ofQueue and b.dead hold what came after.
	gone       map[string]bool
	replayed   []replayedRow
	before     uint64 // history below is deleted; 0: no more than before the batch
	operations []Operation
}

func newBatch(from state, maxRows int) *batch {
	return &batch{
		state: from, from: from.position, maxRows: uint64(maxRows), minutes: map[slot]*Counts{}, seconds: map[slot]uint64{},
		ofQueue: map[typeSlot]uint64{}, dead: map[deadSlot]uint64{}, gone: map[string]bool{},
	}
}

// add counts a block.
func (b *batch) add(k *event.Block) {
	b.position, b.chain = k.Index, k.Chain
	b.clock = max(b.clock, k.Time)
	for i := range k.Events {
		b.count(&k.Events[i])
	}
}

func (b *batch) count(e *event.Event) {
	b.events++
	b.totals[e.Type]++
	at := slot{uint64(b.clock) / minuteMS, e.Queue}
	counts := b.minutes[at]
	if counts == nil {
		counts = &Counts{}
	}
	if n := counts.field(e.Type); n != nil {
		*n++
		b.minutes[at] = counts
	}
	if e.Queue != "" {
		b.ofQueue[typeSlot{e.Queue, e.Type}]++
	}
	switch e.Type {
	case event.Enqueued:
		b.seconds[slot{uint64(b.clock) / secondMS, e.Queue}]++
	case event.DeadLettered:
		b.dead[deadSlot{e.Queue, e.Reason}]++
	case event.Replayed:
		replayed := Replayed{ID: e.ID, DeadID: e.Subject, Queue: e.Queue, ToQueue: e.ToQueue}
		b.replayed = append(b.replayed, replayedRow{e.DiedIn, replayed})
	case event.HistoryDeleted:
		b.before = max(b.before, e.Before)
	case event.QueueDeleted:
		b.gone[e.Queue] = true
		maps.DeleteFunc(b.dead, func(s deadSlot, _ uint64) bool { return s.queue == e.Queue })
		maps.DeleteFunc(b.ofQueue, func(s typeSlot, _ uint64) bool { return s.queue == e.Queue })
	case event.AnswerKept:
		b.events += operationWeight - 1
		b.operations = append(b.operations, Operation{
			Key: e.Alias, Index: b.position, Type: e.Kind, Time: b.clock, until: e.Until,
		})
	}
}

// write brings the file from the state that the batch started at to the one
// that it ends at.
func (b *batch) write(tx *bolt.Tx) error {
	// In the order of the keys: bbolt splits a page that grows only when the
	// transaction ends, and until then an insert costs what lies behind it.
	minutes := tx.Bucket(bucketMinutes)
	for _, at := range slices.SortedFunc(maps.Keys(b.minutes), slot.compare) {
		isNew, err := add(minutes, timeKey(at.at, at.queue), b.minutes[at].numbers())
		if err != nil {
			return err
		}
		if isNew {
			b.rows++
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(b.seconds), slot.compare) {
		if _, err := add(tx.Bucket(bucketSeconds), timeKey(at.at, at.queue), []uint64{b.seconds[at]}); err != nil {
			return err
		}
	}
	for t, n := range b.totals {
		if n == 0 {
			continue
		}
		if _, err := add(tx.Bucket(bucketTotals), []byte{byte(t)}, []uint64{n}); err != nil {
			return err
		}
	}
	dead, ofQueue := tx.Bucket(bucketDead), tx.Bucket(bucketOfQueue)
	for queue := range b.gone {
		prefix := append([]byte(queue), 0)
		for _, bucket := range []*bolt.Bucket{dead, ofQueue} {
			if _, err := deleteWhile(bucket, prefix, func(k []byte) bool { return bytes.HasPrefix(k, prefix) }); err != nil {
				return err
			}
		}
	}
	for s, n := range b.ofQueue {
		if _, err := add(ofQueue, ofQueueKey(s.queue, s.typ), []uint64{n}); err != nil {
			return err
		}
	}
	for s, n := range b.dead {
		if _, err := add(dead, deadKey(s.queue, s.reason), []uint64{n}); err != nil {
			return err
		}
	}
	for i := range b.operations {
		o := &b.operations[i]
		key := operationKey(o.Key, o.Index)
		if err := put(tx.Bucket(bucketOperations), key, o.encode()); err != nil {
			return err
		}
		if err := put(tx.Bucket(bucketUntil), untilKey(o.until, key), nil); err != nil {
			return err
		}
	}
	for i := range b.replayed {
		r := &b.replayed[i]
		if err := put(tx.Bucket(bucketReplayed), replayedKey(r.diedIn, r.ID), r.encode()); err != nil {
			return err
		}
	}
	if err := b.forget(tx); err != nil {
		return err
	}
	return put(tx.Bucket(bucketMeta), keyState, b.encode())
}

// forget drops what is too old at the batch's end. It depends on the state
// there alone, not on where earlier batches ended: the clock only rises, so
// what one batch drops a later one would have dropped too.
func (b *batch) forget(tx *bolt.Tx) error {
	before := func(limit int64) func([]byte) bool {
		return func(k []byte) bool { return int64(binary.BigEndian.Uint64(k)) < limit }
	}
	minutes := tx.Bucket(bucketMinutes)
	n, err := deleteWhile(minutes, nil, before(b.clock/minuteMS-keptMinutes))
	if err != nil {
		return err
	}
	b.rows -= uint64(n)
	for b.rows > b.maxRows {
		// A whole minute, the oldest, but never the one that still grows.
		k, _ := minutes.Cursor().First()
		if k == nil || int64(binary.BigEndian.Uint64(k)) >= b.clock/minuteMS {
			break
		}
		oldest := slices.Clone(k[:8])
		n, err := deleteWhile(minutes, oldest, func(k []byte) bool { return bytes.HasPrefix(k, oldest) })
		if err != nil {
			return err
		}
		b.rows -= uint64(n)
	}
	if _, err := deleteWhile(tx.Bucket(bucketSeconds), nil, before(b.clock/secondMS-keptSeconds)); err != nil {
		return err
	}
	if err := b.trim(tx.Bucket(bucketReplayed)); err != nil {
		return err
	}
	// The index first is read, then both go.
	operations := tx.Bucket(bucketOperations)
	_, err = deleteEach(tx.Bucket(bucketUntil), nil, before(b.clock), func(k []byte) error {
		if len(k) != 8+24 {
			return errCorrupt
		}
		return operations.Delete(k[8:])
	})
	return err
}

// trim drops the replays of which the log need not know any more. Within a queue
// they stand in the order of the log: so each queue's beginning is looked at.
func (b *batch) trim(replayed *bolt.Bucket) error {
	if b.before == 0 {
		return nil
	}
	for k, _ := replayed.Cursor().First(); k != nil; {
		queue, _, err := parseReplayedKey(k)
		if err != nil {
			return err
		}
		prefix := append([]byte(queue), 0)
		if _, err := deleteWhile(replayed, prefix, func(k []byte) bool {
			return bytes.HasPrefix(k, prefix) && event.RefOf(event.ID(k[len(k)-16:])).Index < b.before
		}); err != nil {
			return err
		}
		k, _ = replayed.Cursor().Seek(append([]byte(queue), 1))
	}
	return nil
}

// deleteWhile deletes the keys from one on as long as match says so.
func deleteWhile(b *bolt.Bucket, from []byte, match func([]byte) bool) (int, error) {
	return deleteEach(b, from, match, func([]byte) error { return nil })
}

func deleteEach(b *bolt.Bucket, from []byte, match func([]byte) bool, also func([]byte) error) (int, error) {
	// Collected first: a bbolt cursor may skip keys when it deletes under way.
	var keys [][]byte
	c := b.Cursor()
	k, _ := c.First()
	if from != nil {
		k, _ = c.Seek(from)
	}
	for ; k != nil && match(k); k, _ = c.Next() {
		keys = append(keys, slices.Clone(k))
	}
	for _, k := range keys {
		if err := also(k); err != nil {
			return 0, err
		}
		if err := b.Delete(k); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

package store

import (
	"bytes"
	"cmp"
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

// fields are the counts by the types of events that they count.
func (c *Counts) fields() map[event.Type]*uint64 {
	return map[event.Type]*uint64{
		event.Enqueued: &c.Enqueued, event.Leased: &c.Leased, event.Acked: &c.Acked,
		event.Retried: &c.Retried, event.LeaseExpired: &c.LeaseExpired,
		event.DeadLettered: &c.DeadLettered, event.Discarded: &c.Discarded,
		event.Replayed: &c.Replayed,
	}
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

// slot is a queue's part of a second or minute.
type slot struct {
	at    int64
	queue string
}

// kind is a type of events, or a reason of dying, of a queue.
type kind struct {
	queue string
	what  byte
}

// batch is the changes of some blocks to the file.
type batch struct {
	state                // after them
	from          uint64 // position where it begins
	db            *bolt.DB
	maxRows       int
	events        int
	minutes       map[slot]map[event.Type]uint64
	seconds       map[slot]uint64
	ofQueue, dead map[kind]uint64
	// gone are queues deleted in the batch: their earlier counts are deleted; b.ofQueue
	// and b.dead hold later ones.
	gone       map[string]bool
	replayed   map[string][]Replayed // by the queue in which they had died
	before     uint64                // history below is deleted; 0: no more than before the batch
	operations []Operation
}

func newBatch(from state, db *bolt.DB, maxRows int) *batch {
	return &batch{
		state: from, from: from.Position, db: db, maxRows: maxRows,
		minutes: map[slot]map[event.Type]uint64{}, seconds: map[slot]uint64{},
		ofQueue: map[kind]uint64{}, dead: map[kind]uint64{}, gone: map[string]bool{},
		replayed: map[string][]Replayed{},
	}
}

// add counts a block. Events of one type in one queue often follow each other: they are counted
// together.
func (b *batch) add(k *event.Block) {
	b.Position, b.Chain = k.Index, k.Chain
	b.Clock = max(b.Clock, k.Time)
	for rest := k.Events; len(rest) > 0; {
		e, n := &rest[0], 1
		for n < len(rest) && rest[n].Type == e.Type && rest[n].Queue == e.Queue {
			n++
		}
		b.countTypes(e.Type, e.Queue, uint64(n))
		for i := range rest[:n] {
			b.count(&rest[i])
		}
		rest = rest[n:]
	}
}

// byMinute has the types of events that are counted by minute.
var byMinute = (&Counts{}).fields()

// countTypes counts n events of a type in a queue.
func (b *batch) countTypes(typ event.Type, queue string, n uint64) {
	if byMinute[typ] != nil {
		at := slot{b.Clock / minuteMS, queue}
		if b.minutes[at] == nil {
			b.minutes[at] = map[event.Type]uint64{}
		}
		b.minutes[at][typ] += n
	}
	if queue != "" {
		b.ofQueue[kind{queue, byte(typ)}] += n
	}
	if typ == event.Enqueued {
		b.seconds[slot{b.Clock / secondMS, queue}] += n
	}
}

// detailed are the events of which count looks at more than type and queue.
var detailed = []event.Type{
	event.DeadLettered, event.Replayed, event.HistoryDeleted, event.AnswerKept,
}

func (b *batch) count(e *event.Event) {
	b.events++
	switch e.Type {
	case event.DeadLettered:
		b.dead[kind{e.Queue, byte(e.Reason)}]++
	case event.Replayed:
		r := Replayed{ID: e.ID, DeadID: e.Subject, Queue: e.Queue, ToQueue: e.ToQueue}
		b.replayed[e.DiedIn] = append(b.replayed[e.DiedIn], r)
	case event.HistoryDeleted:
		b.before = max(b.before, e.Before)
	case event.QueueDeleted:
		b.gone[e.Queue] = true
		of := func(k kind, _ uint64) bool { return k.queue == e.Queue }
		maps.DeleteFunc(b.dead, of)
		maps.DeleteFunc(b.ofQueue, of)
	case event.AnswerKept:
		b.events += operationWeight - 1
		b.operations = append(b.operations, Operation{
			Key: e.Alias, Index: b.Position, Type: e.Kind, Time: b.Clock, until: e.Until,
		})
	}
}

// write brings the file from the state that the batch started at to the one
// that it ends at.
func (b *batch) write(tx *bolt.Tx) error {
	if err := b.writeTimes(tx); err != nil {
		return err
	}
	if err := b.writeCounts(tx.Bucket(bucketOfQueue), b.ofQueue); err != nil {
		return err
	}
	if err := b.writeCounts(tx.Bucket(bucketDead), b.dead); err != nil {
		return err
	}
	for _, o := range b.operations {
		key := operationKey(o.Key, o.Index)
		if err := put(tx.Bucket(bucketOperations), key, o); err != nil {
			return err
		}
		if err := put(tx.Bucket(bucketUntil), timeKey(o.until, string(key)), nil); err != nil {
			return err
		}
	}
	for queue, rows := range b.replayed {
		for _, r := range rows {
			if err := put(tx.Bucket(bucketReplayed), ofQueue(queue, r.ID[:]...), r); err != nil {
				return err
			}
		}
	}
	if err := b.forget(tx); err != nil {
		return err
	}
	return put(tx.Bucket(bucketMeta), keyState, b.state)
}

func (b *batch) writeCounts(bucket *bolt.Bucket, counts map[kind]uint64) error {
	for queue := range b.gone {
		prefix := ofQueue(queue)
		of := func(k []byte) bool { return bytes.HasPrefix(k, prefix) }
		if _, err := deleteWhile(bucket, prefix, of); err != nil {
			return err
		}
	}
	for k, n := range counts {
		if err := increase(bucket, ofQueue(k.queue, k.what), n); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) writeTimes(tx *bolt.Tx) error {
	// In the order of the keys: bbolt splits a page that grows only when the
	// transaction ends, and until then an insert moves all that follows.
	inOrder := func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.queue, b.queue))
	}
	minutes := tx.Bucket(bucketMinutes)
	for _, at := range slices.SortedFunc(maps.Keys(b.minutes), inOrder) {
		key := timeKey(at.at, at.queue)
		counts, found, err := get[Counts](minutes, key)
		if err != nil {
			return err
		}
		if !found {
			b.Rows++
		}
		fields := counts.fields()
		for t, n := range b.minutes[at] {
			*fields[t] += n
		}
		if err := put(minutes, key, counts); err != nil {
			return err
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(b.seconds), inOrder) {
		key := timeKey(at.at, at.queue)
		if err := increase(tx.Bucket(bucketSeconds), key, b.seconds[at]); err != nil {
			return err
		}
	}
	return nil
}

// forget drops entries that are too old at the batch's end. It depends on the state there
// alone, not on where earlier batches ended: the clock only rises, so a later batch would
// have dropped them too.
func (b *batch) forget(tx *bolt.Tx) error {
	before := func(limit int64) func([]byte) bool {
		return func(k []byte) bool { return timeOf(k) < limit }
	}
	minutes := tx.Bucket(bucketMinutes)
	keep := b.Clock/minuteMS - keptMinutes
	for {
		keys, err := deleteWhile(minutes, nil, before(keep))
		if err != nil {
			return err
		}
		b.Rows -= len(keys)
		// Too many: a whole minute, the oldest, but never the one that still grows.
		k, _ := minutes.Cursor().First()
		if b.Rows <= b.maxRows || k == nil || timeOf(k) >= b.Clock/minuteMS {
			break
		}
		keep = timeOf(k) + 1
	}
	seconds := b.Clock/secondMS - keptSeconds
	if _, err := deleteWhile(tx.Bucket(bucketSeconds), nil, before(seconds)); err != nil {
		return err
	}
	over, err := deleteWhile(tx.Bucket(bucketUntil), nil, before(b.Clock))
	for _, k := range over {
		if err == nil {
			err = tx.Bucket(bucketOperations).Delete(k[8:])
		}
	}
	if err != nil {
		return err
	}
	return b.trim(tx.Bucket(bucketReplayed))
}

// trim drops the replays in deleted history. Within a queue they are in log order, so
// only the beginning of each queue is read.
func (b *batch) trim(replayed *bolt.Bucket) error {
	if b.before == 0 {
		return nil
	}
	for k, _ := replayed.Cursor().First(); k != nil; {
		if len(k) < 17 {
			return errCorrupt
		}
		prefix := slices.Clone(k[:len(k)-16])
		old := func(k []byte) bool {
			return bytes.HasPrefix(k, prefix) &&
				event.RefOf(event.ID(k[len(k)-16:])).Index < b.before
		}
		if _, err := deleteWhile(replayed, prefix, old); err != nil {
			return err
		}
		prefix[len(prefix)-1] = 1
		k, _ = replayed.Cursor().Seek(prefix)
	}
	return nil
}

// deleteWhile deletes the keys from one on while match returns true, and returns them.
func deleteWhile(b *bolt.Bucket, from []byte, match func([]byte) bool) (keys [][]byte,
	err error) {
	// Collected first: a bbolt cursor may skip keys when it deletes under way.
	c := b.Cursor()
	for k, _ := c.Seek(from); k != nil && match(k); k, _ = c.Next() {
		keys = append(keys, slices.Clone(k))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

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

	// WorkersMS is how long a worker is remembered after its last lease, counted by workerMS.
	WorkersMS = 60 * minuteMS
	workerMS  = 5 * minuteMS

	// DyingMS is how long dead letters are remembered, counted by minute.
	DyingMS = 10 * minuteMS
)

// Counted counts events of some time. Times are the log's clock, Unix ms.
type Counted struct {
	Count       uint64
	First, Last int64
}

// add adds what came later.
func (c *Counted) add(later Counted) {
	if c.Count == 0 {
		c.First = later.First
	}
	c.Count, c.Last = c.Count+later.Count, later.Last
}

// Expiry is the end of a lease that expired.
type Expiry struct {
	Queue   string
	Message event.ID
	// Leases is how many the queue had given until then.
	Leases uint64
}

// expired is an Expiry of a batch. Its Leases are those of the batch, after all others unless the
// queue was deleted in the batch.
type expired struct {
	id event.ID
	Expiry
	again bool
}

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
	maxWorkers    int
	maxExpiries   int
	events        int
	minutes       map[slot]map[event.Type]uint64
	seconds       map[slot]uint64
	dying         map[slot]Counted
	expiries      []expired
	workers       map[slot]Counted // the queue, 0x00 and the worker in the place of the queue
	ofQueue, dead map[kind]uint64
	// gone are queues deleted in the batch: their earlier counts are deleted; b.ofQueue
	// and b.dead hold later ones.
	gone       map[string]bool
	replayed   map[string][]Replayed // by the queue in which they had died
	before     uint64                // history below is deleted; 0: no more than before the batch
	operations []Operation
}

// newBatch begins a batch at what the file holds. The caller holds mu.
func (s *Store) newBatch() *batch {
	return &batch{
		state: s.at, from: s.at.Position, db: s.db,
		maxRows: s.maxRows, maxWorkers: s.maxWorkers, maxExpiries: s.maxExpiries,
		minutes: map[slot]map[event.Type]uint64{}, seconds: map[slot]uint64{},
		ofQueue: map[kind]uint64{}, dead: map[kind]uint64{}, gone: map[string]bool{},
		replayed: map[string][]Replayed{}, workers: map[slot]Counted{},
		dying: map[slot]Counted{},
	}
}

// add counts a block. Events of one type in one queue, and leases of one worker, often follow each
// other: they are counted together.
func (b *batch) add(k *event.Block) {
	b.Position, b.Chain = k.Index, k.Chain
	b.Clock = max(b.Clock, k.Time)
	for rest := k.Events; len(rest) > 0; {
		e, n := &rest[0], 1
		for n < len(rest) && rest[n].Type == e.Type && rest[n].Queue == e.Queue &&
			rest[n].Worker == e.Worker {
			n++
		}
		b.countTypes(e.Type, e.Queue, uint64(n))
		switch now := (Counted{uint64(n), b.Clock, b.Clock}); e.Type {
		case event.Leased:
			of := string(ofQueue(e.Queue, []byte(e.Worker)...))
			countAt(b.workers, slot{b.Clock / workerMS, of}, now)
		case event.DeadLettered:
			countAt(b.dying, slot{b.Clock / minuteMS, e.Queue}, now)
		}
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

func countAt(m map[slot]Counted, at slot, now Counted) {
	c := m[at]
	c.add(now)
	m[at] = c
}

// detailed are the events of which count looks at more than type and queue.
var detailed = []event.Type{
	event.DeadLettered, event.LeaseExpired, event.Replayed, event.HistoryDeleted, event.AnswerKept,
}

func (b *batch) count(e *event.Event) {
	b.events++
	switch e.Type {
	case event.DeadLettered:
		b.dead[kind{e.Queue, byte(e.Reason)}]++
	case event.LeaseExpired:
		b.expiries = append(b.expiries, expired{e.ID, Expiry{
			e.Queue, e.Subject, b.ofQueue[kind{e.Queue, byte(event.Leased)}],
		}, b.gone[e.Queue]})
		if len(b.expiries) > 2*b.maxExpiries {
			b.expiries = slices.Delete(b.expiries, 0, b.maxExpiries)
		}
	case event.Replayed:
		b.replayed[e.DiedIn] = append(b.replayed[e.DiedIn], Replayed{e.ID})
	case event.HistoryDeleted:
		b.before = max(b.before, e.Before)
	case event.QueueDeleted:
		b.gone[e.Queue] = true
		of := func(k kind, _ uint64) bool { return k.queue == e.Queue }
		maps.DeleteFunc(b.dead, of)
		maps.DeleteFunc(b.ofQueue, of)
	case event.AnswerKept:
		b.events += operationWeight - 1
		b.operations = append(b.operations, Operation{e.Alias, b.Position, e.Until})
	}
}

// edit is a transaction that changes the file. After its first error it does nothing more.
type edit struct {
	*bolt.Tx
	err error
}

func (t *edit) put(bucket, key []byte, value any) {
	if t.err == nil {
		t.err = put(t.Bucket(bucket), key, value)
	}
}

// increase adds to the number under a key.
func (t *edit) increase(bucket, key []byte, by uint64) {
	n, _, err := get[uint64](t.Bucket(bucket), key)
	t.err = cmp.Or(t.err, err)
	t.put(bucket, key, n+by)
}

// deleteWhile deletes the keys from one on while match returns true, and returns them.
func (t *edit) deleteWhile(bucket, from []byte, match func([]byte) bool) (keys [][]byte) {
	// Collected first: a bbolt cursor may skip keys when it deletes under way.
	b := t.Bucket(bucket)
	c := b.Cursor()
	for k, _ := c.Seek(from); k != nil && match(k); k, _ = c.Next() {
		keys = append(keys, slices.Clone(k))
	}
	for _, k := range keys {
		if t.err == nil {
			t.err = b.Delete(k)
		}
	}
	return keys
}

// write changes the file from the state that the batch started at to the one that it ends at.
func (b *batch) write(tx *bolt.Tx) error {
	t := &edit{Tx: tx}
	b.writeTimes(t)
	b.writeExpiries(t) // before the leases of the batch are added
	b.writeCounts(t, bucketOfQueue, b.ofQueue)
	b.writeCounts(t, bucketDead, b.dead)
	for _, o := range b.operations {
		key := operationKey(o.Key, o.Index)
		t.put(bucketOperations, key, o)
		t.put(bucketUntil, timeKey(o.until, string(key)), nil)
	}
	for queue, rows := range b.replayed {
		for _, r := range rows {
			t.put(bucketReplayed, ofQueue(queue, r.ID[:]...), r)
		}
	}
	b.forget(t)
	t.put(bucketMeta, keyState, b.state)
	return t.err
}

func (b *batch) writeCounts(t *edit, bucket []byte, counts map[kind]uint64) {
	for queue := range b.gone {
		prefix := ofQueue(queue)
		t.deleteWhile(bucket, prefix, func(k []byte) bool { return bytes.HasPrefix(k, prefix) })
	}
	for k, n := range counts {
		t.increase(bucket, ofQueue(k.queue, k.what), n)
	}
}

// inOrder returns the keys of counts in the order of the file. bbolt splits a growing page only at
// the end of the transaction; until then an insert in the middle moves all that follows.
func inOrder[V any](m map[slot]V) []slot {
	return slices.SortedFunc(maps.Keys(m), func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.queue, b.queue))
	})
}

func (b *batch) writeTimes(t *edit) {
	for _, at := range inOrder(b.minutes) {
		key := timeKey(at.at, at.queue)
		counts, found, err := get[Counts](t.Bucket(bucketMinutes), key)
		t.err = cmp.Or(t.err, err)
		if !found {
			b.Rows++
		}
		fields := counts.fields()
		for typ, n := range b.minutes[at] {
			*fields[typ] += n
		}
		t.put(bucketMinutes, key, counts)
	}
	for _, at := range inOrder(b.seconds) {
		t.increase(bucketSeconds, timeKey(at.at, at.queue), b.seconds[at])
	}
	b.Workers += t.addCounted(bucketWorkers, b.workers)
	t.addCounted(bucketDying, b.dying)
}

// addCounted adds to what a bucket has counted by time, and returns how many keys are new.
func (t *edit) addCounted(bucket []byte, m map[slot]Counted) (created int) {
	for _, at := range inOrder(m) {
		key := timeKey(at.at, at.queue)
		c, found, err := get[Counted](t.Bucket(bucket), key)
		t.err = cmp.Or(t.err, err)
		if !found {
			created++
		}
		c.add(m[at])
		t.put(bucket, key, c)
	}
	return created
}

// writeExpiries adds the batch's expiries and drops the oldest where there are too many.
func (b *batch) writeExpiries(t *edit) {
	for _, x := range b.expiries {
		if !x.again {
			key := ofQueue(x.Queue, byte(event.Leased))
			before, _, err := get[uint64](t.Bucket(bucketOfQueue), key)
			t.err = cmp.Or(t.err, err)
			x.Leases += before
		}
		t.put(bucketExpiries, x.id[:], x.Expiry)
	}
	b.Expiries += len(b.expiries)
	over := b.Expiries - b.maxExpiries
	b.Expiries -= len(t.deleteWhile(bucketExpiries, nil, func([]byte) bool { over--; return over >= 0 }))
}

// forget drops entries that are too old at the batch's end. It depends on the state there
// alone, not on where earlier batches ended: the clock only rises, so a later batch would
// have dropped them too.
func (b *batch) forget(t *edit) {
	before := func(limit int64) func([]byte) bool {
		return func(k []byte) bool { return timeOf(k) < limit }
	}
	for keep := b.Clock/minuteMS - keptMinutes; t.err == nil; {
		b.Rows -= len(t.deleteWhile(bucketMinutes, nil, before(keep)))
		// Too many: a whole minute, the oldest, but never the one that still grows.
		k, _ := t.Bucket(bucketMinutes).Cursor().First()
		if b.Rows <= b.maxRows || k == nil || timeOf(k) >= b.Clock/minuteMS {
			break
		}
		keep = timeOf(k) + 1
	}
	t.deleteWhile(bucketDying, nil, before((b.Clock-DyingMS)/minuteMS))
	t.deleteWhile(bucketSeconds, nil, before(b.Clock/secondMS-keptSeconds))
	for _, k := range t.deleteWhile(bucketUntil, nil, before(b.Clock)) {
		if t.err == nil {
			t.err = t.Bucket(bucketOperations).Delete(k[8:])
		}
	}
	b.forgetWorkers(t)
	b.trim(t)
}

// forgetWorkers drops old workers, and the oldest where there are too many: of the newest time the
// last ones by name.
func (b *batch) forgetWorkers(t *edit) {
	before := func(limit int64) int {
		return len(t.deleteWhile(bucketWorkers, nil, func(k []byte) bool { return timeOf(k) < limit }))
	}
	b.Workers -= before((b.Clock - WorkersMS) / workerMS)
	workers := t.Bucket(bucketWorkers)
	for t.err == nil && b.Workers > b.maxWorkers {
		oldest, _ := workers.Cursor().First()
		newest, _ := workers.Cursor().Last()
		if at := timeOf(oldest); at < timeOf(newest) {
			b.Workers -= before(at + 1)
			continue
		}
		t.err = workers.Delete(slices.Clone(newest))
		b.Workers--
	}
}

// trim drops the replays in deleted history. Within a queue they are in log order, so
// only the beginning of each queue is read.
func (b *batch) trim(t *edit) {
	if b.before == 0 {
		return
	}
	replayed := t.Bucket(bucketReplayed)
	for k, _ := replayed.Cursor().First(); k != nil && t.err == nil; {
		if len(k) < 17 {
			t.err = errCorrupt
			return
		}
		prefix := slices.Clone(k[:len(k)-16])
		t.deleteWhile(bucketReplayed, prefix, func(k []byte) bool {
			return bytes.HasPrefix(k, prefix) &&
				event.RefOf(event.ID(k[len(k)-16:])).Index < b.before
		})
		prefix[len(prefix)-1] = 1
		k, _ = replayed.Cursor().Seek(prefix)
	}
}

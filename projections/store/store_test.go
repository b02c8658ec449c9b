package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/oklog/ulid/v2"
	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// memLog is a Source in memory.
type memLog struct {
	mu     sync.Mutex
	blocks []*event.Block
	fail   error

	deleted uint64 // by retention
	clock   int64  // the log's there
}

func (l *memLog) Begins() (uint64, int64) { return l.deleted, l.clock }

func newLog(blocks ...*event.Block) *memLog { return &memLog{blocks: blocks} }

func (l *memLog) append(b ...*event.Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = append(l.blocks, b...)
}

// Blocks implements Source; as in the log, of other events than whole only type, queue and the worker
// of leased ones are set.
func (l *memLog) Blocks(
	ctx context.Context, from, to uint64, whole ...event.Type,
) iter.Seq2[*event.Block, error] {
	return func(yield func(*event.Block, error) bool) {
		l.mu.Lock()
		blocks := l.blocks
		l.mu.Unlock()
		if l.fail != nil {
			yield(nil, l.fail)
			return
		}
		for _, b := range blocks {
			b := &event.Block{Index: b.Index, Time: b.Time, Chain: b.Chain,
				Events: slices.Clone(b.Events)}
			for i, e := range b.Events {
				if whole != nil && !slices.Contains(whole, e.Type) {
					b.Events[i] = event.Event{Type: e.Type, Queue: e.Queue}
					if e.Type == event.Leased {
						b.Events[i].Worker = e.Worker
					}
				}
			}
			if err := ctx.Err(); err != nil {
				yield(nil, err)
				return
			}
			if b.Index >= from && b.Index <= to && !yield(b, nil) {
				return
			}
		}
	}
}

func (l *memLog) Head() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocks) == 0 {
		return 0
	}
	return l.blocks[len(l.blocks)-1].Index
}

// block builds a block whose chain follows from its index and salt.
func block(index uint64, clock int64, salt byte, events ...event.Event) *event.Block {
	b := &event.Block{Index: index, Time: clock, Events: events}
	binary.BigEndian.PutUint64(b.Chain[:], index)
	b.Chain[31] = salt
	return b
}

// fold is what the read models must be, written down as plainly as possible.
type fold struct {
	Position   uint64
	Clock      int64
	Minutes    map[string]Counts // "minute queue"
	Seconds    map[string]uint64
	Workers    map[string]Counted // "five-minutes queue worker"
	Dying      map[string]Counted // "minute queue"
	Expiries   []Expiry
	OfQueue    map[string]uint64 // "queue type"
	Dead       map[string]uint64
	Replayed   []string // "queue id"
	Operations []Operation
}

func newFold() fold {
	return fold{
		Minutes: map[string]Counts{}, Seconds: map[string]uint64{}, Workers: map[string]Counted{},
		Dying:   map[string]Counted{},
		OfQueue: map[string]uint64{}, Dead: map[string]uint64{},
	}
}

func replayedRow(diedIn string, r Replayed) string {
	return fmt.Sprintf("%q %s", diedIn, r.ID)
}

func operationID(o Operation) string { return string(operationKey(o.Key, o.Index)) }

func foldOf(blocks []*event.Block, s *Store) fold {
	f := newFold()
	until := map[string]int64{} // of operations
	name := func(at int64, queue string) string { return fmt.Sprintf("%020d %s", at, queue) }
	for _, b := range blocks {
		f.Position, f.Clock = b.Index, max(f.Clock, b.Time)
		for _, e := range b.Events {
			if e.Queue != "" {
				f.OfQueue[e.Queue+" "+e.Type.String()]++
			}
			m := f.Minutes[name(f.Clock/60_000, e.Queue)]
			switch e.Type {
			case event.Enqueued:
				m.Enqueued++
				f.Seconds[name(f.Clock/1000, e.Queue)]++
			case event.Leased:
				m.Leased++
				key := name(f.Clock/workerMS, e.Queue+"\x00"+e.Worker)
				l := f.Workers[key]
				l.add(Counted{1, f.Clock, f.Clock})
				f.Workers[key] = l
			case event.Acked:
				m.Acked++
			case event.Retried:
				m.Retried++
			case event.DeadLettered:
				m.DeadLettered++
				key := name(f.Clock/60_000, e.Queue)
				c := f.Dying[key]
				c.add(Counted{1, f.Clock, f.Clock})
				f.Dying[key] = c
				f.Dead[e.Queue+" "+e.Reason.String()]++
			case event.LeaseExpired:
				m.LeaseExpired++
				f.Expiries = append(f.Expiries,
					Expiry{e.Queue, e.Subject, f.OfQueue[e.Queue+" leased"]})
				f.Expiries = f.Expiries[max(0, len(f.Expiries)-s.maxExpiries):]
			case event.Discarded:
				m.Discarded++
			case event.QueueDeleted:
				of := func(k string, _ uint64) bool { return strings.HasPrefix(k, e.Queue+" ") }
				maps.DeleteFunc(f.Dead, of)
				maps.DeleteFunc(f.OfQueue, of)
			case event.Replayed:
				m.Replayed++
				f.Replayed = append(f.Replayed, replayedRow(e.DiedIn, Replayed{e.ID}))
			case event.HistoryDeleted:
				f.Replayed = slices.DeleteFunc(f.Replayed, func(r string) bool {
					id, err := ulid.Parse(strings.Fields(r)[1])
					return err == nil && event.RefOf(id).Index < e.Before
				})
			case event.AnswerKept:
				f.Operations = append(f.Operations, Operation{Key: e.Alias, Index: b.Index})
				until[operationID(f.Operations[len(f.Operations)-1])] = e.Until
			}
			if m != (Counts{}) {
				f.Minutes[name(f.Clock/60_000, e.Queue)] = m
			}
		}
	}
	maps.DeleteFunc(f.Minutes, func(k string, _ Counts) bool {
		return k < name(max(f.Clock/60_000-keptMinutes, 0), "")
	})
	maps.DeleteFunc(f.Seconds, func(k string, _ uint64) bool {
		return k < name(max(f.Clock/1000-keptSeconds, 0), "")
	})
	maps.DeleteFunc(f.Dying, func(k string, _ Counted) bool {
		return k < name(max((f.Clock-DyingMS)/60_000, 0), "")
	})
	maps.DeleteFunc(f.Workers, func(k string, _ Counted) bool {
		return k < name(max((f.Clock-WorkersMS)/workerMS, 0), "")
	})
	for len(f.Minutes) > s.maxRows { // whole minutes, but not the one that still grows
		oldest := slices.Sorted(maps.Keys(f.Minutes))[0][:20]
		if oldest >= name(f.Clock/60_000, "")[:20] {
			break
		}
		maps.DeleteFunc(f.Minutes, func(k string, _ Counts) bool { return k[:20] == oldest })
	}
	for len(f.Workers) > s.maxWorkers { // the oldest time, or the last of the newest
		keys := slices.Sorted(maps.Keys(f.Workers))
		oldest, newest := keys[0][:20], keys[len(keys)-1][:20]
		maps.DeleteFunc(f.Workers, func(k string, _ Counted) bool {
			return k[:20] == oldest && (oldest != newest || k == keys[len(keys)-1])
		})
	}
	slices.SortStableFunc(f.Replayed, func(a, b string) int {
		return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0])
	})
	f.Operations = slices.DeleteFunc(f.Operations,
		func(o Operation) bool { return until[operationID(o)] < f.Clock })
	slices.SortFunc(f.Operations, func(a, b Operation) int {
		return bytes.Compare(operationKey(a.Key, a.Index), operationKey(b.Key, b.Index))
	})
	return f
}

// read returns all that the store holds in fold's form.
func read(t testing.TB, s *Store) fold {
	t.Helper()
	f := newFold()
	err := s.view(func(tx *bolt.Tx) error {
		at, err := stateOf(tx)
		must(t, err)
		f.Position, f.Clock = at.Position, at.Clock
		name := func(k []byte) string { return fmt.Sprintf("%020d %s", timeOf(k), k[8:]) }
		left := 0
		each(t, tx, bucketMinutes, func(k []byte, c Counts) { f.Minutes[name(k)] = c })
		each(t, tx, bucketSeconds, func(k []byte, n uint64) { f.Seconds[name(k)] = n })
		each(t, tx, bucketDying, func(k []byte, c Counted) { f.Dying[name(k)] = c })
		each(t, tx, bucketExpiries, func(_ []byte, x Expiry) { f.Expiries = append(f.Expiries, x) })
		each(t, tx, bucketWorkers, func(k []byte, l Counted) { f.Workers[name(k)] = l })
		each(t, tx, bucketDead, func(k []byte, n uint64) {
			f.Dead[string(k[:len(k)-2])+" "+event.Reason(k[len(k)-1]).String()] = n
		})
		each(t, tx, bucketOfQueue, func(k []byte, n uint64) {
			f.OfQueue[string(k[:len(k)-2])+" "+event.Type(k[len(k)-1]).String()] = n
		})
		each(t, tx, bucketReplayed, func(k []byte, r Replayed) {
			f.Replayed = append(f.Replayed, replayedRow(string(k[:len(k)-17]), r))
		})
		each(t, tx, bucketOperations, func(_ []byte, o Operation) {
			f.Operations = append(f.Operations, o)
		})
		each(t, tx, bucketUntil, func([]byte, any) { left++ })
		assert.True(t, len(f.Minutes) == at.Rows,
			"state says %d rows, there are %d", at.Rows, len(f.Minutes))
		assert.Equal(t, at.Workers, len(f.Workers), "rows of workers")
		assert.Equal(t, at.Expiries, len(f.Expiries), "expiries")
		assert.Equal(t, left, len(f.Operations), "operations of them will be forgotten")
		return nil
	})
	must(t, err)
	return f
}

// each calls do for all that a bucket has.
func each[T any](t testing.TB, tx *bolt.Tx, bucket []byte, do func(k []byte, v T)) {
	t.Helper()
	must(t, scan(tx.Bucket(bucket), nil, nil, func(k []byte, v T) bool { do(k, v); return true }))
}

func same(t testing.TB, s *Store, blocks []*event.Block) {
	t.Helper()
	if d := cmp.Diff(foldOf(blocks, s), read(t, s), cmpopts.IgnoreUnexported(Operation{}),
		cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("the store (+) is not the fold of its blocks (-):\n%s", d)
	}
}

const cluster = "cluster-1"

// openStore opens read models.
func openStore(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path, cluster, slog.New(slog.DiscardHandler))
	must(t, err)
	return s
}

// newStore opens read models of their own, which the test closes.
func newStore(t *testing.T) *Store {
	t.Helper()
	s := openStore(t, filepath.Join(t.TempDir(), "p.db"))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// catchUp counts all that src holds.
func catchUp(t testing.TB, s *Store, src *memLog) {
	t.Helper()
	must(t, s.CatchUp(context.Background(), src, func(uint64) {}))
}

// pause is the time between two batches of follow.
const pause = time.Millisecond

// follow counts what src holds, nearly without pauses, until ctx ends.
func follow(ctx context.Context, s *Store, src *memLog) error {
	for ctx.Err() == nil {
		if err := s.CatchUp(ctx, src, func(uint64) {}); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return ctx.Err()
}

// history draws blocks whose clock now and then leaps, stands or falls back.
func history(t *rapid.T) []*event.Block {
	var blocks []*event.Block
	index, clock, highest := uint64(1), int64(1_800_000_000_000), int64(0)
	n := rapid.IntRange(1, 40).Draw(t, "blocks")
	for range n {
		index += uint64(rapid.IntRange(1, 3).Draw(t, "step"))
		clock += rapid.SampledFrom([]int64{-5000, 0, 1, 400, 1000, 61_000, 3600_000,
			30 * 3600_000}).Draw(t, "tick")
		highest = max(highest, clock)
		var events []event.Event
		for i := range rapid.IntRange(0, 6).Draw(t, "events") {
			e := event.Event{
				ID: event.NewID(highest, index, uint32(i)),
				Type: event.Type(rapid.OneOf(
					rapid.IntRange(int(event.QueueCreated), int(event.WebhookDeleted)),
					rapid.SampledFrom([]int{int(event.Leased), int(event.LeaseExpired)}),
				).Draw(t, "type")),
				Queue: rapid.SampledFrom([]string{"a", "ab", "b.dlq"}).Draw(t, "queue"),
			}
			switch e.Type {
			case event.Leased:
				e.Worker = rapid.SampledFrom([]string{"", "v", "w", "x"}).Draw(t, "worker")
			case event.LeaseExpired:
				e.Subject = event.NewID(clock, index, uint32(i))
			case event.DeadLettered:
				e.Reason = event.Reason(rapid.IntRange(1, 4).Draw(t, "reason"))
			case event.Replayed:
				e.Subject = event.NewID(clock, uint64(rapid.IntRange(1, int(index)).Draw(t,
					"dead")), 9)
				e.DiedIn = rapid.SampledFrom([]string{"a", "ab", "c"}).Draw(t, "died in")
				e.ToQueue = rapid.SampledFrom([]string{"a", "ab"}).Draw(t, "to")
			case event.HistoryDeleted:
				e.Queue, e.Before = "", uint64(rapid.IntRange(0, int(index)).Draw(t, "before"))
			case event.AnswerKept:
				e.Queue = ""
				e.Alias = event.Hash{byte(i + 1)} // one key is executed once in an entry
				e.Kind = "enqueue"
				e.Until = clock + 24*3600_000
			}
			events = append(events, e)
		}
		blocks = append(blocks, block(index, clock, 0, events...))
	}
	return blocks
}

// TestFold: whatever the history, however it is cut into batches, and wherever
// the process dies, the store is the fold of the blocks that it counted.
func TestFold(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		blocks := history(rt)
		path := filepath.Join(dir, fmt.Sprint(run, ".db"))
		batch := rapid.IntRange(1, 20).Draw(rt, "batch")
		open := func() *Store {
			s := openStore(t, path)
			s.maxEvents, s.maxRows, s.maxWorkers, s.maxExpiries = batch, 4, 3, 3
			s.db.NoSync = true // what is written can be read
			return s
		}
		s := open()
		defer func() { _ = s.Close(); _ = os.Remove(path) }()
		src := newLog()
		for done := 0; done < len(blocks); {
			n := rapid.IntRange(1, len(blocks)-done).Draw(rt, "grow")
			src.append(blocks[done : done+n]...)
			done += n
			catchUp(t, s, src)
			same(t, s, blocks[:done])
			switch rapid.IntRange(0, 3).Draw(rt, "then") {
			case 0: // killed: what is on disk is what was committed
				killed := path + ".killed"
				copyFile(t, path, killed)
				_ = s.Close()
				_ = os.Remove(path)
				path = killed
				s = open()
			case 1: // stopped
				_ = s.Close()
				s = open()
			case 2:
				must(t, s.Rebuild())
			}
		}
		catchUp(t, s, src)
		same(t, s, blocks)
	})
}

// TestRebuildWhileFollowing: what follows counts anew, also where the log does not grow, and never
// on top of what was counted before.
func TestRebuildWhileFollowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.maxEvents = 3
		src := newLog()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		done := make(chan error, 1)
		go func() { done <- follow(ctx, s, src) }()
		for i := range uint64(60) {
			src.append(block(i+1, start+int64(i)*500, 0, enqueued("a", 2)...))
			if i%7 == 0 {
				must(t, s.Rebuild())
			}
		}
		counted(t, s, 60)
		for range 5 {
			must(t, s.Rebuild())
			counted(t, s, 60)
		}
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
		same(t, s, src.blocks)
	})
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, b, 0o600))
}

const start = int64(1_800_000_000_000) // a whole minute

func enqueued(queue string, n int) (events []event.Event) {
	for range n {
		events = append(events, event.Event{Type: event.Enqueued, Queue: queue})
	}
	return events
}

func TestMessagesPerMinute(t *testing.T) {
	src := newLog(
		block(1, start+10_000, 0, enqueued("a", 1)...),
		block(2, start+10_999, 0, enqueued("a", 2)...),
		block(3, start+40_000, 0, enqueued("a", 4)...),
		block(4, start+40_000, 0, enqueued("b", 8)...),
	)
	s := newStore(t)
	catchUp(t, s, src)
	for _, c := range []struct {
		now  int64
		a, b int64
	}{
		{0, 3, 0},              // the log's own clock: its last second is not full yet
		{start + 41_000, 7, 8}, // now it is
		{start + 70_999, 7, 8}, // 10 to 70
		{start + 71_000, 4, 8}, // second 10 is out
		{start + 101_000, 0, 0},
		{start + 3600_000, 0, 0},
	} {
		a, err := s.MessagesPerMinute("a", c.now)
		must(t, err)
		b, err := s.MessagesPerMinute("b", c.now)
		must(t, err)
		assert.True(t, a == c.a && b == c.b,
			"at %d: a %d, b %d, want %d and %d", c.now-start, a, b, c.a, c.b)
	}
}

func TestQueries(t *testing.T) {
	key := event.Hash{7}
	src := newLog(
		block(5, start, 0, enqueued("a", 3)...),
		block(6, start+61_000, 0,
			event.Event{Type: event.Leased, Queue: "a"}, event.Event{Type: event.Acked, Queue: "a"},
			event.Event{Type: event.DeadLettered, Queue: "a", Reason: event.ReasonMaxAttempts},
			event.Event{Type: event.DeadLettered, Queue: "a", Reason: event.ReasonRejected},
			event.Event{Type: event.DeadLettered, Queue: "a", Reason: event.ReasonRejected},
			event.Event{Type: event.AnswerKept, Alias: key, Kind: "enqueue",
				Until: start + 100_000}),
	)
	s := newStore(t)
	catchUp(t, s, src)

	minutes, err := s.Minutes("a", start, start+10*60_000)
	must(t, err)
	want := []Minute{
		{start, Counts{Enqueued: 3}},
		{start + 60_000, Counts{Leased: 1, Acked: 1, DeadLettered: 3}},
	}
	assert.Equal(t, cmp.Diff(want, minutes), "")
	if minutes, _ = s.Minutes("a", start+1, start+60_000); len(minutes) != 0 {
		t.Errorf("a minute that began before from is told: %v", minutes)
	}
	dead, err := s.DeadLetters("a")
	must(t, err)
	assert.Equal(t, cmp.Diff(map[string]uint64{"max_attempts": 1, "rejected": 2}, dead), "")
	ops, err := s.OperationsWith(key[:])
	must(t, err)
	assert.True(t, len(ops) == 1 && ops[0].Index == 6, "operations %+v", ops)
	index, clock := s.Position()
	assert.True(t, index == 6 && clock == start+61_000, "position %d %d", index, clock)

	src.append(block(9, start+100_001, 0))
	catchUp(t, s, src)
	if ops, _ = s.OperationsWith(key[:]); len(ops) != 0 {
		t.Errorf("kept too long: %+v", ops)
	}
}

// TestReplayed: what died in a queue and was replayed is told page by page, and
// as long as history is kept.
func TestReplayed(t *testing.T) {
	id := func(index uint64, number uint32) event.ID { return event.NewID(start, index, number) }
	replayed := func(index uint64, number uint32, diedIn, to string) event.Event {
		return event.Event{ID: id(index, number), Type: event.Replayed,
			Subject: id(1, uint32(index)*10+number), Queue: "x.dlq", DiedIn: diedIn, ToQueue: to}
	}
	src := newLog(
		block(5, start, 0, replayed(5, 0, "a", "a"), replayed(5, 1, "ab", "ab"),
			replayed(5, 2, "a", "b")),
		block(6, start, 0, replayed(6, 0, "a", "a")),
		block(7, start, 0, event.Event{Type: event.QueueDeleted, Queue: "a"}),
		block(8, start, 0, replayed(8, 0, "a", "a"), replayed(8, 1, "", "a")),
	)
	s := newStore(t)
	catchUp(t, s, src)
	told := func(after event.ID, limit int, want ...Replayed) {
		t.Helper()
		rows, err := s.Replayed("a", after, limit)
		must(t, err)
		assert.EqualSlices(t, rows, want, "%d replayed after %s", limit, after)
	}
	told(event.ID{}, 2, Replayed{id(5, 0)}, Replayed{id(5, 2)})
	told(id(5, 2), 10, Replayed{id(6, 0)}, Replayed{id(8, 0)})
	told(id(8, 0), 10)
	src.append(block(9, start, 0, event.Event{Type: event.HistoryDeleted, Before: 8}))
	catchUp(t, s, src)
	told(event.ID{}, 10, Replayed{id(8, 0)})
}

// TestBeginsAnew: what can't be the fold of this log is counted again.
func TestBeginsAnew(t *testing.T) {
	blocks := []*event.Block{block(1, start, 0, enqueued("a", 2)...),
		block(2, start, 0, enqueued("a", 3)...)}
	for name, spoil := range map[string]func(t *testing.T, path string) *memLog{
		"another cluster": func(t *testing.T, path string) *memLog {
			s, err := Open(path, "cluster-2", slog.New(slog.DiscardHandler))
			must(t, err)
			_ = s.Close()
			return newLog(blocks...)
		},
		"position beyond the log": func(*testing.T, string) *memLog { return newLog(blocks[0]) },
		"another chain": func(*testing.T, string) *memLog {
			return newLog(blocks[0], block(2, start, 1, enqueued("a", 7)...))
		},
		"no bbolt file": func(t *testing.T, path string) *memLog {
			must(t, os.WriteFile(path, []byte("something else entirely"), 0o600))
			return newLog(blocks...)
		},
		"cut": func(t *testing.T, path string) *memLog {
			must(t, os.Truncate(path, 5000))
			return newLog(blocks...)
		},
		"newer format": func(t *testing.T, path string) *memLog {
			s := openStore(t, path)
			defer s.Close()
			require.NoError(t, s.db.Update(func(tx *bolt.Tx) error {
				return put(tx.Bucket(bucketMeta), keyState,
					state{Format: format + 1, Cluster: cluster, Position: 2})
			}))
			return newLog(blocks...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.db")
			s := openStore(t, path)
			catchUp(t, s, newLog(blocks...))
			must(t, s.Close())
			src := spoil(t, path)
			s = openStore(t, path)
			defer s.Close()
			catchUp(t, s, src)
			same(t, s, src.blocks)
		})
	}
}

// TestHistoryDeleted: a block at the position that retention took is no reason
// to count again.
func TestHistoryDeleted(t *testing.T) {
	blocks := []*event.Block{block(1, start, 0, enqueued("a", 2)...),
		block(2, start, 0, enqueued("a", 3)...)}
	s := newStore(t)
	catchUp(t, s, newLog(blocks...))
	more := block(4, start, 0, enqueued("a", 4)...)
	catchUp(t, s, newLog(more))
	same(t, s, append(blocks, more))
}

// TestFlippedBit: a value that changed on disk is noticed by whoever reads it,
// and CatchUp counts anew.
func TestFlippedBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "p.db")
		src := newLog(block(1, start, 0, enqueued("needle-in-the-file", 2)...))
		s := openStore(t, path)
		catchUp(t, s, src)
		_ = s.Close()

		b, err := os.ReadFile(path)
		must(t, err)
		flipped := 0
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte("needle-in-the-file"))
			if i < 0 {
				break
			}
			at += i + len("needle-in-the-file")
			b[at+7] ^= 1 // the first number's lowest bit
			flipped++
		}
		require.NotEqual(t, flipped, 0, "the row is not in the file")
		must(t, os.WriteFile(path, b, 0o600))

		s = openStore(t, path)
		defer s.Close()
		_, err = s.Minutes("needle-in-the-file", start, start+60_000)
		require.ErrorIs(t, err, errCorrupt, "a flipped value is read as good:")
		p, ok := errors.AsType[*event.Problem](err) // what the API answers
		require.True(t, ok && strings.Contains(p.Detail, "p.db") && p.RetryAfterMS > 0, "%v", p)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		done := make(chan error, 1)
		go func() { done <- follow(ctx, s, src) }()
		counted(t, s, 1)
		src.append(block(2, start, 0, enqueued("needle-in-the-file", 1)...))
		counted(t, s, 2)
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
		same(t, s, src.blocks)
	})
}

// TestFlippedFreelist: a free page far beyond the file's end cannot be written. The file is
// damaged, not the disk full, so CatchUp counts again.
func TestFlippedFreelist(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.db")
	src := newLog(block(1, start, 0, enqueued("q", 2)...))
	s := openStore(t, path)
	catchUp(t, s, src)
	_ = s.Close()

	b, err := os.ReadFile(path)
	must(t, err)
	const flags, ids, freelist = 8, 16, 0x10 // in a page of bbolt: where they are; its type
	le, flipped := binary.LittleEndian, 0
	for p := 0; p+ids < len(b); p += os.Getpagesize() {
		if le.Uint16(b[p+flags:]) != freelist {
			continue
		}
		for n := range int(le.Uint16(b[p+flags+2:])) {
			b[p+ids+8*n+6] ^= 1
			flipped++
		}
	}
	require.NotEqual(t, flipped, 0, "no page is free")
	must(t, os.WriteFile(path, b, 0o600))

	s = openStore(t, path)
	defer s.Close()
	src.append(block(2, start, 0, enqueued("q", 1)...))
	catchUp(t, s, src)
	same(t, s, src.blocks)
}

// TestSourceFails: a log that can't be read ends CatchUp, and what was counted
// stays.
func TestSourceFails(t *testing.T) {
	s := newStore(t)
	src := newLog(block(1, start, 0, enqueued("a", 1)...))
	catchUp(t, s, src)
	src.fail = errors.New("segment 1 is damaged")
	err := s.CatchUp(context.Background(), src, func(uint64) {})
	require.ErrorIs(t, err, src.fail)
	same(t, s, src.blocks)
}

func TestClosed(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "p.db"))
	must(t, s.Close())
	must(t, s.Close())
	if _, err := s.QueueTotals("a"); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

// counted checks, in a bubble, that who follows counts up to index with its next look.
func counted(t *testing.T, s *Store, index uint64) {
	t.Helper()
	time.Sleep(pause)
	synctest.Wait()
	at, _ := s.Position()
	require.Equal(t, at, index, "counted up to")
}

// must fails the test on an error.
var must = require.NoError

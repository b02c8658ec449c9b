package projections

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var update = flag.Bool("update", false, "write testdata/*.golden anew (the bytes are frozen: only with a new version byte)")

// story folds events into a state: small, but with something of everything
// that a checkpoint holds.
type story struct {
	s     *State
	index uint64
	clock int64
	n     uint32
	ids   map[string]event.ID
	lease map[string]event.ID
}

func (w *story) block(ms int64) {
	w.index++
	w.clock += ms
	w.n = 0
	w.s.Begin(w.index, w.clock)
}

func (w *story) tell(e event.Event) event.ID {
	e.ID = event.NewID(w.s.Clock(), w.index, w.n)
	w.n++
	if e.Type == event.Enqueued {
		e.Subject = e.ID
	}
	w.s.Apply(&e)
	return e.ID
}

func (w *story) queue(name string, set func(p *event.Policy)) {
	p := event.DefaultPolicy()
	if set != nil {
		set(&p)
	}
	w.tell(event.Event{Type: event.QueueCreated, Queue: name, Policy: &p, Number: w.s.NextNumber()})
}

func (w *story) put(queue, key string, set func(e *event.Event)) {
	e := event.Event{Type: event.Enqueued, Queue: queue, Key: key[:1], Kind: "kind-" + key[1:], Priority: 5, Size: 10}
	if set != nil {
		set(&e)
	}
	w.ids[key] = w.tell(e)
}

func (w *story) take(key string) {
	m, _ := w.s.Message(w.ids[key])
	w.lease[key] = w.tell(event.Event{Type: event.Leased, Subject: m.ID, Queue: m.Queue, Attempt: m.Attempt + 1, LeaseExpires: w.clock + 30_000})
}

func sampleState() *State {
	w := &story{s: New(), clock: 1_700_000_000_000, ids: map[string]event.ID{}, lease: map[string]event.ID{}}
	w.block(0)
	w.queue("dead", nil)
	w.queue("u", func(p *event.Policy) { p.MaxAgeSeconds = 60; p.DeadLetterQueue = "dead" })
	w.queue("k", func(p *event.Policy) {
		p.Ordering, p.DeadLetterQueue, p.OnDead = event.PerKey, "dead", event.DeadHoldKey
	})
	w.queue("f", func(p *event.Policy) { p.Ordering = event.FIFO })
	w.queue("gone", nil)
	w.block(5)
	for _, q := range []string{"u", "k", "f", "gone"} {
		for i := range 4 {
			w.put(q, fmt.Sprintf("%s%d", q, i), func(e *event.Event) {
				switch i {
				case 1:
					e.Alias, e.Until = event.Hash{1, byte(i)}, w.clock+1000
				case 2:
					e.Due = w.clock + 500
				case 3:
					e.Expires = w.clock + 5000
				}
			})
		}
	}
	w.block(10)
	w.take("u0")
	w.take("k0")
	w.take("f0")
	w.tell(event.Event{Type: event.Retried, Subject: w.ids["f0"], Queue: "f", Lease: w.lease["f0"], Attempt: 1, Due: w.clock + 700, Place: event.PlaceBlock})
	w.tell(event.Event{Type: event.DeadLettered, Subject: w.ids["k0"], Queue: "k", Lease: w.lease["k0"], Attempt: 1, Reason: event.ReasonRejected, ToQueue: "dead", HoldsKey: true})
	w.tell(event.Event{Type: event.AnswerKept, Alias: event.Hash{9}, Body: event.Hash{8}, Until: w.clock + 1000})
	w.tell(event.Event{Type: event.ContentCarried, Subject: w.ids["u3"], Queue: "u"})
	w.block(20)
	w.tell(event.Event{Type: event.QueuePaused, Queue: "f"})
	w.tell(event.Event{Type: event.QueueDeleted, Queue: "gone"}) // not carried out yet
	w.tell(event.Event{Type: event.HistoryDeleted, Before: 1})
	return w.s
}

func written(t testing.TB, s *State) []byte {
	t.Helper()
	f := s.Freeze()
	defer f.Release()
	var buf bytes.Buffer
	n, err := f.WriteTo(&buf)
	if err != nil || n != int64(buf.Len()) {
		t.Fatal(n, err)
	}
	return buf.Bytes()
}

// newestState is the same under newer rules, with tasks, webhooks, what was brought back and what is
// paused.
func newestState() *State {
	s := sampleState()
	w := &story{s: s, index: s.Index(), clock: s.Clock(), ids: map[string]event.ID{}, lease: map[string]event.ID{}}
	w.block(0)
	w.tell(event.Event{Type: event.RulesChanged, Rules: 2})
	w.block(10)
	w.tell(event.Event{Type: event.RulesChanged, Rules: 3})
	w.bringBack()
	w.tell(event.Event{Type: event.WebhookCreated, Webhook: "w", Queue: "u", Definition: []byte(`{"queue":"u"}`)})
	w.tell(event.Event{Type: event.WebhookCreated, Webhook: "gone", Definition: []byte(`{}`)})
	w.tell(event.Event{Type: event.WebhookCreated, Webhook: "v", Definition: []byte(`{}`)})
	w.block(10)
	w.tell(event.Event{Type: event.WebhookUpdated, Webhook: "v", Queue: "f", Definition: []byte(`{"queue":"f"}`)})
	w.tell(event.Event{Type: event.WebhookDeleted, Webhook: "gone"})
	w.tell(event.Event{Type: event.QueuePaused, Queue: "u", Key: "u"})
	w.tell(event.Event{Type: event.QueuePaused, Queue: "k", Key: "k"})
	return s
}

// bringBack tells of tasks of every kind and end, and of messages that died and
// came back: one edited, one that died once more.
func (w *story) bringBack() {
	task := func(kind event.TaskKind, then ...event.Event) event.ID {
		id := w.tell(event.Event{Type: event.TaskCreated, TaskKind: kind, Queue: "k", Actor: "ops", Count: 12})
		for _, e := range then {
			e.Task = id
			w.tell(e)
		}
		return id
	}
	running := task(event.TaskReplay)
	task(event.TaskErase, event.Event{Type: event.TaskSealed}, event.Event{Type: event.TaskReported, Node: "n1"}, event.Event{Type: event.TaskReported, Node: "n2"})
	task(event.TaskPurge, event.Event{Type: event.TaskCancelled})
	task(event.TaskReplay, event.Event{Type: event.TaskEnded, Count: 3})
	task(event.TaskReplay, event.Event{Type: event.TaskCancelled}, event.Event{Type: event.TaskResumed}, event.Event{Type: event.TaskEnded, Failed: true})

	replay := func(e event.Event) event.ID {
		dead, _ := w.s.Dead("k", event.DeadFilter{})
		e.Type, e.Subject, e.Queue, e.DiedIn = event.Replayed, dead[0].ID, "dead", "k"
		return w.tell(e)
	}
	id := replay(event.Event{ToQueue: "k", Order: event.OrderOriginal, Task: running})
	w.tell(event.Event{Type: event.DeadLettered, Subject: id, Queue: "k", Reason: event.ReasonRejected, ToQueue: "dead"})
	replay(event.Event{ToQueue: "u", Order: event.OrderHead, Edited: true, Size: 7})
	for range 2 {
		m, _ := w.s.Next("k", nil)
		w.tell(event.Event{Type: event.DeadLettered, Subject: m.ID, Queue: "k", Reason: event.ReasonRejected, ToQueue: "dead"})
	}
	replay(event.Event{ToQueue: "u", Order: event.OrderAppend})
	w.tell(event.Event{Type: event.Resurrected, Subject: event.NewID(1, 1, 9), Queue: "f", ToQueue: "f", Key: "k", Priority: 2, Size: 3, First: event.NewID(1, 1, 5), Count: 1})
	for range 2 { // as after a replay of the first one
		w.tell(event.Event{Type: event.Enqueued, Queue: "u", Priority: 5, Size: 1, SourceID: "s-1"})
	}
}

// TestGoldenState: the bytes of a written state are frozen, and the frozen ones
// can be read.
func TestGoldenState(t *testing.T) {
	const path = "testdata/state.golden"
	s := newestState()
	b := written(t, s)
	if *update {
		must(t, os.WriteFile(path, b, 0o644))
	}
	frozen, err := os.ReadFile(path)
	must(t, err)
	assert.True(t, bytes.Equal(b, frozen), "a written state is\n%x\nfrozen is\n%x", b, frozen)
	loaded, err := Load(bytes.NewReader(frozen))
	must(t, err)
	require.True(t, loaded.Digest() == s.Digest() && loaded.Index() == s.Index() &&
		loaded.History() == 1 && loaded.Rules() == 3, "another state was read")
	if again := written(t, loaded); !bytes.Equal(again, frozen) {
		t.Errorf("what was read is written as\n%x\nfrozen is\n%x", again, frozen)
	}
}

func TestLoadRefuses(t *testing.T) {
	b := written(t, newestState())
	load := func(b []byte) error { _, err := Load(bytes.NewReader(b)); return err }
	if err := load(append([]byte{stateVersion + 1}, b[1:]...)); err == nil || err.Error() != fmt.Sprintf("load state: format version %d, this binary supports %d", stateVersion+1, stateVersion) {
		t.Errorf("another version: %v", err)
	}
	// Whatever byte is wrong, loading comes to an end, with an error or a state (which the file's
	// checksum would not have let through).
	tried, refused := 0, 0
	for n := 0; n < len(b); n += 1 + n%7 {
		if err := load(b[:n]); err == nil || !strings.HasPrefix(err.Error(), "load state: ") {
			t.Fatalf("cut at %d: %v", n, err)
		}
		flipped := bytes.Clone(b)
		flipped[n] ^= 1 << (n % 8)
		tried++
		if load(flipped) != nil {
			refused++
		}
	}
	assert.True(t, refused >= tried/3, "%d of %d flips were noticed", refused, tried)
}

func FuzzLoad(f *testing.F) {
	f.Add(written(f, New()))
	f.Add(written(f, sampleState()))
	f.Add(written(f, newestState()))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Load(bytes.NewReader(b))
		if err != nil {
			return
		}
		require.EqualSlices(t, written(t, s)[:1], b[:1], "another version was read")
	})
}

// TestRemembered: what a table lets go of before its time lies below its floor.
func TestRemembered(t *testing.T) {
	s := New()
	s.dedup.most = 3
	p := event.DefaultPolicy()
	s.Begin(1, 1000)
	s.Apply(&event.Event{Type: event.QueueCreated, ID: event.NewID(1000, 1, 0), Queue: "q", Policy: &p, Number: 1})
	put := func(index uint64, hash byte, until int64) {
		id := event.NewID(1000, index, 0)
		s.Begin(index, 1000)
		s.Apply(&event.Event{Type: event.Enqueued, ID: id, Subject: id, Queue: "q", Priority: 5, Alias: event.Hash{hash}, Until: until})
	}
	for i := byte(2); i < 5; i++ {
		put(uint64(i), i, 5000)
	}
	require.Equal(t, s.DedupFloor(), 0, "floor")
	put(5, 5, 5000)
	if _, ok := s.Duplicate(event.Hash{2}); ok || s.DedupFloor() != 3 {
		t.Fatalf("floor %d, found %v", s.DedupFloor(), ok)
	}
	for i := byte(3); i < 6; i++ {
		if id, ok := s.Duplicate(event.Hash{i}); !ok || event.RefOf(id).Index != uint64(i) {
			t.Fatalf("%d is not found", i)
		}
	}
	l, err := Load(bytes.NewReader(written(t, s)))
	if err != nil || l.DedupFloor() != 3 || l.Digest() != s.Digest() {
		t.Fatal(l, err)
	}
	if _, ok := l.Duplicate(event.Hash{3}); !ok {
		t.Fatal("3 is not found in a loaded state")
	}
}

// TestNothingStays: of messages that have left, nothing stays but what is remembered of them.
func TestNothingStays(t *testing.T) {
	s := newestState()
	w := &story{s: s, index: s.Index(), clock: s.Clock()}
	w.block(1)
	for _, m := range slices.Collect(s.All) {
		w.tell(event.Event{Type: event.Discarded, Subject: m.ID, Queue: m.Queue, Lease: m.Lease})
	}
	for d := s.Overdue(); d.Kind == DueDeleted; d = s.Overdue() { // of the deleted queue
		w.tell(event.Event{Type: event.Discarded, Subject: d.Message.ID, Queue: d.Queue, Reason: d.Reason})
	}
	w.block(1)
	for what, n := range map[string]int{
		"messages": s.messages.live, "leases": s.leases.live, "extras": s.extras.live,
		"partitions": s.partitions.live, "kinds": s.kinds.slab.live, "names of kinds": len(s.kinds.byName),
		"pages of ids": len(s.ids.byID), "contents": len(s.contents), "dead messages": len(s.died),
		"deletions": len(s.tombstones),
	} {
		assert.Equal(t, n, 0, "%s", what)
	}
	assert.Equal(t, s.sum, digest{}, "the messages' digest")
	for _, b := range s.backlogs {
		assert.Equal(t, len(b.partitions)+len(b.byKind)+len(b.dead)+len(b.sources)+len(b.tried), 0,
			"indexes of queue %q", b.queue.Name)
	}
}

// TestImpossible: an event that the state rules out is a panic that tells both
// sides.
func TestImpossible(t *testing.T) {
	for want, e := range map[string]event.Event{
		`acked event 00000000010000000005000000 at index 5: message 00000000000000000000000000 is not there`: {Type: event.Acked},
		`queue "none" is not there`:                    {Type: event.Enqueued, Queue: "none"},
		`queue "u" is there already`:                   {Type: event.QueueCreated, Queue: "u", Number: 100},
		`does not know`:                                {Type: 99},
		`rules 1 are in force, 1 would change nothing`: {Type: event.RulesChanged, Rules: 1},
		`is ready, and not dead in "u"`:                {Type: event.Replayed, Subject: event.NewID(1_700_000_000_005, 2, 1), ToQueue: "u", DiedIn: "u"},
		`has not left its queue`:                       {Type: event.Resurrected, Subject: event.NewID(1_700_000_000_005, 2, 1), ToQueue: "u", Priority: 5},
		`task 00000000000000000000000000 is not there`: {Type: event.TaskSealed},
		`is still in a queue`:                          {Type: event.Erased, Subject: event.NewID(1_700_000_000_005, 2, 1)},
		`webhook "w" is there: false`:                  {Type: event.WebhookUpdated, Webhook: "w"},
		`webhook "w" is not there`:                     {Type: event.WebhookDeleted, Webhook: "w"},
	} {
		func() {
			s := sampleState()
			s.Begin(5, 0)
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, want) && want[0] != 'a' {
					t.Errorf("%q is not in %q", want, p)
				}
			}()
			s.Apply(&e)
			t.Error("it was folded")
		}()
	}
	func() {
		defer func() {
			assert.True(t, recover() != nil, "a block was folded twice")
		}()
		sampleState().Begin(4, 0)
	}()
}

// must fails the test on an error.
var must = require.NoError

package replay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections"
)

// pass lets time pass; what is due by itself happens when it is due, as a
// leader sees to it.
func (w *world) pass(ms int64) {
	w.t.Helper()
	for end := w.now + ms; ; {
		due, ok := w.m.NextDue()
		if !ok || due > end {
			w.now = end
			return
		}
		w.now = max(w.now, due)
		w.do()
	}
}

func (w *world) queue(name string, change func(*event.Policy)) {
	w.t.Helper()
	p := event.DefaultPolicy()
	change(&p)
	if r := w.do(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p,
		DeadLetterAuto: p.DeadLetterQueue == "auto"}}); r[0].Problem != nil {
		w.t.Fatal(r[0].Problem)
	}
}

func (w *world) produce(queue string, m event.NewMessage) event.ID {
	w.t.Helper()
	m.Priority, m.Size = max(m.Priority, 5), 10
	r := w.do(&event.Command{Produce: &event.Produce{Queue: queue,
		Messages: []event.NewMessage{m}}})
	if r[0].Problem != nil {
		w.t.Fatal(r[0].Problem)
	}
	return r[0].Produced[0].ID
}

// take leases one message, the zero id where there is none.
func (w *world) take(queue string) (message, lease event.ID) {
	w.t.Helper()
	r := w.do(&event.Command{Lease: &event.Lease{Queues: []string{queue}, Max: 1, Worker: "w"}})
	if len(r[0].Leased) == 0 {
		return
	}
	return r[0].Leased[0].ID, r[0].Leased[0].Lease
}

func (w *world) settle(op event.SettleOp, lease event.ID) {
	w.t.Helper()
	w.do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: op, Lease: lease,
		DelayMS: -1}}}})
}

// try leases the next message and, after ms, ends that.
func (w *world) try(queue string, ms int64, op event.SettleOp) event.ID {
	w.t.Helper()
	id, lease := w.take(queue)
	require.NotEqual(w.t, id, (event.ID{}), "nothing to lease")
	w.pass(ms)
	if op != 0 {
		w.settle(op, lease)
	}
	return id
}

func (w *world) run(o WhatIfOptions) (*WhatIfSummary, map[event.ID]*Divergence) {
	w.t.Helper()
	if o.To == (event.Instant{}) {
		o.To = event.Instant{Kind: event.InstantNow}
	}
	if o.Change == nil {
		o.Change = func(string, *event.Policy) (bool, error) { return false, nil }
	}
	told := map[event.ID]*Divergence{}
	o.Diverged = func(d *Divergence) error {
		id, err := event.ParseID(d.MessageID)
		told[id] = d
		return err
	}
	s, err := WhatIf(w.t.Context(), w.source(), o)
	must(w.t, err)
	return s, told
}

// under plays the log with another policy of queue jobs.
func (w *world) under(fn func(*event.Policy)) (*WhatIfSummary, map[event.ID]*Divergence) {
	w.t.Helper()
	return w.run(WhatIfOptions{Change: change("jobs", fn)})
}

func change(queue string, fn func(*event.Policy)) func(string, *event.Policy) (bool, error) {
	return func(name string, p *event.Policy) (bool, error) {
		if name == queue {
			fn(p)
		}
		return false, nil
	}
}

// worker is one that is busy.
type worker struct {
	until int64
	lease event.ID
	op    event.SettleOp
}

// traffic lets producers and workers of every kind be at it for a while.
func (w *world) traffic(steps int) {
	w.t.Helper()
	w.queue("plain", func(p *event.Policy) {
		p.DeadLetterQueue, p.MaxAttempts, p.InitialBackoffMS, p.LeaseMS = "auto", 3, 500, 3000
	})
	w.queue("keyed", func(p *event.Policy) {
		p.Ordering, p.DeadLetterQueue, p.MaxAttempts = event.PerKey, "auto", 3
		p.InitialBackoffMS, p.LeaseMS = 700, 2500
	})
	w.queue("tail", func(p *event.Policy) {
		p.Ordering, p.OnRetry, p.OnDead = event.PerKey, event.RetryTail, event.DeadLetterKey
		p.MaxAttempts, p.LeaseMS = 2, 2500
	})
	w.queue("fifo", func(p *event.Policy) {
		p.Ordering, p.OnRetry, p.MaxAgeSeconds = event.FIFO, event.RetryHead, 20
	})
	queues := []string{"plain", "keyed", "tail", "fifo", "plain.dlq"}
	ops := []event.SettleOp{event.OpAck, event.OpAck, event.OpAck, event.OpRetry, event.OpRetry,
		event.OpDeadLetter, event.OpRelease, event.OpExtend, 0}
	var working []worker
	// An entry each: between two is no time.
	do := func(c event.Command) {
		for _, m := range w.do(&c)[0].Leased {
			until := w.now + 1 + int64(w.rng.IntN(4000))
			working = append(working, worker{until, m.Lease, ops[w.rng.IntN(len(ops))]})
		}
	}
	for range steps {
		w.pass(int64(w.rng.IntN(120)))
		busy := working
		working = nil
		for _, x := range busy {
			item := event.SettleItem{Op: x.op, Lease: x.lease, DelayMS: -1}
			if x.op == event.OpRetry && w.rng.IntN(3) == 0 {
				item.DelayMS = int64(w.rng.IntN(2000))
			}
			switch {
			case x.until > w.now:
				working = append(working, x)
				continue
			case x.op == event.OpExtend:
				until := w.now + int64(w.rng.IntN(2000))
				working = append(working, worker{until, x.lease, event.OpAck})
			}
			if x.op != 0 {
				do(event.Command{Settle: &event.Settle{Items: []event.SettleItem{item}}})
			}
		}
		for range w.rng.IntN(3) {
			m := event.NewMessage{
				Key: fmt.Sprint("k", w.rng.IntN(4)), Priority: uint8(1 + w.rng.IntN(10)), Size: 10,
			}
			if w.rng.IntN(5) == 0 {
				m.DelayMS = int64(w.rng.IntN(3000))
			}
			if w.rng.IntN(3) == 0 {
				m.DedupKey = event.Hash{1, byte(w.rng.IntN(200))}
			}
			do(event.Command{Produce: &event.Produce{
				Queue: queues[w.rng.IntN(4)], Messages: []event.NewMessage{m},
			}})
		}
		for range 2 {
			c := &event.Lease{
				Queues: []string{queues[w.rng.IntN(len(queues))]}, Max: 1 + w.rng.IntN(2),
				Worker: "w",
			}
			if w.rng.IntN(4) == 0 {
				c.LeaseMS = 1000 + int64(w.rng.IntN(2000))
			}
			if len(working) < 12 {
				do(event.Command{Lease: c})
			}
		}
		switch w.rng.IntN(60) {
		case 0:
			do(event.Command{PurgeQueue: &event.PurgeQueue{Name: "plain.dlq"}})
		case 1:
			do(event.Command{PauseQueue: &event.PauseQueue{
				Name: "keyed", Paused: w.rng.IntN(2) == 0,
			}})
		case 2:
			var first []event.MessageView
			w.m.View(func(s *projections.State) {
				first, _ = s.Messages("plain", event.MessageFilter{Limit: 1})
			})
			for i := range first {
				do(event.Command{Delete: &event.DeleteMessage{ID: first[i].ID}})
			}
		case 3, 4, 5: // an operator brings back what died, or purges it
			queue := []string{"plain", "keyed"}[w.rng.IntN(2)]
			dead, _ := w.m.Dead(queue, event.DeadFilter{Limit: 1 + w.rng.IntN(3)})
			replay := &event.Replay{Queue: queue, Order: event.Order(w.rng.IntN(4))}
			purge := &event.PurgeDead{Queue: queue}
			for i := range dead {
				item := event.ReplayItem{ID: dead[i].ID, Edited: i == 0, Size: 20}
				replay.Items = append(replay.Items, item)
				purge.IDs = append(purge.IDs, dead[i].ID)
			}
			switch {
			case len(dead) == 0:
			case w.rng.IntN(4) == 0:
				do(event.Command{PurgeDead: purge})
			default:
				do(event.Command{Replay: replay})
			}
		}
	}
}

// Under the policies that there were, everything happens as it did.
func TestNothingIsOtherwiseUnderTheSamePolicy(t *testing.T) {
	for seed := range uint64(12) {
		w := begin(t, seed)
		w.traffic(400)
		s, told := w.run(WhatIfOptions{})
		if s.All.Same != s.All.Messages || s.All.Messages < 200 || len(told) > 0 {
			t.Errorf("seed %d: %d of %d are the same", seed, s.All.Same, s.All.Messages)
			// The first ones are the causes of the rest.
			when := func(d *Divergence) int64 {
				at := int64(math.MaxInt64)
				for _, s := range []*Step{d.First.Real, d.First.WhatIf} {
					if s != nil {
						at = min(at, int64(s.Time))
					}
				}
				return at
			}
			all := slices.SortedFunc(maps.Values(told),
				func(a, b *Divergence) int { return cmp.Compare(when(a), when(b)) })
			for _, d := range all[:min(len(all), 3)] {
				t.Logf("%s in %s key %s at %d: %+v, %+v", d.MessageID, d.Queue, d.Key,
					d.First.Step, d.First.Real, d.First.WhatIf)
			}
		}
		// And from the middle on.
		middle := event.Instant{Kind: event.InstantIndex, Index: w.index / 2}
		if s, _ := w.run(WhatIfOptions{From: middle}); s.All.Same != s.All.Messages ||
			s.All.Messages < 50 {
			t.Errorf("seed %d from the middle: %d of %d are the same", seed, s.All.Same,
				s.All.Messages)
		}
	}
}

func TestFewerAttemptsDeadLetter(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) { p.DeadLetterQueue = "auto" })
	a := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpRetry)
	w.pass(1000)
	w.try("jobs", 100, event.OpRetry)
	w.pass(2000)
	w.try("jobs", 100, event.OpAck)
	b := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 50, event.OpAck)
	s, told := w.under(func(p *event.Policy) { p.MaxAttempts = 2 })
	d := told[a]
	if d == nil || d.Effect != DeadLettered || d.First.Step != 4 ||
		d.First.Real.Type != event.Retried.String() ||
		d.First.WhatIf.Type != event.DeadLettered.String() ||
		d.First.WhatIf.Reason != event.ReasonMaxAttempts.String() || d.WhatIf.Assumed {
		t.Errorf("%+v", d)
	}
	if told[b] != nil || s.All.Effects[DeadLettered] != 1 || s.All.Same != 1 ||
		s.Queues["jobs"].Messages != 2 {
		t.Errorf("%+v, %+v", told[b], s.All)
	}
}

func TestMoreAttemptsSpare(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) { p.DeadLetterQueue, p.MaxAttempts = "auto", 2 })
	a := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpRetry)
	w.pass(1000)
	w.try("jobs", 100, event.OpRetry) // dead
	w.pass(60_000)
	w.do()
	s, told := w.under(func(p *event.Policy) { p.MaxAttempts = 3 })
	// The third is taken to fail like the second: dead all the same, but later.
	if d := told[a]; d == nil || d.Effect != Delayed || !d.WhatIf.Assumed ||
		d.WhatIf.State != "dead_lettered" || s.All.Assumed != 1 {
		t.Errorf("%+v", d)
	}
	if _, told = w.under(func(p *event.Policy) { p.MaxAttempts = 0 }); told[a] == nil ||
		told[a].Effect != Spared {
		t.Errorf("%+v", told[a])
	}
}

func TestLongerWaitsDelay(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) {})
	a := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpRetry)
	w.pass(1000)
	w.try("jobs", 100, event.OpAck)
	w.pass(60_000)
	w.do()
	s, told := w.run(WhatIfOptions{ToleranceMS: 1000,
		Change: change("jobs", func(p *event.Policy) { p.BackoffScheduleMS = []int64{30_000} })})
	if d := told[a]; d == nil || d.Effect != Delayed ||
		d.First.Real.Type != event.Leased.String() || s.All.DelayMedianMS != 29_000 {
		t.Errorf("%+v, %+v", d, s.All)
	}
	if _, told = w.run(WhatIfOptions{ToleranceMS: 500, Change: change("jobs",
		func(p *event.Policy) { p.BackoffScheduleMS = []int64{0} })}); told[a] == nil ||
		told[a].Effect != Sooner {
		t.Errorf("%+v", told[a])
	}
	// What the worker itself asked for stays.
	b := w.produce("jobs", event.NewMessage{})
	_, lease := w.take("jobs")
	w.do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpRetry,
		Lease: lease, DelayMS: 77}}}})
	w.pass(77)
	w.try("jobs", 1, event.OpAck)
	if _, told = w.under(func(p *event.Policy) { p.BackoffScheduleMS = []int64{30_000} }); told[b] != nil {
		t.Errorf("%+v", told[b])
	}
}

func TestFullQueuesRefuse(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) {})
	a := w.produce("jobs", event.NewMessage{})
	b := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpAck)
	c := w.produce("jobs", event.NewMessage{})
	s, told := w.under(func(p *event.Policy) { p.MaxDepth = 1 })
	if told[a] != nil || told[b] == nil || told[b].Effect != Refused ||
		told[b].First.WhatIf.Code != event.CodeQueueFull || told[c] != nil {
		t.Errorf("%+v %+v %+v", told[a], told[b], told[c])
	}
	assert.Equal(t, s.All.Effects[Refused], 1, "%+v", s.All)
}

func TestWindowsMakeDuplicates(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) { p.DedupWindowSeconds = 1 })
	key := event.Hash{7}
	a := w.produce("jobs", event.NewMessage{DedupKey: key})
	w.pass(5000)
	b := w.produce("jobs", event.NewMessage{DedupKey: key})
	_, told := w.under(func(p *event.Policy) { p.DedupWindowSeconds = 60 })
	if told[a] != nil || told[b] == nil || told[b].Effect != Duplicate {
		t.Errorf("%+v %+v", told[a], told[b])
	}
}

// A lease shorter than the work runs out in the middle of it; the worker comes
// too late, again and again.
func TestLeasesShorterThanTheWork(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) { p.MaxAttempts = 2 })
	a := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 20_000, event.OpAck)
	w.pass(60_000)
	w.do()
	s, told := w.under(func(p *event.Policy) { p.LeaseMS = 10_000 })
	if d := told[a]; d == nil || d.Effect != Discarded ||
		d.First.WhatIf.Type != event.LeaseExpired.String() || !d.WhatIf.Assumed ||
		s.LateSettles != 2 {
		t.Errorf("%+v, %+v", d, s)
	}
}

// One that does not block lets those behind it go on.
func TestOnRetryHeadLetsOthersGo(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) {
		p.Ordering, p.InitialBackoffMS,
			p.MaxBackoffMS = event.FIFO, 50_000, 50_000
	})
	w.produce("jobs", event.NewMessage{})
	b := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpRetry)
	w.pass(50_000)
	w.try("jobs", 100, event.OpAck)
	w.pass(5)
	w.try("jobs", 100, event.OpAck)
	_, told := w.run(WhatIfOptions{ToleranceMS: 1000,
		Change: change("jobs", func(p *event.Policy) { p.OnRetry = event.RetryHead })})
	if d := told[b]; d == nil || d.Effect != Sooner || d.Real.Time-d.WhatIf.Time < 49_000 {
		t.Errorf("%+v", d)
	}
}

// deadOf returns the only message that is dead in a queue.
func (w *world) deadOf(queue string) event.ID {
	w.t.Helper()
	dead, _ := w.m.Dead(queue, event.DeadFilter{Limit: 2})
	if len(dead) != 1 {
		w.t.Fatalf("%d dead in %s", len(dead), queue)
	}
	return dead[0].ID
}

func (w *world) replay(queue string, dead event.ID) event.ID {
	w.t.Helper()
	r := w.do(&event.Command{Replay: &event.Replay{Queue: queue, Strict: true,
		Items: []event.ReplayItem{{ID: dead}}}})
	if r[0].Problem != nil || r[0].Count != 1 {
		w.t.Fatalf("%+v", r[0])
	}
	return r[0].Moved[0].To
}

// What was replayed is played where it would have died then too, and is then
// told of like any other message; where it would not have died there is nothing
// to bring back.
func TestReplaysArePlayed(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) { p.DeadLetterQueue, p.MaxAttempts = "auto", 2 })
	a := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpRetry)
	w.pass(1000)
	w.try("jobs", 100, event.OpRetry) // dead
	w.pass(5000)
	back := w.replay("jobs", w.deadOf("jobs"))
	w.try("jobs", 100, event.OpRetry)
	w.pass(1000)
	w.try("jobs", 100, event.OpAck)
	b := w.produce("jobs", event.NewMessage{})
	w.try("jobs", 100, event.OpDeadLetter)
	gone := w.deadOf("jobs")
	w.do(&event.Command{PurgeDead: &event.PurgeDead{Queue: "jobs", Strict: true,
		IDs: []event.ID{gone}}})
	w.pass(60_000)
	w.do()

	s, told := w.run(WhatIfOptions{})
	if s.All.Messages != 3 || s.All.Same != 3 || s.Unneeded != 0 || len(told) != 0 {
		t.Errorf("as it was: %+v", s)
	}
	// One attempt less: what was replayed would have died again.
	s, told = w.under(func(p *event.Policy) { p.MaxAttempts = 1 })
	if d := told[back]; d == nil || d.Effect != DeadLettered || d.First.Step != 2 ||
		d.Real.State != "acked" || d.Queue != "jobs" {
		t.Errorf("one attempt less: %+v", d)
	}
	if told[b] != nil || s.Unneeded != 0 {
		t.Errorf("one attempt less: %+v, %+v", told[b], s)
	}
	// Any number of attempts: nothing to replay.
	s, told = w.under(func(p *event.Policy) { p.MaxAttempts = 0 })
	if told[a] == nil || told[a].Effect != Spared || told[back] != nil || s.Unneeded != 1 ||
		s.All.Messages != 2 {
		t.Errorf("no limit: %+v, %+v, %+v", told[a], told[back], s)
	}
	// Where the queue would have been full, a replay is refused.
	s, told = w.under(func(p *event.Policy) { p.MaxBytes = 5 })
	if s.All.Effects[Refused] != 2 { // a and b, with 10 bytes each; nothing to replay then
		t.Errorf("full: %+v", s)
	}
	if told[back] != nil || s.Unneeded != 1 {
		t.Errorf("full: %+v", told[back])
	}
}

// What was resurrected is played where it has left its queue then too; what was
// imported is played by its source id.
func TestResurrectionsAndImportsArePlayed(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) { p.MaxAttempts = 2 })
	a := w.produce("jobs", event.NewMessage{Key: "k"})
	w.try("jobs", 100, event.OpRetry)
	w.pass(1000)
	w.try("jobs", 100, event.OpRetry) // discarded: there is no dead-letter queue
	w.pass(5000)
	history, err := w.log.History(t.Context(), a)
	must(t, err)
	r := w.do(&event.Command{Resurrect: &event.Resurrect{
		ID: a, Last: event.RefOf(history[len(history)-1].ID), Queue: "jobs", Key: "k", Priority: 5,
		Size: 10, First: a,
	}})
	if r[0].Problem != nil {
		t.Fatal(r[0].Problem)
	}
	back := r[0].ID
	w.try("jobs", 100, event.OpAck)
	source := func() event.Result {
		return w.do(&event.Command{Produce: &event.Produce{Queue: "jobs", Import: true,
			Messages: []event.NewMessage{{Priority: 5, SourceID: "s-1",
				DedupKey: event.Hash{9}}}}})[0]
	}
	imported := source().Produced[0].ID
	w.try("jobs", 100, event.OpAck)
	if p := source().Produced[0]; !p.Duplicate || p.ID != imported {
		t.Fatalf("%+v", p)
	}
	w.pass(60_000)
	w.do()
	s, told := w.run(WhatIfOptions{})
	if s.All.Messages != 3 || s.All.Same != 3 || s.Unneeded != 0 || len(told) != 0 {
		t.Errorf("as it was: %+v", s)
	}
	s, told = w.under(func(p *event.Policy) { p.MaxAttempts = 3 })
	// The third try is taken to fail like the second: it is discarded later.
	if told[a] == nil || told[a].Effect != Delayed {
		t.Errorf("one attempt more: %+v", told[a])
	}
	if told[back] != nil && told[back].Effect == Refused || s.All.Messages+s.Unneeded != 3 {
		t.Errorf("one attempt more: %+v, %+v", told[back], s)
	}
	s, _ = w.under(func(p *event.Policy) { p.MaxAttempts = 0 })
	if s.Unneeded != 1 || s.All.Messages != 2 {
		t.Errorf("no limit: %+v", s)
	}
}

func TestWhatCantBePlayedIsTold(t *testing.T) {
	w := begin(t, 1)
	w.queue("jobs", func(p *event.Policy) {})
	w.produce("jobs", event.NewMessage{})
	_, err := WhatIf(t.Context(), w.source(), WhatIfOptions{
		From: event.Instant{Kind: event.InstantNow}, To: event.Instant{Kind: event.InstantNow},
		Change: change("jobs", func(p *event.Policy) { p.Ordering = event.FIFO }),
	})
	if err == nil || !strings.Contains(err.Error(),
		"ordering can't change while the queue holds messages") {
		t.Error(err)
	}
	// A dead-letter queue that there never was is made.
	s, _ := w.under(func(p *event.Policy) { p.DeadLetterQueue = "graveyard" })
	assert.Equal(t, s.All.Same, 1, "%+v", s.All)
}

func TestQueuesThatNameEachOtherAreRefused(t *testing.T) {
	w := begin(t, 1)
	w.queue("a", func(*event.Policy) {})
	w.queue("b", func(*event.Policy) {})
	_, err := WhatIf(t.Context(), w.source(), WhatIfOptions{
		To: event.Instant{Kind: event.InstantNow},
		Change: func(queue string, p *event.Policy) (bool, error) {
			p.DeadLetterQueue = map[string]string{"a": "b", "b": "a"}[queue]
			return false, nil
		},
	})
	if !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), "cannot have its own") {
		t.Fatalf("%v", err)
	}
}

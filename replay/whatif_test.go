package replay

import (
	"fmt"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections"
)

// pass lets time pass; what is due by itself happens when it is due, as a leader sees to it.
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
	r := w.do(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p,
		DeadLetterAuto: p.DeadLetterQueue == "auto"}})
	require.True(w.t, r[0].Problem == nil, "%v", r[0].Problem)
}

func (w *world) produce(queue string, m event.NewMessage) event.ID {
	w.t.Helper()
	m.Priority, m.Size = max(m.Priority, 5), 10
	r := w.do(&event.Command{Produce: &event.Produce{Queue: queue,
		Messages: []event.NewMessage{m}}})
	require.True(w.t, r[0].Problem == nil, "%v", r[0].Problem)
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
		o.To = now
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

func change(queue string, fn func(*event.Policy)) func(string, *event.Policy) (bool, error) {
	return func(name string, p *event.Policy) (bool, error) {
		if name == queue {
			fn(p)
		}
		return false, nil
	}
}

// first returns the first messages of a queue.
func (w *world) first(queue string, n int) (first []event.MessageView) {
	w.m.View(func(s *projections.State) {
		first, _ = s.Messages(queue, event.MessageFilter{Limit: n})
	})
	return first
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
		p.InitialBackoffMS, p.LeaseMS, p.LaneBatch = 700, 2500, 2
	})
	w.queue("tail", func(p *event.Policy) {
		p.Ordering, p.OnRetry, p.OnDead = event.PerKey, event.RetryTail, event.DeadLetterKey
		p.MaxAttempts, p.LeaseMS, p.LaneBatch = 2, 2500, 3
	})
	w.queue("fifo", func(p *event.Policy) {
		p.Ordering, p.OnRetry, p.MaxAgeSeconds = event.FIFO, event.RetryHead, 20
		p.LaneBatch = 3
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
				Queues: []string{queues[w.rng.IntN(len(queues))]}, Max: 1 + w.rng.IntN(4),
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
			for _, m := range w.first("plain", 1) {
				do(event.Command{Delete: &event.DeleteMessage{ID: m.ID}})
			}
		case 6, 7, 8: // an operator gives what waits another time or priority
			for _, m := range w.first(queues[w.rng.IntN(4)], 5) {
				r := &event.Reschedule{ID: m.ID, DelayMS: int64(w.rng.IntN(3000)) - 1}
				if r.DelayMS < 0 || w.rng.IntN(3) == 0 {
					r.Priority = uint8(1 + w.rng.IntN(10))
				}
				do(event.Command{Reschedule: r})
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
	for seed := range uint64(sample(12, 3)) {
		w := begin(t, seed)
		w.traffic(400)
		s, told := w.run(WhatIfOptions{})
		for _, d := range told {
			t.Logf("%s in %s key %s at %d: %+v, %+v", d.MessageID, d.Queue, d.Key, d.First.Step,
				d.First.Real, d.First.WhatIf)
		}
		assert.True(t, s.All.Same == s.All.Messages && s.All.Messages >= 200 && len(told) == 0,
			"seed %d: %d of %d are the same", seed, s.All.Same, s.All.Messages)
		// And from the middle on.
		middle := at(w.index / 2)
		s, _ = w.run(WhatIfOptions{From: middle})
		assert.True(t, s.All.Same == s.All.Messages && s.All.Messages >= 50,
			"seed %d from the middle: %d of %d are the same", seed, s.All.Same, s.All.Messages)
	}
}

// deadOf returns the only message that is dead in a queue.
func (w *world) deadOf(queue string) event.ID {
	w.t.Helper()
	dead, _ := w.m.Dead(queue, event.DeadFilter{Limit: 2})
	require.True(w.t, len(dead) == 1, "%d dead in %s", len(dead), queue)
	return dead[0].ID
}

func (w *world) replay(queue string, dead event.ID) event.ID {
	w.t.Helper()
	r := w.do(&event.Command{Replay: &event.Replay{Queue: queue, Strict: true,
		Items: []event.ReplayItem{{ID: dead}}}})
	require.True(w.t, r[0].Problem == nil && r[0].Count == 1, "%+v", r[0])
	return r[0].Moved[0].To
}

func TestWhatCantBePlayedIsRefused(t *testing.T) {
	w := begin(t, 1)
	for _, queue := range []string{"a", "b"} {
		w.queue(queue, func(*event.Policy) {})
		w.produce(queue, event.NewMessage{})
	}
	for want, o := range map[string]WhatIfOptions{
		"ordering can't change while the queue holds messages": {From: now, To: now,
			Change: change("a", func(p *event.Policy) { p.Ordering = event.FIFO })},
		"cannot have its own": {To: now, Change: func(queue string, p *event.Policy) (bool, error) {
			p.DeadLetterQueue = map[string]string{"a": "b", "b": "a"}[queue]
			return false, nil
		}},
	} {
		_, err := WhatIf(t.Context(), w.source(), o)
		assert.ErrorIs(t, err, ErrPolicy)
		assert.ErrorContains(t, err, want)
	}
}

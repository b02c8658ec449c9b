package fsm

import (
	"cmp"
	"slices"

	"github.com/qlogd/qlogd/event"
	"pgregory.net/rapid"
)

// What the naive model says of dead letters.

// order is the id by which a message keeps its place.
func (m *mmessage) order() event.ID {
	if m.follows != (event.ID{}) {
		return m.follows
	}
	if m.origin != nil && !m.behind {
		return m.origin.First
	}
	return m.id
}

// find looks for a live message everywhere.
func (w *model) find(id event.ID) *mmessage {
	for _, q := range w.queues {
		for _, m := range q.all {
			if m.id == id {
				return m
			}
		}
	}
	return nil
}

// expire ends those of the messages whose time is over.
func (w *model) expire(ids ...event.ID) {
	for _, id := range ids {
		if m := w.find(id); m != nil && m.over(w.clock) {
			w.die(m, event.ReasonExpired, event.ID{})
		}
	}
}

// deadFinder finds what a replay or a purge takes; ok is false where the whole was
// refused.
func (w *model) deadFinder(queue string, ids []event.ID, strict bool, most uint32, got event.Result) (take []*mmessage, codes []string, ok bool) {
	w.expire(ids...)
	for i, id := range ids {
		m, code := w.find(id), ""
		twice := slices.Contains(ids[:i], id)
		switch {
		case twice && strict:
			w.problem(got, event.CodeInvalidArgument, i)
			return nil, nil, false
		case (m == nil || m.from == nil || m.from.Queue != queue) && strict:
			w.problem(got, event.CodeMessageNotFound, i)
			return nil, nil, false
		case m == nil || m.from == nil || m.from.Queue != queue || twice:
			m, code = nil, event.SkipGone
		case m.state == event.StateLeased:
			m, code = nil, event.SkipLeased
		case most > 0 && m.from.ReplayCount >= most:
			m, code = nil, event.SkipMaxReplays
		}
		take, codes = append(take, m), append(codes, code)
	}
	return take, codes, true
}

func (w *model) replay(c *event.Replay, got event.Result) {
	w.t.Helper()
	name := c.To
	if name == "" {
		name = c.Queue
	}
	to, ok := w.queues[name]
	if !ok {
		w.problem(got, event.CodeQueueNotFound, -1)
		return
	}
	ids := make([]event.ID, len(c.Items))
	for i := range c.Items {
		ids[i] = c.Items[i].ID
	}
	if !w.runs(c.Task) {
		w.moved(got, ids, slices.Repeat([]string{event.SkipTask}, len(ids)), make([]event.ID, len(ids)))
		return
	}
	take, codes, ok := w.deadFinder(c.Queue, ids, c.Strict, c.MaxReplays, got)
	if !ok {
		return
	}
	depth, bytes := to.size()
	was, more := bytes, int64(0)
	for i, m := range take {
		if m == nil {
			continue
		}
		size := m.size
		if c.Items[i].Edited {
			size = c.Items[i].Size
		}
		bytes += int64(size)
		if m.q == to {
			bytes -= int64(m.size)
			continue
		}
		more++
	}
	if p := to.policy; p.MaxDepth > 0 && more > 0 && depth+more > p.MaxDepth || p.MaxBytes > 0 && bytes > was && bytes > p.MaxBytes {
		w.problem(got, event.CodeQueueFull, -1)
		return
	}
	order := c.Order
	if order == event.OrderDefault {
		if order = event.OrderOriginal; to.policy.Ordering == event.Unordered {
			order = event.OrderAppend
		}
	}
	var turns []int
	for i := range take {
		if take[i] != nil {
			turns = append(turns, i)
		}
	}
	if order != event.OrderAppend {
		slices.SortFunc(turns, func(a, b int) int {
			return cmp.Or(take[a].from.First.Compare(take[b].from.First), take[a].id.Compare(take[b].id))
		})
	}
	news := make([]event.ID, len(ids))
	for _, i := range turns {
		m, it := take[i], &c.Items[i]
		e := w.emit(event.Event{Type: event.Replayed, Subject: m.id, Queue: m.q.name, ToQueue: name})
		w.did(c.Task, event.TaskReplay)
		if e.DiedIn != c.Queue || e.Task != c.Task || e.Order != order || e.Edited != it.Edited || e.Edited && e.Size != it.Size {
			w.fatal("replayed as %+v", e)
		}
		news[i] = e.ID
		m.q.stats.Replayed++
		w.leaves(m)
		n := &mmessage{
			q: to, id: e.ID, key: m.key, kind: m.kind, priority: m.priority, size: m.size, came: w.clock, available: w.clock, state: event.StateReady, source: m.source, took: m.took,
			origin: &event.OriginView{First: m.from.First, From: m.id, Replays: m.from.ReplayCount + 1}, behind: order == event.OrderAppend,
		}
		if it.Edited {
			n.size = it.Size
		}
		to.stats.ReplayedIn++
		to.all = append(to.all, n)
		w.replayedTo(n, order)
		w.resolve(m)
	}
	w.moved(got, ids, codes, news)
}

// replayedTo puts a replayed message in its place.
func (w *model) replayedTo(m *mmessage, o event.Order) {
	unordered := m.q.policy.Ordering == event.Unordered
	switch {
	case o == event.OrderAppend && !unordered:
		m.q.partitions[m.partition()] = append(m.q.partitions[m.partition()], m)
	case o == event.OrderHead && !unordered:
		w.front(m)
	case o == event.OrderHead:
		m.returned = true
	case o == event.OrderOriginal && unordered:
		// Before all others where it was available before all others.
		m.available = event.ClockOf(m.origin.First)
		m.returned = true
		m.open = m.q.policy.MaxInFlightPerKey > 0 || len(m.q.pausedKeys) > 0
		for _, r := range m.q.all {
			if r == m || r.state != event.StateReady || r.priority != m.priority {
				continue
			}
			if r.returned && m.order().Compare(r.order()) < 0 {
				m.returned = true
				return
			}
			if !r.returned && r.available <= m.available {
				m.returned = false
			}
		}
	case o == event.OrderOriginal:
		l := m.q.partitions[m.partition()]
		i := slices.IndexFunc(l, func(r *mmessage) bool {
			o := m.order().Compare(r.order())
			return o < 0 || o == 0 && r.follows != (event.ID{})
		})
		if i < 0 {
			i = len(l)
		}
		m.returned = !slices.ContainsFunc(l[:i], func(r *mmessage) bool { return !r.returned })
		m.q.partitions[m.partition()] = slices.Insert(slices.Clone(l), i, m)
	}
}

func (w *model) purgeDead(c *event.PurgeDead, got event.Result) {
	w.t.Helper()
	if !w.runs(c.Task) {
		w.moved(got, c.IDs, slices.Repeat([]string{event.SkipTask}, len(c.IDs)), make([]event.ID, len(c.IDs)))
		return
	}
	take, codes, ok := w.deadFinder(c.Queue, c.IDs, c.Strict, 0, got)
	if !ok {
		return
	}
	for _, m := range take {
		if m == nil {
			continue
		}
		e := w.discard(m, event.ReasonPurged)
		w.did(c.Task, event.TaskPurge)
		if e.DiedIn != c.Queue || e.Task != c.Task {
			w.fatal("purged as %+v", e)
		}
	}
	w.moved(got, c.IDs, codes, make([]event.ID, len(c.IDs)))
}

// moved holds an answer against what should be in it.
func (w *model) moved(got event.Result, ids []event.ID, codes []string, news []event.ID) {
	w.t.Helper()
	var want []event.Moved
	done := int64(0)
	for i := range ids {
		want = append(want, event.Moved{ID: ids[i], To: news[i], Code: codes[i]})
		if codes[i] == "" {
			done++
		}
	}
	if got.Problem != nil || !slices.Equal(got.Moved, want) || got.Count != done {
		w.fatal("moved %+v (%d), the machine says %+v (%d, %v)", want, done, got.Moved, got.Count, got.Problem)
	}
}

// dead draws ids of dead letters, some of them wrong.
func (c *chaos) dead(queue string) (out []event.ID) {
	ms, _ := c.m.Dead(queue, event.DeadFilter{})
	for range rapid.IntRange(1, 5).Draw(c.t, "n") {
		switch {
		case len(ms) > 0 && rapid.IntRange(0, 7).Draw(c.t, "right") > 0:
			out = append(out, draw(c, "dead", ms...).ID)
		case len(c.ids) > 0:
			out = append(out, c.id())
		}
	}
	return out
}

func (c *chaos) replay() *event.Replay {
	r := &event.Replay{
		Queue: draw(c, "queue", "a", "a", "a", "b", "b", "c", "dlq"), To: draw(c, "to", "", "", "", "b", "c", "dlq", "none"),
		Order:      draw(c, "order", event.OrderDefault, event.OrderOriginal, event.OrderOriginal, event.OrderAppend, event.OrderHead),
		MaxReplays: draw[uint32](c, "most", 0, 0, 1, 2), Strict: draw(c, "strict", false, false, true),
	}
	r.Task = c.task()
	for _, id := range c.dead(r.Queue) {
		it := event.ReplayItem{ID: id}
		if draw(c, "edited", false, false, true) {
			it.Edited, it.Size, it.Content = true, 2, event.EncodeContent(&event.Content{Payload: []byte("ed")})
		}
		r.Items = append(r.Items, it)
	}
	return r
}

func (c *chaos) purgeDead() *event.PurgeDead {
	p := &event.PurgeDead{Queue: draw(c, "queue", "a", "a", "b", "c", "dlq"), Strict: draw(c, "strict", false, false, true)}
	p.IDs, p.Task = c.dead(p.Queue), c.task()
	return p
}

func (w *model) resurrect(c *event.Resurrect, got event.Result) {
	w.t.Helper()
	q, ok := w.queues[c.To]
	if !ok {
		w.problem(got, event.CodeQueueNotFound, -1)
		return
	}
	if c.Looked < w.erased {
		w.problem(got, event.CodeStaleRevision, -1)
		return
	}
	ids, codes, news := make([]event.ID, len(c.Items)), make([]string, len(c.Items)), make([]event.ID, len(c.Items))
	for i := range c.Items {
		ids[i], codes[i] = c.Items[i].ID, c.Items[i].Skip
		if !w.runs(c.Task) {
			codes[i] = event.SkipTask
		} else if slices.Contains(ids[:i], ids[i]) {
			codes[i] = event.SkipResurrected
		} else {
			w.expire(ids[i])
		}
	}
	depth, size := q.size()
	more, bytes := int64(0), int64(0)
	var turns []int
	taken := map[event.Hash]bool{}
	for i := range c.Items {
		it := &c.Items[i]
		if codes[i] != "" {
			continue
		}
		if w.find(it.ID) != nil || w.underway(it.ID) {
			w.problem(got, event.CodeConflict, -1)
			return
		}
		if _, back := w.raised[it.ID]; back {
			w.problem(got, event.CodeStaleRevision, -1)
			return
		}
		holder := it.Holder
		for _, d := range q.dedup {
			if d.hash.Of(q.number) == it.Alias && d.until > w.clock {
				holder = d.id
			}
		}
		if holder != it.Holder || taken[it.Alias] {
			if c.Strict {
				w.problem(got, event.CodeConflict, -1)
				return
			}
			codes[i] = event.SkipKeyTaken
			continue
		}
		taken[it.Alias] = it.Alias != event.Hash{}
		more, bytes, turns = more+1, bytes+int64(it.Size), append(turns, i)
	}
	if p := q.policy; more > 0 && (p.MaxDepth > 0 && depth+more > p.MaxDepth || p.MaxBytes > 0 && bytes > 0 && size+bytes > p.MaxBytes) {
		w.problem(got, event.CodeQueueFull, -1)
		return
	}
	order := c.Order.In(q.policy.Ordering)
	if order == event.OrderOriginal {
		slices.SortStableFunc(turns, func(a, b int) int { return c.Items[a].First.Compare(c.Items[b].First) })
	}
	for _, i := range turns {
		it := &c.Items[i]
		e := w.emit(event.Event{Type: event.Resurrected, Subject: it.ID, Queue: c.To, ToQueue: c.To})
		w.did(c.Task, event.TaskUndo)
		news[i], w.raised[it.ID] = e.ID, e.ID
		m := &mmessage{
			q: q, id: e.ID, key: it.Key, kind: it.Kind, priority: it.Priority, size: it.Size, came: w.clock, available: w.clock, state: event.StateReady,
			source: it.SourceID, origin: &event.OriginView{First: it.First, From: it.ID, Replays: it.Replays}, behind: order == event.OrderAppend,
		}
		if until := w.remembers(&q.policy, it.SourceID != ""); until > w.clock && it.Alias != (event.Hash{}) {
			for _, d := range q.dedup {
				if d.hash.Of(q.number) == it.Alias {
					d.until = 0
				}
			}
			m.took = &mdedup{it.Alias.Of(q.number), m.id, until}
			q.dedup = append(q.dedup, m.took)
		}
		q.stats.Resurrected++
		q.all = append(q.all, m)
		w.replayedTo(m, order)
	}
	w.moved(got, ids, codes, news)
}

func (c *chaos) resurrect() *event.Resurrect {
	r := &event.Resurrect{
		To: c.queueName(), Order: draw(c, "order", event.OrderDefault, event.OrderOriginal, event.OrderAppend), Strict: draw(c, "strict", false, false, true),
		Task: c.task(), Looked: draw(c, "looked", 1<<40, 1<<40, 1<<40, uint64(0)),
	}
	q, _ := c.m.Queue(r.To)
	for range rapid.IntRange(1, 3).Draw(c.t, "n") {
		it := event.ResurrectItem{
			Key: draw(c, "key", "", "k1", "k2"), Kind: draw(c, "kind", "", "red"), Priority: 5, Size: 3, Replays: draw[uint32](c, "replays", 0, 1),
			Skip: draw(c, "skip", "", "", "", event.SkipErased), SourceID: draw(c, "source", "", "", "s1"),
		}
		if d := draw(c, "dedup", "", "d1", "d2"); d != "" {
			var h event.Hash
			copy(h[:], d)
			it.Alias = h.Of(q.Number)
		}
		if len(c.ids) > 0 {
			it.ID = c.id()
			it.First = draw(c, "first", it.ID, c.ids[0])
		}
		it.Last, it.Holder = event.RefOf(it.ID), draw(c, "holder", it.ID, event.ID{})
		r.Items = append(r.Items, it)
	}
	return r
}

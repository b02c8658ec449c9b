package fsm

import (
	"slices"

	"github.com/qlogd/qlogd/event"
	"pgregory.net/rapid"
)

// What the naive model says of erasures.

// underway tells whether a message was decided to be gone and is not told yet.
func (w *model) underway(id event.ID) bool {
	for _, p := range w.pending {
		for _, m := range p.list {
			if m.id == id && !m.gone {
				return true
			}
		}
	}
	return false
}

func (w *model) erase(c *event.Erase, got event.Result) {
	w.t.Helper()
	if len(c.Items) > event.MaxBatch {
		w.problem(got, event.CodeInvalidArgument, -1)
		return
	}
	if t := w.tasks[c.Task]; t == nil || t.Kind != event.TaskErase || t.Status != event.TaskRunning || t.Sealed {
		w.problem(got, event.CodeConflict, -1)
		return
	}
	for i := range c.Items {
		w.expire(c.Items[i].ID)
	}
	told := map[event.ID]bool{}
	for i := range c.Items {
		it := &c.Items[i]
		m := w.find(it.ID)
		if told[it.ID] || w.underway(it.ID) || m == nil && it.Last.IsZero() {
			continue
		}
		if now, ok := w.raised[it.ID]; ok && event.RefOf(now).Compare(it.Last) > 0 {
			continue
		}
		told[it.ID] = true
		queue, prev := "", it.Last
		if m != nil {
			e := w.discard(m, event.ReasonDeleted)
			if e.Task != c.Task || e.Actor != "op" {
				w.fatal("what an erasure discards is told as of task %s, by %q", e.Task, e.Actor)
			}
			queue, prev = m.q.name, event.RefOf(e.ID)
		}
		e := w.emit(event.Event{Type: event.Erased, Subject: it.ID, Queue: queue})
		if e.Task != c.Task || e.Actor != "op" || e.Prev != prev || !slices.Equal(e.Refs, it.Refs) || e.Content.Digest != c.Why.Digest {
			w.fatal("%+v should be erased behind %v, the machine tells %+v", it, prev, e)
		}
		w.did(c.Task, event.TaskErase)
		w.erased = w.index
	}
	if got.Problem != nil || got.Count != int64(len(told)) {
		w.fatal("%d are told of, the machine says %+v", len(told), got)
	}
}

func (c *chaos) erase() *event.Command {
	var tasks []event.ID
	for _, t := range c.m.Tasks() {
		if t.Kind == event.TaskErase {
			tasks = append(tasks, t.ID)
		}
	}
	if len(tasks) == 0 {
		return &event.Command{CreateTask: &event.CreateTask{Kind: event.TaskErase}}
	}
	e := &event.Erase{Task: draw(c, "erasure", tasks...), Why: event.EncodeContent(&event.Content{Why: "asked for"})}
	if rapid.IntRange(0, 9).Draw(c.t, "other task") == 0 {
		e.Task = c.task()
	}
	if rapid.IntRange(0, 9).Draw(c.t, "too many") == 0 {
		e.Items = make([]event.EraseItem, event.MaxBatch+1)
	}
	for range rapid.IntRange(0, 4).Draw(c.t, "items") {
		if len(c.ids) == 0 {
			break
		}
		it := event.EraseItem{ID: c.id()}
		if rapid.Bool().Draw(c.t, "gone") {
			it.Last = event.RefOf(it.ID)
		}
		it.Refs = append(it.Refs, event.RefOf(it.ID))
		e.Items = append(e.Items, it)
	}
	return &event.Command{Actor: "op", Erase: e}
}

package fsm

import (
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/event"
	"pgregory.net/rapid"
)

// What the naive model says of tasks.

func (w *model) runs(task event.ID) bool {
	t := w.tasks[task]
	return task == event.ID{} || t != nil && t.Status == event.TaskRunning
}

// did counts what a task of this kind has done.
func (w *model) did(task event.ID, kind event.TaskKind) {
	if t := w.tasks[task]; t != nil && t.Kind == kind {
		t.UpdatedAt = w.clock
		t.Done++
	}
}

func (w *model) forgetTasks() {
	for len(w.ended) > 0 && w.tasks[w.ended[0]].EndedAt+7*24*3600*1000 <= w.clock {
		delete(w.tasks, w.ended[0])
		w.ended = w.ended[1:]
	}
}

func (w *model) createTask(c *event.CreateTask, got event.Result) {
	w.t.Helper()
	verify := c.Kind == event.TaskVerify
	if c.Kind == event.TaskNone || verify && c.Node == "" {
		w.problem(got, event.CodeInvalidArgument, -1)
		return
	}
	v := &event.TaskView{Kind: c.Kind, Queue: c.Queue, Total: c.Total, CreatedAt: w.clock, UpdatedAt: w.clock}
	for _, t := range w.tasks {
		if verify && t.Kind == event.TaskVerify && t.Status == event.TaskRunning && t.Nodes[0].Node == c.Node {
			w.problem(got, event.CodeConflict, -1)
			return
		}
	}
	if verify {
		v.Nodes = []event.TaskNode{{Node: c.Node}}
	}
	e := w.emit(event.Event{Type: event.TaskCreated, Queue: c.Queue})
	if got.ID != e.ID || e.Task != e.ID || e.TaskKind != c.Kind {
		w.fatal("task %s was created as %+v, the answer is %+v", e.ID, e, got)
	}
	v.ID = e.ID
	w.tasks[e.ID] = v
}

func (w *model) updateTask(c *event.UpdateTask, got event.Result) {
	w.t.Helper()
	t := w.tasks[c.ID]
	if t == nil {
		w.problem(got, event.CodeTaskNotFound, -1)
		return
	}
	running := t.Status == event.TaskRunning
	tell := func(typ event.Type) *event.Event {
		e := w.emit(event.Event{Type: typ, Queue: t.Queue})
		if e.Task != t.ID {
			w.fatal("%s is of task %s, not of %s", typ, e.Task, t.ID)
		}
		t.UpdatedAt = w.clock
		return e
	}
	end := func(s event.TaskStatus) {
		t.Status, t.EndedAt = s, w.clock
		w.ended = append(w.ended, t.ID)
	}
	reported := slices.ContainsFunc(t.Nodes, func(n event.TaskNode) bool { return n.Node == c.Node })
	switch {
	case c.Op == event.TaskOpCancel && running && t.Sealed,
		(c.Op == event.TaskOpCancel || c.Op == event.TaskOpResume) && (t.Status == event.TaskCompleted || t.Status == event.TaskFailed),
		c.Op == event.TaskOpResume && t.Kind == event.TaskVerify,
		c.Op == event.TaskOpReport && !t.Sealed:
		w.problem(got, event.CodeConflict, -1)
		return
	case c.Op == event.TaskOpSeal && t.Kind != event.TaskErase:
		w.problem(got, event.CodeInvalidArgument, -1)
		return
	case c.Op == event.TaskOpResume && t.Status == event.TaskIsCancelled:
		tell(event.TaskResumed)
		t.Status, t.EndedAt = event.TaskRunning, 0
		w.ended = slices.DeleteFunc(w.ended, func(id event.ID) bool { return id == t.ID })
	case c.Op == event.TaskOpResume, !running:
	case c.Op == event.TaskOpCancel:
		tell(event.TaskCancelled)
		end(event.TaskIsCancelled)
	case c.Op == event.TaskOpSeal && !t.Sealed:
		tell(event.TaskSealed)
		t.Sealed = true
	case c.Op == event.TaskOpReport && !reported:
		tell(event.TaskReported)
		t.Nodes = append(t.Nodes, event.TaskNode{Node: c.Node, At: w.clock})
	case c.Op == event.TaskOpComplete, c.Op == event.TaskOpFail:
		e := tell(event.TaskEnded)
		t.End, t.Skipped = event.RefOf(e.ID), e.Count
		if c.Op == event.TaskOpFail {
			end(event.TaskFailed)
		} else {
			t.Skipped = c.Skipped
			end(event.TaskCompleted)
		}
	}
	if got.Problem != nil {
		w.fatal("%d of %+v is possible, the machine says %v", c.Op, t, got.Problem)
	}
}

// endTasks holds all tasks against the machine's.
func (w *model) endTasks(b *bench) {
	w.t.Helper()
	got := b.m.Tasks()
	if len(got) != len(w.tasks) {
		w.fatal("there are %d tasks, the machine has %d", len(w.tasks), len(got))
	}
	for i := range got {
		want := w.tasks[got[i].ID]
		if want == nil || fmt.Sprintf("%+v", got[i]) != fmt.Sprintf("%+v", *want) {
			w.fatal("the machine's task is %+v, it should be %+v", got[i], want)
		}
		if i > 0 && got[i].ID.Compare(got[i-1].ID) >= 0 {
			w.fatal("task %s is listed behind %s", got[i].ID, got[i-1].ID)
		}
	}
}

// task draws a task for a command to be of: most often none.
func (c *chaos) task() event.ID {
	if len(c.tasks) == 0 || rapid.IntRange(0, 2).Draw(c.t, "of a task") > 0 {
		return event.ID{}
	}
	return c.tasks[max(0, len(c.tasks)-1-rapid.IntRange(0, 4).Draw(c.t, "task"))]
}

func (c *chaos) updateTask() *event.UpdateTask {
	u := &event.UpdateTask{
		Op: draw(c, "op", event.TaskOpCancel, event.TaskOpResume, event.TaskOpSeal, event.TaskOpReport, event.TaskOpReport, event.TaskOpComplete, event.TaskOpFail),
	}
	if len(c.tasks) > 0 {
		u.ID = c.tasks[max(0, len(c.tasks)-1-rapid.IntRange(0, 4).Draw(c.t, "task"))]
	}
	switch u.Op {
	case event.TaskOpReport:
		u.Node = draw(c, "node", "n1", "n2")
	case event.TaskOpComplete:
		u.Skipped = draw[int64](c, "skipped", 0, 3)
	case event.TaskOpFail:
		u.Content = event.EncodeContent(&event.Content{Error: "e"})
	}
	return u
}

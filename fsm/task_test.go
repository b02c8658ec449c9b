package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func (b *bench) task(kind event.TaskKind) event.ID {
	b.t.Helper()
	return b.ok(b.one(&event.Command{Actor: "ops", CreateTask: &event.CreateTask{Kind: kind, Queue: "q", Total: 2}})).ID
}

func (b *bench) change(id event.ID, op event.TaskOp) event.Result {
	b.t.Helper()
	return b.one(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: op, Node: "n1", Skipped: 4}})
}

func (b *bench) wantTask(id event.ID, status event.TaskStatus, done int64) event.TaskView {
	b.t.Helper()
	v, ok := b.m.Task(id)
	mustEqual(b.t, ok, true)
	mustEqual(b.t, []any{v.Status, v.Done}, []any{status, done})
	return v
}

// TestTask: a task's messages move only while it runs, and what it did is counted.
func TestTask(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", dlq("dead"))
	b.fill("q", "a", "b", "c")
	b.kill("q", "a", "b", "c")
	id := b.task(event.TaskReplay)
	of := func(r *event.Replay) { r.Task = id }
	v := b.wantTask(id, event.TaskRunning, 0)
	mustEqual(t, []any{v.ID, v.Kind, v.Queue, v.Actor, v.Total, v.EndedAt}, []any{id, event.TaskReplay, "q", "ops", 2, 0})
	mustEqual(t, codes(b.ok(b.replay("q", of, "a"))), "moved")
	b.ok(b.change(id, event.TaskOpCancel))
	b.wantTells("task_cancelled")
	mustEqual(t, codes(b.ok(b.replay("q", of, "b", "c"))), "task_not_running task_not_running")
	b.wantTells("")
	b.ok(b.change(id, event.TaskOpCancel)) // once more changes nothing
	b.ok(b.change(id, event.TaskOpComplete))
	b.wantTells("")
	b.wantTask(id, event.TaskIsCancelled, 1)
	b.restart()
	b.ok(b.change(id, event.TaskOpResume))
	b.wantTells("task_resumed")
	mustEqual(t, codes(b.ok(b.replay("q", of, "a", "b"))), "message_not_found moved")
	b.ok(b.change(id, event.TaskOpComplete))
	v = b.wantTask(id, event.TaskCompleted, 2)
	mustEqual(t, []any{v.Skipped, v.End, v.EndedAt}, []any{4, event.RefOf(b.last().Events[0].ID), b.now})
	b.wantProblem(b.change(id, event.TaskOpResume), event.CodeConflict, "")
	b.wantProblem(b.change(id, event.TaskOpCancel), event.CodeConflict, "")
	mustEqual(t, codes(b.ok(b.replay("q", of, "c"))), event.SkipTask)

	purge := b.task(event.TaskPurge)
	r := b.ok(b.one(&event.Command{PurgeDead: &event.PurgeDead{Queue: "q", Task: purge, IDs: []event.ID{b.newest("c"), b.newest("a")}}}))
	mustEqual(t, codes(r), "gone message_not_found")
	b.ok(b.change(purge, event.TaskOpFail))
	b.wantTask(purge, event.TaskFailed, 1)
	all := b.m.Tasks()
	mustEqual(t, []event.ID{all[0].ID, all[1].ID}, []event.ID{purge, id}) // the newest first
	b.wantProblem(b.change(event.ID{}, event.TaskOpCancel), event.CodeTaskNotFound, "")
	b.refold()
}

// TestErasureTask: sealed once, told by each node once, and not to be stopped then.
func TestErasureTask(t *testing.T) {
	b := setup(t)
	id := b.task(event.TaskErase)
	b.wantProblem(b.change(id, event.TaskOpReport), event.CodeConflict, "")
	for range 2 {
		b.ok(b.change(id, event.TaskOpSeal))
	}
	b.wantTells("")
	b.wantProblem(b.change(id, event.TaskOpCancel), event.CodeConflict, "")
	b.tick(5)
	for range 2 {
		b.ok(b.change(id, event.TaskOpReport))
	}
	b.wantTells("")
	b.restart()
	v := b.wantTask(id, event.TaskRunning, 0)
	mustEqual(t, v.Sealed, true)
	mustEqual(t, v.Nodes, []event.TaskNode{{Node: "n1", At: epoch + 5}})
	b.wantProblem(b.change(b.task(event.TaskReplay), event.TaskOpSeal), event.CodeInvalidArgument, "")
	b.refold()
}

// TestTasksAreForgotten: a week after their end, and beyond a thousand; one that
// runs keeps what it is to do.
func TestTasksAreForgotten(t *testing.T) {
	b := setup(t)
	first := b.task(event.TaskReplay)
	at := b.index
	for b.index < at+200 { // well away from the first in the log
		b.tick(0)
	}
	b.wantProblem(b.one(&event.Command{Retain: &event.Retain{Before: b.index}}), event.CodeConflict, "")
	b.ok(b.change(first, event.TaskOpCancel))
	b.ok(b.one(&event.Command{Retain: &event.Retain{Before: b.index}}))

	running := b.task(event.TaskReplay)
	for n := 0; n < 1000; n += 100 {
		var cs []*event.Command
		for range 100 {
			cs = append(cs, &event.Command{CreateTask: &event.CreateTask{Kind: event.TaskPurge}})
		}
		rs := b.do(cs...)
		if n == 900 { // as many run as may
			b.wantProblem(rs[99], event.CodeConflict, "1000 tasks run already, as many as may: let some end, or cancel them")
			rs = rs[:99]
		}
		for i, r := range rs {
			if n > 0 {
				cs[i] = &event.Command{UpdateTask: &event.UpdateTask{ID: r.ID, Op: event.TaskOpComplete}}
			}
		}
		if n == 900 {
			for _, v := range b.m.Tasks() {
				if v.Status == event.TaskRunning && v.ID != running {
					b.ok(b.one(&event.Command{UpdateTask: &event.UpdateTask{ID: v.ID, Op: event.TaskOpComplete}}))
				}
			}
		}
	}
	mustEqual(t, len(b.m.Tasks()), 1001)
	b.task(event.TaskPurge)
	b.ok(b.change(b.m.Tasks()[0].ID, event.TaskOpFail))
	mustEqual(t, len(b.m.Tasks()), 1001)
	if _, ok := b.m.Task(first); ok {
		t.Error("the one that ended first is kept")
	}
	b.restart()
	b.tick(7*24*3600*1000 - 1)
	mustEqual(t, len(b.m.Tasks()), 1001)
	b.tick(1)
	mustEqual(t, len(b.m.Tasks()), 1)
	b.wantTask(running, event.TaskRunning, 0)
	b.refold()
}

package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func (b *bench) task(kind event.TaskKind) event.ID {
	b.t.Helper()
	return b.ok(b.one(&event.Command{Actor: "ops", CreateTask: &event.CreateTask{Kind: kind, Queue: "q", Total: 2}})).ID
}

func (b *bench) change(id event.ID, op event.TaskOp) event.Result {
	b.t.Helper()
	return b.one(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: op, Node: "n1", Skipped: 4}})
}

// wantTask returns a task that must be running.
func (b *bench) wantTask(id event.ID) event.TaskView {
	b.t.Helper()
	v, _ := b.m.Task(id)
	require.Equal(b.t, v.Status, event.TaskRunning, "status")
	return v
}

// TestTasksAreForgotten: beyond a thousand those that ended first (and after a week: TestModel has
// that). One that runs is kept, and so many run at most.
func TestTasksAreForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.task(event.TaskReplay)
	b.ok(b.change(first, event.TaskOpCancel))
	running := b.task(event.TaskReplay)
	for n := 0; n < 1000; n += 100 {
		var cs []*event.Command
		for range 100 {
			cs = append(cs, &event.Command{CreateTask: &event.CreateTask{Kind: event.TaskPurge}})
		}
		rs := b.do(cs...)
		if n == 900 { // as many run as may
			b.wantProblem(rs[99], event.CodeConflict, "1000 tasks run already, which is the limit: wait for some to end, or cancel them")
		}
	}
	var ends []*event.Command
	for _, v := range b.m.Tasks() {
		if v.Status == event.TaskRunning && v.ID != running {
			ends = append(ends, &event.Command{UpdateTask: &event.UpdateTask{ID: v.ID, Op: event.TaskOpComplete}})
		}
	}
	for _, r := range b.do(ends...) {
		b.ok(r)
	}
	mustEqual(t, len(b.m.Tasks()), 1001)
	b.task(event.TaskPurge)
	b.ok(b.change(b.m.Tasks()[0].ID, event.TaskOpFail))
	mustEqual(t, len(b.m.Tasks()), 1001)
	if _, ok := b.m.Task(first); ok {
		t.Error("the one that ended first is kept")
	}
	b.restart()
	b.tick(7 * 24 * 3600 * 1000)
	mustEqual(t, len(b.m.Tasks()), 1)
	b.wantTask(running)
	b.refold()
}

// TestUndoKeepsHistory: an undo keeps the history that it may have to read until it ends, for a day
// at most.
func TestUndoKeepsHistory(t *testing.T) {
	t.Parallel()
	const day = 24 * 3600 * 1000
	b := setup(t)
	retain := func(before uint64) event.Result {
		return b.one(&event.Command{Retain: &event.Retain{Before: before}})
	}
	pass := func() {
		for end := b.index + 200; b.index < end; { // well away in the log
			b.tick(0)
		}
	}
	pass()
	early := b.index
	pass()
	b.ok(retain(100))
	undo := b.task(event.TaskUndo)
	pass()
	b.wantProblem(retain(early), event.CodeConflict, "")
	b.ok(retain(100)) // deletes nothing more
	b.restart()
	b.tick(day - 1 - (b.now - b.wantTask(undo).CreatedAt))
	b.wantProblem(retain(early), event.CodeConflict, "")
	b.tick(1)
	b.ok(retain(early))
	b.wantProblem(retain(b.index), event.CodeConflict, "") // the task itself is kept as long as it runs
	b.wantTask(undo)

	second := b.task(event.TaskUndo)
	pass()
	b.ok(b.change(undo, event.TaskOpCancel))
	b.wantProblem(retain(b.index), event.CodeConflict, "")
	b.ok(b.change(second, event.TaskOpComplete))
	b.ok(retain(b.index))
	b.refold()
}

// TestVerifications: one of a node at a time, and none is resumed.
func TestVerifications(t *testing.T) {
	b := setup(t)
	verify := &event.Command{CreateTask: &event.CreateTask{Kind: event.TaskVerify, Node: "n1/a"}}
	first := b.ok(b.one(verify)).ID
	b.wantProblem(b.one(verify), event.CodeConflict,
		"node n1 is being verified by task "+first.String())
	b.ok(b.one(&event.Command{CreateTask: &event.CreateTask{Kind: event.TaskVerify, Node: "n2/a"}}))
	b.wantProblem(b.one(&event.Command{CreateTask: &event.CreateTask{Kind: event.TaskVerify}}),
		event.CodeInvalidArgument, "node goes with kind verify, which needs it")
	b.ok(b.change(first, event.TaskOpCancel))
	b.wantProblem(b.change(first, event.TaskOpResume), event.CodeConflict,
		"task "+first.String()+" is a verification: start another one")
	b.ok(b.one(verify))
}

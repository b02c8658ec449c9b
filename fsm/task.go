package fsm

import "github.com/qlogd/qlogd/event"

// mostTasks bounds how many tasks run at a time.
const mostTasks = 1000

// createTask creates a task, work that takes many entries. Its description is for the
// runner; the answer is its id.
func (d *decision) createTask(c *event.CreateTask) event.Result {
	switch {
	case c.Kind == event.TaskNone || c.Kind > event.TaskVerify:
		return problem(invalid("kind", "kind must be replay, purge, erase, undo or verify"))
	case (c.Kind == event.TaskVerify) != (c.Node != ""):
		return problem(invalid("node", "node goes with kind verify, which needs it"))
	}
	p := d.roomForTask()
	if p == nil && c.Kind == event.TaskVerify {
		p = event.MayVerify(c.Node, d.s.Tasks())
	}
	if p != nil {
		return problem(p)
	}
	id := event.NewID(d.s.Clock(), d.block.Index, uint32(len(d.block.Events)))
	return event.Result{ID: d.emit(event.Event{
		Type: event.TaskCreated, Queue: c.Queue, Task: id, TaskKind: c.Kind, Node: c.Node,
		Count: c.Total, Content: c.Content,
	})}
}

// roomForTask returns a problem if no more tasks may run.
func (d *decision) roomForTask() *event.Problem {
	if n := d.s.RunningTasks(); n >= mostTasks {
		return conflict("", "%d tasks run already, which is the limit: wait for some to end, or "+
			"cancel them", n)
	}
	return nil
}

// updateTask changes a task. An update that would change nothing succeeds, so that it may
// be repeated.
func (d *decision) updateTask(c *event.UpdateTask) event.Result {
	t, ok := d.s.Task(c.ID)
	if !ok {
		return problem(event.Problemf(event.CodeTaskNotFound, "id",
			"task %s does not exist, or ended long ago", c.ID))
	}
	changes := t.Status == event.TaskRunning
	e := event.Event{Task: t.ID, Queue: t.Queue}
	switch c.Op {
	case event.TaskOpCancel:
		if t.Sealed && changes {
			return problem(conflict("id",
				"task %s can't be cancelled any more: the nodes are erasing already", t.ID))
		}
		if t.Status.Final() {
			return problem(conflict("id", "task %s is %s: it can't be cancelled", t.ID, t.Status))
		}
		e.Type = event.TaskCancelled
	case event.TaskOpResume:
		if t.Status.Final() {
			return problem(conflict("id", "task %s is %s; only a cancelled one can be resumed",
				t.ID, t.Status))
		}
		if p := t.MayResume(); p != nil {
			return problem(p)
		}
		if changes = t.Status == event.TaskIsCancelled; changes {
			if p := d.roomForTask(); p != nil {
				return problem(p)
			}
		}
		e.Type = event.TaskResumed
	case event.TaskOpSeal:
		if t.Kind != event.TaskErase {
			return problem(invalid("id", "task %s is a %s: only an erasure is sealed", t.ID,
				t.Kind))
		}
		changes = changes && !t.Sealed
		e.Type = event.TaskSealed
	case event.TaskOpReport:
		if !t.Sealed {
			return problem(conflict("id",
				"task %s is not sealed: nothing can have been carried out", t.ID))
		}
		for _, n := range t.Nodes {
			changes = changes && n.Node != c.Node
		}
		e.Type, e.Node = event.TaskReported, c.Node
	case event.TaskOpComplete:
		e.Type, e.Count, e.Content = event.TaskEnded, c.Skipped, c.Content
	case event.TaskOpFail:
		e.Type, e.Failed, e.Content = event.TaskEnded, true, c.Content
	default:
		return problem(invalid("op", "there is no such change of a task"))
	}
	if changes {
		d.emit(e)
	}
	return event.Result{}
}

// runs reports whether a command of a task may be executed: not once the task was
// cancelled or ended (I21). A command without a task always may.
func (d *decision) runs(task event.ID) bool {
	if task == (event.ID{}) {
		return true
	}
	t, ok := d.s.Task(task)
	return ok && t.Status == event.TaskRunning
}

package projections

import (
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
)

const (
	// keepTaskMS is how long an ended task is kept for readers, and keepTasks how many of
	// them at most.
	keepTaskMS = 7 * 24 * 3600 * 1000
	keepTasks  = 1000
)

// task is work that takes many entries. Its description is the content of the event that
// created it, which is kept while it runs.
type task struct {
	event.TaskView
	last event.Ref // its newest event. Invariant: of ended ones, these lie in the order of s.ended
}

func (t *task) ended() bool { return t.Status != event.TaskRunning }

// mustTask finds the task that an event is about.
func (s *State) mustTask(e *event.Event, status event.TaskStatus) *task {
	t, ok := s.tasks[e.Task]
	if !ok {
		s.impossible(e, "task %s is not there", e.Task)
	}
	if t.Status != status {
		s.impossible(e, "task %s is %s", t.ID, t.Status)
	}
	t.UpdatedAt, t.last = s.clock, event.RefOf(e.ID)
	return t
}

func (s *State) taskCreated(e *event.Event) {
	t := &task{TaskView: event.TaskOf(e), last: event.RefOf(e.ID)}
	if t.Kind == event.TaskUndo {
		t.KeepFrom = s.history
	}
	s.tasks[e.ID] = t
}

// keepsHistoryMS is how long an undo keeps the history that it may still have to read.
const keepsHistoryMS = 24 * 3600 * 1000

// keeps returns the first index of the history that a running task needs: its creation, and for an
// undo for some time all that there was.
func (s *State) keeps(t *task) uint64 {
	if t.Kind == event.TaskUndo && s.clock < t.CreatedAt+keepsHistoryMS {
		return t.KeepFrom
	}
	return bucket(event.RefOf(t.ID).Index) << bucketBits
}

// taskChanged folds the later events of a task.
func (s *State) taskChanged(e *event.Event) {
	switch e.Type {
	case event.TaskCancelled:
		s.endTask(s.mustTask(e, event.TaskRunning), event.TaskIsCancelled)
	case event.TaskResumed:
		t := s.mustTask(e, event.TaskIsCancelled)
		t.Status, t.EndedAt = event.TaskRunning, 0
		i := slices.Index(s.ended, t)
		s.ended = slices.Delete(s.ended, i, i+1)
	case event.TaskSealed:
		s.mustTask(e, event.TaskRunning).Sealed = true
	case event.TaskReported:
		t := s.mustTask(e, event.TaskRunning)
		t.Nodes = append(t.Nodes, event.TaskNode{Node: e.Node, At: s.clock})
	case event.TaskEnded:
		t := s.mustTask(e, event.TaskRunning)
		t.Skipped, t.End = e.Count, event.RefOf(e.ID)
		status := event.TaskCompleted
		if e.Failed {
			status = event.TaskFailed
		}
		s.endTask(t, status)
	}
}

// endTask ends a task: for good, or until it is resumed.
func (s *State) endTask(t *task, status event.TaskStatus) {
	t.Status, t.EndedAt = status, s.clock
	if s.ended = append(s.ended, t); len(s.ended) > keepTasks {
		s.forgetTask()
	}
}

// forgetTask drops the task that ended first.
func (s *State) forgetTask() {
	delete(s.tasks, s.ended[0].ID)
	s.ended = s.ended[1:]
}

// forgetTasks drops tasks that ended long ago.
func (s *State) forgetTasks() {
	for len(s.ended) > 0 && s.ended[0].EndedAt+keepTaskMS <= s.clock {
		s.forgetTask()
	}
}

// taskDid counts an event of a task's kind; an erasure discards live messages too, which
// do not count.
func (s *State) taskDid(e *event.Event) {
	t, ok := s.tasks[e.Task]
	switch {
	case !ok: // its end is long ago; nothing but the count depends on it
	case e.Type == event.Replayed && t.Kind == event.TaskReplay,
		e.Type == event.Discarded && t.Kind == event.TaskPurge,
		e.Type == event.Erased && t.Kind == event.TaskErase,
		e.Type == event.Resurrected && t.Kind == event.TaskUndo:
		t.Done++
		t.UpdatedAt = s.clock
	}
}

// reindexTasks rebuilds the list of ended tasks.
func (s *State) reindexTasks() {
	for _, t := range s.sortedTasks() {
		if t.ended() {
			s.ended = append(s.ended, t)
		}
	}
	slices.SortFunc(s.ended, func(a, b *task) int { return a.last.Compare(b.last) })
}

func (s *State) sortedTasks() []*task {
	return slices.SortedFunc(maps.Values(s.tasks), func(a, b *task) int {
		return a.ID.Compare(b.ID)
	})
}

// Task returns a task that is running or ended recently.
func (s *State) Task(id event.ID) (event.TaskView, bool) {
	t, ok := s.tasks[id]
	if !ok {
		return event.TaskView{}, false
	}
	return t.TaskView, true
}

// Tasks returns all tasks that are kept, the newest first.
func (s *State) Tasks() []event.TaskView {
	out := make([]event.TaskView, 0, len(s.tasks))
	for _, t := range s.sortedTasks() {
		out = append(out, t.TaskView)
	}
	slices.Reverse(out)
	return out
}

// RunningTasks returns how many tasks have not ended.
func (s *State) RunningTasks() int { return len(s.tasks) - len(s.ended) }

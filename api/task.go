package api

import (
	"context"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

func taskNotFound(id event.ID) *event.Problem {
	return event.Problemf(event.CodeTaskNotFound, "id", "task %s does not exist, or ended more than 7 days ago", id)
}

// listTasks answers GET /v1/tasks?status=&limit=&cursor=, the newest first.
func (s *Server) listTasks(q *request) error {
	in := q.read("status", "limit", "cursor", "consistency")
	limit, before := in.limit(100, 1000), in.queryID("cursor")
	status := in.choice("status", wire.TaskRunning, wire.TaskCancelled, wire.TaskCompleted, wire.TaskFailed)
	in.fresh()
	if in.err != nil {
		return in.err
	}
	tasks, more := firstN(s.deps.State.Tasks(), limit, func(t *event.TaskView) bool {
		return (before.IsZero() || t.ID.Compare(before) < 0) && (status == "" || t.Status.String() == status) && q.seesTask(t)
	})
	out := wire.TaskList{Tasks: []wire.Task{}}
	for i := range tasks {
		t, err := s.taskOf(&tasks[i])
		if err != nil {
			return err
		}
		out.Tasks = append(out.Tasks, t)
	}
	if more {
		out.NextCursor = out.Tasks[limit-1].ID
	}
	return q.answer(http.StatusOK, &out)
}

// seesTask reports whether the token may read of a task: one of a queue that it
// may read, or of all.
func (q *request) seesTask(t *event.TaskView) bool {
	return q.who == nil || q.who.mayAll(roleRead) || t.Queue != "" && q.who.may(roleRead, t.Queue)
}

// getTask answers GET /v1/tasks/{id}?wait_ms=: with wait_ms, not before the task
// has ended, if it does within that time.
func (s *Server) getTask(q *request) error {
	in := q.read("wait_ms", "consistency")
	id, wait := in.pathID("id"), in.number("wait_ms", 0, 0, event.MaxWaitMS)
	in.fresh()
	if in.err != nil {
		return in.err
	}
	ctx, cancel := context.WithTimeout(q.Context(), time.Duration(wait)*time.Millisecond)
	defer cancel()
	stop := context.AfterFunc(s.undrained, cancel)
	defer stop()
	for {
		head := s.deps.Log.Head() // before the state is read
		t, ok := s.deps.State.Task(id)
		if !ok || !q.seesTask(&t) {
			return taskNotFound(id)
		}
		if wait > 0 && t.Status == event.TaskRunning && s.deps.Log.Wait(ctx, head) == nil {
			continue
		}
		if err := q.Context().Err(); err != nil {
			return err
		}
		return q.answerTask(http.StatusOK, &t)
	}
}

func (q *request) answerTask(status int, t *event.TaskView) error {
	out, err := q.s.taskOf(t)
	if err != nil {
		return err
	}
	return q.answer(status, &out)
}

// cancelTask answers DELETE /v1/tasks/{id}. What it has done so far stays done.
func (s *Server) cancelTask(q *request) error {
	if _, err := q.updateTask(event.TaskOpCancel, "cancelled"); err != nil {
		return err
	}
	return q.noContent()
}

// resumeTask answers POST /v1/tasks/{id}/resume.
func (s *Server) resumeTask(q *request) error {
	id, err := q.updateTask(event.TaskOpResume, "resumed")
	if err != nil {
		return err
	}
	t, ok := s.deps.State.Task(id)
	if !ok {
		return taskNotFound(id)
	}
	return q.answerTask(http.StatusOK, &t)
}

// updateTask changes the task in the path. It refuses what cannot be done, so that this leaves
// no entry; the state machine refuses it for a task that ends meanwhile.
func (q *request) updateTask(op event.TaskOp, done string) (event.ID, error) {
	in := q.read()
	id := in.pathID("id")
	if op == event.TaskOpResume {
		in.noBody()
	}
	if in.err != nil {
		return id, in.err
	}
	t, err := currently(q.s, q, id, q.s.deps.State.Task, taskNotFound)
	if err != nil {
		return id, err
	}
	if (t.Status == event.TaskCompleted || t.Status == event.TaskFailed) && q.Header["Idempotency-Key"] == nil {
		return id, event.Problemf(event.CodeConflict, "id", "task %s has %s at %s: it can't be %s", id, t.Status, wire.Time(t.EndedAt), done)
	}
	_, err = q.propose(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: op}})
	return id, err
}

// taskOf returns a task's view.
func (s *Server) taskOf(t *event.TaskView) (wire.Task, error) {
	id := t.ID.String()
	out := wire.Task{
		ID: id, TaskID: id, Type: t.Kind.String(), Queue: t.Queue, Status: t.Status.String(),
		Total: t.Total, Done: t.Done, Skipped: t.Skipped, Actor: t.Actor,
		CreatedAt: wire.Time(t.CreatedAt), UpdatedAt: wire.Time(t.UpdatedAt), EndedAt: wire.Time(t.EndedAt), Nodes: []wire.TaskNode{},
	}
	switch t.Kind {
	case event.TaskErase:
		out.Nodes = s.erasedOn(t)
	case event.TaskReplay:
		c, err := s.content(event.RefOf(t.ID))
		if err != nil {
			return out, err
		}
		if c != nil {
			spec, err := dead.DecodeSpec(c.Spec)
			if err != nil {
				return out, err
			}
			if spec.Rate > 0 {
				out.RatePerSecond = &spec.Rate
			}
		}
	}
	if t.Status == event.TaskFailed && !t.End.IsZero() {
		c, err := s.content(t.End)
		if err != nil {
			return out, err
		}
		if c != nil {
			out.Error = c.Error
		}
	}
	return out, nil
}

// accepted answers with a task that was begun, as it was then: a repeated request
// gets the first answer, however far the task has come.
func (q *request) accepted(id event.ID) error {
	// From the log: the state keeps only some of those that have ended.
	e, err := q.s.deps.Log.Event(event.RefOf(id))
	if err != nil {
		return err
	}
	at := event.ClockOf(id)
	q.w.Header().Set("Location", "/v1/tasks/"+id.String())
	return q.answerTask(http.StatusAccepted, &event.TaskView{
		ID: id, Kind: e.TaskKind, Status: event.TaskRunning, Queue: e.Queue, Actor: e.Actor, CreatedAt: at, UpdatedAt: at, Total: e.Count,
	})
}

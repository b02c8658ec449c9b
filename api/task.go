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
	if err := q.allow("status", "limit", "cursor", "consistency"); err != nil {
		return err
	}
	limit, err := q.number("limit", 100, 1, 1000)
	if err != nil {
		return err
	}
	status := q.query.Get("status")
	switch status {
	case wire.TaskRunning, wire.TaskCancelled, wire.TaskCompleted, wire.TaskFailed:
	default:
		if q.query.Has("status") {
			return bad("status", "status must be running, cancelled, completed or failed, not %s", echo(status))
		}
	}
	var before event.ID
	if q.query.Has("cursor") {
		if before, err = ulid("cursor", q.query.Get("cursor")); err != nil {
			return err
		}
	}
	if err := q.fresh(); err != nil {
		return err
	}
	out := wire.TaskList{Tasks: []wire.Task{}}
	tasks := s.deps.State.Tasks()
	for i := range tasks {
		t := &tasks[i]
		if !before.IsZero() && t.ID.Compare(before) >= 0 || status != "" && t.Status.String() != status || !q.seesTask(t) {
			continue
		}
		if len(out.Tasks) == int(limit) {
			out.NextCursor = out.Tasks[limit-1].ID
			break
		}
		told, err := s.taskOf(t)
		if err != nil {
			return err
		}
		out.Tasks = append(out.Tasks, told)
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
	id, err := ulid("id", q.PathValue("id"))
	if err != nil {
		return err
	}
	if err := q.allow("wait_ms", "consistency"); err != nil {
		return err
	}
	wait, err := q.number("wait_ms", 0, 0, event.MaxWaitMS)
	if err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(q.Context(), time.Duration(wait)*time.Millisecond)
	defer cancel()
	stop := context.AfterFunc(s.undrained, cancel)
	defer stop()
	for {
		head := s.deps.Log.Head() // before looking
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
		out, err := s.taskOf(&t)
		if err != nil {
			return err
		}
		return q.answer(http.StatusOK, &out)
	}
}

// cancelTask answers DELETE /v1/tasks/{id}. What it has done so far stays done.
func (s *Server) cancelTask(q *request) error {
	id, err := q.task(event.TaskOpCancel)
	if err != nil {
		return err
	}
	if _, err := q.propose(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: event.TaskOpCancel}}); err != nil {
		return err
	}
	return q.noContent()
}

// resumeTask answers POST /v1/tasks/{id}/resume.
func (s *Server) resumeTask(q *request) error {
	id, err := q.task(event.TaskOpResume)
	if err != nil {
		return err
	}
	if err := q.decode(&struct{}{}, false, true); err != nil {
		return err
	}
	if _, err := q.propose(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: event.TaskOpResume}}); err != nil {
		return err
	}
	t, ok := s.deps.State.Task(id)
	if !ok {
		return taskNotFound(id)
	}
	out, err := s.taskOf(&t)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &out)
}

// task reads which task is to be changed, and refuses what can't be, so that it
// leaves no entry; one that ended meanwhile is refused by deciding.
func (q *request) task(op event.TaskOp) (event.ID, error) {
	id, err := ulid("id", q.PathValue("id"))
	if err != nil {
		return id, err
	}
	if err := q.allow(); err != nil {
		return id, err
	}
	t, ok := q.s.deps.State.Task(id)
	if !ok {
		if err := q.s.barrier(q.Context()); err != nil {
			return id, err
		}
		if t, ok = q.s.deps.State.Task(id); !ok {
			return id, taskNotFound(id)
		}
	}
	if (t.Status == event.TaskCompleted || t.Status == event.TaskFailed) && q.Header["Idempotency-Key"] == nil {
		verb := "cancelled"
		if op == event.TaskOpResume {
			verb = "resumed"
		}
		return id, event.Problemf(event.CodeConflict, "id", "task %s has %s at %s: it can't be %s", id, t.Status, wire.Time(t.EndedAt), verb)
	}
	return id, nil
}

// taskOf returns a task as it is told.
func (s *Server) taskOf(t *event.TaskView) (wire.Task, error) {
	id := t.ID.String()
	out := wire.Task{
		ID: id, TaskID: id, Type: t.Kind.String(), Queue: t.Queue, Status: t.Status.String(),
		Total: t.Total, Done: t.Done, Skipped: t.Skipped, Actor: t.Actor,
		CreatedAt: wire.Time(t.CreatedAt), UpdatedAt: wire.Time(t.UpdatedAt), EndedAt: wire.Time(t.EndedAt), Nodes: []wire.TaskNode{},
	}
	if t.Kind == event.TaskErase {
		out.Nodes = s.erasedOn(t)
	}
	if t.Kind == event.TaskReplay {
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

package api

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/background/undo"
	"github.com/qlogd/qlogd/event"
)

// Tasks returns what carries out each kind of task on the leader, verifications aside.
func (s *Server) Tasks(propose task.Propose) map[event.TaskKind]task.Run {
	mover := task.Mover{
		Propose: task.InTurn(propose), Queue: s.deps.State.Queue, Log: s.deps.Log,
	}
	letters := dead.Mover{Finder: s.deadLetters(s.deps.State), Mover: mover}
	undoer := undo.Runner{Finder: s.undoer(), Mover: mover}
	return map[event.TaskKind]task.Run{
		event.TaskReplay: letters.Replay, event.TaskPurge: letters.Purge,
		event.TaskUndo: undoer.Run, event.TaskErase: s.deps.Eraser.RunTask,
	}
}

func taskNotFound(id event.ID) *event.Problem {
	return event.Problemf(event.CodeTaskNotFound, "id",
		"task %s does not exist, or ended more than 7 days ago", id)
}

// listTasks answers GET /v1/tasks?status=&limit=&cursor=, the newest first.
func (s *Server) listTasks(q *request) error {
	q.read("status", "limit", "cursor", "consistency")
	limit, before := q.limit(100, 1000), q.queryID("cursor")
	status := q.choice("status",
		wire.TaskRunning, wire.TaskCancelled, wire.TaskCompleted, wire.TaskFailed)
	q.fresh()
	var out wire.TaskList
	out.Tasks, out.NextCursor = page(q, s.deps.State.Tasks(), limit, func(t *event.TaskView) bool {
		return (before.IsZero() || t.ID.Compare(before) < 0) &&
			(status == "" || t.Status.String() == status) && q.sees(t.Queue)
	}, s.taskOf, func(t *wire.Task) string { return t.ID })
	return q.answer(http.StatusOK, &out)
}

// getTask answers GET /v1/tasks/{id}?wait_ms=, when the task has ended or the wait is over.
func (s *Server) getTask(q *request) error {
	q.read("wait_ms", "consistency")
	id, wait := q.pathID("id"), q.number("wait_ms", 0, 0, event.MaxWaitMS)
	if q.fresh(); q.err != nil {
		return q.err
	}
	q.patience = time.Duration(wait) * time.Millisecond
	ctx, cancel := context.WithTimeout(q.Context(), q.patience)
	defer cancel()
	defer context.AfterFunc(s.undrained, cancel)()
	for {
		head := s.deps.Log.Head() // before the state is read
		t, ok := s.deps.State.Task(id)
		if !ok || !q.sees(t.Queue) {
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

// addSpec adds a task's rate, and what it waits for.
func (s *Server) addSpec(t *event.TaskView, out *wire.Task) error {
	if t.Kind != event.TaskReplay && t.Kind != event.TaskUndo {
		return nil
	}
	c, err := s.content(event.RefOf(t.ID))
	if err != nil || c == nil {
		return err
	}
	spec, err := task.DecodeSpec[struct { // both kinds' have these
		To   string `json:"to"`
		Rate int64  `json:"rate_per_second"`
	}](c.Spec)
	if err != nil {
		return err
	}
	out.RatePerSecond = nilIfZero(spec.Rate)
	if q, ok := s.deps.State.Queue(spec.To); ok && t.Kind == event.TaskUndo &&
		t.Status == event.TaskRunning {
		if count, bytes := task.Room(&q); count <= 0 || bytes <= 0 {
			out.Waiting = "for room in queue " + spec.To
		}
	}
	return nil
}

func (q *request) answerTask(status int, t *event.TaskView) error {
	out := get(q, func() (wire.Task, error) { return q.s.taskOf(t) })
	return q.answer(status, &out)
}

// cancelTask answers DELETE /v1/tasks/{id}. What the task has done so far is not undone.
func (s *Server) cancelTask(q *request) error {
	id := q.changeableTask("cancelled").ID
	q.commit(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: event.TaskOpCancel}})
	return q.answer(http.StatusNoContent, nil)
}

// resumeTask answers POST /v1/tasks/{id}/resume.
func (s *Server) resumeTask(q *request) error {
	t := q.changeableTask("resumed")
	if p := t.MayResume(); p != nil && q.err == nil {
		q.err = p
	}
	id := t.ID
	q.noBody()
	q.commit(&event.Command{UpdateTask: &event.UpdateTask{ID: id, Op: event.TaskOpResume}})
	t = found(q, id, s.deps.State.Task, taskNotFound)
	return q.answerTask(http.StatusOK, &t)
}

// changeableTask returns the task in the path. It rejects a change of a final task here, so that it
// leaves no entry; the state machine rejects it for a task that ends meanwhile.
func (q *request) changeableTask(done string) event.TaskView {
	id := q.read().pathID("id")
	t := get(q, func() (event.TaskView, error) {
		return currently(q, id, q.s.deps.State.Task, taskNotFound)
	})
	if q.err == nil && t.Status.Final() && !q.keyed() {
		q.err = event.Problemf(event.CodeConflict, "id", "task %s has %s at %s: it can't be %s",
			id, t.Status, wire.Time(t.EndedAt), done)
	}
	return t
}

// taskOf returns a task's view.
func (s *Server) taskOf(t *event.TaskView) (wire.Task, error) {
	id := t.ID.String()
	out := wire.Task{
		ID: id, TaskID: id, Type: t.Kind.String(), Queue: t.Queue, Status: t.Status.String(),
		Total: t.Total, Done: t.Done, Skipped: t.Skipped, Actor: t.Actor,
		CreatedAt: wire.Time(t.CreatedAt), UpdatedAt: wire.Time(t.UpdatedAt),
		EndedAt: wire.Time(t.EndedAt),
	}
	if t.Kind == event.TaskErase {
		out.Nodes, out.NotErased = s.erasedOn(t), wire.NotErased
	}
	err := s.addSpec(t, &out)
	if err == nil && t.Status.Final() && !t.End.IsZero() {
		var c *event.Content
		if c, err = s.content(t.End); err == nil && c != nil {
			out.Error = c.Error
			switch {
			case len(c.Result) == 0:
			case t.Kind == event.TaskVerify:
				err = wire.Unmarshal(c.Result, &out.Verified)
			default:
				err = wire.Unmarshal(c.Result, &out.Result)
			}
		}
	}
	if t.Kind == event.TaskVerify {
		s.addVerification(t, &out)
	}
	return out, err
}

// accepted answers with a task as it was created: a repeated request gets the first answer,
// regardless of the task's progress.
func (q *request) accepted(id event.ID) error {
	// From the log, because the state keeps only some of the ended tasks.
	e, err := q.s.deps.Log.Event(event.RefOf(id))
	if err != nil {
		return err
	}
	q.w.Header().Set("Location", "/v1/tasks/"+id.String())
	return q.answerTask(http.StatusAccepted, new(event.TaskOf(e)))
}

// erasedOn returns the members that carry out a running erasure, or the nodes that did.
func (s *Server) erasedOn(t *event.TaskView) []wire.TaskNode {
	at := map[string]int64{}
	var names []string
	for _, n := range t.Nodes {
		at[n.Node] = n.At
		names = append(names, n.Node)
	}
	if t.Status == event.TaskRunning {
		names = s.deps.Eraser.Members()
	}
	out := map[string]wire.TaskNode{}
	for _, name := range names {
		// To a user, a node whose directory was wiped meanwhile is the same node.
		node, _, _ := strings.Cut(name, "/")
		out[node] = wire.TaskNode{Node: node, Complete: at[name] > 0, At: wire.Time(at[name])}
	}
	return slices.SortedFunc(maps.Values(out), func(a, b wire.TaskNode) int {
		return strings.Compare(a.Node, b.Node)
	})
}

// eraseMessage answers POST /v1/messages/{id}/erase.
func (s *Server) eraseMessage(q *request) error {
	var body wire.EraseRequest
	id := q.read().pathID("id")
	q.body(&body)
	return q.erase(&erasure.Spec{Message: id, Reason: body.Reason}, body.DryRun,
		messageNotFound(id))
}

// eraseKey answers POST /v1/queues/{queue}/erase.
func (s *Server) eraseKey(q *request) error {
	var body wire.EraseKeyRequest
	name := q.read().queue()
	q.body(&body)
	if body.Key == "" {
		q.refuse("key", "key is needed: 1 to %d bytes", event.MaxKeyBytes)
	}
	q.do(func() error { return within("key", body.Key, event.MaxKeyBytes) })
	return q.erase(&erasure.Spec{Queue: name, Key: body.Key, Reason: body.Reason}, body.DryRun,
		queueNotFound(name))
}

// erase creates an erasure task, or with dry counts what it would erase. none is the error if there
// is nothing to erase.
func (q *request) erase(spec *erasure.Spec, dry bool, none *event.Problem) error {
	if spec.Reason == "" && !dry { // nothing else will explain the gap in the log
		q.refuse("reason", "reason is needed: 1 to %d bytes, which are kept", maxReason)
	}
	q.because(spec.Reason)
	q.barrier()
	var out wire.Erasable
	res := q.commitFresh("", "", func() (_ *event.Command, err error) {
		_, exists := q.s.deps.State.Queue(spec.Queue)
		if !exists || dry { // counting a key is expensive
			if out, err = q.s.deps.Eraser.DryRun(q.Context(), spec); err != nil {
				return nil, err
			}
			if !exists && out.Messages == 0 {
				return nil, none
			}
		}
		if dry {
			return nil, nil
		}
		total := int64(0)
		if !spec.Message.IsZero() {
			total = out.Messages
		}
		return task.Create(event.TaskErase, spec.Queue, total, spec)
	})
	if q.err == nil && !dry {
		return q.accepted(res.ID)
	}
	out.NotErased = wire.NotErased
	return q.answer(http.StatusOK, &out)
}

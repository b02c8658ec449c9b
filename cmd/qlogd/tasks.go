package main

import (
	"errors"

	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// newTasks returns the runner of tasks while this node leads.
func (e *engine) newTasks() *task.Runner {
	mover := dead.Mover{
		Finder:  e.api.DeadLetters(),
		Propose: task.InTurn(e.replica.Propose), Head: e.log.Head, Wait: e.log.Wait,
	}
	return task.New(task.Options{
		Propose: e.replica.Propose,
		Barrier: e.replica.Barrier,
		Tasks:   e.machine.Tasks,
		Content: e.taskContent,
		Leader:  e.replica.Leader,
		Run: map[event.TaskKind]task.Run{
			event.TaskReplay: mover.Replay,
			event.TaskPurge:  mover.Purge,
			event.TaskErase:  e.eraser().Run,
		},
		Logger: e.logger,
	})
}

// taskContent reads what a task does. Where that is gone, the task fails.
func (e *engine) taskContent(ref event.Ref) (*event.Content, error) {
	c, err := e.log.Content(ref)
	if errors.Is(err, log.ErrErased) || errors.Is(err, log.ErrGone) {
		return nil, event.Problemf(event.CodeHistoryExpired, "",
			"what the task was to do has been erased, or has gone with the history")
	}
	return c, err
}

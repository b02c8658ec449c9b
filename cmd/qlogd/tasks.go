package main

import (
	"errors"

	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// newTasks makes what carries tasks out while this node leads.
func (e *engine) newTasks() *task.Runner {
	mover := dead.Mover{
		Finder:  dead.Finder{State: e.machine, Contents: e.api.Contents},
		Propose: task.InTurn(e.replica.Propose), Head: e.log.Head, Wait: e.log.Wait, Fits: e.api.Fits,
	}
	return task.New(task.Deps{
		Propose: e.replica.Propose,
		Barrier: e.replica.Barrier,
		Tasks:   e.machine.Tasks,
		Content: e.taskContent,
		Leader:  e.replica.Leader,
		Carriers: map[event.TaskKind]task.Carrier{
			event.TaskReplay: &dead.Replays{Mover: mover},
			event.TaskPurge:  &dead.Purges{Mover: mover},
			event.TaskErase:  e.eraser(),
		},
		Logger: e.logger,
	})
}

// taskContent reads what a task is to do. Where that is no more, the task can't
// ever go on.
func (e *engine) taskContent(ref event.Ref) (*event.Content, error) {
	c, err := e.log.Content(ref)
	if errors.Is(err, log.ErrErased) || errors.Is(err, log.ErrGone) {
		return nil, event.Problemf(event.CodeHistoryExpired, "", "what the task was to do has been erased, or has gone with the history")
	}
	return c, err
}

package task

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/event"
)

// ChunkItems is the most messages that one entry moves.
const ChunkItems = 500

// Message is what a running task keeps in memory of each message: there may be millions.
type Message struct {
	ID, First event.ID
	Last      event.Ref // the event with which it left its queue; zero: it is live
}

// Mover moves the messages of tasks into queues, in as many entries as it takes.
type Mover struct {
	Propose Propose
	Queue   func(name string) (event.QueueView, bool)
	Log     interface {
		Head() uint64
		Wait(ctx context.Context, index uint64) error
	}
}

// Fill returns a command for the next messages, as many as the target has room for, but at most
// most; nil if it moves none of them. took is the number of messages examined, skipped those of
// them that are not in the command.
type Fill func(next []Message, target *event.QueueView, most int) (
	took int, c *event.Command, skipped []event.Moved, err error)

// Move moves messages into the queue to, at most perSec a second (0: no limit), and waits while
// that is full. done is called with what became of the messages that fill examined.
func (m *Mover) Move(ctx context.Context, to string, perSec int64, all []Message, fill Fill,
	done func([]event.Moved)) error {
	limit, most := pace(perSec)
	for moved := 0; len(all) > 0; {
		if err := limit.WaitN(ctx, moved); err != nil {
			return err
		}
		moved = 0
		head := m.Log.Head() // before the state is read, so that Wait misses nothing
		target, ok := m.Queue(to)
		if !ok {
			return event.Problemf(event.CodeQueueNotFound, "to",
				"queue %s does not exist any more", to)
		}
		took, c, became, err := fill(all, &target, most)
		switch {
		case err != nil:
			return err
		case took == 0 && target.Stats.Messages() == 0:
			return event.Problemf(event.CodeConflict, "to",
				"message %s is larger than the max_bytes of queue %s", all[0].ID, to)
		case took == 0:
			if err := m.Log.Wait(ctx, head); err != nil {
				return err
			}
			continue
		}
		if c != nil {
			result, err := m.Propose.Move(ctx, c)
			if outrun(err) {
				continue
			}
			if err != nil {
				return err
			}
			for i := range result {
				if result[i].Code == "" {
					moved++
				}
			}
			became = append(became, result...)
		}
		all = all[took:]
		done(became)
	}
	return nil
}

// perSecond is how often a second a task with a rate proposes, if its rate allows.
const perSecond = 10

// pace returns a rate limiter for the commands of a task, and the most messages that one command
// may move: before each command, wait for as many as the previous one moved.
func pace(perSec int64) (limit *rate.Limiter, most int) {
	if perSec == 0 {
		return rate.NewLimiter(rate.Inf, 0), ChunkItems
	}
	most = int(min(max(perSec/perSecond, 1), ChunkItems))
	limit = rate.NewLimiter(rate.Limit(perSec), most)
	limit.AllowN(time.Now(), most) // the first chunk goes at once, each other one in its time
	return limit, most
}

// Room returns how many messages and bytes more fit into a queue.
func Room(q *event.QueueView) (count, bytes int64) {
	count, bytes = math.MaxInt64, math.MaxInt64
	if limit := q.Policy.MaxDepth; limit > 0 {
		count = max(limit-q.Stats.Messages(), 0)
	}
	if limit := q.Policy.MaxBytes; limit > 0 {
		bytes = limit - q.Stats.Bytes
	}
	return count, bytes
}

// Propose decides a command, as raft.Replica's does.
type Propose func(context.Context, *event.Command) (event.Result, error)

// errNotRunning ends a run: the task was cancelled. The runner knows that as well, unless the task
// was resumed already; then it starts again.
var errNotRunning = errors.New("the task was not running")

// Move decides a command that names a task, and returns what became of each message. A refusal is
// an error, and so is that the task does not run.
func (p Propose) Move(ctx context.Context, c *event.Command) ([]event.Moved, error) {
	res, err := p(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case res.Problem != nil:
		return nil, res.Problem
	}
	for i := range res.Moved {
		if res.Moved[i].Code == event.SkipTask {
			return nil, errNotRunning
		}
	}
	return res.Moved, nil
}

// outrun reports whether a command was refused because the state changed concurrently: it must be
// prepared again from the current state.
func outrun(err error) bool {
	p, refused := errors.AsType[*event.Problem](err)
	return refused && (p.Code == event.CodeQueueFull || p.Code == event.CodeStaleRevision)
}

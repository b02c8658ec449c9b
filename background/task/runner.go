// Package task runs work that takes many entries: large replays, purges, erasures. A task is part
// of the replicated state. It runs on the leader alone, and only proposes bounded commands that
// name it. The state machine rejects these once the task has ended, and skips what was done before,
// so the next leader continues with the rest, and nothing is lost or done twice (I21). A
// verification runs on the node that it names, which has its own Runner for it.
package task

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// Run runs a task until nothing of it is left, and returns how many messages it skipped, and its
// result as JSON, nil for none. spec is what the task's creation said (Content.Spec). It is called
// again after a change of leader and after each error, and may run on two nodes for a moment: every
// proposal must be safe to repeat. ctx ends when the task is cancelled or this node no longer
// leads. A final error ends the task as failed.
type Run func(ctx context.Context, t event.TaskView, spec []byte) (
	skipped int64, result []byte, err error)

// Create returns the command that creates a task with a spec.
func Create(kind event.TaskKind, queue string, total int64, spec any) (*event.Command, error) {
	b, err := json.Marshal(spec, json.Deterministic(true))
	return &event.Command{CreateTask: &event.CreateTask{
		Kind: kind, Queue: queue, Total: total,
		Content: event.EncodeContent(&event.Content{Spec: b}),
	}}, err
}

// DecodeSpec reads the spec of a task.
func DecodeSpec[T any](b []byte) (*T, error) {
	s := new(T)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, event.Problemf(event.CodeInvalidArgument, "", "decode the task's spec: %s", err)
	}
	return s, nil
}

// Options are what a Runner works with.
type Options struct {
	Propose Propose
	// Barrier returns when this node has applied all that was committed before. A leader needs it.
	Barrier func(context.Context) error
	// Tasks returns all tasks, the newest first.
	Tasks func() []event.TaskView
	// Content reads what users wrote in an event.
	Content func(event.Ref) (*event.Content, error)
	// Leader reports whether this node leads. Call Wake when it changes. Nil: Tasks returns this
	// node's own, which run wherever the leader is.
	Leader func() bool
	Run    map[event.TaskKind]Run
	Logger *slog.Logger
}

// Runner runs tasks while this node leads, or its own.
type Runner struct {
	*loop.Loop // its Wake must be called when leadership or a task changes
	o          Options
	work       sync.WaitGroup

	mu     sync.Mutex
	active map[event.ID]context.CancelFunc // guarded by mu: of those that run here
}

// maxActive bounds how many tasks run at a time: each keeps in memory what it has to do. It is well
// above atOnce, for most only wait, for their rate or for room in a full queue, and must not hold
// up the others. Erasures are not counted: they wait for nodes, perhaps for one that is down for
// days.
const maxActive = 100

// atOnce bounds the proposals of tasks in flight, which compete with clients' writes.
const atOnce = 4

// InTurn bounds how many calls of propose are in flight.
func InTurn(propose Propose) Propose {
	turns := make(chan struct{}, atOnce)
	return func(ctx context.Context, c *event.Command) (event.Result, error) {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return event.Result{}, ctx.Err()
		}
		defer func() { <-turns }()
		return propose(ctx, c)
	}
}

// retryAfter is the pause after an error.
const retryAfter = time.Second

// New returns a Runner; its method Run starts it.
func New(o Options) *Runner {
	return &Runner{
		Loop: loop.New(time.Hour, retryAfter), o: o, active: map[event.ID]context.CancelFunc{},
	}
}

// Run works until ctx ends, and returns when no task is active any more.
func (r *Runner) Run(ctx context.Context) {
	r.Loop.Run(ctx, r.once, r.o.Logger.Debug, "tasks wait for the log to be applied")
	r.work.Wait()
}

// once starts and cancels tasks, so that those run that should.
func (r *Runner) once(ctx context.Context) error {
	// From before the tasks are listed: a task's end is proposed before it is removed from active,
	// so that what has ended is not listed any more.
	r.mu.Lock()
	defer r.mu.Unlock()
	running, err := r.running(ctx)
	if err != nil {
		return err
	}
	for id, cancel := range r.active {
		same := func(t event.TaskView) bool { return t.ID == id }
		if !slices.ContainsFunc(running, same) {
			cancel()
		}
	}
	room := maxActive
	for _, t := range running { // the oldest first, so that those that are active have their room
		if t.Kind != event.TaskErase {
			if room--; room < 0 {
				continue
			}
		}
		// One that is active was perhaps cancelled and resumed: it starts again once it has ended.
		if r.active[t.ID] != nil {
			continue
		}
		working, cancel := context.WithCancel(ctx)
		r.active[t.ID] = cancel
		r.work.Go(func() {
			defer cancel()
			r.carryOut(working, t)
			r.mu.Lock()
			delete(r.active, t.ID)
			r.mu.Unlock()
			r.Wake()
		})
	}
	return nil
}

// running returns the tasks that this node runs, the oldest first.
func (r *Runner) running(ctx context.Context) ([]event.TaskView, error) {
	if r.o.Leader != nil {
		if !r.o.Leader() {
			return nil, nil
		}
		// A new leader may not have applied yet what the one before had committed.
		if err := r.o.Barrier(ctx); err != nil {
			return nil, err
		}
	}
	running := slices.DeleteFunc(r.o.Tasks(), func(t event.TaskView) bool {
		return t.Status != event.TaskRunning || r.o.Run[t.Kind] == nil
	})
	slices.Reverse(running)
	return running, nil
}

// carryOut runs a task once. After an error it pauses: the task is then started again.
func (r *Runner) carryOut(ctx context.Context, t event.TaskView) {
	logger := r.o.Logger.With("task", t.ID.String(), "kind", t.Kind.String(), "queue", t.Queue)
	logger.Info("task started", "done", t.Done, "total", t.Total)
	failed, err := r.try(ctx, t)
	switch {
	case ctx.Err() != nil:
		logger.Info("task released: cancelled, or not this node's any more")
	case err == nil:
		logger.Info("task ended", "failed", failed)
	default:
		logger.Warn("task interrupted, retrying", "error", err, "in", retryAfter)
		loop.Sleep(ctx, retryAfter)
	}
}

// try runs a task once, and proposes its end.
func (r *Runner) try(ctx context.Context, t event.TaskView) (failed bool, err error) {
	end := event.UpdateTask{ID: t.ID, Op: event.TaskOpComplete}
	c, err := r.o.Content(event.RefOf(t.ID))
	switch {
	case err == nil:
		var result []byte
		end.Skipped, result, err = r.o.Run[t.Kind](ctx, t, c.Spec)
		if err == nil && result != nil {
			end.Content = event.EncodeContent(&event.Content{Result: result})
		}
	case errors.Is(err, log.ErrErased), errors.Is(err, log.ErrGone):
		err = event.Problemf(event.CodeHistoryExpired, "",
			"what the task was to do has been erased, or has gone with the history")
	}
	if err != nil {
		p, final := final(err)
		if !final || ctx.Err() != nil {
			return false, err
		}
		failed, end.Op = true, event.TaskOpFail
		end.Content = event.EncodeContent(&event.Content{Error: p.Detail})
	}
	res, err := r.o.Propose(ctx, &event.Command{UpdateTask: &end})
	if err == nil && res.Problem != nil {
		if _, ended := final(res.Problem); !ended { // else it has ended meanwhile, or is gone
			err = res.Problem
		}
	}
	return failed, err
}

// final reports whether an error ends a task: a refusal that would come again, however long it
// waits.
func final(err error) (*event.Problem, bool) {
	p, ok := errors.AsType[*event.Problem](err)
	return p, ok && !p.Temporary() && p.Code != "internal"
}

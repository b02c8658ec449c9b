// Package task carries out what takes many entries: large replays, purges,
// erasures. A task is part of the replicated state; its runner works on the
// leader alone, and only ever proposes bounded commands that name the task.
// Deciding refuses these where the task is not running any more, and passes over
// what was done before: so a change of the leader loses nothing and doubles
// nothing, and who leads next begins anew with what is left.
package task

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
)

// Carrier carries out the tasks of one kind.
type Carrier interface {
	// Carry works on a running task until nothing of it is left, and returns how
	// many messages it passed over. It is begun anew after a change of the leader
	// and after each error, and may run on two nodes for a moment: every proposal
	// must be safe to repeat. spec is what the task's creation said (Content.Spec).
	// ctx ends when the task is cancelled or this node is no longer the one to do
	// it. An error for which Fails is true ends the task as failed, with its text;
	// after any other it is tried again.
	Carry(ctx context.Context, t event.TaskView, spec []byte) (skipped int64, err error)
}

// Deps is what a Runner stands on.
type Deps struct {
	// Propose gets a command decided, as raft.Replica's.
	Propose func(context.Context, *event.Command) (event.Result, error)
	// Barrier returns when this node has applied all that was committed before.
	Barrier func(context.Context) error
	// Tasks returns all tasks, the newest first.
	Tasks func() []event.TaskView
	// Content reads what users wrote in an event.
	Content func(event.Ref) (*event.Content, error)
	// Leader tells whether this node leads. Wake is to be called when it changes.
	Leader   func() bool
	Carriers map[event.TaskKind]Carrier
	Logger   *slog.Logger
}

// Runner runs tasks while this node leads.
type Runner struct {
	d    Deps
	wake chan struct{}
	work sync.WaitGroup

	mu     sync.Mutex
	active map[event.ID]context.CancelFunc // tasks in hand
	busy   int                             // of these, those that count
}

// inHand bounds how many tasks are in hand at a time: each keeps in memory what it
// has to do. It is well above what works at once (InTurn), for most of those that
// take long only wait, for their pace or for room in a full queue, and must not
// hold up the others. Erasures are not counted: they mostly wait for nodes, perhaps
// for one that is down for days, and take turns by themselves where they do not.
const inHand = 100

// atOnce bounds how many proposals of tasks are under way at a time: they share the
// leader with all else.
const atOnce = 4

// InTurn returns propose for carriers: who would be one too many waits.
func InTurn(propose func(context.Context, *event.Command) (event.Result, error)) func(context.Context, *event.Command) (event.Result, error) {
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

// againAfter is how long it takes until a task that met an error goes on.
var againAfter = time.Second

// New returns a Runner; Run starts it.
func New(d Deps) *Runner {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return &Runner{d: d, wake: make(chan struct{}, 1), active: map[event.ID]context.CancelFunc{}}
}

// Wake lets the runner look anew: at who leads, and at which tasks there are. It
// never blocks.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, and returns when nothing is in hand any more.
func (r *Runner) Run(ctx context.Context) {
	defer r.work.Wait()
	r.Wake()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		if !r.d.Leader() {
			r.keep(nil)
			continue
		}
		// Who has just begun to lead may not have applied yet what the one before
		// had committed.
		if err := r.d.Barrier(ctx); err != nil {
			if ctx.Err() == nil {
				time.AfterFunc(againAfter, r.Wake)
			}
			continue
		}
		r.keep(r.running())
		r.begin(ctx)
	}
}

// running returns the tasks that run, the oldest first.
func (r *Runner) running() []event.TaskView {
	running := slices.DeleteFunc(r.d.Tasks(), func(t event.TaskView) bool { return t.Status != event.TaskRunning })
	slices.Reverse(running)
	return running
}

// keep lets go of what is in hand but is not among running.
func (r *Runner) keep(running []event.TaskView) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, cancel := range r.active {
		if !slices.ContainsFunc(running, func(t event.TaskView) bool { return t.ID == id }) {
			cancel()
		}
	}
}

// begin takes in hand what is not yet.
func (r *Runner) begin(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Under the lock: a task's end is told before it is let go of, so that what is
	// not in hand any more because it has ended is not among them.
	for _, t := range r.running() {
		if _, there := r.active[t.ID]; there {
			continue // also one that was cancelled and resumed: it wakes us when it has let go
		}
		counts := t.Kind != event.TaskErase
		if counts && r.busy >= inHand {
			continue // who ends wakes us
		}
		carrier := r.d.Carriers[t.Kind]
		if carrier == nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		r.active[t.ID] = cancel
		if counts {
			r.busy++
		}
		r.work.Go(func() {
			defer func() {
				cancel()
				r.mu.Lock()
				delete(r.active, t.ID)
				if counts {
					r.busy--
				}
				r.mu.Unlock()
				r.Wake()
			}()
			r.carry(ctx, t, carrier)
		})
	}
}

// carry works on one task until it has ended or ctx has.
func (r *Runner) carry(ctx context.Context, t event.TaskView, carrier Carrier) {
	logger := r.d.Logger.With("task", t.ID.String(), "kind", t.Kind.String(), "queue", t.Queue)
	logger.Info("task begins here", "done", t.Done, "total", t.Total)
	for {
		end, err := r.once(ctx, t, carrier)
		if err == nil {
			_, err = r.update(ctx, end)
		}
		if ctx.Err() != nil {
			logger.Info("task is let go of here")
			return
		}
		if err == nil {
			logger.Info("task has ended", "failed", end.Op == event.TaskOpFail)
			return
		}
		logger.Warn("task could not go on; trying again", "error", err, "in", againAfter)
		again := time.NewTimer(againAfter)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
}

// once carries a task to its end, and returns how to tell it.
func (r *Runner) once(ctx context.Context, t event.TaskView, carrier Carrier) (*event.UpdateTask, error) {
	c, err := r.d.Content(event.RefOf(t.ID))
	var skipped int64
	if err != nil {
		err = fmt.Errorf("what the task is to do: %w", err)
	} else {
		skipped, err = carrier.Carry(ctx, t, c.Spec)
	}
	switch {
	case err == nil:
		return &event.UpdateTask{ID: t.ID, Op: event.TaskOpComplete, Skipped: skipped}, nil
	case ctx.Err() != nil || !Fails(err):
		return nil, err
	}
	why := err.Error()
	var p *event.Problem
	if errors.As(err, &p) {
		why = p.Detail
	}
	return &event.UpdateTask{ID: t.ID, Op: event.TaskOpFail, Skipped: skipped, Content: event.EncodeContent(&event.Content{Error: why})}, nil
}

func (r *Runner) update(ctx context.Context, u *event.UpdateTask) (event.Result, error) {
	res, err := r.d.Propose(ctx, &event.Command{UpdateTask: u})
	if err == nil && res.Problem != nil && Fails(res.Problem) {
		return res, nil // it has ended meanwhile, or is gone: no reason to try again
	}
	if err == nil && res.Problem != nil {
		err = res.Problem
	}
	return res, err
}

// Fails reports whether an error ends a task: a refusal that would come again,
// whatever is waited for.
func Fails(err error) bool {
	var p *event.Problem
	if !errors.As(err, &p) || p.Unknown {
		return false
	}
	switch p.Code {
	case event.CodeQueueFull, event.CodeStaleRevision, "no_leader", "overloaded", "shutting_down", "insufficient_storage", "internal":
		return false
	}
	return true
}

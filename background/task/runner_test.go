package task

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// world is a cluster as a runner sees it.
type world struct {
	mu     sync.Mutex
	leads  bool
	tasks  []event.TaskView // the newest first
	ended  []event.UpdateTask
	refuse error // of Propose
	r      *Runner
}

func (w *world) lead(leads bool) {
	w.mu.Lock()
	w.leads = leads
	w.mu.Unlock()
	w.r.Wake()
}

// add begins a task; its id rises.
func (w *world) add(kind event.TaskKind) event.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := event.NewID(1000, uint64(len(w.tasks)+1), 0)
	w.tasks = append([]event.TaskView{{ID: id, Kind: kind}}, w.tasks...)
	w.r.Wake()
	return id
}

func (w *world) set(id event.ID, s event.TaskStatus) {
	i := slices.IndexFunc(w.tasks, func(t event.TaskView) bool { return t.ID == id })
	w.tasks[i].Status = s
	w.r.Wake()
}

// become changes a task's status.
func (w *world) become(id event.ID, s event.TaskStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(id, s)
}

func (w *world) propose(_ context.Context, c *event.Command) (event.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return event.Result{}, w.refuse
	}
	u := c.UpdateTask
	w.ended = append(w.ended, *u)
	w.set(u.ID, event.TaskCompleted)
	return event.Result{}, nil
}

func (w *world) all() []event.TaskView {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.tasks)
}

func (w *world) ends() []event.UpdateTask {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ended)
}

// inWorld runs a test with a runner whose replays do what run does.
func inWorld(t *testing.T, run Run, do func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{leads: true}
		w.r = New(Options{
			Propose: w.propose, Tasks: w.all, Logger: slog.New(slog.DiscardHandler),
			Barrier: func(ctx context.Context) error { return ctx.Err() },
			Content: func(event.Ref) (*event.Content, error) {
				return &event.Content{Spec: []byte(`{"n":1}`)}, nil
			},
			Leader: func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.leads
			},
			Run: map[event.TaskKind]Run{event.TaskReplay: run},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.r.Run(ctx); close(ended) }()
		do(t, w)
		cancel()
		<-ended
	})
}

func TestRunsWhatIsCreated(t *testing.T) {
	var specs []string
	inWorld(t, func(_ context.Context, _ event.TaskView, spec []byte) (int64, []byte, error) {
		specs = append(specs, string(spec))
		return 3, nil, nil
	}, func(t *testing.T, w *world) {
		w.add(event.TaskErase) // nobody carries these here
		id := w.add(event.TaskReplay)
		synctest.Wait()
		want := event.UpdateTask{ID: id, Op: event.TaskOpComplete, Skipped: 3}
		require.DeepEqual(t, w.ends(), []event.UpdateTask{want})
		require.EqualSlices(t, specs, []string{`{"n":1}`})
	})
}

func TestOnlyTheLeaderWorks(t *testing.T) {
	var begun atomic.Int32
	inWorld(t, func(ctx context.Context, _ event.TaskView, _ []byte) (int64, []byte, error) {
		if begun.Add(1) == 2 {
			return 0, nil, nil
		}
		<-ctx.Done()
		return 0, nil, ctx.Err()
	}, func(t *testing.T, w *world) {
		w.lead(false)
		synctest.Wait()
		w.add(event.TaskReplay)
		synctest.Wait()
		require.Equal(t, begun.Load(), 0, "begun by who does not lead")
		w.lead(true)
		synctest.Wait()
		w.lead(false)
		synctest.Wait()
		require.True(t, begun.Load() == 1 && len(w.ends()) == 0, "begun %d, %v", begun.Load(), w.ends())
		w.lead(true) // goes on, as another node would
		synctest.Wait()
		require.True(t, begun.Load() == 2 && len(w.ends()) == 1, "begun %d, %v", begun.Load(), w.ends())
	})
}

func TestCancelAndResume(t *testing.T) {
	var begun atomic.Int32
	inWorld(t, func(ctx context.Context, _ event.TaskView, _ []byte) (int64, []byte, error) {
		if begun.Add(1) == 2 {
			return 0, nil, nil
		}
		<-ctx.Done()
		time.Sleep(time.Minute) // it takes a while to let go, and is resumed meanwhile
		return 0, nil, ctx.Err()
	}, func(t *testing.T, w *world) {
		id := w.add(event.TaskReplay)
		synctest.Wait()
		w.become(id, event.TaskIsCancelled)
		synctest.Wait()
		w.become(id, event.TaskRunning)
		synctest.Wait()
		require.Equal(t, begun.Load(), 1, "begun twice at once")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.True(t, begun.Load() == 2 && len(w.ends()) == 1, "begun %d, %v", begun.Load(), w.ends())
	})
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err   error
		fails bool
	}{
		{event.Problemf(event.CodeQueueNotFound, "to", "queue b does not exist"), true},
		{errors.New("the disk"), false},
		{event.Problemf("no_leader", "", "nobody"), false},
		{&event.Problem{Code: event.CodeConflict, Unknown: true}, false},
	} {
		var begun atomic.Int32
		inWorld(t, func(context.Context, event.TaskView, []byte) (int64, []byte, error) {
			if begun.Add(1) == 1 {
				return 1, nil, c.err
			}
			return 0, nil, nil
		}, func(t *testing.T, w *world) {
			w.add(event.TaskReplay)
			time.Sleep(time.Minute)
			synctest.Wait()
			e := w.ends()
			require.True(t, len(e) == 1 && (e[0].Op == event.TaskOpFail) == c.fails,
				"%v: %+v", c.err, e)
			require.Equal(t, begun.Load() == 1, c.fails, "%v: begun %d times", c.err, begun.Load())
			if c.fails {
				content, err := event.DecodeContent(e[0].Content.Bytes)
				require.NoError(t, err)
				require.Equal(t, content.Error, "queue b does not exist")
			}
		})
	}
}

// An end that could not be proposed is proposed later; what was done before is done again,
// which deciding skips.
func TestEndIsProposedAgain(t *testing.T) {
	nothing := func(context.Context, event.TaskView, []byte) (_ int64, _ []byte, _ error) { return }
	inWorld(t, nothing, func(t *testing.T, w *world) {
		w.refuse = event.Problemf("no_leader", "", "nobody")
		w.add(event.TaskReplay)
		time.Sleep(10 * time.Second)
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, len(w.ends()), 1, "%v", w.ends())
	})
}

// gauge counts what goes on at the same time, and the most of it.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

// work takes a second.
func (g *gauge) work() {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	time.Sleep(time.Second)
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
}

func TestBoundedActive(t *testing.T) {
	var g gauge
	inWorld(t, func(context.Context, event.TaskView, []byte) (int64, []byte, error) {
		g.work()
		return 0, nil, nil
	}, func(t *testing.T, w *world) {
		for range 3 * maxActive {
			w.add(event.TaskReplay)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, len(w.ends()) == 3*maxActive && g.most == maxActive,
			"%d ended, %d at once", len(w.ends()), g.most)
	})
}

func TestFewProposeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		var all atomic.Int32
		propose := InTurn(func(context.Context, *event.Command) (event.Result, error) {
			g.work()
			all.Add(1)
			return event.Result{}, nil
		})
		for range 3 * atOnce {
			go func() { _, _ = propose(t.Context(), nil) }()
		}
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := propose(ended, nil)
		require.ErrorIs(t, err, context.Canceled, "in line after its end")
		time.Sleep(10 * time.Second)
		require.True(t, all.Load() == 3*atOnce && g.most == atOnce,
			"%d proposed, %d at once", all.Load(), g.most)
	})
}
